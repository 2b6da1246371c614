from __future__ import annotations

import re
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from autotune.config import Config
from autotune.limits import Budget
from autotune.messages import Messages, Progress
from autotune.outcome import Outcome
from autotune.records import Attempt, Request, WorkloadFacts
from autotune.search.loop import CONFIRM_SHARE, PROBE_SHARE, PROOF_SHARE, Search
from autotune.search.sampler import Setup
from autotune.search.stopping import Ending
from autotune.search.study import TuningStudy, open_study
from autotune.storage.open import StudyStorage
from tests import examples
from tests.search.there import there
from tests.simulated import (
    SimulatedMachine,
    StepCost,
    few_of,
    gpu_facts,
    host,
    loader_bound,
)

CPU, GPU = examples.facts(epoch_samples=None), gpu_facts(epoch_samples=None)
DEVICES = pytest.mark.parametrize("facts", [CPU, GPU], ids=["cpu", "gpu"])


class Run:
    """A search on a simulated machine, and all that was told of it."""

    def __init__(
        self,
        machine: SimulatedMachine,
        facts: WorkloadFacts = GPU,
        *,
        budget: float = 600.0,
        storage: Path | None = None,
        max_trials: int | None = None,
        clock: Budget | None = None,
        **bounds: Any,
    ) -> None:
        self.machine, self.told = machine, list[Progress]()
        self.space, self.clock = few_of(facts, **bounds), clock or Budget(budget, machine.now)
        with closing(StudyStorage(storage)) as kept:
            self.study: TuningStudy = open_study(Setup(space=self.space, facts=facts, host=host()), storage=kept)
            messages = Messages(self.clock, self.told.append)
            given = {"budget": self.clock, "messages": messages, "max_trials": max_trials}
            self.search = Search(runner=machine, study=self.study, **given)
            stop = self.search.run()
        self.reason, self.ending = stop.text, stop.ending


@DEVICES
def test_the_looks_come_after_the_baseline_and_before_any_other_trial(facts: WorkloadFacts) -> None:
    run = Run(SimulatedMachine(cost=loader_bound), facts, max_trials=2)
    phases = [told.phase for told in run.told if told.running]
    looks = len(run.machine.looks)
    assert phases == ["baseline"] + looks * ["probe"] + ["search"]
    assert looks > 3
    assert run.machine.looks[0][1].part == "loader"
    assert len(run.study.probes) == len([told for told in run.told if told.looked]) == looks


@pytest.mark.parametrize("budget", [20.0, 40.0])
def test_no_look_begins_once_their_share_of_the_budget_is_spent(budget: float) -> None:
    machine = SimulatedMachine(cost=loader_bound, seconds=8.0)
    began: list[float] = []
    measure = machine.measure

    def noting(config: Config, request: Request) -> Attempt:
        if request.part != "training":
            began.append(machine.now())
        return measure(config, request)

    machine.measure = noting  # type: ignore[method-assign]
    run = Run(machine, budget=budget)
    assert all(moment <= 8.0 + PROBE_SHARE * (budget - 8.0) for moment in began)
    assert (len(began) > 0) == (budget > 30)
    assert run.study.trials


@pytest.mark.parametrize("budget", [20.0, 30.0])
def test_the_search_leaves_time_for_three_rounds(budget: float) -> None:
    def never_enough(config: Config) -> StepCost:
        return StepCost(wait=10.0 / config.batch_size / (1 + config.num_workers), compute=1e-5 * config.batch_size)

    run = Run(SimulatedMachine(cost=never_enough, noise=0.05), budget=budget)
    assert run.reason == "the budget is spent"
    three_rounds = min(PROOF_SHARE * budget, run.search.proof_seconds)
    assert three_rounds > CONFIRM_SHARE * budget
    assert run.clock.left >= three_rounds - run.search.trial_cost - 1e-9
    assert run.clock.spent > (1 - PROOF_SHARE) * budget - run.search.trial_cost


def test_one_round_is_set_aside_while_no_trial_beats_the_baseline() -> None:
    same = Run(SimulatedMachine(cost=lambda config: StepCost(compute=1e-3 * config.batch_size)), max_trials=4)
    assert len(same.study.trials) > 1
    assert same.search.confirmation_seconds == same.search.plan.base_round


class Slow(SimulatedMachine):
    """The baseline takes its time."""

    def measure(self, config: Config, request: Request) -> Attempt:
        time.sleep(0.0 if self.calls else 0.5)
        return super().measure(config, request)


def test_a_baseline_that_takes_long_is_told_while_it_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autotune.messages.REPEAT_SECONDS", 0.02)
    run = Run(Slow(cost=loader_bound), max_trials=1)
    said = {(told.phase, re.sub(r"\d+", "0", told.message)) for told in run.told if told.message}
    assert said == {("baseline", "measuring the baseline has taken 0 s")}


def only_the_baseline_is_fast(config: Config) -> StepCost:
    return StepCost(compute=(1e-3 if config == examples.BASELINE else 2e-3) * config.batch_size)


@DEVICES
def test_something_is_measured_beside_the_baseline_though_nothing_is_expected_to_win(facts: WorkloadFacts) -> None:
    run = Run(SimulatedMachine(cost=only_the_baseline_is_fast), facts)
    assert len(run.study.trials) >= 2
    assert run.study.finalists(1)
    assert run.ending is Ending.COMPLETE


def test_where_nothing_else_is_allowed_nothing_else_is_measured() -> None:
    fixed = {"batch_size": 32, "num_workers": 0, "pin_memory": False, "amp": "off", "threads": 2, "prefetch_factor": 2}
    run = Run(SimulatedMachine(cost=loader_bound), CPU, **fixed)
    assert (len(run.machine.calls), run.ending) == (1, Ending.COMPLETE)


@DEVICES
@pytest.mark.parametrize("outcome", [Outcome.CRASHED, Outcome.TIMEOUT, Outcome.DEVICE_OOM, Outcome.USER_ERROR])
def test_looks_that_fail_do_not_end_the_search(facts: WorkloadFacts, outcome: Outcome) -> None:
    machine = SimulatedMachine(cost=loader_bound)
    measure = machine.measure

    def failing(config: Config, request: Request) -> Attempt:
        if request.part == "training":
            return measure(config, request)
        machine.looks.append((config, request))
        machine.time += 0.5
        return Attempt(outcome=outcome, message="it fails", seconds=0.5)

    machine.measure = failing  # type: ignore[method-assign]
    run = Run(machine, facts, max_trials=8)
    assert 0 < len(machine.looks) < 20
    assert len(machine.calls) > 1 or run.reason.startswith("every allowed configuration")
    assert run.reason


def test_a_resumed_study_looks_no_further_and_measures_no_baseline_again(tmp_path: Path) -> None:
    journal = tmp_path / "study.journal"
    first, again, done = (Run(SimulatedMachine(cost=loader_bound), storage=journal, max_trials=n) for n in (1, 3, 3))
    assert first.machine.looks
    assert (again.machine.looks, len(again.machine.calls)) == ([], 2)
    assert again.study.trials[0].config == first.space.base == first.machine.calls[0][0]
    assert len(again.study.trials) == 3
    assert done.machine.looks == done.machine.calls == []


def test_a_trial_below_the_best_may_end_early_and_the_baseline_may_not() -> None:
    run = Run(SimulatedMachine(cost=loader_bound), max_trials=3)
    baseline, second, _ = (request for _, request in run.machine.calls)
    assert baseline.least_rate is None
    assert second.least_rate == there(there(run.study.trials[0].measurement).ci95)[0]


def test_a_trial_that_hangs_does_not_take_all_the_time_there_is() -> None:
    run = Run(SimulatedMachine(cost=loader_bound), budget=3600.0, max_trials=3)
    limits = [request.time_limit for _, request in run.machine.calls]
    assert limits[0] > 3000
    assert limits[1:] == [30.0, 30.0]
    slow = Run(SimulatedMachine(cost=loader_bound, seconds=20.0), budget=3600.0, max_trials=3)
    assert [request.time_limit for _, request in slow.machine.calls][1:] == [200.0, 200.0]


class HangingOnce(SimulatedMachine):
    """The first trial after the baseline hangs until its time is up."""

    def measure(self, config: Config, request: Request) -> Attempt:
        attempt = super().measure(config, request)
        if request.part != "training" or len(self.calls) != 2:
            return attempt
        self.time += request.time_limit
        return Attempt(outcome=Outcome.TIMEOUT, message="no answer", seconds=request.time_limit)


def test_a_trial_that_the_end_of_the_budget_cut_off_is_no_failure() -> None:
    run = Run(HangingOnce(cost=loader_bound, seconds=4.0), budget=45.0)
    assert len(run.machine.calls) == 2
    assert run.machine.calls[1][1].time_limit < 30.0
    assert [trial.outcome for trial in run.study.trials] == [Outcome.OK]
    assert run.reason == "the budget is spent"
