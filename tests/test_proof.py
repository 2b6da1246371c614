from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import fmean
from typing import Any

import pytest

from autotune.config import Config
from autotune.outcome import Outcome
from autotune.proof import (
    LEAST_MEASUREMENTS,
    ROUNDS_TO_DROP,
    Confirmation,
    Entry,
    Proof,
    Round,
    confirmation_of,
    finalists_for,
    shown_uneven,
    standing_of,
)
from autotune.records import Attempt, Measurement, Request, Trial
from autotune.stats import MAX_ROUNDS
from tests import examples
from tests.search.there import there
from tests.simulated import SimulatedMachine, StepCost, measured

BASELINE = examples.BASELINE
CHEAP = examples.ANSWER
MIDDLE = replace(CHEAP, num_workers=CHEAP.num_workers + 1)
DEAR = replace(CHEAP, num_workers=CHEAP.num_workers + 2)


def rounds_only(most: int) -> Callable[[int], float]:
    return lambda rounds: math.inf if rounds < most else -1.0


ALWAYS = rounds_only(10**6)


def machine(gains: float | Mapping[Config, float], **options: Any) -> SimulatedMachine:
    """Finalists are faster than the baseline by so much, as a share; one number is that of ``CHEAP``."""
    gain_of = gains if isinstance(gains, Mapping) else {CHEAP: gains}

    def cost(config: Config) -> StepCost:
        return StepCost(compute=config.batch_size / (1000 * (1 + gain_of.get(config, 0.0))))

    return SimulatedMachine(cost=cost, **options)


def tried(
    runner: Any,
    left: Callable[[int], float] = ALWAYS,
    finalists: Sequence[Config] = (CHEAP,),
    history: Sequence[Trial] = (),
    **options: Any,
) -> Confirmation | None:
    """The results of a proof that has so many seconds left after each number of rounds."""
    options = {"earlier": (CHEAP, MIDDLE, DEAR)} | options
    proof = Proof(name="own", finalists=tuple(finalists), since=len(history), **options)
    history = [replace(trial, number=number) for number, trial in enumerate(history)]
    return confirmation_of(proof, BASELINE, measured(runner, proof, BASELINE, left, history))


def confirmed(*given: Any, **options: Any) -> Confirmation:
    return there(tried(*given, **options))


def rounds_in(runner: SimulatedMachine, size: int) -> list[list[Config]]:
    configs = [config for config, _ in runner.calls]
    return [configs[index : index + size] for index in range(0, len(configs), size)]


@dataclass
class Scripted:
    """A runner that plays back what happens to each configuration, then succeeds forever."""

    scripts: dict[Config, list[Outcome]] = field(default_factory=dict)
    rates: dict[Config, float] = field(default_factory=dict)
    calls: list[Config] = field(default_factory=list)
    suspect_has_numbers: bool = True

    def measure(self, config: Config, request: Request) -> Attempt:
        self.calls.append(config)
        script = self.scripts.get(config, [])
        outcome = script.pop(0) if script else Outcome.OK
        rate = self.rates.get(config, 1000.0 if config == BASELINE else 1200.0) * (1 + 0.001 * (len(self.calls) % 7))
        has_numbers = outcome is Outcome.OK or (outcome is Outcome.SUSPECT and self.suspect_has_numbers)
        return Attempt(outcome=outcome, payload=examples.measurement(samples_per_second=rate) if has_numbers else None)


def confirmation(baselines: Sequence[tuple[float, float]], *finalists: Sequence[float | None]) -> Confirmation:
    """What rounds with these rates give: both baselines of each round, then each finalist's rates."""

    def measured(rate: float | None) -> Any:
        return None if rate is None else examples.measurement(samples_per_second=rate, ceiling_samples_per_second=1.0)

    configs = (CHEAP, MIDDLE, DEAR)[: len(finalists)]
    return Confirmation(
        baseline_config=BASELINE,
        finalists=tuple(
            Entry(config=config, number=number, is_running=rates[-1] is not None)
            for number, (config, rates) in enumerate(zip(configs, finalists, strict=True))
        ),
        complete=tuple(
            Round(
                name=f"a-{number}",
                baselines=(measured(first), measured(again)),
                finalists={
                    config: measured(rates[number])
                    for config, rates in zip(configs, finalists, strict=True)
                    if rates[number] is not None
                },
            )
            for number, (first, again) in enumerate(baselines)
        ),
    )


def configs_of(found: Confirmation) -> tuple[Config, ...]:
    return tuple(one.config for one in found.finalists)


def proves(found: Confirmation) -> bool:
    return found.answer is not None and found.is_proven(found.answer)


# Rounds.


@pytest.mark.parametrize("baselines", [2, 1])
def test_every_round_measures_finalists_and_the_baseline_in_fresh_processes(baselines: int) -> None:
    found = confirmed(runner := machine(0.1, noise=0.2), baselines=baselines)
    assert [len(one.baselines) for one in found.rounds] == [baselines] * MAX_ROUNDS
    assert list(map(Counter, rounds_in(runner, baselines + 1))) == [{BASELINE: baselines, CHEAP: 1}] * MAX_ROUNDS
    assert all(request.fresh for _, request in runner.calls)


def test_the_order_is_random_and_repeatable_and_every_other_round_reverses_the_one_before() -> None:
    def orders(seed: int) -> list[list[Config]]:
        runner = machine(0.1, noise=0.2)
        confirmed(runner, seed=seed)
        return rounds_in(runner, 3)

    places = Counter(order.index(CHEAP) for seed in range(30) for order in orders(seed)[::2])
    assert all(30 <= places[place] <= 90 for place in range(3))  # of 180, 60 each expected
    assert orders(3) == orders(3)
    rounds = orders(4)
    assert rounds[1::2] == [order[::-1] for order in rounds[::2]]


def test_a_steady_drift_is_no_gain() -> None:
    class Slowing(SimulatedMachine):
        def rate(self, config: Config) -> float:
            return 1000.0 * 0.99 ** len(self.calls)  # whatever is measured

    found = confirmed(Slowing(cost=machine(0.0).cost), rounds_only(2))
    assert len(found.rounds) == 2
    assert found.speedup(CHEAP) == pytest.approx(1.0, abs=0.0005)


@pytest.mark.parametrize("rounds", [0, 1, 2, 5])
def test_it_stops_when_the_time_is_over(rounds: int) -> None:
    found = tried(runner := machine(0.1, noise=0.05), rounds_only(rounds))
    assert (len(runner.calls), found and len(found.rounds)) == (3 * rounds, rounds or None)


def test_a_clear_answer_needs_three_rounds_and_what_can_hardly_gain_is_given_up() -> None:
    single = confirmed(machine(5.0), rounds_only(1))
    assert (single.speedup(CHEAP), single.interval(CHEAP), proves(single)) == (pytest.approx(6.0), None, False)
    found = confirmed(machine(0.1, noise=0.0005))
    assert (len(found.rounds), proves(found)) == (3, True)
    found = confirmed(machine(-0.3, noise=0.03))
    assert len(found.rounds) <= 5
    assert not proves(found)


@pytest.mark.parametrize("config", [BASELINE, CHEAP], ids=["baseline", "finalist"])
def test_a_disturbed_round_counts_and_what_others_ended_is_no_failure(config: Config) -> None:
    found = confirmed(runner := Scripted({config: [Outcome.SUSPECT] * 100}), rounds_only(4))
    assert proves(found)
    assert len(runner.calls) == 3 * len(found.rounds) == 3 * 3  # nothing is repeated
    ended = confirmed(Scripted({config: [Outcome.SUSPECT] * 2}, suspect_has_numbers=False), rounds_only(5))
    assert (len(ended.rounds), ended.finalists[0].has_failed) == (3, False)


def test_a_machine_that_never_gives_a_number_claims_nothing_and_ends_with_the_time() -> None:
    runner = Scripted({CHEAP: [Outcome.SUSPECT] * 100}, suspect_has_numbers=False)
    assert tried(runner, rounds_only(4)) is None
    assert len(runner.calls) <= 4 * 3


def kept(name: str, rates: Mapping[Config, float | None], outcome: Outcome = Outcome.CRASHED) -> list[Trial]:
    return [
        examples.trial(
            number=number,
            kind="confirm",
            config=config,
            outcome=outcome if rate is None else Outcome.OK,
            measurement=None if rate is None else examples.measurement(samples_per_second=rate),
            round=name,
            entry=None if config == BASELINE else 0,
        )
        for number, (config, rate) in enumerate(rates.items())
    ]


GOOD = {BASELINE: 1000.0, CHEAP: 1200.0}
THREE = [trial for number in range(3) for trial in kept(f"a-{number}", GOOD)]
"""Rounds on record that prove a gain."""


def test_rounds_on_record_count_and_what_they_prove_is_not_measured_again() -> None:
    found = confirmed(runner := machine(0.2), history=THREE)
    assert (len(found.rounds), runner.calls) == (3, [])
    assert proves(found)
    assert len(confirmed(machine(0.2), history=THREE[:2]).rounds) == 3


def test_rounds_of_tuners_that_take_turns_are_told_apart() -> None:
    first, second, third = (kept(f"{name}-0", GOOD) for name in "abc")
    turns = [first[0], second[0], third[1], second[1], third[0], first[1]]
    assert len(confirmed(machine(0.2), rounds_only(0), history=turns).rounds) == 3


def test_rounds_on_record_that_were_not_complete_do_not_count() -> None:
    others = {BASELINE: None, CHEAP: 1200.0}
    history = [*kept("a-0", {BASELINE: 1000.0}), *kept("a-1", others), *kept("a-2", {CHEAP: 1200.0})]
    history += kept("a-3", {BASELINE: 1000.0, CHEAP: None}, Outcome.SUSPECT)
    assert tried(machine(0.2), rounds_only(0), history=history) is None


def test_what_failed_in_an_earlier_run_is_not_tried_again_and_what_was_cut_off_is() -> None:
    failed = kept("a-0", {BASELINE: 1000.0, CHEAP: None}, Outcome.CRASHED)
    runner = machine({CHEAP: 0.5, MIDDLE: 0.2})
    assert confirmed(runner, finalists=(CHEAP, MIDDLE), history=failed).answer == MIDDLE
    assert CHEAP not in {config for config, _ in runner.calls}
    cut_off = kept("a-0", {BASELINE: 1000.0, CHEAP: None}, Outcome.TIMEOUT)
    assert confirmed(machine(0.5), history=cut_off).answer == CHEAP


def test_what_earlier_rounds_compared_is_the_answer_where_all_that_goes_on_fails() -> None:
    runner = machine(0.2, fails=lambda config: Outcome.CRASHED if config == MIDDLE else None)
    found = confirmed(runner, finalists=(MIDDLE,), history=THREE[:4])
    assert found.standing(there(found.answer)).config == CHEAP


def test_what_earlier_rounds_left_open_is_not_forgotten_where_there_is_no_gain() -> None:
    rates = (1300.0, 900.0, 1250.0, 1000.0)
    history = [t for number, rate in enumerate(rates) for t in kept(f"a-{number}", {BASELINE: 1000.0, CHEAP: rate})]
    found = confirmed(machine({MIDDLE: -0.1}, noise=0.001), rounds_only(8), finalists=(MIDDLE,), history=history)
    assert configs_of(found) == (MIDDLE, CHEAP)
    closed, wide = (there(found.interval(config)) for config in (MIDDLE, CHEAP))
    assert closed[1] < 1 < wide[1]
    assert found.most == pytest.approx(wide[1])


def test_what_is_not_allowed_any_more_is_no_answer_of_a_later_run() -> None:
    elsewhere = confirmed(machine({MIDDLE: 0.1}), finalists=(MIDDLE,), history=THREE, earlier=())
    assert elsewhere.finalists == (Entry(config=MIDDLE, number=1),)  # what was spent stays spent


@pytest.mark.parametrize(("possible", "planned"), [(3, 3), (8, 8), (100, MAX_ROUNDS)])
def test_the_chance_is_spent_over_the_rounds_that_there_is_time_for_at_the_third(possible: int, planned: int) -> None:
    runner, proof = machine({CHEAP: 0.02}, noise=0.2), Proof(name="own", finalists=(CHEAP,), baselines=1, seconds=2.0)
    trials = measured(runner, proof, BASELINE, lambda rounds: 2 * runner.seconds * (possible - rounds))
    assert there(confirmation_of(proof, BASELINE, trials)).planned == planned
    assert [trial.planned for trial in trials[::2]] == [None, None, *[planned] * (planned - 2)]


def test_what_was_planned_before_the_first_test_stays_planned() -> None:
    for planned, stays in ((5, 5), (None, MAX_ROUNDS)):  # earlier versions planned nothing
        history = [replace(trial, planned=planned) for trial in THREE]
        found = confirmed(machine({CHEAP: 0.02}, noise=0.2), rounds_only(2), history=history)
        assert (found.planned or MAX_ROUNDS) == stays


def test_shares_of_false_claims_are_those_of_the_order_of_entry_and_what_was_dropped_keeps_its_own() -> None:
    history = kept("a-0", {BASELINE: 1000.0, DEAR: 1100.0})
    found = confirmed(machine(0.2), finalists=(CHEAP, MIDDLE), history=history, entering=(MIDDLE, CHEAP))
    assert configs_of(found) == (CHEAP, MIDDLE, DEAR)
    assert [one.number for one in found.finalists] == [2, 1, 0]
    assert found.rounds_of(DEAR) == 1


# Finalists.


def test_finalists_are_dropped_until_one_is_left() -> None:
    runner = machine({CHEAP: 0.1, MIDDLE: 0.3, DEAR: 0.2}, noise=0.05)
    found = confirmed(runner, rounds_only(6), (CHEAP, MIDDLE, DEAR))
    assert found.rounds_of(CHEAP) == ROUNDS_TO_DROP
    assert found.rounds_of(MIDDLE) > found.rounds_of(DEAR) == 2 * ROUNDS_TO_DROP
    assert found.answer == MIDDLE
    assert found.standing(MIDDLE).rate == pytest.approx(1300, rel=0.1)


def test_the_fastest_of_three_is_found_through_noise_and_drift() -> None:
    gains = {CHEAP: 0.2, MIDDLE: 0.1, DEAR: 0.35}
    winners = Counter(
        confirmed(machine(gains, noise=0.03, drift=0.05, seed=seed), finalists=(CHEAP, MIDDLE, DEAR)).answer
        for seed in range(50)
    )
    assert winners[DEAR] >= 48


def test_within_two_percent_of_the_fastest_the_cheapest_wins_and_never_what_was_dropped() -> None:
    rounds = [(1000.0, 1000.0)] * 4
    assert confirmation(rounds[:3], [1185.0] * 3, [1200.0] * 3, [1190.0] * 3).answer == CHEAP
    assert confirmation(rounds[:3], [1170.0] * 3, [1200.0] * 3, [1190.0] * 3).answer == MIDDLE
    assert confirmation(rounds, [1300.0, 1300.0, None, None], [1200.0] * 4).answer == MIDDLE


@pytest.mark.parametrize("outcome", [Outcome.DEVICE_OOM, Outcome.CRASHED, Outcome.TIMEOUT, Outcome.NUMERICS])
@pytest.mark.parametrize("before", [0, 1, 2])
def test_a_finalist_that_fails_in_a_fresh_process_gives_no_claim(outcome: Outcome, before: int) -> None:
    found = tried(runner := Scripted({CHEAP: [Outcome.OK] * before + [outcome]}))
    assert found is None if before == 0 else not proves(there(found))
    assert runner.calls[-1] == CHEAP  # nothing is measured after it
    assert runner.calls.count(CHEAP) == before + 1


@pytest.mark.parametrize("before", [0, 1, 2])
def test_where_one_finalist_fails_another_can_win(before: int) -> None:
    runner = Scripted({MIDDLE: [Outcome.OK] * before + [Outcome.CRASHED]}, rates={CHEAP: 1200.0, MIDDLE: 1500.0})
    found = confirmed(runner, finalists=(CHEAP, MIDDLE))
    assert (runner.calls.count(MIDDLE), found.answer) == (before + 1, CHEAP)
    assert proves(found)


@pytest.mark.parametrize("part", [2, 3])
def test_a_baseline_that_fails_ends_the_rounds_that_were_complete(part: int) -> None:
    assert len(confirmed(Scripted({BASELINE: [Outcome.OK] * (part + 2) + [Outcome.HOST_OOM]})).rounds) == 2


def test_there_are_as_many_finalists_as_there_is_time_for_and_more_time_never_means_fewer() -> None:
    times = sorted([*range(101), 31.9, 35.9])
    known = [finalists_for(measurements) for measurements in times]
    assert all(before[0] <= after[0] for before, after in pairwise(known))
    for measurements, (count, baselines) in zip(times, known, strict=True):
        assert 1 <= count <= max(LEAST_MEASUREMENTS)
        assert LEAST_MEASUREMENTS.get(count, 0) <= measurements < LEAST_MEASUREMENTS.get(count + 1, math.inf)
        assert baselines == (2 if measurements >= 36 else 1)


# What is proven.


def test_a_certain_gain_below_two_percent_and_a_certain_loss_are_not_claimed() -> None:
    found = confirmed(machine(0.015, noise=1e-5))
    assert there(found.interval(CHEAP))[0] > 1.01
    assert not proves(found)
    assert not proves(confirmed(machine(-0.2, noise=0.001)))


@pytest.mark.parametrize(("finalists", "drift", "baselines"), [(1, 0.0, 1), (3, 0.05, 2), (3, 0.2, 1)])
def test_equal_configurations_are_rarely_called_faster(finalists: int, drift: float, baselines: int) -> None:
    """The drift is the amplitude of a wave in the machine's speed."""
    options: dict[str, Any] = {"finalists": (CHEAP, MIDDLE, DEAR)[:finalists], "baselines": baselines}
    runners = (machine(0.0, noise=0.03, drift=drift, seed=seed) for seed in range(200))
    assert sum(proves(confirmed(runner, seed=runner.seed, **options)) for runner in runners) <= 10


@pytest.mark.parametrize("baselines", [2, 1])
@pytest.mark.parametrize(("gain", "noise", "drift"), [(0.1, 0.01, 0.2), (0.05, 0.03, 0.05)])
def test_a_gain_is_found_despite_noise_and_drift(gain: float, noise: float, drift: float, baselines: int) -> None:
    runners = (machine(gain, noise=noise, drift=drift, seed=seed) for seed in range(100))
    assert sum(proves(confirmed(runner, seed=runner.seed, baselines=baselines)) for runner in runners) >= 90


@pytest.mark.parametrize(("gain", "noise"), [(0.25, 0.02), (1.0, 0.03), (1.0, 0.005)])
def test_the_interval_holds_the_true_ratio_nearly_as_often_as_it_says(gain: float, noise: float) -> None:
    hits = 0
    for seed in range(300):
        runner = machine(gain, noise=noise, drift=0.05, seed=seed)
        interval = confirmed(runner, seed=seed, baselines=1 + seed % 2).interval(CHEAP)
        hits += interval is not None and interval[0] <= 1 + gain <= interval[1]
    assert hits >= 0.92 * 300


@pytest.mark.parametrize(("failing", "measured"), [(("tf32",), [True, False]), ((), [False, False])])
def test_what_fails_with_options_may_stand_without_them(failing: tuple[str, ...], measured: list[bool]) -> None:
    with_options = replace(CHEAP, options=("tf32",))

    def fails(config: Config) -> Outcome | None:
        return Outcome.NUMERICS if config.amp == CHEAP.amp and config.options == failing else None

    runner = machine({CHEAP: 0.5, with_options: 0.6}, fails_fresh=fails)
    found = tried(runner, rounds_only(3), [CHEAP, with_options], baselines=1)
    compared = found.rounds[-1].finalists if found else {}
    assert [config in compared for config in (CHEAP, with_options)] == measured


# --- places of the epoch ---


@dataclass
class Sorted:
    """Samples in the order of their cost, which is twenty times as high at the end; a step costs 5 ms.

    Workers share the building and hide the step; each measurement sees the place where it begins.
    """

    noise: float = 0.0
    crowded: bool = False
    requests: list[tuple[Config, int]] = field(default_factory=list)
    generator: random.Random = field(default_factory=lambda: random.Random(1))

    def seconds(self, config: Config, place: float) -> float:
        build = 1e-3 * (1 + 19 * place)
        if not config.num_workers:
            return build + 0.005 / config.batch_size
        return max(build / config.num_workers, 0.005)  # workers wait for the step where samples are cheap

    def truth(self, config: Config) -> float:
        return 1 / fmean(self.seconds(config, (number + 0.5) / 1000) for number in range(1000))

    def measure(self, config: Config, request: Request) -> Attempt:
        assert request.seed is not None
        self.requests.append((config, request.seed))
        seconds = self.seconds(config, request.seed * 0.6180339887498949 % 1.0)
        rate = math.exp(self.generator.gauss(0, self.noise)) / seconds
        conditions = examples.conditions(is_crowded=self.crowded)
        return Attempt(outcome=Outcome.OK, payload=examples.measurement(samples_per_second=rate, conditions=conditions))


@pytest.mark.parametrize("seed", [0, 1, 17, 2**30, 2**31 - 1])
def test_a_rate_is_that_of_an_epoch_although_each_measurement_sees_a_part_of_it(seed: int) -> None:
    runner = Sorted(noise=0.01)
    found = confirmed(runner, ALWAYS, seed=seed)
    for standing, config in ((found.baseline, BASELINE), (found.standing(CHEAP), CHEAP)):
        assert standing.rate == pytest.approx(runner.truth(config), rel=0.15)
        low, high = there(standing.rate_ci95)
        assert low <= runner.truth(config) <= high
    truth = runner.truth(CHEAP) / runner.truth(BASELINE)
    assert found.speedup(CHEAP) == pytest.approx(truth, rel=0.15)
    interval = there(found.interval(CHEAP))
    assert interval[0] <= truth <= interval[1]
    assert found.is_proven(CHEAP)


def test_a_gain_that_every_place_shows_is_proven_although_its_size_is_hardly_known() -> None:
    baselines, ratios = (900.0, 700.0, 500.0, 400.0), (2.0, 3.0, 4.0, 5.0)
    rates = [ratio * rate for ratio, rate in zip(ratios, baselines, strict=True)]
    found = replace(confirmation([(rate, rate) for rate in baselines], rates), planned=4)
    low, high = there(found.interval(CHEAP))
    assert (low, proves(found)) == (1.0, True)
    assert high > max(ratios)


def test_all_of_a_round_begin_at_one_place_and_rounds_at_others() -> None:
    runner = Sorted()
    confirmed(runner, rounds_only(4), finalists=(CHEAP, MIDDLE), baselines=2, seed=5)
    seeds = [seed for _, seed in runner.requests]
    rounds = [set(group) for _, group in itertools.groupby(seeds)]
    assert all(len(each) == 1 for each in rounds)
    assert len(set(seeds)) == len(rounds) >= 2


def test_where_others_take_the_cpus_rates_count_as_what_was_delivered_in_the_same_time() -> None:
    found = confirmed(Sorted(crowded=True), rounds_only(4))
    assert found.baseline.rate == pytest.approx(fmean(one.baseline_rate for one in found.rounds))


def with_neighbour(found: Confirmation, *disturbed: int, config: Config = CHEAP) -> Confirmation:
    """The same, where another process came during these rounds' measurements of a configuration."""
    busy = replace(examples.measurement().conditions, is_crowded=True, foreign_cpus=1.0)

    def of(number: int, one: Round) -> Round:
        if number not in disturbed:
            return one
        if config == BASELINE:
            return replace(one, baselines=(replace(one.baselines[0], conditions=busy), *one.baselines[1:]))
        return replace(one, finalists={c: replace(each, conditions=busy) for c, each in one.finalists.items()})

    return replace(found, complete=tuple(of(number, one) for number, one in enumerate(found.complete)))


@pytest.mark.parametrize(
    ("rates", "is_likely"),
    [
        ([1190.0, 1250.0, 1130.0, 1200.0], True),
        ([60_000.0, 60_000.0], False),  # two rounds are no evidence, whatever they show
        ([1190.0, 1005.0, 940.0, 1200.0], False),
        ([3990.0, 510.0, 1900.0, 2000.0], False),  # a wide spread of few pairs tells little
        ([1012.0, 1011.0, 1012.0, 1013.0], False),  # sure, and below what is claimed
    ],
)
def test_an_unproven_answer_has_three_undisturbed_rounds_that_agree(rates: list[float], is_likely: bool) -> None:
    found = confirmation(RATES[: len(rates)], rates)
    assert found.is_likely(CHEAP) == is_likely
    if is_likely:
        assert with_neighbour(found, 3).is_likely(CHEAP)  # three are left
        assert not with_neighbour(found, 1, 3).is_likely(CHEAP)


RATES = [(1000.0, 1001.0), (1002.0, 1000.0), (999.0, 1000.0), (1001.0, 1000.0)]


def test_what_a_neighbour_slowed_now_and_then_does_not_count() -> None:
    found = confirmation(RATES, [1200.0, 1201.0, 1199.0, 700.0])
    assert not proves(found)
    assert proves(with_neighbour(found, 3))
    assert with_neighbour(found, 3).speedup(CHEAP) == pytest.approx(1.2, rel=0.01)
    slowed = confirmation([*RATES[:3], (600.0, 1000.0)], [1200.0, 1201.0, 1199.0, 1200.0])
    assert with_neighbour(slowed, 3, config=BASELINE).speedup(CHEAP) == pytest.approx(1.2, rel=0.01)


def test_where_others_come_often_every_round_counts() -> None:
    found = confirmation(RATES, [1200.0, 1201.0, 1199.0, 700.0])
    crowded = with_neighbour(found, 0, 1, 2)
    assert crowded.is_crowded
    assert crowded.rounds == crowded.complete
    assert not proves(with_neighbour(crowded, 3))


def seen(beginning: int | None = None, *, idle: int = 0, is_uneven: bool = False) -> Measurement:
    return examples.measurement(beginning_samples=beginning, idle_workers=idle, is_uneven=is_uneven)


FOUR, TWO, ONE, NONE = (Config(num_workers=count) for count in (4, 2, 1, 0))


@pytest.mark.parametrize(
    ("standing", "measured", "is_open"),
    [
        (TWO, seen(768), True),
        (TWO, seen(None), False),  # whole epochs
        (ONE, seen(768), False),
        (NONE, seen(768), False),
        (replace(NONE, ranks=2), seen(768), True),
    ],
)
def test_a_rate_is_open_where_several_read_a_stream_of_which_the_beginning_was_measured(
    standing: Config, measured: Measurement, is_open: bool
) -> None:
    of = standing_of(standing, [measured])
    even = examples.trial(config=FOUR, measurement=seen(768))
    one = examples.trial(config=TWO, measurement=seen(768, is_uneven=True))
    most = examples.trial(config=FOUR, measurement=seen(768, idle=1, is_uneven=True))
    assert shown_uneven([of], [even, examples.trial(outcome=Outcome.CRASHED)]) is None
    for trials, told in (([even, one], one), ([one, most, even], most), ([most, one], most)):
        assert (shown_uneven([of], trials) is told) is is_open
        assert (shown_uneven([standing_of(NONE, [seen(768)]), of], trials) is told) is is_open
    assert shown_uneven([], [one]) is None
