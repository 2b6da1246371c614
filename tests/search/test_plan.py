"""The plan of a run: seconds of measurements and rounds, and the budget that they ask for."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.config import Config
from autotune.limits import USUAL_BUDGETS, Budget
from autotune.search.plan import MOST, SHORTEST, Plan
from tests import examples
from tests.search.test_agenda import Searched
from tests.simulated import SimulatedMachine, loader_bound

PLAN = Plan(
    start=3.0,
    opening=3.0,
    window=1.5,
    epoch_samples=6000,
    base=Config(batch_size=32),
    base_rate=800.0,
    base_seconds=2.0,
)
SECONDS = st.floats(0.1, 60.0)


@given(SECONDS, SECONDS, SECONDS)
def test_a_chosen_budget_is_a_usual_one_and_dearer_measurements_ask_for_no_shorter_one(
    opening: float, measuring: float, more: float
) -> None:
    plan = replace(PLAN, start=opening, opening=opening, base_seconds=measuring)
    chosen = plan.budget(opening)
    assert chosen in USUAL_BUDGETS
    assert SHORTEST <= chosen <= MOST
    assert replace(plan, opening=opening + more).budget(opening) >= chosen
    assert replace(plan, base_seconds=measuring + more).budget(opening) >= chosen


@pytest.mark.parametrize(("opening", "measuring", "budget"), [(1, 1.5, 120), (3, 3, 180), (8, 4, 300), (20, 8, 600)])
def test_the_usual_jobs_get_two_to_ten_minutes(opening: float, measuring: float, budget: float) -> None:
    assert replace(PLAN, start=opening, opening=opening, base_seconds=measuring).budget(opening + measuring) == budget


@given(st.sampled_from([1, 8, 32, 64, 256, 1024]), st.integers(0, 8), st.floats(10.0, 1e5))
def test_no_trial_is_planned_shorter_than_the_baselines_and_none_is_longer_for_a_longer_epoch(
    batch: int, workers: int, rate: float
) -> None:
    config = replace(examples.BASELINE, batch_size=batch, num_workers=workers, prefetch_factor=2 if workers else None)
    planned = PLAN.trial(config, rate)
    assert planned >= PLAN.base_seconds
    assert replace(PLAN, epoch_samples=None).trial(config, rate) <= planned
    assert PLAN.fresh(PLAN.base_seconds) + PLAN.fresh(planned) >= PLAN.base_round


def test_epochs_of_a_few_batches_make_rounds_dear() -> None:
    one = Config(batch_size=256, num_workers=1, prefetch_factor=2)
    assert PLAN.trial(replace(one, batch_size=1024), 1100.0) > PLAN.trial(one, 1100.0) + 5.0


@pytest.mark.parametrize(
    ("opening", "said"),
    [
        (1.0, None),
        (13.0, "takes 30 s here: 3m may be time for three rounds of one candidate; --budget 10m for a search"),
        (20.0, "takes 44 s here: 3m may be too short for the three rounds of a proof; --budget 10m for a search"),
    ],
)
def test_what_a_budget_may_be_too_short_for_is_said(opening: float, said: str | None) -> None:
    plan = replace(PLAN, start=opening, opening=opening)
    shortage = plan.shortage(180.0, 180.0 - 2 * opening, 2 * opening)
    assert shortage is None if said is None else said in (shortage or "")


def test_a_budget_is_chosen_once_the_baseline_is_measured_and_the_reason_is_said() -> None:
    machine = SimulatedMachine(cost=loader_bound, seconds=8.0)
    budget = Budget(180.0, machine.now, is_given=False)
    run = Searched(machine, clock=budget)
    assert budget.seconds == 360.0  # a minute of it for the second answer
    assert [told.message for told in run.told if told.message and "takes 6m (--budget)" in told.message]
