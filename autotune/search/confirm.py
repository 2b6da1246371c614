"""Measure baseline and finalists side by side in fresh processes, and prove a gain."""

from __future__ import annotations

import math
import random
import secrets
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import NamedTuple

from autotune.config import Config
from autotune.records import Attempt, Measurement, Outcome, Request, Runner, Trial
from autotune.result import Control, Finalist
from autotune.stats import (
    LEAST_ADJUSTED,
    LEAST_ROUNDS,
    MAX_ROUNDS,
    Covariates,
    Interval,
    alpha_of,
    around,
    chance_of_gain,
    mean_rate,
    ratio_interval,
    sequential_interval,
)

CLAIM = 1.02
"""Smallest speed-up that is claimed, and within which two configurations count as equally fast."""
NEGLIGIBLE = 1.05
"""Largest speed-up that a verdict of no gain may leave open."""
CONTROL_CONFIDENCE = 0.99
"""Of the control's interval: a machine that is quiet should hardly ever be called disturbed."""
TOLD_APART, SPREAD = 0.8, 0.04
"""Probability from which a dearer finalist counts as faster than a cheaper one, and the usual spread of a pair's
difference. No claim rests on them, so they need not be on the safe side."""
UNLIKELY = 0.1
"""Probability below which a finalist that was dropped is no more than negligibly faster."""
ROUNDS_TO_DROP = 2
"""After each so many rounds the finalist that is least likely to be the answer is measured no more."""
LEAST_CROWDED = 0.25
"""Share of the first rounds' measurements during which others took the CPUs, from which rates are compared for the same
demand of others."""
LEAST_MEASUREMENTS = {3: 48, 2: 32}
"""Measurements that there must be time for, for so many finalists. In simulations of thirty configurations five
finalists were no better than three."""
KNOWN, KNOWN_ROUNDS = 0.2, 8
"""Half-width of a rate's interval, as a share, down to which rounds go on after a proof, and the most of these rounds.
Where the rate depends on the place in the epoch, so many places cover all of it."""
HANG = 3.0
"""A finalist that takes so many times as long as any measurement before is stuck; one cut off earlier is not."""
LEAST_WITH_CONTROL = 36
"""Measurements that there must be time for where the baseline is measured twice in each round; with less, more rounds
are worth more."""
FOR_NOW = (Outcome.SUSPECT, Outcome.TIMEOUT)
"""Outcomes of an attempt without numbers that say nothing of its configuration in a later run."""
HasTime = Callable[[float, int], bool]
"""Returns whether there is time for so many more measurements, when so many rounds were tried."""


class Place(NamedTuple):
    """Where a confirming measurement stands in its study."""

    round: str
    """Which round it belongs to."""
    entry: int | None
    """The number of its configuration among all that were ever compared with the baseline, in the order of entry;
    ``None`` for the baseline."""
    planned: int | None = None
    """Rounds over which most of its chance of a false claim is spent; ``None`` until known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One measurement of each, in fresh processes, shortly one after another."""

    baseline: Measurement
    """The baseline."""
    control: Measurement | None
    """The baseline again; ``None`` where there was no time for it."""
    finalists: tuple[Measurement | None, ...]
    """Each finalist, in the confirmation's order; ``None`` where it was not measured in this round."""

    @property
    def baselines(self) -> tuple[Measurement, ...]:
        """The baseline, and the baseline again."""
        return (self.baseline, self.control) if self.control else (self.baseline,)

    @property
    def baseline_rate(self) -> float:
        """Mean of the baseline's rates, in samples per second."""
        return fmean(each.samples_per_second for each in self.baselines)


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """The findings about one configuration, over processes."""

    config: Config
    """The configuration."""
    rate: float
    """Samples per second over all of its measurements, see ``stats.mean_rate``."""
    rate_ci95: Interval | None
    """95 % t-interval of it; with one measurement that of its own window."""
    next_run_95: Interval | None
    """95 % interval for the rate of one further measurement; ``None`` below three."""
    typical: Measurement
    """The measurement with the median rate; its ceiling is the mean of all, no less than ``rate``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmation:
    """The results of complete rounds."""

    finalists: tuple[Config, ...]
    """The candidates for the answer: the running ones, the cheapest first, then those of earlier rounds alone."""
    alphas: tuple[float, ...]
    """The chance of a false claim for each of them."""
    planned: tuple[int, ...]
    """Over how many rounds most of it is spent."""
    running: tuple[int, ...]
    """Those that were neither dropped nor have failed."""
    failed: frozenset[int] = frozenset()
    """The finalists that failed in a fresh process: occasional failures disqualify, however fast they are."""
    baseline_config: Config
    """The configuration that they are compared with."""
    rounds: tuple[Round, ...]
    """The complete rounds, whatever others did meanwhile; at least one."""

    @property
    def baseline(self) -> Standing:
        """The baseline, its controls included."""
        found = [each for one in self.rounds for each in (one.baseline, one.control) if each]
        return _standing(self.baseline_config, found, is_crowded=self.is_crowded)

    @property
    def answer(self) -> int | None:
        """The finalist that is the answer: of the proven ones, else of the remaining ones, else of all.

        The cheapest, unless a dearer one can be told to be faster by more than 2 %. ``None`` where all have failed.
        """
        proven = [index for index in self._sound if self.is_proven(index)]
        return self._best(proven or self._contenders or self._sound)

    @property
    def leader(self) -> int | None:
        """The answer if all running finalists were proven; ``None`` where all have failed."""
        return self._best(self._contenders)

    def _best(self, indices: Iterable[int]) -> int | None:
        best: int | None = None
        for index in indices:
            if best is None or self._is_ahead(index, best):
                best = index
        return best

    def _is_ahead(self, index: int, other: int) -> bool:
        """Return whether one finalist is faster than another by more than the margin for equality."""
        both = [(one.finalists[index], one.finalists[other]) for one in self.rounds]
        pairs = [(one.samples_per_second, two.samples_per_second) for one, two in both if one and two]
        if not pairs:
            return self.speedup(index) > CLAIM * self.speedup(other)
        if not self.is_crowded:
            pairs = [(1 / two, 1 / one) for one, two in pairs]
        rates, others = zip(*pairs, strict=True)
        is_more = fmean(rates) > CLAIM * fmean(others)
        return is_more and chance_of_gain(rates, others, usual_spread=SPREAD) >= TOLD_APART

    @property
    def _sound(self) -> list[int]:
        """The finalists that were measured and never failed, the cheapest first."""
        return [index for index in range(len(self.finalists)) if index not in self.failed and self.rounds_of(index)]

    @property
    def drop(self) -> int | None:
        """The finalist to be measured no more: the slowest of those that would not be the answer now."""
        others = [index for index in self._contenders if index != self.leader]
        return min(others, key=self.speedup, default=None)

    def standing(self, index: int) -> Standing:
        """Return the findings about a finalist."""
        found = [one.finalists[index] for one in self.rounds]
        return _standing(self.finalists[index], found, is_crowded=self.is_crowded)

    def rounds_of(self, index: int) -> int:
        """Return the number of complete rounds of a finalist."""
        return sum(one.finalists[index] is not None for one in self.rounds)

    def speedup(self, index: int) -> float:
        """Return how many times as fast as the baseline a finalist is, in its rounds."""
        ours, others = self._pairs(index)
        return fmean(ours) / fmean(others)

    def interval(self, index: int) -> Interval | None:
        """Return the interval of that ratio, which holds after every round; those of all finalists with 95 %.

        ``None`` below three rounds.
        """
        return sequential_interval(*self._pairs(index), self.alphas[index], self.planned[index], self._demands(index))

    def chance(self, index: int) -> float:
        """Return the probability that a finalist is faster than the baseline."""
        return chance_of_gain(*self._pairs(index))

    def _pairs(self, index: int) -> tuple[list[float], list[float]]:
        """Return the pairs, one a round, of whose means a finalist's speed-up is the ratio.

        Each round begins at another place of the epoch, which lasts as long as its parts together: so they are the
        seconds per sample of the baseline and the finalist. Where others take the CPUs, rates change with time and not
        with the place: the samples in the same time count, and pairs are the rates of both.
        """
        both = [(found.samples_per_second, one.baseline_rate) for one in self.rounds if (found := one.finalists[index])]
        if self.is_crowded:
            return [rate for rate, _ in both], [other for _, other in both]
        return [1 / other for _, other in both], [1 / rate for rate, _ in both]

    @property
    def is_crowded(self) -> bool:
        """Whether others took the CPUs in the first rounds; decided there, before the first test."""
        first = [each for one in self.rounds[:LEAST_ROUNDS] for each in (*one.baselines, *one.finalists) if each]
        return sum(each.conditions.is_crowded for each in first) >= LEAST_CROWDED * len(first)

    def is_adjusted(self, index: int) -> bool:
        """Return whether that interval compares rates for the same demand of others."""
        return self._demands(index) is not None

    def _demands(self, index: int) -> Covariates | None:
        """Return the CPUs that others wanted beside a finalist and the baseline; ``None`` where they do not matter.

        They do where others took CPUs, and their demand is known from the first rounds on.
        """
        both = [(found, one.baselines) for one in self.rounds if (found := one.finalists[index])]
        first = [each.conditions for found, baselines in both[:LEAST_ROUNDS] for each in (found, *baselines)]
        is_known = all(each.foreign_demand is not None for each in first)
        if not self.is_crowded or not is_known or self.planned[index] < LEAST_ADJUSTED:
            return None
        return [_demand(found) for found, _ in both], [_demand(*baselines) for _, baselines in both]

    @property
    def found(self) -> tuple[Finalist, ...]:
        """The findings about each finalist that was measured in a complete round."""
        return tuple(
            Finalist(
                config=config,
                speedup=self.speedup(index),
                interval=self.interval(index),
                ratios=tuple(rate / other for rate, other in zip(*self._pairs(index), strict=True)),
                has_failed=index in self.failed,
            )
            for index, config in enumerate(self.finalists)
            if self.rounds_of(index)
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
        says_something = len(pairs) >= LEAST_ROUNDS
        return Control(ratio=ratio, ci99=interval if says_something else None, pairs=len(pairs), ratios=ratios)

    def is_proven(self, index: int) -> bool:
        """Whether a finalist's interval excludes equality and the gain is at least 2 %.

        Where the control is off, the machine alone makes such a difference: it must be exceeded too.
        """
        interval = self.interval(index)
        return interval is not None and interval[0] > self.noise and self.speedup(index) >= CLAIM

    @property
    def noise(self) -> float:
        """The ratio that the machine alone makes: 1 unless the control is off."""
        return math.exp(abs(math.log(self.control.ratio))) if self.control and self.control.is_off else 1.0

    @property
    def most(self) -> float | None:
        """The largest speed-up that the rounds leave possible; ``None`` where they do not tell.

        A finalist dropped before it had an interval is left out where it is hardly more than negligibly faster.
        """
        ends = []
        for index in self._sound:
            interval = self.interval(index)
            if interval is not None:
                ends.append(interval[1])
            elif index in self.running or chance_of_gain(*self._pairs(index), NEGLIGIBLE, SPREAD) >= UNLIKELY:
                return None
        return max(ends) * self.noise if ends else None

    @property
    def _contenders(self) -> list[int]:
        return [index for index in self._sound if index in self.running]

    @property
    def is_clear(self) -> bool:
        """Whether the rounds may end: the answer is proven, or there is hardly a gain, or all have failed."""
        if not set(self.running) <= set(self._sound):
            return False  # one of them has not been measured yet
        if self.leader is None:
            return True
        if self.is_proven(self.leader):
            return self._knows_rate(self.baseline) and self._knows_rate(self.standing(self.leader))
        is_small = all(self.speedup(index) < CLAIM for index in self._contenders)
        return is_small and self.most is not None and self.most <= NEGLIGIBLE

    def _knows_rate(self, standing: Standing) -> bool:
        """Return whether a rate is known well, or hardly better after more rounds."""
        most = (1 + KNOWN) * standing.rate
        is_narrow = standing.rate_ci95 is not None and standing.rate_ci95[1] <= most
        return is_narrow or len(self.rounds) >= KNOWN_ROUNDS


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
    history: Iterable[Trial] = (),
    entering: Sequence[Config] = (),
    fits: Callable[[Measurement], bool] = lambda measured: True,
    may_answer: Callable[[Config], bool] = lambda config: True,
    on_attempt: Callable[[Config, Attempt, Place], None] = lambda config, attempt, place: None,
    on_interrupt: Callable[[], None] | None = None,
) -> Confirmation | None:
    """Measure baseline, baseline again and finalists in complete rounds until the answer is clear or time is over.

    ``finalists`` come cheapest first; those of them that are new share what is left of the chance of a false claim in
    the order of ``entering``. ``next_request()`` says how to measure next. All measurements of a round begin at one
    place of the epoch, with its samples in the same order; each round has another place. ``seed`` decides the places
    and the order within a round; the next round reverses it, so that drift cancels. Rounds count whatever others did
    meanwhile: their spread is the uncertainty. A measurement without a number for an outside reason is repeated in
    another round; a finalist that fails by itself or does not fit the memory is out. Complete rounds in ``history``
    count too, for configurations that ``may_answer``; ``on_attempt`` hears of every attempt and its place in the study.

    Returns ``None`` when no round is complete. A KeyboardInterrupt ends it with the rounds that are complete, where
    ``on_interrupt`` is given.
    """
    record = _Record(baseline, tuple(finalists), tuple(entering), tuple(history), fits, may_answer)
    rounds = _Rounds(runner, record, next_request, has_time, with_control, seed, fits, on_attempt)
    try:
        rounds.run()
    except KeyboardInterrupt:
        if on_interrupt is None:
            raise
        on_interrupt()
    return record.confirmation


def has_failed(trial: Trial, fits: Callable[[Measurement], bool]) -> bool:
    """Return whether a confirming measurement shows that its configuration cannot be the answer, later either."""
    if trial.kind != "confirm":
        return False
    if trial.measurement is None:
        return trial.outcome not in FOR_NOW
    return not fits(trial.measurement)


class _Record:
    """The complete rounds of a study, those of earlier runs first, and the candidates for the answer."""

    def __init__(
        self,
        baseline: Config,
        finalists: tuple[Config, ...],
        entering: tuple[Config, ...],
        history: tuple[Trial, ...],
        fits: Callable[[Measurement], bool],
        may_answer: Callable[[Config], bool],
    ) -> None:
        compared = [trial for trial in history if trial.kind == "confirm" and trial.round]
        self.entries = {trial.config: trial.entry for trial in compared if trial.entry is not None}
        for config in (*entering, *finalists):
            self.entries.setdefault(config, max(self.entries.values(), default=-1) + 1)
        known = [config for config in self.entries if config not in finalists and may_answer(config)]
        self.baseline = baseline
        self.fits = fits
        self.finalists = (*finalists, *known)
        self.alphas = tuple(alpha_of(self.entries[config]) for config in self.finalists)
        self.planned: dict[Config, int] = {}
        for trial in compared:
            if trial.planned is not None:
                self.planned.setdefault(trial.config, trial.planned)  # what was fixed first, whoever did
        self.given = range(len(finalists))
        self.running = list(self.given)
        self.failed: set[int] = set()
        self.rounds: list[Round] = []
        members = defaultdict[str | None, list[Trial]](list)  # tuners of a shared study take turns
        for trial in compared:
            members[trial.round].append(trial)
        for each in members.values():
            self._add_kept(each)

    def _add_kept(self, members: Sequence[Trial]) -> None:
        """Add a round on record, if it was complete."""
        failed = {trial.config for trial in members if has_failed(trial, self.fits)}
        self.failed |= {index for index, config in enumerate(self.finalists) if config in failed}
        members = [trial for trial in members if trial.config not in failed or trial.config == self.baseline]
        again = [trial.measurement for trial in members if trial.config == self.baseline]
        if not again or any(trial.measurement is None for trial in members):
            return
        of = {trial.config: trial.measurement for trial in members}
        of_finalists = tuple(None if config == self.baseline else of.get(config) for config in self.finalists)
        if any(of_finalists) and again[0]:
            control = again[1] if len(again) > 1 else None
            self.rounds.append(Round(baseline=again[0], control=control, finalists=of_finalists))

    def plan(self, possible: Callable[[], int]) -> None:
        """Fix, before the first test of each, over how many rounds its chance is spent: ``possible()`` more at most."""
        for index in self.running:
            done = sum(one.finalists[index] is not None for one in self.rounds)
            if self.finalists[index] not in self.planned and done >= LEAST_ROUNDS - 1:
                most = MAX_ROUNDS if done >= LEAST_ROUNDS else done + possible()
                self.planned[self.finalists[index]] = min(MAX_ROUNDS, max(LEAST_ROUNDS, most))

    def revive(self) -> None:
        """Go on with the dropped finalists, where all others have failed."""
        self.running = [index for index in self.given if index not in self.failed]

    @property
    def confirmation(self) -> Confirmation | None:
        """The results of the rounds so far."""
        if not self.rounds:
            return None
        return Confirmation(
            finalists=self.finalists,
            alphas=self.alphas,
            planned=tuple(self.planned.get(config, MAX_ROUNDS) for config in self.finalists),
            running=tuple(self.running),
            failed=frozenset(self.failed),
            baseline_config=self.baseline,
            rounds=tuple(self.rounds),
        )


@dataclass(slots=True)
class _Rounds:
    """The rounds as they go on."""

    runner: Runner
    record: _Record
    next_request: Callable[[], Request]
    has_time: HasTime
    with_control: bool
    seed: int
    fits: Callable[[Measurement], bool]
    on_attempt: Callable[[Config, Attempt, Place], None]
    _name: str = field(default_factory=lambda: secrets.token_hex(4))
    _tried: int = 0
    _complete: int = 0
    _longest: float = 0.0

    BASELINE, CONTROL = -1, -2

    def run(self) -> None:
        generator = random.Random(self.seed)
        record, order = self.record, list[int]()
        record.running = [index for index in record.running if index not in record.failed]
        while record.running and self._goes_on():
            parts = [self.BASELINE, *([self.CONTROL] if self.with_control else []), *record.running]
            is_drawn = self._tried % 2 == 0
            order = generator.sample(parts, len(parts)) if is_drawn else [p for p in order[::-1] if p in parts]
            if not self._measure(order):
                return
            self._tried += 1
            if self._complete and self._tried % ROUNDS_TO_DROP == 0 and (found := record.confirmation):
                record.running = [index for index in record.running if index != found.drop]

    def _goes_on(self) -> bool:
        found = self.record.confirmation
        is_clear = found is not None and found.is_clear
        needed = len(self.record.running) + 1 + self.with_control
        return self._complete < MAX_ROUNDS and not is_clear and self.has_time(needed, self._tried)

    def _possible(self) -> int:
        """Return the rounds of one finalist that fit the time."""
        parts, tried = 2 + self.with_control, max(1, self._tried)
        return next((n for n in range(MAX_ROUNDS, 0, -1) if self.has_time(parts * n, tried)), 0)

    def _measure(self, order: Sequence[int]) -> bool:
        """Measure one round; return whether there may be another."""
        self.record.plan(self._possible)
        measured: dict[int, Measurement] = {}
        is_whole = True
        for part in order:
            config = self.record.finalists[part] if part >= 0 else self.record.baseline
            request = replace(self.next_request(), seed=self.seed + 1 + self._tried)
            attempt = self.runner.measure(config, request)
            entry = self.record.entries[config] if part >= 0 else None
            planned = self.record.planned.get(config) if part >= 0 else None
            self.on_attempt(config, attempt, Place(f"{self._name}-{self._tried}", entry, planned))
            if attempt.measurement is not None and (part < 0 or self.fits(attempt.measurement)):
                measured[part] = attempt.measurement
                self._longest = max(self._longest, attempt.seconds)
            elif attempt.measurement is None and attempt.outcome is Outcome.SUSPECT:
                is_whole = False  # for a reason outside of it: this round does not count
                break
            elif part < 0 or (attempt.outcome is Outcome.TIMEOUT and 0 < attempt.seconds < HANG * self._longest):
                return False  # it was not stuck: the time was over
            else:
                self._strike(part, attempt.outcome)
                if not self.record.running:
                    self.record.revive()
                    return bool(self.record.running)
        if is_whole and any(part >= 0 for part in measured):
            self._add(measured)
        return True

    def _strike(self, index: int, outcome: Outcome) -> None:
        """Stop measuring a failed finalist; where its precision failed, all others in the same precision too.

        A finalist that fails with options may not fail without them.
        """
        finalists, record = self.record.finalists, self.record
        amp, options = finalists[index].amp, set(finalists[index].options)
        alike = [i for i in record.running if finalists[i].amp == amp and options <= set(finalists[i].options)]
        struck = alike if outcome is Outcome.NUMERICS and amp != "off" else [index]
        record.running = [i for i in record.running if i not in struck]
        record.failed.update(struck)

    def _add(self, measured: dict[int, Measurement]) -> None:
        self._complete += 1
        finalists = tuple(measured.get(index) for index in range(len(self.record.finalists)))
        control = measured.get(self.CONTROL)
        self.record.rounds.append(Round(baseline=measured[self.BASELINE], control=control, finalists=finalists))


def _demand(*measurements: Measurement) -> float | None:
    """Return the CPUs that others wanted on average meanwhile; ``None`` where unknown."""
    demands = [each.conditions.foreign_demand for each in measurements]
    known = [demand for demand in demands if demand is not None]
    return fmean(known) if len(known) == len(demands) else None


def _standing(config: Config, measurements: Sequence[Measurement | None], *, is_crowded: bool) -> Standing:
    found = sorted((each for each in measurements if each), key=lambda each: each.samples_per_second)
    rates = [each.samples_per_second for each in found]
    rate, width = mean_rate(rates, is_crowded=is_crowded)
    ceiling = max(rate, fmean(each.ceiling_samples_per_second for each in found))
    return Standing(
        config=config,
        rate=rate,
        rate_ci95=around(rate, width) or found[0].ci95,
        next_run_95=around(rate, width * math.sqrt(len(found) + 1)) if len(found) >= LEAST_ROUNDS else None,
        typical=replace(found[len(found) // 2], ceiling_samples_per_second=ceiling),
    )
