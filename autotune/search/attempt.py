"""One measurement, repeated after an outside disturbance; an error where there must be a number."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from autotune.config import Config
from autotune.errors import NothingFeasibleError, UserCodeError
from autotune.outcome import Outcome
from autotune.records import Attempt, Measurement, Request, Runner

SMALLER = "pass a smaller baseline, for example --baseline batch_size=1"


def measure_once_more(
    runner: Runner,
    config: Config,
    request: Request,
    may_repeat: Callable[[Attempt], bool],
    *,
    if_disturbed: bool = False,
) -> Attempt:
    """Measure, once more where there is time and an outside reason kept the first attempt from a number.

    Where much hangs on a single number, ``if_disturbed`` repeats a disturbed measurement, too. ``seconds`` and
    ``opening`` are those of both.
    """
    first = runner.measure(config, request)
    is_good = first.outcome is not Outcome.SUSPECT or (first.found and not if_disturbed)
    if is_good or not may_repeat(first):
        return first
    second = runner.measure(config, request)
    seconds, opening = first.seconds + second.seconds, first.opening + second.opening
    return replace(second if second.found else first, seconds=seconds, opening=opening)


def require_numbers(attempt: Attempt) -> Measurement:
    """Return the numbers of the baseline, which every verdict needs.

    Raises ``UserCodeError`` where the user's code failed, and ``NothingFeasibleError`` where the machine did not allow
    it.
    """
    if attempt.measurement is not None:
        return attempt.measurement
    if not (attempt.outcome.is_want_of_memory or attempt.outcome.is_for_now):
        raise UserCodeError(f"the baseline configuration fails: {attempt.message}", attempt.details)
    remedy = "run it again" if attempt.outcome is Outcome.SUSPECT else SMALLER
    raise NothingFeasibleError(
        f"the baseline configuration cannot be measured ({attempt.outcome}): {attempt.message}; {remedy}"
    )
