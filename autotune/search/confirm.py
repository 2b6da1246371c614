"""Re-measure baseline and finalists side by side in fresh processes, and say what was proven."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Literal, Protocol

from autotune.config import Config
from autotune.records import Attempt, Measurement, Outcome, Request, Runner
from autotune.result import Control, Finalist
from autotune.search.attempt import measure_undisturbed, require_host
from autotune.stats import Interval, geometric_interval, ratio_interval

__all__ = ["MIN_ROUNDS", "Confirmation", "Round", "Standing", "confirm", "finalists_for"]

CLAIM = 1.02
"""Smallest speed-up that is claimed, and within which two configurations count as equally fast."""
CONFIDENCE = 0.95
"""Of all intervals of speed-ups together (Bonferroni)."""
CONTROL_CONFIDENCE = 0.99
"""Of the control's interval: a machine that is quiet should hardly ever be called disturbed."""
MIN_ROUNDS = 2
"""Fewest rounds from which anything can be proven."""
MAX_ROUNDS = 16
PRECISE = 0.02
"""Half-width of the interval of a speed-up's logarithm at which no further round is needed."""
PRECISE_SHARE = 0.1
"""The same as a share of the logarithm itself: a large gain need not be known to two percent."""
STEADY_ROUNDS, EARLY = 5, 0.25
"""With fewer rounds the interval must be narrower by this factor: rounds that end where a few happen to agree would
make intervals of 95 % hold in 91 % (studies/confirmation)."""
ROUNDS_TO_DROP = 2
"""After each so many rounds the finalist that is least likely to be the answer is measured no more."""
LEAST_MEASUREMENTS = {3: 48, 2: 32}
"""Measurements that there must be time for, for so many finalists: more need wider intervals, and so more rounds. In
simulations of thirty configurations five finalists were no better than three."""
HANG = 3.0
"""A finalist that takes so many times as long as any measurement before is stuck; one cut off earlier is not."""
LEAST_WITH_CONTROL = 36
"""The same for measuring the baseline twice in each round; with less, more rounds are worth more."""


class HasTime(Protocol):
    """Tells whether there is time for so many more measurements, when so many rounds were tried."""

    def __call__(self, measurements: float, rounds: int) -> bool: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One measurement of each, in fresh processes, shortly one after another."""

    baseline: Measurement
    """The baseline."""
    control: Measurement | None
    """The baseline again; ``None`` where there was no time for it."""
    finalists: tuple[Measurement | None, ...]
    """Each finalist, in the confirmation's order; ``None`` once it was dropped."""

    @property
    def baseline_rate(self) -> float:
        """Geometric mean of the baseline's rates, in samples per second."""
        rates = [each.samples_per_second for each in (self.baseline, self.control) if each]
        return geometric_interval(rates)[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What was found out about one configuration; over processes."""

    config: Config
    """The configuration."""
    rate: float
    """Geometric mean of its samples per second."""
    rate_ci95: Interval | None
    """95 % t-interval of it; ``None`` after a single measurement."""
    typical: Measurement
    """The measurement with the median rate; its ceiling is the mean of all, no less than ``rate``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmation:
    """What complete rounds gave."""

    finalists: tuple[Config, ...]
    """What could be the answer, the cheapest first."""
    failed: frozenset[int] = frozenset()
    """Which of them failed in a fresh process: what fails now and then is not to be trusted, however fast."""
    baseline_config: Config
    """What they are compared with."""
    rounds: tuple[Round, ...]
    """The rounds in which nothing was disturbed, at least one."""

    @property
    def baseline(self) -> Standing:
        """The baseline, its controls included."""
        found = [each for one in self.rounds for each in (one.baseline, one.control) if each]
        return _standing(self.baseline_config, found)

    @property
    def winner(self) -> int | None:
        """The cheapest finalist within 2 % of the fastest that never failed; ``None`` where all failed."""
        running = [index for index in self._contenders if index not in self.failed]
        if not running:
            return None
        most = max(self.speedup(index)[0] for index in running)
        return next(index for index in running if self.speedup(index)[0] >= most / CLAIM)

    @property
    def _contenders(self) -> list[int]:
        """The finalists that were measured in the last round."""
        return [index for index, measured in enumerate(self.rounds[-1].finalists) if measured]

    @property
    def drop(self) -> int | None:
        """The finalist to be measured no more: the slowest of those that would not be the answer now."""
        others = [index for index in self._contenders if index != self.winner and index not in self.failed]
        return min(others, key=lambda index: self.speedup(index)[0], default=None)

    def standing(self, index: int) -> Standing:
        """Return what was found out about a finalist."""
        return _standing(self.finalists[index], [one.finalists[index] for one in self.rounds if one.finalists[index]])

    def rounds_of(self, index: int) -> int:
        """Return the number of complete rounds of a finalist."""
        return sum(one.finalists[index] is not None for one in self.rounds)

    def speedup(self, index: int) -> tuple[float, Interval | None]:
        """Return the geometric mean of a finalist's paired ratios to the baseline, and its t-interval.

        All finalists' intervals together hold with 95 %; ``None`` after a single round.
        """
        pairs = self._pairs(index)
        confidence = 1 - (1 - CONFIDENCE) / len(self.finalists)
        return ratio_interval([pair[0] for pair in pairs], [pair[1] for pair in pairs], confidence)

    def _pairs(self, index: int) -> list[tuple[float, float]]:
        """Return the rates of a finalist and of the baseline, round by round."""
        return [
            (measured.samples_per_second, one.baseline_rate)
            for one in self.rounds
            if (measured := one.finalists[index]) is not None
        ]

    @property
    def found(self) -> tuple[Finalist, ...]:
        """What was found out about each finalist that was measured in a complete round."""
        return tuple(
            Finalist(
                config=config,
                speedup=self.speedup(index)[0],
                interval=self.speedup(index)[1],
                ratios=tuple(rate / baseline for rate, baseline in self._pairs(index)),
                has_failed=index in self.failed,
            )
            for index, config in enumerate(self.finalists)
            if self._pairs(index)
        )

    @property
    def control(self) -> Control | None:
        """The baseline against itself: in each round or, where it was measured once a round, in every two."""
        pairs = [(one.control, one.baseline) for one in self.rounds if one.control]
        if not pairs:
            pairs = [(b.baseline, a.baseline) for a, b in zip(self.rounds[::2], self.rounds[1::2], strict=False)]
        if not pairs:
            return None
        again, first = ([pair[index].samples_per_second for pair in pairs] for index in (0, 1))
        ratio, interval = ratio_interval(again, first, CONTROL_CONFIDENCE)
        ratios = tuple(one / other for one, other in zip(again, first, strict=True))
        return Control(ratio=ratio, ci99=interval, pairs=len(pairs), ratios=ratios)

    @property
    def verdict(self) -> Literal["faster", "no proven gain"]:
        """``faster`` only if the winner's interval excludes equality and the gain is at least 2 %.

        Where the control is off, the machine alone makes such a difference: it must be exceeded too.
        """
        if self.winner is None:
            return "no proven gain"
        speedup, interval = self.speedup(self.winner)
        proven = interval is not None and interval[0] > self.noise and speedup >= CLAIM
        return "faster" if proven else "no proven gain"

    @property
    def noise(self) -> float:
        """The ratio that the machine alone makes: 1 unless the control is off."""
        return math.exp(abs(math.log(self.control.ratio))) if self.control and self.control.is_off else 1.0

    @property
    def is_clear(self) -> bool:
        """Whether further rounds are not worth their time: the gain is known well enough, or there is hardly one."""
        if len(self.rounds) <= MIN_ROUNDS or self.winner is None:
            return self.winner is None
        is_hopeless = all((interval := self.speedup(index)[1]) and interval[1] < CLAIM for index in self._contenders)
        if is_hopeless and len(self.rounds) >= STEADY_ROUNDS:
            return True
        speedup, interval = self.speedup(self.winner)
        if interval is None:
            return False
        half_width = math.log(interval[1] / interval[0]) / 2
        enough = max(PRECISE, PRECISE_SHARE * abs(math.log(speedup)))
        return half_width <= (enough if len(self.rounds) >= STEADY_ROUNDS else EARLY * enough)


def finalists_for(measurements: float) -> tuple[int, bool]:
    """Return how many finalists so many measurements allow, and whether a control beside them."""
    count = next((count for count, least in LEAST_MEASUREMENTS.items() if measurements >= least), 1)
    return count, measurements >= LEAST_WITH_CONTROL


def confirm(
    runner: Runner,
    baseline: Config,
    finalists: Sequence[Config],
    next_request: Callable[[], Request],
    *,
    has_time: HasTime,
    with_control: bool = True,
    seed: int = 0,
    fits: Callable[[Measurement], bool] = lambda measured: True,
    on_attempt: Callable[[Config, Attempt], None] = lambda config, attempt: None,
    on_interrupt: Callable[[], None] | None = None,
) -> Confirmation | None:
    """Measure baseline, baseline again and finalists in complete rounds until the answer is clear or time is over.

    ``finalists`` come cheapest first; ``next_request()`` says how to measure next. The order within a round is
    random, and reversed in the next, so that what drifts cancels. A finalist that does not fit the memory is out, a
    round in which the machine was disturbed does not count. Returns ``None`` when no round counted. A
    KeyboardInterrupt ends it with the rounds that are complete, where ``on_interrupt`` is given. Raises
    ``HostLostError``: rounds of two hosts are not compared.
    """
    rounds = _Rounds(runner, baseline, tuple(finalists), next_request, has_time, with_control, seed, fits, on_attempt)
    try:
        rounds.run()
    except KeyboardInterrupt:
        if on_interrupt is None:
            raise
        on_interrupt()
    return rounds.found


@dataclass(slots=True)
class _Rounds:
    """The rounds as they go on."""

    runner: Runner
    baseline: Config
    finalists: tuple[Config, ...]
    next_request: Callable[[], Request]
    has_time: HasTime
    with_control: bool
    seed: int
    fits: Callable[[Measurement], bool]
    on_attempt: Callable[[Config, Attempt], None]
    found: Confirmation | None = None
    _running: list[int] = field(default_factory=list)
    _failed: set[int] = field(default_factory=set)
    _tried: int = 0
    _longest: float = 0.0

    BASELINE, CONTROL = -1, -2

    def run(self) -> None:
        self._running = list(range(len(self.finalists)))
        generator = random.Random(self.seed)
        order: list[int] = []
        while self._running and self._goes_on():
            parts = [self.BASELINE, *([self.CONTROL] if self.with_control else []), *self._running]
            order = (
                generator.sample(parts, len(parts)) if self._tried % 2 == 0 else [p for p in order[::-1] if p in parts]
            )
            if not self._measure(order):
                return
            self._tried += 1
            if self.found and self._tried % ROUNDS_TO_DROP == 0 and (dropped := self.found.drop) in self._running:
                self._running.remove(dropped)

    def _goes_on(self) -> bool:
        rounds = len(self.found.rounds) if self.found else 0
        is_clear = self.found is not None and self.found.is_clear
        needed = len(self._running) + 1 + self.with_control
        return rounds < MAX_ROUNDS and not is_clear and self.has_time(needed, self._tried)

    def _measure(self, order: Sequence[int]) -> bool:
        """Measure one round; tell whether there may be another."""
        attempts: dict[int, Attempt] = {}
        for part in order:
            config = self.finalists[part] if part >= 0 else self.baseline
            attempt = measure_undisturbed(self.runner, config, self.next_request(), self._may_repeat)
            self.on_attempt(config, attempt)
            require_host(attempt)
            if attempt.measurement is not None and (part < 0 or self.fits(attempt.measurement)):
                attempts[part] = attempt
                self._longest = max(self._longest, attempt.seconds)
            elif attempt.measurement is None and attempt.outcome is Outcome.SUSPECT:
                return True  # others left too little memory: this round does not count
            elif part < 0 or self._is_cut_off(attempt):
                return False
            else:
                self._strike(part, attempt.outcome)
                if not self._running:
                    return False
        if all(attempt.outcome is Outcome.OK for attempt in attempts.values()):
            self._add({part: attempt.measurement for part, attempt in attempts.items() if attempt.measurement})
        return True

    def _may_repeat(self, attempt: Attempt) -> bool:
        return self.has_time(1, MIN_ROUNDS)

    def _is_cut_off(self, attempt: Attempt) -> bool:
        """Tell whether a measurement ended because the time was over, and not because it was stuck."""
        return attempt.outcome is Outcome.TIMEOUT and 0 < attempt.seconds < HANG * self._longest

    def _strike(self, index: int, outcome: Outcome) -> None:
        """Measure a finalist that has failed no more; where its precision fails, no other in that precision either.

        What fails with options may not fail without them.
        """
        amp, options = self.finalists[index].amp, set(self.finalists[index].options)
        alike = [i for i, each in enumerate(self.finalists) if each.amp == amp and options <= set(each.options)]
        struck = alike if outcome is Outcome.NUMERICS and amp != "off" else [index]
        self._running = [i for i in self._running if i not in struck]
        self._failed.update(struck)
        if self.found:
            self.found = replace(self.found, failed=frozenset(self._failed))

    def _add(self, measured: dict[int, Measurement]) -> None:
        one = Round(
            baseline=measured[self.BASELINE],
            control=measured.get(self.CONTROL),
            finalists=tuple(measured.get(index) for index in range(len(self.finalists))),
        )
        self.found = Confirmation(
            finalists=self.finalists,
            failed=frozenset(self._failed),
            baseline_config=self.baseline,
            rounds=(*(self.found.rounds if self.found else ()), one),
        )


def _standing(config: Config, measurements: Sequence[Measurement | None]) -> Standing:
    found = sorted((each for each in measurements if each), key=lambda each: each.samples_per_second)
    rate, interval = geometric_interval([each.samples_per_second for each in found])
    ceiling = max(rate, fmean(each.ceiling_samples_per_second for each in found))
    typical = replace(found[len(found) // 2], ceiling_samples_per_second=ceiling)
    return Standing(config=config, rate=rate, rate_ci95=interval, typical=typical)
