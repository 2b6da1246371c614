"""Forty slips of a developer, each in one line: signs, comparisons, fields, units, what was dropped or forgotten.

They were chosen from reading ``autotune/`` alone, all of them before any was tried.
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
        "is_more = fmean(rates) > CLAIM * fmean(others)",
        "is_more = fmean(rates) > fmean(others)",
        ("tests/search/test_confirm.py",),
    ),
    Fault(
        "autotune/search/confirm.py",
        "pairs = [(one.control, one.baseline) for one in self.rounds if one.control]",
        "pairs = [(one.baseline, one.control) for one in self.rounds if one.control]",
        ("tests/search/test_confirm.py",),
    ),
    Fault(
        "autotune/search/compute.py",
        "MEASURED + 2 * BEYOND * doublings",
        "MEASURED + BEYOND * doublings",
        ("tests/search/test_compute.py",),
    ),
    Fault(
        "autotune/search/landscape.py",
        "or means[index] > means[alike[key]])",
        "or means[index] < means[alike[key]])",
        ("tests/search/test_landscape.py",),
    ),
    Fault(
        "autotune/search/fitting.py",
        "may_use = min(may_use, room.beside(",
        "may_use = max(may_use, room.beside(",
        ("tests/search/test_fitting.py", "tests/search/test_predict.py"),
    ),
    Fault(
        "autotune/search/loader.py",
        "pin_seconds=near.pin_seconds * samples",
        "pin_seconds=near.pin_seconds * factor",
        ("tests/search/test_loader.py",),
    ),
    Fault(
        "autotune/search/keeping.py",
        "all(FINISHED in attrs for attrs in ours.values())",
        "any(FINISHED in attrs for attrs in ours.values())",
        ("tests/search/test_keeping.py",),
    ),
    Fault(
        "autotune/search/predict.py",
        "seconds = config.samples_per_step / look.samples_per_second",
        "seconds = config.batch_size / look.samples_per_second",
        ("tests/search/test_predict.py",),
    ),
    Fault(
        "autotune/search/probe.py",
        "rates[-1] > FLAT * rates[-2]",
        "rates[-1] > FLAT * rates[0]",
        ("tests/search/test_probe.py",),
    ),
    Fault(
        "autotune/search/probe.py",
        "<= {Outcome.DEVICE_OOM, Outcome.HOST_OOM}:",
        "<= {Outcome.DEVICE_OOM}:",
        ("tests/search/test_probe.py",),
    ),
    Fault(
        "autotune/search/outlook.py",
        "return config.batch_size * config.num_workers * (config.prefetch_factor or 0)",
        "return config.num_workers * (config.prefetch_factor or 0)",
        ("tests/search/test_outlook.py",),
    ),
    Fault(
        "autotune/search/pipeline.py",
        "(builds / max(builds.mean(), NOTHING) - 1) / np.sqrt(share)",
        "(builds / max(builds.mean(), NOTHING) - 1) * np.sqrt(share)",
        ("tests/search/test_pipeline.py", "tests/search/test_loader.py"),
    ),
    Fault(
        "autotune/search/surrogate.py",
        "variances = OWN**2 + scale**2 * shared",
        "variances = OWN**2 + scale * shared",
        ("tests/search/test_surrogate.py",),
    ),
    Fault(
        "autotune/search/soundness.py",
        "max(DEVIATION * scale, SPREADS * _spread(check))",
        "min(DEVIATION * scale, SPREADS * _spread(check))",
        ("tests/search/test_soundness.py",),
    ),
    Fault(
        "autotune/search/space.py",
        "tuple(range(min(sizes), max(sizes) + 1)) if is_range",
        "tuple(range(min(sizes), max(sizes))) if is_range",
        ("tests/search/test_space.py",),
    ),
    Fault(
        "autotune/search/stages.py",
        "return self.clock.left - self.reserved - self.confirmation_seconds",
        "return self.clock.left - self.confirmation_seconds",
        ("tests/search/test_stages.py",),
    ),
    Fault(
        "autotune/search/study.py",
        "key=lambda each: each[:2])[: most - 1]",
        "key=lambda each: each[:2])[:most]",
        ("tests/search/test_study.py",),
    ),
    Fault(
        "autotune/search/stored.py",
        "_rounded(measured.peak_memory_bytes / 2**30)",
        "_rounded(measured.peak_memory_bytes / 1e9)",
        ("tests/search/test_stored.py", "tests/search/test_study.py"),
    ),
    Fault(
        "autotune/search/claims.py",
        "trial_id is None or other._trial_id < trial_id",
        "trial_id is None or other._trial_id > trial_id",
        ("tests/search/test_claims.py",),
    ),
    Fault(
        "autotune/search/confirm.py",
        "self.planned.setdefault(trial.config, trial.planned)",
        "self.planned[trial.config] = trial.planned",
        ("tests/search/test_confirm.py",),
    ),
    Fault(
        "autotune/search/explore.py",
        "sum(tried.start_seconds or 0.0 for tried in self.tried if tried.kept)",
        "sum(tried.start_seconds or 0.0 for tried in self.tried)",
        ("tests/search/test_explore.py",),
    ),
    Fault(
        "autotune/search/attempt.py",
        "replace(second if second.found else first, ",
        "replace(first if second.found else second, ",
        ("tests/search/test_attempt.py",),
    ),
    # the window
    Fault(
        "autotune/measure/window.py",
        "return burst * -(-MIN_STEPS // burst)",
        "return burst * (MIN_STEPS // burst)",
        ("tests/measure/test_window.py",),
    ),
    Fault(
        "autotune/measure/window.py",
        "abs(now - before) <= tolerance and abs(before - earlier) <= tolerance",
        "abs(now - before) <= tolerance or abs(before - earlier) <= tolerance",
        ("tests/measure/test_window.py",),
    ),
    Fault(
        "autotune/measure/window.py",
        "samples_per_second=samples * (1 - early_share) / seconds",
        "samples_per_second=samples * (1 + early_share) / seconds",
        ("tests/measure/test_window.py",),
    ),
    Fault(
        "autotune/measure/window.py",
        "max(early / steps, -waiting / (1 - waiting))",
        "max(early / steps, -waiting)",
        ("tests/measure/test_window.py",),
    ),
    Fault(
        "autotune/measure/window.py",
        "abs(trend(rest)) > CERTAIN_TREND",
        "trend(rest) > CERTAIN_TREND",
        ("tests/measure/test_window.py",),
    ),
    # statistics
    Fault(
        "autotune/stats.py",
        "student_quantile(0.5 + confidence / 2, len(values) - 1)",
        "student_quantile(0.5 + confidence / 2, len(values))",
        ("tests/test_stats.py",),
    ),
    Fault(
        "autotune/stats.py",
        "math.sqrt(variance / worth)",
        "math.sqrt(variance / count)",
        ("tests/test_stats.py",),
    ),
    Fault(
        "autotune/stats.py",
        "if count < 3 or start > last:",
        "if count < 3 or start >= last:",
        ("tests/test_stats.py",),
    ),
    Fault(
        "autotune/stats.py",
        "(5 * z**5 + 16 * z**3 + 3 * z) / 96",
        "(5 * z**5 + 16 * z**3 - 3 * z) / 96",
        ("tests/test_stats.py",),
    ),
    # the runner
    Fault(
        "autotune/runner.py",
        "if self._session is None or request.fresh or key != self._key:",
        "if self._session is None or key != self._key:",
        ("tests/test_runner.py",),
    ),
    Fault(
        "autotune/runner.py",
        "(most := max(host.cpus, len(host.gpus)))",
        "(most := min(host.cpus, len(host.gpus)))",
        ("tests/test_runner.py",),
    ),
    Fault(
        "autotune/runner.py",
        "max(LEAST_RELOAD, RELOAD_FACTOR * self._longest_load)",
        "min(LEAST_RELOAD, RELOAD_FACTOR * self._longest_load)",
        ("tests/test_runner.py",),
    ),
    Fault(
        "autotune/process.py",
        "after is None else after - before",
        "after is None else before - after",
        ("tests/test_process.py", "tests/test_runner.py"),
    ),
    Fault(
        "autotune/process.py",
        "for member in reversed(members):",
        "for member in members:",
        ("tests/test_process.py", "tests/test_runner.py"),
    ),
    # the configuration
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
)
