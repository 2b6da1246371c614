"""Measure once, and once more when the machine was disturbed."""

from __future__ import annotations

from collections.abc import Callable

from autotune.config import Config
from autotune.records import Attempt, Outcome, Request, Runner

__all__ = ["measure_undisturbed"]


def measure_undisturbed(
    runner: Runner, config: Config, request: Request, may_repeat: Callable[[Attempt], bool]
) -> Attempt:
    """Measure, and repeat a suspect measurement once if there is time; the less disturbed of the two counts."""
    first = runner.measure(config, request)
    if first.outcome is not Outcome.SUSPECT or not may_repeat(first):
        return first
    second = runner.measure(config, request)
    return first if second.measurement is None or _foreign(first) < _foreign(second) else second


def _foreign(attempt: Attempt) -> float:
    return attempt.measurement.foreign_cpus if attempt.measurement else 0.0
