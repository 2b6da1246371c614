"""The charts of a study's trials: what became of each, and what it costs. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from autotune.records import Outcome
from autotune.report.chart import Axis, Chart, Mark, Series
from autotune.report.words import config_text, gibibytes_text, rate_text
from autotune.result import pareto_front

if TYPE_CHECKING:
    from autotune.records import Trial
    from autotune.report.chart import Colour, Symbol
    from autotune.result import RecordedStudy

__all__ = ["RATE", "fastest_so_far", "history_chart", "memory_chart", "sound", "trial_text"]

RATE = "samples/s"
GIBIBYTE = 2**30
NEAR = 3.0
"""A limit that is so many times further away than anything measured is not drawn."""


def memory_chart(study: RecordedStudy) -> Chart | None:
    """Return rate by peak memory, with the Pareto front; ``None`` where nothing was measured."""
    measured = sound(study.history)
    if not measured or measured[0].measurement is None:
        return None
    room, kind = _room(study), measured[0].measurement.memory
    fitting, too_large = _by_room(study, measured)
    front = pareto_front(tuple(fitting))[::-1]
    line = Series(
        name="Pareto front", kind="line", colour="green", x=tuple(_peak(t) / GIBIBYTE for t in front), y=_rates(front)
    )
    groups = (_by_memory("measured", fitting, "blue"), _by_memory("takes more than it may", too_large, "red", "cross"))
    word = "may be used" if study.result and study.result.landscape else "there is"
    is_near = room <= NEAR * max(map(_peak, measured))
    return Chart(
        name="memory",
        title="Rate by peak memory",
        summary=(
            "Each point a measurement; the line joins those that no other beats in both. "
            f"{gibibytes_text(room)} GiB {word}. {_ends_text(front)}"
        ).strip(),
        x=Axis(title=f"peak memory, GiB of the {kind}"),
        y=Axis(title=RATE),
        series=tuple(each for each in (line, *groups) if each.x),
        marks=(Mark(axis="x", at=room / GIBIBYTE, text=word),) if is_near else (),
    )


def _ends_text(front: Sequence[Trial]) -> str:
    if not front:
        return ""
    ends = [f"{gibibytes_text(_peak(trial))} GiB for {rate_text(trial.rate or 0.0)} samples/s" for trial in front]
    return f"The smallest takes {ends[0]}, the fastest {ends[-1]}."


def history_chart(study: RecordedStudy) -> Chart | None:
    """Return what became of every trial, in order; ``None`` where there was none."""
    ran = [trial for trial in study.history if trial.kind != "skipped"]
    if not ran:
        return None
    searched, too_large = _by_room(study, [trial for trial in sound(ran) if trial.kind != "confirm"])
    confirmed = [trial for trial in sound(ran) if trial.kind == "confirm"]
    disturbed = [trial for trial in ran if trial.rate is not None and trial.outcome is not Outcome.OK]
    groups = (
        _by_number("search", searched, "blue"),
        _by_number("confirmation", confirmed, "purple", "diamond"),
        _by_number("takes more memory than it may", too_large, "red", "open circle"),
        _by_number("disturbed", disturbed, "grey", "open circle"),
        _by_number("failed", [trial for trial in ran if trial.rate is None], "red", "cross"),
    )
    best = Series(
        name="best so far",
        kind="steps",
        colour="green",
        x=tuple(float(trial.number) for trial in searched),
        y=tuple(accumulate(_rates(searched), max)),
    )
    counts = ", ".join(f"{len(group.x)} {group.name}" for group in groups if group.x)
    return Chart(
        name="history",
        title="The study, trial by trial",
        summary=f"{len(ran)} measurements: {counts}. What failed stands at zero, with its outcome.",
        x=Axis(title="trial"),
        y=Axis(title=RATE),
        series=tuple(each for each in (best, *groups) if each.x),
    )


def fastest_so_far(study: RecordedStudy) -> float | None:
    """Return the highest rate of the search that takes no more memory than it may; ``None`` where there is none."""
    fitting, _ = _by_room(study, sound(study.history))
    return max((trial.rate or 0.0 for trial in fitting if trial.kind != "confirm"), default=None)


def _room(study: RecordedStudy) -> float:
    """Return how much of the memory that limits the run may be used, in bytes, or at least how much there is."""
    if study.result and study.result.landscape:
        return study.result.landscape.memory_bytes
    measured = sound(study.history)
    return measured[0].measurement.memory_limit_bytes if measured and measured[0].measurement else math.inf


def _by_room(study: RecordedStudy, trials: Sequence[Trial]) -> tuple[list[Trial], list[Trial]]:
    """Return those that fit, the user's own among them in any case, and those that take too much."""
    room = _room(study)
    fits = [trial.kind == "baseline" or _peak(trial) <= room for trial in trials]
    return [t for t, fit in zip(trials, fits, strict=True) if fit], [
        t for t, fit in zip(trials, fits, strict=True) if not fit
    ]


def sound(history: Sequence[Trial]) -> list[Trial]:
    """Return the trials that gave an undisturbed number."""
    return [trial for trial in history if trial.outcome is Outcome.OK and trial.measurement is not None]


def trial_text(trial: Trial) -> str:
    """Return what a trial says when it is pointed at."""
    found = str(trial.outcome)
    if trial.rate is not None:
        found = f"{rate_text(trial.rate)} samples/s, {gibibytes_text(_peak(trial))} GiB"
    return f"trial {trial.number}: {config_text(trial.config)}: {found}"


def _by_number(name: str, trials: Sequence[Trial], colour: Colour, symbol: Symbol = "circle") -> Series:
    return _points(name, trials, colour, symbol, tuple(float(trial.number) for trial in trials))


def _by_memory(name: str, trials: Sequence[Trial], colour: Colour, symbol: Symbol = "circle") -> Series:
    return _points(name, trials, colour, symbol, tuple(_peak(trial) / GIBIBYTE for trial in trials))


def _points(name: str, trials: Sequence[Trial], colour: Colour, symbol: Symbol, x: tuple[float, ...]) -> Series:
    labels = tuple(map(trial_text, trials))
    return Series(name=name, kind="points", colour=colour, symbol=symbol, x=x, y=_rates(trials), labels=labels)


def _rates(trials: Sequence[Trial]) -> tuple[float, ...]:
    return tuple(trial.rate or 0.0 for trial in trials)


def _peak(trial: Trial) -> int:
    return trial.measurement.epoch_peak_bytes if trial.measurement else 0
