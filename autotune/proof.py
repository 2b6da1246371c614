"""The proof of a gain: baseline and finalists measured side by side in fresh processes."""

from __future__ import annotations

import math
import random
import secrets
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from statistics import fmean
from typing import Any, NamedTuple

from autotune.config import Config
from autotune.outcome import Outcome
from autotune.records import Attempt, Measurement, Request, Runner, Trial
from autotune.result import Finalist
from autotune.stats import (
    LEAST_ROUNDS,
    MAX_ROUNDS,
    Interval,
    alpha_of,
    around,
    chance_by_pairs,
    chance_of_gain,
    count_interval,
    mean_rate,
    sequential_interval,
    shows_gain,
)

CLAIM = 1.02
"""Smallest speed-up that is claimed, and within which two configurations count as equally fast."""
NEGLIGIBLE = 1.05
"""Largest speed-up that a verdict of no gain may leave open."""
TOLD_APART, SPREAD = 0.8, 0.04
"""Probability from which a dearer finalist counts as faster than a cheaper one, and the usual spread of a pair's
difference. No claim rests on them, so they need not be on the safe side."""
LIKELY = 20 / 21
"""Probability of a gain from which an unproven configuration is the answer: odds of 20 to 1."""
UNLIKELY = 0.1
"""Probability below which a finalist that was dropped is no more than negligibly faster."""
ROUNDS_TO_DROP = 2
"""After each so many rounds the finalist that is least likely to be the answer is measured no more."""
LEAST_CROWDED = 0.25
"""Share of the first rounds' measurements during which others took the CPUs, from which rates are compared as such."""
LEAST_MEASUREMENTS = {3: 48, 2: 32}
"""Measurements that there must be time for, for so many finalists. In simulations of thirty configurations five
finalists were no better than three."""
KNOWN, KNOWN_ROUNDS = 0.2, 8
"""Half-width of a rate's interval, as a share, down to which rounds go on after a proof, and the most of these rounds.
Where the rate depends on the place in the epoch, so many places cover all of it."""
HANG = 3.0
"""A finalist that takes so many times as long as any measurement before is stuck; one cut off earlier is not."""
LEAST_FOR_TWO = 36
"""Measurements that there must be time for where each round measures the baseline twice, so that its rate is known
better; with less, more rounds are worth more."""
FOR_NOW = (Outcome.SUSPECT, Outcome.TIMEOUT)
"""Outcomes of an attempt without numbers that say nothing of its configuration in a later run."""
BASELINE = -1
"""The baseline's place among the finalists."""
HasTime = Callable[[float, int], bool]
"""Returns whether there is time for so many more measurements, when so many rounds were tried."""


class Place(NamedTuple):
    """Where a confirming measurement stands in its study."""

    round: str
    entry: int | None
    """The number of its configuration among all that were ever compared with the baseline, in the order of entry;
    ``None`` for the baseline."""
    planned: int | None = None
    """Rounds over which most of the chance of a false claim is spent; ``None`` until known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One measurement of each, in fresh processes, shortly one after another."""

    name: str
    """Its name in the study."""
    baselines: tuple[Measurement, ...]
    finalists: Mapping[Config, Measurement]

    @property
    def baseline_rate(self) -> float:
        """Mean of the baseline's rates, in samples per second."""
        return fmean(each.samples_per_second for each in self.baselines)

    @property
    def quiet(self) -> Round:
        """The measurements during which nobody else took the CPUs."""
        baselines = tuple(each for each in self.baselines if not each.conditions.is_crowded)
        finalists = {config: each for config, each in self.finalists.items() if not each.conditions.is_crowded}
        return replace(self, baselines=baselines, finalists=finalists)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """The entry of a finalist into the comparison."""

    config: Config
    number: int
    """Its number among all that were ever compared with the baseline: it decides the chance of a false claim."""
    is_running: bool = True
    """Whether it is measured in the next round: it was not dropped and has not failed."""
    has_failed: bool = False
    """Whether it failed in a fresh process: occasional failures disqualify, however fast it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """The rate of one configuration, over processes."""

    config: Config
    rate: float
    """Samples per second over all of its measurements, see ``stats.mean_rate``."""
    rate_ci95: Interval | None
    """95 % t-interval of it; with one measurement that of its own window."""
    next_run_95: Interval | None
    """95 % interval for the rate of one further measurement; ``None`` below three."""
    typical: Measurement
    """The measurement with the median rate; its ceiling is the mean of all, no less than ``rate``."""


def standing_of(config: Config, measurements: Iterable[Measurement], *, is_crowded: bool = False) -> Standing:
    """Return the rate of a configuration over all of its measurements."""
    found = sorted(measurements, key=lambda each: each.samples_per_second)
    rate, width = mean_rate([each.samples_per_second for each in found], is_crowded=is_crowded)
    ceiling = max(rate, fmean(each.ceiling_samples_per_second for each in found))
    return Standing(
        config=config,
        rate=rate,
        rate_ci95=around(rate, width) or found[0].ci95,
        next_run_95=around(rate, width * math.sqrt(len(found) + 1)) if len(found) >= LEAST_ROUNDS else None,
        typical=replace(found[len(found) // 2], ceiling_samples_per_second=ceiling),
    )


def shown_uneven(standings: Iterable[Standing], trials: Iterable[Trial]) -> Trial | None:
    """Return a trial that shows that workers get different amounts, where that leaves one of these rates open.

    Of a stream that several workers read, and whose beginning alone was measured, the rest may run at other rates.
    """
    several = [each for each in standings if each.config.readers > 1]
    if all(each.typical.beginning_samples is None for each in several):
        return None
    uneven = [(found.idle_workers, trial) for trial in trials if (found := trial.measurement) and found.is_uneven]
    return max(uneven, key=lambda pair: pair[0])[1] if uneven else None


def with_pauses(standing: Standing, trials: Iterable[Trial]) -> Standing:
    """Return a standing whose intervals hold what rare pauses cost that some quiet measurements met and others did not.

    A sample that takes long does so with every configuration of as many loader workers.
    """
    config, quiet = standing.config, [one for one in trials if (m := one.measurement) and not m.conditions.disturbances]
    rates = [one.rate for one in quiet if one.config == config and one.rate]
    alike = [one.measurement for one in quiet if one.config.num_workers == config.num_workers and one.measurement]
    pauses, samples = sum(each.pauses for each in alike), sum(each.seen_samples for each in alike)
    if not rates or not pauses or not samples or standing.rate_ci95 is None:
        return standing
    each_costs = sum(each.pause_seconds for each in alike) / pauses / samples
    most, least = (1 / (1 / max(rates) + each_costs * count) for count in count_interval(pauses))
    further = standing.next_run_95 and _hull(standing.next_run_95, least, *rates)
    return replace(standing, rate_ci95=_hull(standing.rate_ci95, least, most), next_run_95=further)


def _hull(interval: Interval, *values: float) -> Interval:
    return min(interval[0], *values), max(interval[1], *values)


@dataclass(frozen=True, kw_only=True)
class Confirmation:
    """The results of complete rounds; a finalist is named by its place in ``finalists``."""

    baseline_config: Config
    finalists: tuple[Entry, ...]
    """The finalists of this run, the cheapest first, then those of earlier rounds alone."""
    complete: tuple[Round, ...]
    """The complete rounds, whatever others did meanwhile."""
    planned: int | None = None
    """Rounds over which most of the chance of a false claim is spent; ``None``, as ``MAX_ROUNDS``, until known."""

    @cached_property
    def rounds(self) -> tuple[Round, ...]:
        """The rounds that count: where others came now and then, without the measurements that they disturbed."""
        if self.is_crowded:
            return self.complete
        quiet = tuple(one for each in self.complete if (one := each.quiet).baselines and one.finalists)
        return quiet or self.complete

    @property
    def answer(self) -> int | None:
        """The finalist that is the answer: of the proven ones, else of the running ones, else of all.

        The cheapest, unless a dearer one can be told to be faster by more than 2 %. ``None`` where all have failed.
        """
        proven = [index for index in self._sound if self.is_proven(index)]
        return self._best(proven or self._running or self._sound)

    @property
    def drop(self) -> int | None:
        """The finalist to be measured no more: the slowest of those that would not be the answer now."""
        leader = self._best(self._running)
        return min((index for index in self._running if index != leader), key=self.speedup, default=None)

    @cached_property
    def _sound(self) -> list[int]:
        """The finalists that were measured and never failed, the cheapest first."""
        return [i for i, entry in enumerate(self.finalists) if not entry.has_failed and self.rounds_of(i)]

    @property
    def _running(self) -> list[int]:
        return [index for index in self._sound if self.finalists[index].is_running]

    def _best(self, indices: Sequence[int]) -> int | None:
        return reduce(lambda best, index: index if self._is_ahead(index, best) else best, indices) if indices else None

    def _is_ahead(self, index: int, other: int) -> bool:
        """Return whether one finalist is faster than another by more than the margin for equality."""
        ours, theirs = self.finalists[index].config, self.finalists[other].config
        both = [(one.finalists.get(ours), one.finalists.get(theirs)) for one in self.rounds]
        pairs = [(one.samples_per_second, two.samples_per_second) for one, two in both if one and two]
        if not pairs:
            return self.speedup(index) > CLAIM * self.speedup(other)
        rates, others = self._sides(pairs)
        is_more = fmean(rates) > CLAIM * fmean(others)
        return is_more and chance_of_gain(rates, others, usual_spread=SPREAD) >= TOLD_APART

    @property
    def baseline(self) -> Standing:
        """The rate of the baseline."""
        return self._standing(self.baseline_config, lambda one: one.baselines)

    def standing(self, index: int) -> Standing:
        """Return the rate of a finalist."""
        config = self.finalists[index].config
        return self._standing(config, lambda one: filter(None, [one.finalists.get(config)]))

    def _standing(self, config: Config, of: Callable[[Round], Iterable[Measurement]]) -> Standing:
        """Return a rate from the rounds that count; others may come to a further run as they did to any of these."""
        counted, every = (
            standing_of(config, (each for one in rounds for each in of(one)), is_crowded=self.is_crowded)
            for rounds in (self.rounds, self.complete)
        )
        return replace(counted, next_run_95=every.next_run_95)

    def _measured(self, index: int) -> list[tuple[Measurement, Round]]:
        """Return the measurements of a finalist, each with its round."""
        config = self.finalists[index].config
        return [(one.finalists[config], one) for one in self.rounds if config in one.finalists]

    def _is_of_neighbours(self, index: int) -> bool:
        """Return whether others may be the reason for a finalist's gain: they slow several threads more than one.

        So it is where another number of threads was compared beside them, and no quiet round shows the gain.
        """
        config = self.finalists[index].config
        if not self.is_crowded or config.intra_op_threads == self.baseline_config.intra_op_threads:
            return False
        quiet = [one for each in self.complete if (one := each.quiet).baselines and config in one.finalists]
        ratios = [one.finalists[config].samples_per_second / one.baseline_rate for one in quiet]
        return not ratios or fmean(ratios) < CLAIM

    def rounds_of(self, index: int) -> int:
        """Return the number of complete rounds of a finalist."""
        return len(self._measured(index))

    def _pairs(self, index: int) -> tuple[list[float], list[float]]:
        """Return what a finalist's speed-up is the ratio of the means of: one value a round, and the baseline's."""
        return self._sides([(each.samples_per_second, one.baseline_rate) for each, one in self._measured(index)])

    def _sides(self, pairs: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
        """Return the values that are compared, from pairs of rates.

        Each round begins at another place of the epoch, which lasts as long as its parts together: so they are the
        seconds per sample of the second and the first. Where others take the CPUs, rates change with time and not with
        the place: the samples in the same time count, and they are the rates of both.
        """
        if self.is_crowded:
            return [rate for rate, _ in pairs], [other for _, other in pairs]
        return [1 / other for _, other in pairs], [1 / rate for rate, _ in pairs]

    def speedup(self, index: int) -> float:
        """Return how many times as fast as the baseline a finalist is, in its rounds."""
        ours, others = self._pairs(index)
        return fmean(ours) / fmean(others)

    def interval(self, index: int) -> Interval | None:
        """Return the interval of that ratio, which holds after every round; those of all finalists with 95 %.

        ``None`` below three rounds.
        """
        alpha = alpha_of(self.finalists[index].number)
        return sequential_interval(*self._pairs(index), alpha, self.planned or MAX_ROUNDS)

    def is_likely(self, index: int) -> bool:
        """Return whether a finalist is faster by odds of 20 to 1, in three rounds or more that nobody disturbed."""
        rounds = [(ours, *one.baselines) for ours, one in self._measured(index)]
        quiet = [one for one in rounds if not any(each.conditions.taken_share for each in one)]
        if self.is_crowded or len(quiet) < LEAST_ROUNDS:
            return False
        return chance_by_pairs(*self._pairs(index)) >= LIKELY and self.speedup(index) >= CLAIM

    @cached_property
    def is_crowded(self) -> bool:
        """Whether others took the CPUs in the first rounds; decided there, before the first test."""
        first = [each for one in self.complete[:LEAST_ROUNDS] for each in (*one.baselines, *one.finalists.values())]
        return sum(each.conditions.is_crowded for each in first) >= LEAST_CROWDED * len(first)

    @property
    def found(self) -> tuple[Finalist, ...]:
        """The findings about each finalist that was measured in a complete round."""
        return tuple(self.finding(index) for index in range(len(self.finalists)) if self.rounds_of(index))

    def finding(self, index: int) -> Finalist:
        """Return the findings about a finalist."""
        return Finalist(
            config=self.finalists[index].config,
            speedup=self.speedup(index),
            interval=self.interval(index),
            ratios=tuple(rate / other for rate, other in zip(*self._pairs(index), strict=True)),
            has_failed=self.finalists[index].has_failed,
        )

    @property
    def is_hopeless(self) -> bool:
        """Whether even ``MAX_ROUNDS`` rounds like these would not prove the gain of the answer."""
        index = self.answer
        if index is None or self.rounds_of(index) < LEAST_ROUNDS or self.speedup(index) < CLAIM:
            return False
        rates, others = self._pairs(index)
        times = -(-MAX_ROUNDS // len(rates))
        alpha = alpha_of(self.finalists[index].number)
        return not shows_gain(sequential_interval(rates * times, others * times, alpha, MAX_ROUNDS))

    def is_proven(self, index: int) -> bool:
        """Return whether a finalist's interval shows a gain, and it is at least 2 %."""
        is_gain = shows_gain(self.interval(index)) and self.speedup(index) >= CLAIM
        return is_gain and not self._is_of_neighbours(index)

    @property
    def most(self) -> float | None:
        """The largest speed-up that the rounds leave possible; ``None`` where they do not tell.

        A finalist dropped before it had an interval is left out where it is hardly more than negligibly faster.
        """
        ends = []
        for index in self._sound:
            if interval := self.interval(index):
                ends.append(interval[1])
            elif (
                self.finalists[index].is_running or chance_of_gain(*self._pairs(index), NEGLIGIBLE, SPREAD) >= UNLIKELY
            ):
                return None
        return max(ends) if ends else None

    @property
    def is_clear(self) -> bool:
        """Whether the rounds may end: the answer is proven, or there is hardly a gain, or all have failed."""
        if any(entry.is_running and not self.rounds_of(index) for index, entry in enumerate(self.finalists)):
            return False
        leader = self._best(self._running)
        if leader is None:
            return True
        if self.is_proven(leader):
            return self._knows_rate(self.baseline) and self._knows_rate(self.standing(leader))
        is_small = all(self.speedup(index) < CLAIM for index in self._running)
        return is_small and self.most is not None and self.most <= NEGLIGIBLE

    def _knows_rate(self, standing: Standing) -> bool:
        """Return whether a rate is known well, or hardly better after more rounds."""
        most = (1 + KNOWN) * standing.rate
        is_narrow = standing.rate_ci95 is not None and standing.rate_ci95[1] <= most
        return is_narrow or len(self.complete) >= KNOWN_ROUNDS


def finalists_for(measurements: float) -> tuple[int, int]:
    """Return how many finalists so many measurements allow, and of the baseline in each round."""
    count = next((count for count, least in LEAST_MEASUREMENTS.items() if measurements >= least), 1)
    return count, 2 if measurements >= LEAST_FOR_TWO else 1


def has_failed(trial: Trial, fits: Callable[[Measurement], bool]) -> bool:
    """Return whether a confirming measurement shows that its configuration cannot be the answer, later either."""
    if trial.kind != "confirm":
        return False
    return trial.outcome not in FOR_NOW if trial.measurement is None else not fits(trial.measurement)


def _kept_rounds(compared: Sequence[Trial], baseline: Config, fits: Callable[[Measurement], bool]) -> Iterator[Round]:
    """Yield the rounds on record that were complete, without the finalists that failed in them."""
    for name, trials in _by_round(compared, baseline, fits).items():
        one = _round(name, trials, baseline)
        if one.baselines and one.finalists and all(trial.measurement for trial in trials):
            yield one


def _by_round(
    history: Iterable[Trial], baseline: Config, fits: Callable[[Measurement], bool]
) -> Mapping[str, Sequence[Trial]]:
    """Return the trials of each round, without those of finalists that failed in it."""
    members = defaultdict[str, list[Trial]](list)  # tuners of a shared study take turns
    for trial in history:
        if trial.round and (trial.config == baseline or not has_failed(trial, fits)):
            members[trial.round].append(trial)
    return members


def _round(name: str, trials: Iterable[Trial], baseline: Config) -> Round:
    measured = [(trial.config, trial.measurement) for trial in trials if trial.measurement]
    return Round(
        name=name,
        baselines=tuple(each for config, each in measured if config == baseline),
        finalists={config: each for config, each in measured if config != baseline},
    )


def recorded(
    history: Iterable[Trial],
    baseline: Config,
    entries: tuple[Entry, ...],
    rounds: Sequence[str],
    fits: Callable[[Measurement], bool],
) -> Confirmation:
    """Return the results of rounds, by their names, from the trials that are on record."""
    members = _by_round(history, baseline, fits)
    return Confirmation(
        baseline_config=baseline,
        finalists=entries,
        complete=tuple(_round(name, members[name], baseline) for name in rounds),
        planned=_planned(history),
    )


def _planned(history: Iterable[Trial]) -> int | None:
    """Return the rounds that were planned first, whoever fixed them."""
    return next((trial.planned for trial in history if trial.planned), None)


@dataclass(slots=True)
class Rounds:
    """Measurements of baseline and finalists in complete rounds, until the answer is clear or time is over.

    All measurements of a round begin at one place of the epoch, with its samples in the same order; each round has
    another place. Where others come now and then, the measurements that they disturb do not count; where they come
    often, all do, and their spread is the uncertainty. A measurement without a number for an outside reason is repeated
    in another round; a finalist that fails by itself or does not fit the memory is out.
    """

    runner: Runner
    baseline: Config
    finalists: Sequence[Config]
    """Those of this run, the cheapest first."""
    next_request: Callable[[], Request]
    """Says how to measure next."""
    has_time: HasTime
    baselines: int = 2
    """Measurements of the baseline in a round."""
    seed: int = 0
    """Decides the places and the order within a round; the next round reverses it, so that drift cancels."""
    prefix: str = ""
    """Begins the names of its rounds."""
    history: Iterable[Trial] = ()
    """Trials on record: complete rounds among them count too, for configurations that ``may_answer``."""
    entering: Sequence[Config] = ()
    """The order in which new finalists share what is left of the chance of a false claim."""
    fits: Callable[[Measurement], bool] = lambda measured: True
    may_answer: Callable[[Config], bool] = lambda config: True
    on_attempt: Callable[[Config, Attempt, Place], None] = lambda config, attempt, place: None
    """Hears of every attempt and its place in the study."""
    found: Confirmation = field(init=False)
    """The results so far, first those on record."""
    _name: str = field(default_factory=lambda: secrets.token_hex(4), init=False)
    _tried: int = field(default=0, init=False)
    _longest: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        compared = [trial for trial in self.history if trial.kind == "confirm" and trial.round]
        failed = {trial.config for trial in compared if has_failed(trial, self.fits)}
        numbers = {trial.config: trial.entry for trial in compared if trial.entry is not None}
        for config in (*self.entering, *self.finalists):
            numbers.setdefault(config, max(numbers.values(), default=-1) + 1)
        entries = (
            Entry(
                config=config,
                number=numbers[config],
                is_running=config in self.finalists and config not in failed,
                has_failed=config in failed,
            )
            for config in dict.fromkeys((*self.finalists, *numbers))
            if config in self.finalists or self.may_answer(config)
        )
        self.found = Confirmation(
            baseline_config=self.baseline,
            finalists=tuple(entries),
            complete=tuple(_kept_rounds(compared, self.baseline, self.fits)),
            planned=_planned(compared),
        )

    def run(self, on_interrupt: Callable[[], object] | None = None) -> Confirmation | None:
        """Measure, and return the results; ``None`` when no round is complete.

        A KeyboardInterrupt ends it with the rounds that are complete, where ``on_interrupt`` is given.
        """
        try:
            self._measure_rounds()
        except KeyboardInterrupt:
            if on_interrupt is None:
                raise
            on_interrupt()
        return self.found if self.found.complete else None

    def _measure_rounds(self) -> None:
        generator, order = random.Random(self.seed), list[int]()
        known = len(self.found.complete)
        while self._goes_on(known + MAX_ROUNDS):
            self._plan()
            parts = [BASELINE] * self.baselines + self._running
            is_drawn = self._tried % 2 == 0
            order = generator.sample(parts, len(parts)) if is_drawn else [p for p in order[::-1] if p in parts]
            if not self._measure(order):
                return
            self._tried += 1
            slowest = self.found.drop if len(self.found.complete) > known else None
            if slowest is not None and self._tried % ROUNDS_TO_DROP == 0:
                self._change([slowest], is_running=False)

    @property
    def _round(self) -> str:
        """The name of the present round."""
        return f"{self.prefix}{self._name}-{self._tried}"

    @property
    def _running(self) -> list[int]:
        return [index for index, entry in enumerate(self.found.finalists) if entry.is_running]

    def _goes_on(self, most: int) -> bool:
        running = self._running
        is_open = running and len(self.found.complete) < most and not self.found.is_clear
        return bool(is_open) and self.has_time(len(running) + self.baselines, self._tried)

    def _plan(self) -> None:
        """Fix, before the first test in the study, over how many rounds chances are spent: as many as fit the time."""
        done = max((self.found.rounds_of(index) for index in self._running), default=0)
        if self.found.planned is None and done >= LEAST_ROUNDS - 1:
            parts, tried = 1 + self.baselines, max(1, self._tried)
            possible = next((n for n in range(MAX_ROUNDS, 0, -1) if self.has_time(parts * n, tried)), 0)
            most = MAX_ROUNDS if done >= LEAST_ROUNDS else done + possible
            self.found = replace(self.found, planned=min(MAX_ROUNDS, max(LEAST_ROUNDS, most)))

    def _change(self, indices: Sequence[int], **changes: Any) -> None:
        entries = self.found.finalists
        changed = (replace(each, **changes) if i in indices else each for i, each in enumerate(entries))
        self.found = replace(self.found, finalists=tuple(changed))

    def _measure(self, order: Sequence[int]) -> bool:
        """Measure one round; return whether there may be another."""
        again, of = list[Measurement](), dict[Config, Measurement]()
        for part in order:
            config, attempt = self._attempt(part)
            found = attempt.measurement
            if found is not None and part == BASELINE:
                again.append(found)
            elif found is not None and self.fits(found):
                of[config] = found
            elif found is None and attempt.outcome is Outcome.SUSPECT:
                return True  # for a reason outside of it: this round does not count
            elif part == BASELINE or (
                attempt.outcome is Outcome.TIMEOUT and 0 < attempt.seconds < HANG * self._longest
            ):
                return False  # it was not stuck: the time was over
            else:
                self._strike(part, attempt.outcome)
                if not self._running:  # those that were dropped go on
                    sound = [i for i in range(len(self.finalists)) if not self.found.finalists[i].has_failed]
                    self._change(sound, is_running=True)
                    return True
        if of:
            done = Round(name=self._round, baselines=tuple(again), finalists=of)
            self.found = replace(self.found, complete=(*self.found.complete, done))
        return True

    def _attempt(self, part: int) -> tuple[Config, Attempt]:
        """Measure a finalist or the baseline, and tell of it."""
        config, entry = self.found.baseline_config, None
        if part != BASELINE:
            config, entry = self.found.finalists[part].config, self.found.finalists[part].number
        attempt = self.runner.measure(config, replace(self.next_request(), seed=self.seed + 1 + self._tried))
        self.on_attempt(config, attempt, Place(self._round, entry, self.found.planned))
        if attempt.measurement is not None:
            self._longest = max(self._longest, attempt.seconds)
        return config, attempt

    def _strike(self, index: int, outcome: Outcome) -> None:
        """Stop measuring a failed finalist; where its precision failed, all others in the same precision too.

        A finalist that fails with options may not fail without them.
        """
        failed, struck = self.found.finalists[index].config, [index]
        if outcome is Outcome.NUMERICS and failed.amp != "off":
            configs = ((i, self.found.finalists[i].config) for i in self._running)
            struck = [i for i, one in configs if one.amp == failed.amp and set(failed.options) <= set(one.options)]
        self._change(struck, is_running=False, has_failed=True)
