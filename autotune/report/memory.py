"""Trials of a study by what they took: which gave an undisturbed number, and which fit into the memory. Pure."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from autotune.outcome import Outcome

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.records import Trial
    from autotune.result import StudyRecord


def fastest_so_far(study: StudyRecord) -> float | None:
    """Highest rate of the search that takes no more memory than it may; ``None`` where there is none."""
    room = room_of(study)
    searched = (trial for trial in sound(study.history) if trial.kind != "confirm" and fits(trial, room))
    return max((trial.rate or 0.0 for trial in searched), default=None)


def room_of(study: StudyRecord) -> float:
    """Usable bytes of the memory that limits the run, or all of it."""
    if study.result and study.result.landscape:
        return study.result.landscape.memory_bytes
    return next((each.measurement.memory_limit_bytes for each in sound(study.history) if each.measurement), math.inf)


def fits(trial: Trial, room: float) -> bool:
    """Whether a trial takes no more memory than it may; the user's own configuration counts in any case."""
    return trial.kind == "baseline" or peak_bytes(trial) <= room


def sound(history: Sequence[Trial]) -> list[Trial]:
    """Trials that gave an undisturbed number."""
    return [trial for trial in history if trial.outcome is Outcome.OK and trial.measurement]


def peak_bytes(trial: Trial) -> int:
    """Peak memory of a trial at the end of an epoch; 0 where it was not measured."""
    return trial.measurement.epoch_peak_bytes if trial.measurement else 0
