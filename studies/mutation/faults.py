"""Forty slips of a developer, each in one line: signs, comparisons, fields, units, what was dropped or forgotten.

They were chosen from reading the code, and none with a look at the tests.
"""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["FAULTS", "Fault"]


@dataclass(frozen=True, slots=True)
class Fault:
    """One line of the program, and what it becomes."""

    path: str
    """The file, from the repository's root."""
    before: str
    """What stands in it exactly once."""
    after: str
    """The same with the fault."""
    likely: tuple[str, ...] = field(default=(), compare=False)
    """The tests that are run first; those of the same name, as ``tests/`` mirrors ``autotune/``."""


FAULTS = (
    # the search
    Fault(
        "autotune/search/confirm.py",
        "interval is not None and interval[0] > self.noise",
        "interval is not None and interval[1] > self.noise",
        ("tests/search/test_confirm.py",),
    ),
    Fault(
        "autotune/search/confirm.py",
        "if all(attempt.outcome is Outcome.OK for attempt in attempts.values()):",
        "if any(attempt.outcome is Outcome.OK for attempt in attempts.values()):",
        ("tests/search/test_confirm.py",),
    ),
    Fault(
        "autotune/search/space.py",
        "return whole // (batch_size * self.base.ranks) if whole",
        "return whole // batch_size if whole",
        ("tests/search/test_space.py",),
    ),
    Fault(
        "autotune/search/predict.py",
        "bounds=batch / seconds * np.exp(BOUND_ERRORS * errors)",
        "bounds=batch / seconds * np.exp(-BOUND_ERRORS * errors)",
        ("tests/search/test_predict.py",),
    ),
    Fault(
        "autotune/search/outlook.py",
        "np.exp(hopes[self.is_open].max() - self.best_log)",
        "np.exp(hopes.max() - self.best_log)",
        ("tests/search/test_outlook.py",),
    ),
    Fault(
        "autotune/search/outlook.py",
        "return larger and more_workers and _in_flight(config) >= _in_flight(failed)",
        "return more_workers and _in_flight(config) >= _in_flight(failed)",
        ("tests/search/test_outlook.py",),
    ),
    Fault(
        "autotune/search/surrogate.py",
        "residuals = np.log(rates) - prior[index]",
        "residuals = prior[index] - np.log(rates)",
        ("tests/search/test_surrogate.py",),
    ),
    Fault(
        "autotune/search/probe.py",
        "min(failed, default=allowed[-1] + 1) - 1)",
        "min(failed, default=allowed[-1]))",
        ("tests/search/test_probe.py",),
    ),
    Fault(
        "autotune/search/study.py",
        "sorted(near)[: most - 1]",
        "sorted(near)[:most]",
        ("tests/search/test_study.py",),
    ),
    Fault(
        "autotune/search/study.py",
        "return measured.epoch_peak_bytes / self.room.of(measured.memory_limit_bytes) - 1",
        "return measured.epoch_peak_bytes / self.room.of(measured.memory_limit_bytes)",
        ("tests/search/test_study.py",),
    ),
    Fault(
        "autotune/search/stages.py",
        "return self.clock.left - self.reserved - self.confirmation_seconds",
        "return self.clock.left - self.confirmation_seconds",
        ("tests/search/test_stages.py",),
    ),
    Fault(
        "autotune/search/stages.py",
        "low = best.measurement.ci95[0] if",
        "low = best.measurement.ci95[1] if",
        ("tests/search/test_stages.py",),
    ),
    Fault(
        "autotune/search/stopping.py",
        "CEILING_SHARE * outlook.highest_ceiling",
        "CEILING_SHARE * outlook.highest_limit",
        ("tests/search/test_stopping.py",),
    ),
    Fault(
        "autotune/search/fitting.py",
        "return measured.epoch_peak_bytes > room.of(",
        "return measured.peak_memory_bytes > room.of(",
        ("tests/search/test_fitting.py",),
    ),
    Fault(
        "autotune/search/compute.py",
        "math.log(seconds / _along(reference, batch).seconds)",
        "math.log(_along(reference, batch).seconds / seconds)",
        ("tests/search/test_compute.py",),
    ),
    Fault(
        "autotune/search/loader.py",
        "return (in_flight + 1) * self.trace(config.batch_size).batch_bytes if in_flight else 0",
        "return in_flight * self.trace(config.batch_size).batch_bytes if in_flight else 0",
        ("tests/search/test_loader.py",),
    ),
    Fault(
        "autotune/search/pipeline.py",
        "np.maximum(built[k], taken[k - 1] + step_seconds) + receive_seconds",
        "np.maximum(built[k], taken[k - 1]) + step_seconds + receive_seconds",
        ("tests/search/test_pipeline.py",),
    ),
    Fault(
        "autotune/search/landscape.py",
        "(key not in alike or means[index] > means[alike[key]])",
        "(key not in alike or means[index] < means[alike[key]])",
        ("tests/search/test_landscape.py",),
    ),
    Fault(
        "autotune/search/soundness.py",
        "if abs(found - expected) > max(",
        "if found - expected > max(",
        ("tests/search/test_soundness.py",),
    ),
    Fault(
        "autotune/search/explore.py",
        "options=(*self.start.options, *kept)",
        "options=kept",
        ("tests/search/test_explore.py",),
    ),
    Fault(
        "autotune/search/keeping.py",
        "and all(FINISHED in attrs for attrs in ours.values())",
        "and any(FINISHED in attrs for attrs in ours.values())",
        ("tests/search/test_keeping.py",),
    ),
    Fault(
        "autotune/search/journal.py",
        "fcntl.LOCK_EX | fcntl.LOCK_NB",
        "fcntl.LOCK_SH | fcntl.LOCK_NB",
        ("tests/search/test_keeping.py",),
    ),
    # the statistics
    Fault(
        "autotune/stats.py",
        "quantile = student_quantile(0.5 + confidence / 2, len(values) - 1)",
        "quantile = student_quantile(confidence, len(values) - 1)",
        ("tests/test_stats.py",),
    ),
    Fault(
        "autotune/stats.py",
        "return quantile * stdev(values) / math.sqrt(len(values))",
        "return quantile * stdev(values) / len(values)",
        ("tests/test_stats.py",),
    ),
    Fault(
        "autotune/stats.py",
        "worth = count * (1 - r) / (1 + r)",
        "worth = count * (1 + r) / (1 - r)",
        ("tests/test_stats.py",),
    ),
    Fault(
        "autotune/stats.py",
        "score = max(squares, count * (EQUAL * mean) ** 2) / count**2",
        "score = max(squares, count * (EQUAL * mean) ** 2) / count",
        ("tests/test_stats.py",),
    ),
    # the window
    Fault(
        "autotune/measure/window.py",
        "samples_per_second=samples * (1 - early_share) / seconds",
        "samples_per_second=samples * (1 + early_share) / seconds",
        ("tests/measure/test_window.py",),
    ),
    Fault(
        "autotune/measure/window.py",
        "return abs(now - before) <= tolerance and abs(before - earlier) <= tolerance",
        "return abs(now - before) <= tolerance or abs(before - earlier) <= tolerance",
        ("tests/measure/test_window.py",),
    ),
    Fault(
        "autotune/measure/window.py",
        "start = rows[first - 1].end if first else 0.0",
        "start = rows[first].end if first else 0.0",
        ("tests/measure/test_window.py",),
    ),
    Fault(
        "autotune/measure/window.py",
        "return abs(ready_after - ready_before) <= max(",
        "return ready_after - ready_before <= max(",
        ("tests/measure/test_window.py",),
    ),
    Fault(
        "autotune/measure/window.py",
        "host_to_device=fmean(row.moved - row.there for row in rows)",
        "host_to_device=fmean(row.moved - row.begin for row in rows)",
        ("tests/measure/test_window.py",),
    ),
    # the process boundary
    Fault(
        "autotune/runner.py",
        "if self._session is None or request.fresh or key != self._key:",
        "if self._session is None or key != self._key:",
        ("tests/test_smoke.py", "tests/test_process.py"),
    ),
    Fault(
        "autotune/runner.py",
        "if request.fresh or _needs_plain_model(config, request) or not attempt.found:",
        "if request.fresh or _needs_plain_model(config, request):",
        ("tests/test_smoke.py", "tests/test_process.py"),
    ),
    Fault(
        "autotune/process.py",
        "start = max(self._output_begin, os.fstat(descriptor).st_size - OUTPUT_BYTES)",
        "start = max(0, os.fstat(descriptor).st_size - OUTPUT_BYTES)",
        ("tests/test_smoke.py", "tests/test_process.py"),
    ),
    Fault(
        "autotune/process.py",
        "environment = {**os.environ, **thread_environment}",
        "environment = {**thread_environment, **os.environ}",
        ("tests/test_smoke.py", "tests/test_process.py"),
    ),
    # the file
    Fault(
        "autotune/config.py",
        "return max(1, count * self.ranks // ranks)",
        "return max(1, count // ranks)",
        ("tests/test_config.py",),
    ),
    Fault(
        "autotune/config.py",
        'enabled=self.amp == "fp16")',
        'enabled=self.amp != "off")',
        ("tests/test_config.py",),
    ),
    Fault(
        "autotune/config.py",
        'inter_op_threads=threads.get("inter_op")',
        'inter_op_threads=threads.get("intra_op")',
        ("tests/test_config.py",),
    ),
    Fault(
        "autotune/config.py",
        "return DataLoader(dataset, **(arguments | overrides))",
        "return DataLoader(dataset, **(overrides | arguments))",
        ("tests/test_config.py",),
    ),
    Fault(
        "autotune/config.py",
        "if comes_late:",
        "if not comes_late:",
        ("tests/test_config.py",),
    ),
)
