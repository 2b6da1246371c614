"""Measure once, and once more when the machine was disturbed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from autotune.config import Config
from autotune.records import Attempt, Outcome, Request, Runner

__all__ = ["measure_undisturbed"]


def measure_undisturbed(
    runner: Runner, config: Config, request: Request, may_repeat: Callable[[Attempt], bool]
) -> Attempt:
    """Measure, and repeat a suspect measurement once if there is time; the less disturbed of the two counts.

    Its ``seconds`` are those of both.
    """
    first = runner.measure(config, request)
    if first.outcome is not Outcome.SUSPECT or not may_repeat(first):
        return first
    second = runner.measure(config, request)
    is_better = second.outcome is Outcome.OK or (second.measurement is not None and _foreign(second) <= _foreign(first))
    return replace(second if is_better else first, seconds=first.seconds + second.seconds)


def _foreign(attempt: Attempt) -> float:
    return attempt.measurement.conditions.foreign_cpus if attempt.measurement else math.inf
