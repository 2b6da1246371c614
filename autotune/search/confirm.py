"""Re-measure winner and baseline side by side in fresh processes, and say what was proven."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from autotune.config import Config
from autotune.records import Attempt, Measurement, Outcome, Request, Runner
from autotune.stats import mean_interval, ratio_interval

__all__ = ["Confirmation", "confirm"]

CLAIM = 1.02
"""Smallest speed-up that is claimed."""
MIN_ROUNDS = 2
MAX_ROUNDS = 5
NARROW = 0.02
"""Half-width of the speed-up's interval, relative to it, at which no further round is needed."""
Interval = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmation:
    """What complete rounds of fresh processes gave; index 0 is the baseline, 1 the candidate."""

    rates: tuple[tuple[float, ...], tuple[float, ...]]
    """Samples per second of each, round by round."""
    last: tuple[Measurement, Measurement]
    """The last measurement of each."""

    @property
    def rounds(self) -> int:
        """Complete rounds."""
        return len(self.rates[0])

    @property
    def speedup(self) -> float:
        """Geometric mean of the paired ratios."""
        return ratio_interval(self.rates[1], self.rates[0])[0]

    @property
    def speedup_ci95(self) -> Interval | None:
        """Its 95 % t-interval; ``None`` after a single round."""
        return ratio_interval(self.rates[1], self.rates[0])[1]

    @property
    def verdict(self) -> Literal["faster", "no proven gain"]:
        """``faster`` only if the interval excludes equality and the gain is at least 2 %."""
        interval = self.speedup_ci95
        proven = interval is not None and interval[0] > 1.0 and self.speedup >= CLAIM
        return "faster" if proven else "no proven gain"

    def rate(self, index: int) -> tuple[float, Interval | None]:
        """Return the mean rate over processes and its 95 % interval."""
        return fmean(self.rates[index]), mean_interval(self.rates[index])


def confirm(
    runner: Runner,
    baseline: Config,
    candidate: Config,
    request: Request,
    *,
    has_time: Callable[[int], bool],
    seed: int = 0,
    on_attempt: Callable[[Config, Attempt], None] = lambda config, attempt: None,
) -> Confirmation | None:
    """Measure both in complete rounds, in random order, until the answer is clear or the time is over.

    ``has_time(rounds)`` says whether another round may begin after so many were tried. A round in which the
    machine was disturbed does not count. Returns ``None`` when no round counted, as when the candidate fails
    in a fresh process.
    """
    generator = random.Random(seed)
    done: list[tuple[Measurement, Measurement]] = []
    tried = 0
    while len(done) < MAX_ROUNDS and has_time(tried) and not _is_clear(done):
        order = [0, 1]
        generator.shuffle(order)
        found: dict[int, Attempt] = {}
        for index in order:
            config = (baseline, candidate)[index]
            found[index] = runner.measure(config, request)
            on_attempt(config, found[index])
            if found[index].measurement is None:
                return _gather(done)
        tried += 1
        pair = (found[0].measurement, found[1].measurement)
        if pair[0] and pair[1] and all(attempt.outcome is Outcome.OK for attempt in found.values()):
            done.append((pair[0], pair[1]))
    return _gather(done)


def _gather(done: Sequence[tuple[Measurement, Measurement]]) -> Confirmation | None:
    if not done:
        return None
    rates = tuple(tuple(pair[index].samples_per_second for pair in done) for index in (0, 1))
    return Confirmation(rates=(rates[0], rates[1]), last=done[-1])


def _is_clear(done: Sequence[tuple[Measurement, Measurement]]) -> bool:
    confirmation = _gather(done)
    if confirmation is None or confirmation.rounds <= MIN_ROUNDS or confirmation.speedup_ci95 is None:
        return False
    low, high = confirmation.speedup_ci95
    return (high - low) / 2 <= NARROW * confirmation.speedup
