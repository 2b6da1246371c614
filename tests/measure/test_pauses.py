"""Rare pauses: what one reading met belongs to what is known of the others."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from autotune.config import Config
from autotune.measure.window import pauses
from autotune.proof import standing_of, with_pauses
from autotune.records import Attempt, Measurement, Request, Trial
from autotune.stats import around
from tests import examples
from tests.pipeline import BATCH_SIZE, SimulatedPipeline, always
from tests.search.test_tuner import tuned
from tests.search.there import there
from tests.simulated import SimulatedMachine, loader_bound

USUAL, STRAGGLER, ONE_IN = 0.00234, 1.5, 400
TRUTH = 1 / (USUAL + STRAGGLER / ONE_IN)


def reading(seed: int, one_in: float = ONE_IN, seconds: float = 3.0) -> Measurement:
    """What a loader without workers gives, of whose samples one in so many takes long."""
    generator, chance = random.Random(seed), 1 / one_in

    def build(number: int) -> float:
        return sum(USUAL + STRAGGLER * (generator.random() < chance) for _ in range(BATCH_SIZE))

    pipeline = SimulatedPipeline(0, 1, build, always(1e-6))
    run, window = pipeline.run(Request(seconds=seconds))
    summary, found = pipeline.summary(run, window), pauses(run.log.ends, run.log.epochs, 1)
    return examples.measurement(
        samples_per_second=summary.samples_per_second,
        ci95=around(summary.samples_per_second, summary.relative_half_width),
        seen_samples=sum(run.log.samples),
        pauses=len(found),
        pause_seconds=sum(found),
    )


def trials(known: list[Measurement], config: Config = examples.BASELINE, **changes: Any) -> list[Trial]:
    return [examples.trial(config=config, measurement=replace(each, **changes)) for each in known]


@pytest.mark.parametrize("study", range(8))
def test_readings_of_a_rare_straggler_hold_the_rate_that_some_of_them_did_not_see(study: int) -> None:
    known = [reading(100 * study + number) for number in range(10)]
    alone = [standing_of(examples.BASELINE, [each]) for each in known]
    pooled = [with_pauses(each, trials(known)).rate_ci95 for each in alone]
    holding = [ends is None or ends[0] <= TRUTH <= ends[1] for ends in pooled]
    assert sum(holding) >= 9


def test_without_pauses_intervals_stay_what_they_were() -> None:
    known = [reading(number, one_in=1e12) for number in range(3)]
    standing = standing_of(examples.BASELINE, known)
    assert [each.pauses for each in known] == [0, 0, 0]
    assert with_pauses(standing, trials(known)) == standing


def test_pauses_count_where_no_others_made_them_and_the_loader_is_alike() -> None:
    known = [reading(number) for number in range(10)]
    quick = max(known, key=lambda each: each.samples_per_second)
    standing, own = standing_of(examples.BASELINE, [quick]), trials([quick])
    others = replace(examples.BASELINE, batch_size=64), replace(examples.BASELINE, num_workers=4, prefetch_factor=2)
    disturbed = examples.conditions(is_crowded=True, foreign_cpus=1.0)
    widened, *same = (
        with_pauses(standing, [*own, *trials(known, config, **changes)])
        for config, changes in ((others[0], {}), (others[1], {}), (others[0], {"conditions": disturbed}))
    )
    assert there(widened.rate_ci95)[0] < TRUTH < there(standing.rate_ci95)[0]
    assert same == [standing, standing]


def test_what_a_further_run_may_meet_is_in_its_interval() -> None:
    known = [reading(number) for number in range(6)]
    standing = with_pauses(standing_of(examples.BASELINE, known[:3]), trials(known))
    low, high = there(standing.next_run_95)
    assert all(low <= each.samples_per_second <= high for each in known)


class Straggling(SimulatedMachine):
    """A machine on which the baseline of the search meets pauses, and the rounds do not."""

    def measure(self, config: Config, request: Request) -> Attempt:
        attempt = super().measure(config, request)
        if request.fresh or config != examples.BASELINE or attempt.measurement is None:
            return attempt
        met = replace(attempt.measurement, seen_samples=3000, pauses=4, pause_seconds=2.0)
        return replace(attempt, payload=met)


def test_what_the_search_met_is_in_the_intervals_of_the_rounds() -> None:
    found, plain = (
        tuned(kind(cost=loader_bound, noise=0.001), budget=300.0) for kind in (Straggling, SimulatedMachine)
    )
    ends = [there(each.baseline_ci95)[0] / each.baseline_samples_per_second for each in (found, plain)]
    assert ends[0] < 0.7 < 0.99 < ends[1]
    assert there(found.next_run_95)[0] == pytest.approx(there(plain.next_run_95)[0])  # its workers met none


def test_a_pause_is_a_burst_that_takes_far_longer_than_most_and_no_start_of_an_epoch() -> None:
    ends = [5.0 + 0.01 * number + (number > 20) + (number > 40) for number in range(100)]
    assert pauses(ends, [1] * 100, 1) == pytest.approx([1.0, 1.0])
    assert pauses(ends, [1] * 41 + [2] * 59, 1) == pytest.approx([1.0])
    assert pauses(ends, [1] * 100, 4) == pytest.approx([1.0, 1.0])
    assert pauses([number * 0.01 for number in range(100)], [1] * 100, 1) == []
    assert pauses([5.0], [1], 1) == pauses([5.0], [1], 4) == []
