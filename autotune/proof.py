"""The proof of a gain: baseline and finalists measured side by side in fresh processes."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from statistics import fmean
from typing import Any, Literal, NamedTuple

from autotune.config import Config
from autotune.outcome import Outcome
from autotune.records import Attempt, Measurement, Trial
from autotune.result import Finalist
from autotune.stats import (
    ALPHA,
    FINAL_SHARE,
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One measurement of each, in fresh processes, shortly one after another."""

    name: str
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


Difference = Literal["faster", "slower", "no difference", "not slower", "undecided"]
"""Whether the second side is faster or slower, neither by more than 5 %, or not slower by more than a margin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two sides measured by turns in fresh processes."""

    names: tuple[str, str]
    """Their command lines, or the references of their functions."""
    a: Standing
    b: Standing
    verdict: Difference
    ratio: float
    """Rate of the second side over that of the first, in the same rounds."""
    interval: Interval | None
    """Interval of it that holds after every round, with 95 %; ``None`` below three rounds."""
    margin: float
    """Loss that was asked about, as a share; 0 where any difference was."""
    rounds: int
    """Complete rounds."""
    unit: Literal["samples", "steps"] = "samples"
    """The unit of the rates, a second."""
    losses: tuple[tuple[float, ...], ...] = ((), ())
    """First losses of both scripts, from the same seed; empty where they are not known."""
    notes: tuple[str, ...] = ()
    history: tuple[Trial, ...] = ()
    """Every measurement in order; those of the first side have no ``entry``."""
    seconds: float = 0.0
    """Wall time of everything."""


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
    """The results of complete rounds."""

    baseline_config: Config
    finalists: tuple[Entry, ...]
    """The finalists of this run, the cheapest first, then those of earlier rounds alone."""
    complete: tuple[Round, ...]
    """The complete rounds, whatever others did meanwhile."""
    planned: int | None = None
    """Rounds over which most of the chance of a false claim is spent; ``None``, as ``MAX_ROUNDS``, until known."""
    margin: float | None = None
    """Loss that the rounds are to exclude or prove, as a share; 0 for any difference, ``None`` for a gain."""

    @cached_property
    def rounds(self) -> tuple[Round, ...]:
        """The rounds that count: where others came now and then, without the measurements that they disturbed."""
        if self.is_crowded:
            return self.complete
        quiet = tuple(one for each in self.complete if (one := each.quiet).baselines and one.finalists)
        return quiet or self.complete

    @property
    def answer(self) -> Config | None:
        """The finalist that is the answer: of the proven ones, else of the running ones, else of all.

        The cheapest, unless a dearer one can be told to be faster by more than 2 %. ``None`` where all have failed.
        """
        proven = [config for config in self._sound if self.is_proven(config)]
        return self._best(proven or self._running or self._sound)

    @property
    def drop(self) -> Config | None:
        """The finalist to be measured no more: the slowest of those that would not be the answer now."""
        leader = self._best(self._running)
        return min((config for config in self._running if config != leader), key=self.speedup, default=None)

    def entry(self, config: Config) -> Entry:
        """Return the entry of a finalist."""
        return next(entry for entry in self.finalists if entry.config == config)

    @cached_property
    def _sound(self) -> list[Config]:
        sound = (entry.config for entry in self.finalists if not entry.has_failed)
        return [config for config in sound if self.rounds_of(config)]

    @property
    def _running(self) -> list[Config]:
        return [config for config in self._sound if self.entry(config).is_running]

    def _best(self, configs: Sequence[Config]) -> Config | None:
        return reduce(lambda best, each: each if self._is_ahead(each, best) else best, configs) if configs else None

    def _is_ahead(self, config: Config, other: Config) -> bool:
        """Return whether one finalist is faster than another by more than the margin for equality."""
        both = [(one.finalists.get(config), one.finalists.get(other)) for one in self.rounds]
        pairs = [(one.samples_per_second, two.samples_per_second) for one, two in both if one and two]
        if not pairs:
            return self.speedup(config) > CLAIM * self.speedup(other)
        rates, others = self._sides(pairs)
        is_more = fmean(rates) > CLAIM * fmean(others)
        return is_more and chance_of_gain(rates, others, usual_spread=SPREAD) >= TOLD_APART

    @property
    def baseline(self) -> Standing:
        """The rate of the baseline."""
        return self._standing(self.baseline_config, lambda one: one.baselines)

    def standing(self, config: Config) -> Standing:
        """Return the rate of a finalist."""
        return self._standing(config, lambda one: filter(None, [one.finalists.get(config)]))

    def _standing(self, config: Config, of: Callable[[Round], Iterable[Measurement]]) -> Standing:
        """Return a rate from the rounds that count; others may come to a further run as they did to any of these."""
        counted, every = (
            standing_of(config, (each for one in rounds for each in of(one)), is_crowded=self.is_crowded)
            for rounds in (self.rounds, self.complete)
        )
        return replace(counted, next_run_95=every.next_run_95)

    def _measured(self, config: Config) -> list[tuple[Measurement, Round]]:
        return [(one.finalists[config], one) for one in self.rounds if config in one.finalists]

    def _is_of_neighbours(self, config: Config) -> bool:
        """Return whether others may be the reason for a finalist's gain: they slow several threads more than one.

        So it is where another number of threads was compared beside them, and no quiet round shows the gain.
        """
        if not self.is_crowded or config.intra_op_threads == self.baseline_config.intra_op_threads:
            return False
        quiet = [one for each in self.complete if (one := each.quiet).baselines and config in one.finalists]
        ratios = [one.finalists[config].samples_per_second / one.baseline_rate for one in quiet]
        return not ratios or fmean(ratios) < CLAIM

    def rounds_of(self, config: Config) -> int:
        """Return the number of complete rounds of a finalist."""
        return len(self._measured(config))

    def _pairs(self, config: Config) -> tuple[list[float], list[float]]:
        """Return what a finalist's speed-up is the ratio of the means of: one value a round, and the baseline's."""
        return self._sides([(each.samples_per_second, one.baseline_rate) for each, one in self._measured(config)])

    def _sides(self, pairs: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
        """Return the values that are compared, from pairs of rates.

        Each round begins at another place of the epoch, which lasts as long as its parts together: so they are the
        seconds per sample of the second and the first. Where others take the CPUs, rates change with time and not with
        the place: the samples in the same time count, and they are the rates of both.
        """
        if self.is_crowded:
            return [rate for rate, _ in pairs], [other for _, other in pairs]
        return [1 / other for _, other in pairs], [1 / rate for rate, _ in pairs]

    def speedup(self, config: Config) -> float:
        """Return how many times as fast as the baseline a finalist is, in its rounds."""
        ours, others = self._pairs(config)
        return fmean(ours) / fmean(others)

    def interval(self, config: Config) -> Interval | None:
        """Return the interval of that ratio, which holds after every round; those of all finalists with 95 %.

        ``None`` below three rounds.
        """
        rates, others = self._pairs(config)
        found = self._tested(config, rates, others)
        inverse = self._tested(config, others, rates) if self.margin is not None else None
        return (found[0], min(found[1], 1 / inverse[0])) if found and inverse and inverse[0] else found

    def _tested(self, config: Config, rates: Sequence[float], others: Sequence[float]) -> Interval | None:
        planned = self.planned or MAX_ROUNDS
        if self.margin is not None:  # nothing is compared after it
            return sequential_interval(rates, others, ALPHA, planned, FINAL_SHARE)
        return sequential_interval(rates, others, alpha_of(self.entry(config).number), planned)

    def is_likely(self, config: Config) -> bool:
        """Return whether a finalist is faster by odds of 20 to 1, in three rounds or more that nobody disturbed."""
        rounds = [(ours, *one.baselines) for ours, one in self._measured(config)]
        quiet = [one for one in rounds if not any(each.conditions.taken_share for each in one)]
        if self.is_crowded or len(quiet) < LEAST_ROUNDS:
            return False
        return chance_by_pairs(*self._pairs(config)) >= LIKELY and self.speedup(config) >= CLAIM

    @cached_property
    def is_crowded(self) -> bool:
        """Whether others took the CPUs in the first rounds; decided there, before the first test."""
        first = [each for one in self.complete[:LEAST_ROUNDS] for each in (*one.baselines, *one.finalists.values())]
        return sum(each.conditions.is_crowded for each in first) >= LEAST_CROWDED * len(first)

    @property
    def found(self) -> tuple[Finalist, ...]:
        """The findings about each finalist that was measured in a complete round."""
        return tuple(self.finding(entry.config) for entry in self.finalists if self.rounds_of(entry.config))

    def finding(self, config: Config) -> Finalist:
        """Return the findings about a finalist."""
        return Finalist(
            config=config,
            speedup=self.speedup(config),
            interval=self.interval(config),
            ratios=tuple(rate / other for rate, other in zip(*self._pairs(config), strict=True)),
            has_failed=self.entry(config).has_failed,
        )

    @property
    def is_hopeless(self) -> bool:
        """Whether even ``MAX_ROUNDS`` rounds like these would not prove the gain of the answer."""
        config = self.answer
        if config is None or self.rounds_of(config) < LEAST_ROUNDS or self.speedup(config) < CLAIM:
            return False
        rates, others = self._pairs(config)
        times = -(-MAX_ROUNDS // len(rates))
        alpha = alpha_of(self.entry(config).number)
        return not shows_gain(sequential_interval(rates * times, others * times, alpha, MAX_ROUNDS))

    def is_proven(self, config: Config) -> bool:
        """Return whether a finalist's interval shows a gain, and it is at least 2 %."""
        is_gain = shows_gain(self.interval(config)) and self.speedup(config) >= CLAIM
        return is_gain and not self._is_of_neighbours(config)

    def verdict(self, config: Config) -> Difference:
        """Return the answer of the rounds to the question of ``margin``."""
        (low, high), ratio = self.interval(config) or (0.0, math.inf), self.speedup(config)
        if self.margin:
            return "slower" if high < 1 - self.margin else "not slower" if low > 1 - self.margin else "undecided"
        if self.is_proven(config):
            return "faster"
        if high <= 1 and ratio * CLAIM <= 1:
            return "slower"
        is_small = low >= 1 / NEGLIGIBLE and high <= NEGLIGIBLE and 1 / CLAIM < ratio < CLAIM
        return "no difference" if is_small else "undecided"

    @property
    def most(self) -> float | None:
        """The largest speed-up that the rounds leave possible; ``None`` where they do not tell.

        A finalist dropped before it had an interval is left out where it is hardly more than negligibly faster.
        """
        ends = []
        for config in self._sound:
            if interval := self.interval(config):
                ends.append(interval[1])
            elif self.entry(config).is_running or chance_of_gain(*self._pairs(config), NEGLIGIBLE, SPREAD) >= UNLIKELY:
                return None
        return max(ends) if ends else None

    @property
    def is_clear(self) -> bool:
        """Whether the rounds may end: the answer is proven, or there is hardly a gain, or all have failed."""
        if any(entry.is_running and not self.rounds_of(entry.config) for entry in self.finalists):
            return False
        leader = self._best(self._running)
        if leader is None:
            return True
        if self.margin is not None:
            return self.verdict(leader) != "undecided"
        if self.is_proven(leader):
            return self._knows_rate(self.baseline) and self._knows_rate(self.standing(leader))
        is_small = all(self.speedup(config) < CLAIM for config in self._running)
        return is_small and self.most is not None and self.most <= NEGLIGIBLE

    def _knows_rate(self, standing: Standing) -> bool:
        most = (1 + KNOWN) * standing.rate
        is_narrow = standing.rate_ci95 is not None and standing.rate_ci95[1] <= most
        return is_narrow or len(self.complete) >= KNOWN_ROUNDS


def finalists_for(measurements: float) -> tuple[int, int]:
    """Return how many finalists so many measurements allow, and of the baseline in each round."""
    count = next((count for count, least in LEAST_MEASUREMENTS.items() if measurements >= least), 1)
    return count, 2 if measurements >= LEAST_FOR_TWO else 1


def has_failed(trial: Trial) -> bool:
    """Return whether a confirming measurement shows that its configuration cannot be the answer, later either."""
    return trial.kind == "confirm" and trial.measurement is None and not trial.outcome.is_for_now


class Turn(NamedTuple):
    """The next measurement of a comparison: in a fresh process, and at a place of the epoch."""

    config: Config
    seed: int
    """Decides the place of the epoch, and the order of its samples."""
    round: str
    entry: int | None = None
    """The number of its configuration among all that were ever compared with the baseline, in the order of entry;
    ``None`` for the baseline."""
    planned: int | None = None
    """Rounds over which most of the chance of a false claim is spent; ``None`` until known."""

    def trial(self, attempt: Attempt, number: int = 0) -> Trial:
        """Return the trial of an attempt at it."""
        trial = Trial(number=number, kind="confirm", config=self.config, attempt=attempt)
        return replace(trial, round=self.round, entry=self.entry, planned=self.planned)


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """A comparison of finalists with the baseline, in complete rounds until the answer is clear or time is over.

    All measurements of a round begin at one place of the epoch, with its samples in the same order; each round has
    another place. Where others come now and then, the measurements that they disturb do not count; where they come
    often, all do, and their spread is the uncertainty. A measurement without a number for an outside reason is repeated
    in another round; a finalist that fails by itself is out. Trials on record say all of what became of it.
    """

    name: str
    """Begins the names of its rounds."""
    finalists: tuple[Config, ...]
    """Its finalists, the cheapest first."""
    entering: tuple[Config, ...] = ()
    """The order in which new finalists share what is left of the chance of a false claim."""
    earlier: tuple[Config, ...] = ()
    """Finalists of earlier rounds that may be the answer still."""
    baselines: int = 2
    """Measurements of the baseline in a round."""
    seed: int = 0
    """Decides the places and the order within a round; the next round reverses it, so that drift cancels."""
    seconds: float = 0.0
    """Seconds of a measurement, until the first has ended."""
    since: int = 0
    """Number of the first trial after its begin: complete rounds before it count too."""
    searched: int = 0
    """Trials of the search when it began."""
    is_short: bool = False
    """Whether the user has interrupted the search: it has a few seconds."""
    margin: float | None = None
    """The ``margin`` of ``Confirmation``: a difference is asked for, not a gain."""

    def holds(self, trial: Trial) -> bool:
        """Return whether a trial belongs to one of its rounds."""
        return (trial.round or "").startswith(f"{self.name}-")


def follow(proof: Proof, baseline: Config, trials: Iterable[Trial], left: float) -> Turn | None:
    """Return the next turn of a proof by the trials on record and the seconds left; ``None`` where it has ended.

    The first round may begin where half of its time is left: without one nothing is compared.
    """
    state = _replayed(proof, baseline, trials)
    if state.is_over or (not state.turns and not state.goes_on(left)):
        return None
    planned = state.found.planned if state.turns else state.planned(left)
    config = state.order[state.turns]
    entry = None if config is None else state.found.entry(config).number
    seed, name = proof.seed + 1 + state.tried, f"{proof.name}-{state.tried}"
    return Turn(baseline if config is None else config, seed, name, entry, planned)


def confirmation_of(proof: Proof, baseline: Config, trials: Iterable[Trial]) -> Confirmation | None:
    """Return the results of a proof by the trials on record; ``None`` without complete rounds, or finalists."""
    found = _replayed(proof, baseline, trials).found
    return found if found.complete and proof.finalists else None


def has_time(left: float, took: Sequence[float], usual: float, measurements: float, rounds: int) -> bool:
    """Return whether there is time for so many more measurements, when so many rounds were begun.

    ``took`` are the seconds of the measurements so far, ``usual`` those of the first.
    """
    cost = fmean(took) if took else usual
    return (1.0 if rounds else 0.5) * measurements * cost <= left


@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    proof: Proof
    found: Confirmation
    """The results of the complete rounds."""
    order: Sequence[Config | None]
    """The turns of the present round; ``None`` for the baseline."""
    turns: int = 0
    tried: int = 0
    """Rounds that have ended."""
    most: int
    """Most complete rounds, earlier ones included."""
    took: tuple[float, ...] = ()
    """Seconds of each turn."""
    longest: float = 0.0
    """Most seconds of a turn with numbers."""
    is_over: bool = False
    """Whether the baseline gave no number, or the time was over."""

    @property
    def running(self) -> list[Config]:
        """The finalists that are measured in each round."""
        return [entry.config for entry in self.found.finalists if entry.is_running]

    def goes_on(self, left: float) -> bool:
        """Return whether another round is wanted, and has time."""
        is_open = self.running and len(self.found.complete) < self.most and not self.found.is_clear
        return bool(is_open) and self._has_time(left, len(self.running) + self.proof.baselines)

    def _has_time(self, left: float, measurements: float, least: int = 0) -> bool:
        return has_time(left, self.took, self.proof.seconds, measurements, max(least, self.tried))

    def planned(self, left: float) -> int | None:
        """Return over how many rounds chances are spent, fixed before the first test: as many as fit the time."""
        done = max((self.found.rounds_of(config) for config in self.running), default=0)
        if self.found.planned is not None or done < LEAST_ROUNDS - 1:
            return self.found.planned
        parts = 1 + self.proof.baselines
        possible = next((n for n in range(MAX_ROUNDS, 0, -1) if self._has_time(left, parts * n, 1)), 0)
        most = MAX_ROUNDS if done >= LEAST_ROUNDS else done + possible
        return min(MAX_ROUNDS, max(LEAST_ROUNDS, most))


def _replayed(proof: Proof, baseline: Config, trials: Iterable[Trial]) -> _State:
    confirming = [trial for trial in trials if trial.kind == "confirm" and trial.round]
    found = _at_begin(proof, baseline, [trial for trial in confirming if trial.number < proof.since])
    known = len(found.complete)
    state = _State(proof=proof, found=found, order=(), most=known + MAX_ROUNDS)
    own = defaultdict[str, list[Trial]](list)
    for trial in confirming:
        if proof.holds(trial):
            own[trial.round or ""].append(trial)
    generator = random.Random(proof.seed)
    while True:
        parts = [None] * proof.baselines + state.running
        is_drawn = state.tried % 2 == 0
        order = generator.sample(parts, len(parts)) if is_drawn else [p for p in state.order[::-1] if p in parts]
        state = replace(state, order=order, turns=0)
        if not (taken := own.get(f"{proof.name}-{state.tried}")):
            return state
        state = _after_round(state, taken)
        if state.is_over or state.turns:
            return state
        if state.tried % ROUNDS_TO_DROP == 0 and len(state.found.complete) > known:
            state = replace(state, found=_changed(state.found, [state.found.drop], is_running=False))


def _at_begin(proof: Proof, baseline: Config, before: Sequence[Trial]) -> Confirmation:
    failed = {trial.config for trial in before if has_failed(trial)}
    numbers = {trial.config: trial.entry for trial in before if trial.entry is not None}
    for config in (*proof.entering, *proof.finalists):
        numbers.setdefault(config, max(numbers.values(), default=-1) + 1)
    entries = (
        Entry(
            config=config,
            number=numbers[config],
            is_running=config in proof.finalists and config not in failed,
            has_failed=config in failed,
        )
        for config in dict.fromkeys((*proof.finalists, *numbers))
        if config in proof.finalists or config in proof.earlier
    )
    return Confirmation(
        baseline_config=baseline,
        finalists=tuple(entries),
        complete=tuple(_kept_rounds(before)),
        planned=_planned(before),
        margin=proof.margin,
    )


def _kept_rounds(before: Iterable[Trial]) -> Iterator[Round]:
    """Yield the rounds on record that were complete, without the finalists that failed in them."""
    members = defaultdict[str, list[Trial]](list)  # tuners of a shared study take turns
    for trial in before:
        if trial.entry is None or not has_failed(trial):
            members[trial.round or ""].append(trial)
    for name, trials in members.items():
        one = _round(name, trials)
        if one.baselines and one.finalists and all(trial.measurement for trial in trials):
            yield one


def _round(name: str, trials: Iterable[Trial]) -> Round:
    measured = [(trial, trial.measurement) for trial in trials if trial.measurement]
    return Round(
        name=name,
        baselines=tuple(each for trial, each in measured if trial.entry is None),
        finalists={trial.config: each for trial, each in measured if trial.entry is not None},
    )


def _planned(trials: Iterable[Trial]) -> int | None:
    return next((trial.planned for trial in trials if trial.planned), None)


def _changed(found: Confirmation, configs: Container[Config | None], **changes: Any) -> Confirmation:
    entries = (replace(each, **changes) if each.config in configs else each for each in found.finalists)
    return replace(found, finalists=tuple(entries))


def _after_round(state: _State, taken: Sequence[Trial]) -> _State:
    found = replace(state.found, planned=state.found.planned or _planned(taken))
    longest = [state.longest, *(each.attempt.seconds for each in taken if each.measurement)]
    took = (*state.took, *(each.attempt.seconds for each in taken))
    ended = replace(state, tried=state.tried + 1, took=took, longest=max(longest))
    for trial in taken:
        if trial.measurement is not None:
            continue
        if trial.outcome is Outcome.SUSPECT:
            return replace(ended, found=found)  # for a reason outside of it: this round does not count
        is_cut_off = trial.outcome is Outcome.TIMEOUT and 0 < trial.attempt.seconds < HANG * ended.longest
        if trial.entry is None or is_cut_off:
            return replace(ended, found=found, is_over=True)  # it was not stuck: the time was over
        found = _struck(found, trial)
        if not any(entry.is_running for entry in found.finalists):  # those that were dropped go on
            entries = (entry for entry in found.finalists if entry.config in state.proof.finalists)
            sound = [entry.config for entry in entries if not entry.has_failed]
            return replace(ended, found=_changed(found, sound, is_running=True))
    if len(taken) < len(state.order):
        return replace(ended, found=found, tried=state.tried, turns=len(taken))
    done = _round(f"{state.proof.name}-{state.tried}", taken)
    complete = (*found.complete, done) if done.finalists else found.complete
    return replace(ended, found=replace(found, complete=complete))


def _struck(found: Confirmation, trial: Trial) -> Confirmation:
    """Return results after a failure; in its precision, of all others that have at least the options of the failed."""
    failed, struck = trial.config, [trial.config]
    if trial.outcome is Outcome.NUMERICS and failed.amp != "off":
        running = (entry.config for entry in found.finalists if entry.is_running)
        struck = [one for one in running if one.amp == failed.amp and set(failed.options) <= set(one.options)]
    return _changed(found, struck, is_running=False, has_failed=True)
