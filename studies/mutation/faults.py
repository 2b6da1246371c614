"""Forty slips of a developer, each in one line: signs, comparisons, fields, units, what was dropped or forgotten.

They were chosen from reading ``autotune/`` alone, by somebody who had seen neither tests nor studies, before any was
tried.
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
    Fault(
        "autotune/search/gp.py",
        "among = scale**2 * shared[:, index]",
        "among = scale * shared[:, index]",
        ("tests/search/test_gp.py",),
    ),
    Fault(
        "autotune/search/feasibility.py",
        "more_workers = config.num_workers >= failed.num_workers",
        "more_workers = config.num_workers > failed.num_workers",
        ("tests/search/test_forecast.py",),
    ),
    Fault(
        "autotune/search/loader_model.py",
        "fixed = min(build, max(0.0, line - error))",
        "fixed = min(build, max(0.0, line + error))",
        ("tests/search/test_loader_model.py",),
    ),
    Fault(
        "autotune/search/agenda.py",
        "if most is not None and len(begun) >= most:",
        "if most is not None and len(begun) > most:",
        ("tests/search/test_agenda.py",),
    ),
    Fault(
        "autotune/proof.py",
        "is_gain = shows_gain(self.interval(config)) and",
        "is_gain = self.interval(config) is not None and",
        ("tests/test_proof.py",),
    ),
    Fault(
        "autotune/search/step_model.py",
        "seconds = slow + slope * (batch_size - high) if batch_size > high",
        "seconds = slow + slope * (batch_size - low) if batch_size > high",
        ("tests/search/test_step_model.py",),
    ),
    Fault(
        "autotune/search/known.py",
        "if best - rate <= max(math.log(1 + GAIN), PLAUSIBLE",
        "if best - rate <= min(math.log(1 + GAIN), PLAUSIBLE",
        ("tests/search/test_study.py",),
    ),
    Fault(
        "autotune/search/agenda.py",
        "return self.run.left - self.confirmation_seconds",
        "return self.run.left + self.confirmation_seconds",
        ("tests/search/test_agenda.py",),
    ),
    Fault(
        "autotune/search/feasibility.py",
        "may_use = min(may_use, memory_limit.beside(",
        "may_use = max(may_use, memory_limit.beside(",
        ("tests/search/test_feasibility.py",),
    ),
    Fault(
        "autotune/probes.py",
        "> max(DEVIATION * scale, SPREADS * spread)",
        "> min(DEVIATION * scale, SPREADS * spread)",
        ("tests/search/test_soundness.py",),
    ),
    Fault(
        "autotune/search/observations.py",
        "last = checks[-1].attempt",
        "last = checks[0].attempt",
    ),
    Fault(
        "autotune/search/space.py",
        "steps = whole // (batch_size * self.base.ranks)",
        "steps = whole // batch_size",
        ("tests/search/test_space.py",),
    ),
    Fault(
        "autotune/storage/open.py",
        "and all(FINISHED in each for each in ours.values())",
        "and any(FINISHED in each for each in ours.values())",
        ("tests/storage/test_open.py",),
    ),
    Fault(
        "autotune/search/study.py",
        "if each.number < number]",
        "if each.number > number]",
        ("tests/storage/test_tuners.py",),
    ),
    Fault(
        "autotune/storage/trials.py",
        'f"{subject}:{len(known)}")',
        'f"{subject}:0")',
    ),
    Fault(
        "autotune/storage/journal.py",
        "os.ftruncate(self._descriptor, sound)",
        "os.ftruncate(self._descriptor, sound - 1)",
    ),
    Fault(
        "autotune/search/predict.py",
        "work = loader.trace(config.batch_size).cpu_seconds + steps.cpu_seconds(config)",
        "work = loader.trace(config.batch_size).cpu_seconds",
        ("tests/search/test_predict.py",),
    ),
    Fault(
        "autotune/stats.py",
        "_exceeded_with(spent - before, points",
        "_exceeded_with(spent, points",
        ("tests/test_stats.py",),
    ),
    Fault(
        "autotune/search/option_looks.py",
        "if look.samples_per_second < (1 + GAIN) * _look",
        "if look.samples_per_second < GAIN * _look",
        ("tests/search/test_options.py",),
    ),
    Fault(
        "autotune/search/probe_plan.py",
        "min(failed, default=allowed[-1] + 1) - 1)",
        "min(failed, default=allowed[-1] + 1))",
        ("tests/search/test_probe_plan.py",),
    ),
    Fault(
        "autotune/search/loader_model.py",
        "- 1) / np.sqrt(share)",
        "- 1) / share",
        ("tests/search/test_loader_model.py",),
    ),
    Fault(
        "autotune/measure/window.py",
        "return abs(now - before) <= tolerance and abs(before - earlier) <= tolerance",
        "return abs(now - before) <= tolerance or abs(before - earlier) <= tolerance",
        ("tests/measure/test_window.py",),
    ),
    Fault(
        "autotune/measure/window.py",
        "start = ends[first - 1] if first else 0.0",
        "start = ends[first] if first else 0.0",
        ("tests/measure/test_window.py",),
    ),
    Fault(
        "autotune/measure/window.py",
        "return burst * max(1, -(-(steps // burst) // most))",
        "return burst * max(1, steps // burst // most)",
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
        "abs(trend(rest)) > CERTAIN_TREND and change > UNSETTLED",
        "abs(trend(rest)) > CERTAIN_TREND or change > UNSETTLED",
        ("tests/measure/test_window.py",),
    ),
    Fault(
        "autotune/proof.py",
        "around(rate, width * math.sqrt(len(found) + 1))",
        "around(rate, width * math.sqrt(1 + 1 / len(found)))",
        ("tests/test_proof.py",),
    ),
    Fault(
        "autotune/stats.py",
        "max(0.0, r + (1 + 3 * r) / count + 0.5",
        "max(0.0, r - (1 + 3 * r) / count + 0.5",
        ("tests/test_stats.py",),
    ),
    Fault(
        "autotune/stats.py",
        "count * (EQUAL * mean) ** 2) / count**2",
        "count * (EQUAL * mean) ** 2) / count",
        ("tests/test_stats.py",),
    ),
    Fault(
        "autotune/stats.py",
        "(2 * count + 5) / 18)",
        "(2 * count + 5) / 9)",
        ("tests/test_stats.py",),
    ),
    Fault(
        "autotune/runner/watchdog.py",
        "if own < gone / 2:",
        "if own < gone:",
        ("tests/runner/test_watchdog.py",),
    ),
    Fault(
        "autotune/protocol.py",
        "recv_bytes(LARGEST)",
        "recv_bytes()",
        ("tests/test_protocol.py",),
    ),
    Fault(
        "autotune/machine/descendants.py",
        "return is_of_group or process.environ().get(MARK) == mark",
        "return is_of_group and process.environ().get(MARK) == mark",
    ),
    Fault(
        "autotune/runner/local.py",
        "max(LEAST_RELOAD, RELOAD_FACTOR * self.loading)",
        "min(LEAST_RELOAD, RELOAD_FACTOR * self.loading)",
        ("tests/runner/test_local.py",),
    ),
    Fault(
        "autotune/runner/process.py",
        "start = max(self._output_begin, os.fstat(descriptor)",
        "start = max(0, os.fstat(descriptor)",
        ("tests/runner/test_process.py",),
    ),
    Fault(
        "autotune/config.py",
        "return max(1, count * self.ranks // ranks)",
        "return max(1, count // ranks)",
        ("tests/test_config.py",),
    ),
    Fault(
        "autotune/config.py",
        'enabled=self.amp == "fp16"',
        'enabled=self.amp != "off"',
        ("tests/test_config.py",),
    ),
    Fault(
        "autotune/configfile.py",
        "content = file.read(MAX_BYTES + 1)",
        "content = file.read(MAX_BYTES)",
        ("tests/test_configfile.py",),
    ),
    Fault(
        "autotune/configfile.py",
        "if type(version) is not int or version != SCHEMA_VERSION:",
        "if type(version) is not int and version != SCHEMA_VERSION:",
        ("tests/test_configfile.py",),
    ),
)
