"""Re-measure winner and baseline side by side in fresh processes, and say what was proven."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Literal

from autotune.config import Config
from autotune.records import Attempt, Measurement, Outcome, Request, Runner
from autotune.search.attempt import measure_undisturbed
from autotune.stats import Interval, geometric_interval, ratio_interval

__all__ = ["Confirmation", "confirm"]

CLAIM = 1.02
"""Smallest speed-up that is claimed."""
MIN_ROUNDS = 2
MAX_ROUNDS = 8
NARROW = 0.02
"""Half-width of the speed-up's interval, relative to it, at which no further round is needed."""
Pair = tuple[Measurement, Measurement]
"""Baseline and candidate of one round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmation:
    """What complete rounds of fresh processes gave; index 0 is the baseline, 1 the candidate."""

    pairs: tuple[Pair, ...]
    """The two measurements of each round, at least one round."""

    @property
    def rounds(self) -> int:
        """Complete rounds."""
        return len(self.pairs)

    def rates(self, index: int) -> tuple[float, ...]:
        """Return the samples per second of one of the two, round by round."""
        return tuple(pair[index].samples_per_second for pair in self.pairs)

    def typical(self, index: int) -> Measurement:
        """Return the measurement with the median rate, its ceiling replaced by the mean one, no less than the rate."""
        measurements = sorted((pair[index] for pair in self.pairs), key=lambda each: each.samples_per_second)
        middle = measurements[len(measurements) // 2]
        ceiling = fmean(each.ceiling_samples_per_second for each in measurements)
        return replace(middle, ceiling_samples_per_second=max(ceiling, self.rate(index)[0]))

    @property
    def speedup(self) -> float:
        """Geometric mean of the paired ratios."""
        return ratio_interval(self.rates(1), self.rates(0))[0]

    @property
    def speedup_ci95(self) -> Interval | None:
        """Its 95 % t-interval; ``None`` after a single round."""
        return ratio_interval(self.rates(1), self.rates(0))[1]

    @property
    def verdict(self) -> Literal["faster", "no proven gain"]:
        """``faster`` only if the interval excludes equality and the gain is at least 2 %."""
        interval = self.speedup_ci95
        proven = interval is not None and interval[0] > 1.0 and self.speedup >= CLAIM
        return "faster" if proven else "no proven gain"

    def rate(self, index: int) -> tuple[float, Interval | None]:
        """Return the geometric mean of the rate over processes and its 95 % interval."""
        return geometric_interval(self.rates(index))


def confirm(
    runner: Runner,
    baseline: Config,
    candidate: Config,
    next_request: Callable[[], Request],
    *,
    has_time: Callable[[int], bool],
    seed: int = 0,
    on_attempt: Callable[[Config, Attempt], None] = lambda config, attempt: None,
    on_interrupt: Callable[[], None] | None = None,
) -> Confirmation | None:
    """Measure both in complete rounds, in random order, until the answer is clear or the time is over.

    ``next_request()`` says how to measure next, ``has_time(rounds)`` whether another round may begin after so
    many were tried. A round in which the machine was disturbed does not count. Returns ``None`` when no round
    counted, and when the candidate failed in a fresh process: what fails now and then is not to be trusted,
    however fast. A KeyboardInterrupt ends it with the rounds that are complete, where ``on_interrupt`` is given.
    """

    def may_repeat(attempt: Attempt) -> bool:
        return has_time(MIN_ROUNDS)

    generator = random.Random(seed)
    done: list[Pair] = []
    tried = 0
    try:
        while len(done) < MAX_ROUNDS and has_time(tried) and not _is_clear(done):
            found: dict[int, Attempt] = {}
            for index in generator.sample((0, 1), 2):
                config = (baseline, candidate)[index]
                found[index] = measure_undisturbed(runner, config, next_request(), may_repeat)
                on_attempt(config, found[index])
                if found[index].measurement is None:
                    return _gather(done) if index == 0 else None
            tried += 1
            done += _counted(found)
    except KeyboardInterrupt:
        if on_interrupt is None:
            raise
        on_interrupt()
    return _gather(done)


def _counted(found: dict[int, Attempt]) -> list[Pair]:
    """Return the round's pair, where neither was disturbed."""
    before, after = found[0].measurement, found[1].measurement
    is_ok = all(attempt.outcome is Outcome.OK for attempt in found.values())
    return [(before, after)] if before and after and is_ok else []


def _gather(done: Sequence[Pair]) -> Confirmation | None:
    return Confirmation(pairs=tuple(done)) if done else None


def _is_clear(done: Sequence[Pair]) -> bool:
    confirmation = _gather(done)
    if confirmation is None or confirmation.rounds <= MIN_ROUNDS or confirmation.speedup_ci95 is None:
        return False
    low, high = confirmation.speedup_ci95
    return (high - low) / 2 <= NARROW * confirmation.speedup
