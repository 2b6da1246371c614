from __future__ import annotations

import re
import time
from collections import Counter
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.config import Config
from autotune.configfile import Objective
from autotune.limits import Budget
from autotune.messages import Messages, Progress
from autotune.outcome import Outcome
from autotune.proof import Turn
from autotune.records import Attempt, Request, WorkloadFacts
from autotune.search import tuner
from autotune.search.agenda import CONFIRM_SHARE, PROOF_SHARE, Look, Measure, Prove, Settle, Step, Wait, next_step
from autotune.search.known import Known
from autotune.search.run import Ending, Run, Stop
from autotune.search.sampler import PredictiveSampler, Seen
from autotune.search.setup import Setup
from autotune.search.space import Space, build_space
from autotune.search.study import TuningStudy, open_study
from autotune.search.tuner import Tuner
from autotune.settings import parse_knobs
from autotune.storage.open import StudyStorage
from autotune.storage.trials import LOOK
from tests import examples
from tests.search.there import there
from tests.simulated import (
    SimulatedMachine,
    StepCost,
    equal_everywhere,
    few_of,
    four_shared_cores,
    gpu_facts,
    host,
    larger_batches_pay,
    loader_bound,
    searched,
    tuner_of,
)

CPU, GPU = examples.facts(epoch_samples=None), gpu_facts(epoch_samples=None)


class Searched:
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
            tuner = Tuner(machine, self.study.setup, self.clock, messages, max_trials)
            stop = searched(tuner, self.study)
        self.reason, self.ending, self.agenda = stop.text, stop.ending, tuner.agenda(self.study)


@pytest.mark.parametrize("budget", [20.0, 25.0])
def test_the_search_leaves_time_for_three_rounds(budget: float) -> None:
    def never_enough(config: Config) -> StepCost:
        return StepCost(wait=10.0 / config.batch_size / (1 + config.num_workers), compute=1e-5 * config.batch_size)

    run = Searched(SimulatedMachine(cost=never_enough, noise=0.05), budget=budget)
    assert run.reason == "the budget is spent"
    three_rounds = min(PROOF_SHARE * budget, run.agenda.proof_seconds)
    assert three_rounds > CONFIRM_SHARE * budget
    assert run.clock.left >= three_rounds - run.agenda.trial_cost - 1e-9
    assert run.clock.spent > (1 - PROOF_SHARE) * budget - run.agenda.trial_cost


class Forking(SimulatedMachine):
    """A fresh process loads the workload, and has torch from its parent; the step of a finalist is dear to begin."""

    def measure(self, config: Config, request: Request) -> Attempt:
        attempt = super().measure(config, request)
        opening, more = request.fresh * LOADING, (config.num_workers > 0) * self.seconds
        self.time += opening + more
        return replace(attempt, seconds=attempt.seconds + opening + more, opening=opening)


LOADING = 0.5


@pytest.mark.parametrize("seconds", [1.0, 3.0])
def test_a_round_is_planned_as_a_fork_takes_and_then_as_the_rounds_took(seconds: float) -> None:
    machine = Forking(cost=loader_bound, noise=0.01, seconds=seconds)
    space, told = few_of(GPU, amp="off"), list[Progress]()
    run = tuner_of(machine, space, GPU, host(), 120.0, told.append, opening=12.0, loading=LOADING)
    study = open_study(run.setup)
    searched(run, study)
    planned, most = run.agenda(study).proof_seconds / 3, run.agenda(study).measurement_seconds
    step: Step = Wait("")
    while not isinstance(step, Settle):
        step = run.next(study)
        run.take(study, step)
    agenda = run.agenda(study)
    took = 2 * LOADING + 3 * seconds
    assert agenda.proof_seconds / 3 == pytest.approx(took)
    assert 0.7 <= planned / took <= 1.4
    assert most == pytest.approx(planned / 2)
    assert not [each.message for each in told if each.message and "a round of the proof takes" in each.message.lower()]


class Slow(SimulatedMachine):
    def measure(self, config: Config, request: Request) -> Attempt:
        time.sleep(0.0 if self.calls else 0.5)
        return super().measure(config, request)


def test_a_baseline_that_takes_long_is_told_while_it_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autotune.messages.REPEAT_SECONDS", 0.02)
    run = Searched(Slow(cost=loader_bound), max_trials=1)
    said = {(told.phase, re.sub(r"\d+", "0", told.message)) for told in run.told if told.message}
    assert said == {("baseline", "measuring the baseline has taken 0 s")}


def only_the_baseline_is_fast(config: Config) -> StepCost:
    """Its loader is late all the same: something may be gained."""
    slower = 1 if config == examples.BASELINE else 2
    return StepCost(wait=2e-4 * slower * config.batch_size, compute=1e-3 * slower * config.batch_size)


def test_something_is_measured_beside_the_baseline_though_nothing_is_expected_to_win() -> None:
    run = Searched(SimulatedMachine(cost=only_the_baseline_is_fast))
    assert len(run.study.known.trials) >= 2
    assert run.study.known.finalists(1)
    assert run.ending is Ending.COMPLETE


def test_where_nothing_else_is_allowed_nothing_else_is_measured() -> None:
    fixed = {"batch_size": 32, "num_workers": 0, "pin_memory": False, "amp": "off", "threads": 2, "prefetch_factor": 2}
    run = Searched(SimulatedMachine(cost=loader_bound), CPU, **fixed)
    assert (len(run.machine.calls), run.ending) == (1, Ending.COMPLETE)


def test_a_trial_below_the_best_may_end_early_and_the_baseline_may_not() -> None:
    run = Searched(SimulatedMachine(cost=loader_bound), max_trials=3)
    baseline, second, _ = (request for _, request in run.machine.calls)
    assert baseline.least_rate is None
    assert second.least_rate == there(there(run.study.known.trials[0].measurement).ci95)[0]


def test_a_trial_that_hangs_does_not_take_all_the_time_there_is() -> None:
    run = Searched(SimulatedMachine(cost=loader_bound), budget=3600.0, max_trials=3)
    limits = [request.time_limit for _, request in run.machine.calls]
    assert limits[0] > 3000
    assert limits[1:] == [30.0, 30.0]
    slow = Searched(SimulatedMachine(cost=loader_bound, seconds=20.0), budget=3600.0, max_trials=3)
    assert [request.time_limit for _, request in slow.machine.calls][1:] == [200.0, 200.0]


class HangingOnce(SimulatedMachine):
    def measure(self, config: Config, request: Request) -> Attempt:
        attempt = super().measure(config, request)
        if request.part != "training" or len(self.calls) != 2:
            return attempt
        self.time += request.time_limit
        return Attempt(outcome=Outcome.TIMEOUT, message="no answer", seconds=request.time_limit)


def test_a_trial_that_the_end_of_the_budget_cut_off_is_no_failure() -> None:
    run = Searched(HangingOnce(cost=loader_bound, seconds=4.0), budget=60.0)
    assert len(run.machine.calls) == 2
    assert run.machine.calls[1][1].time_limit < 30.0
    assert [trial.outcome for trial in run.study.known.trials] == [Outcome.OK]
    assert run.reason == "the budget is spent"


def both_pay(config: Config) -> StepCost:
    """A launch that larger batches share, and a loader that workers speed up."""
    return StepCost(wait=2e-3 * config.batch_size / (1 + config.num_workers), compute=0.02 + 2e-4 * config.batch_size)


BOUNDS: dict[str, Any] = {"num_workers": "0,2,4", "prefetch_factor": 2, "amp": "off"}
COSTS = [loader_bound, larger_batches_pay, four_shared_cores, equal_everywhere, only_the_baseline_is_fast]


@settings(max_examples=12)
@given(
    cost=st.sampled_from(COSTS),
    noise=st.sampled_from([0.0, 0.01, 0.05]),
    seconds=st.floats(0.5, 12.0),
    budget=st.floats(30.0, 240.0),
    seed=st.integers(0, 99),
    facts=st.sampled_from([CPU, GPU]),
    objective=st.sampled_from(["samples", "same-batch"]),
    interrupt_at=st.none() | st.integers(2, 24),
)
def test_a_run_ends_in_its_budget_and_its_records_alone_decide_each_step(
    cost: Any,
    noise: float,
    seconds: float,
    budget: float,
    seed: int,
    facts: WorkloadFacts,
    objective: Objective,
    interrupt_at: int | None,
) -> None:
    machine = SimulatedMachine(cost=cost, noise=noise, seconds=seconds, seed=seed, interrupt_at=interrupt_at)
    steps: list[tuple[Step, Run, set[int], int]] = []

    def noting(known: Known, run: Run) -> Step:
        step = next_step(known, run)
        steps.append((step, run, {trial.number for trial in known.history}, len(known.probes)))
        return step

    space = both_of(facts, objective)
    with closing(StudyStorage()) as kept, patch.object(tuner, "next_step", noting):
        tuner_of(machine, space, facts, host(), budget, seed=seed).result(kept)
        frozen, attributes = kept.trials, kept.attributes
    assert isinstance(steps[-1][0], Stop)
    assert all(run.spent <= budget for step, run, *_ in steps if isinstance(step, Look | Measure))
    assert machine.time <= budget + 2 * seconds  # a measurement that had begun, and the baseline's of its round
    for step, run, numbers, looks in steps:
        then = [trial for trial in frozen if trial.number in numbers]
        known = {key: each for key, each in attributes.items() if not key.startswith(LOOK) or each["number"] < looks}
        assert next_step(PredictiveSampler().known(Seen(then, known)), run) == step


def both_of(facts: WorkloadFacts, objective: Objective) -> Space:
    """A space of a hundred configurations with two answers."""
    return build_space(facts, 8, examples.BASELINE, parse_knobs(BOUNDS), objective=objective)


def without_name(step: Step) -> Step:
    """A step as any run would take it: each run has a name of its own until its first proof is on record."""
    return replace(step, proof=replace(step.proof, name="")) if isinstance(step, Prove) else step


@pytest.mark.parametrize("objective", ["samples", "same-batch"])
def test_a_run_that_is_killed_after_any_record_goes_on_with_the_same_step(objective: Objective, tmp_path: Path) -> None:
    """In the search, within a round of the proof, and in the search and the proof of the second answer."""
    machine, path = SimulatedMachine(cost=both_pay, noise=0.02, seconds=1.0), tmp_path / "whole.study"
    space, kinds = both_of(GPU, objective), Counter[str]()
    moments: list[tuple[Step, float, int]] = []

    def tuner_at(spent: float) -> Tuner:
        found = tuner_of(machine, space, GPU, host(), 600.0, opening=1.0, seed=3)
        found.budget.start = machine.time - spent
        return found

    with closing(StudyStorage(path)) as kept:
        whole = tuner_at(0.0)
        study = open_study(whole.setup, storage=kept)
        while not isinstance(step := whole.next(study), Stop):
            moments.append((step, whole.budget.spent, path.stat().st_size))
            whole.take(study, step)
    text = path.read_bytes()
    for number, (step, spent, size) in enumerate(moments):
        (cut := tmp_path / f"{number}.study").write_bytes(text[:size])
        with closing(StudyStorage(cut)) as kept:
            again = tuner_at(spent)
            found = again.next(open_study(again.setup, storage=kept))
        assert without_name(found) == without_name(step)
        kinds[type(step).__name__ + ("" if not isinstance(step, Turn) else step.round[:6])] += 1
    assert kinds["Turnproof-"] >= 6
    assert kinds["Turnsecond"] >= 6


class Impatient(SimulatedMachine):
    """The user presses Ctrl-C in the eighth measurement, and again in the round that follows."""

    def measure(self, config: Config, request: Request) -> Attempt:
        if len(self.calls) == 9:
            self.interrupt_at = 10
        return super().measure(config, request)


def test_a_run_that_was_interrupted_twice_proves_when_it_is_started_again(tmp_path: Path) -> None:
    machine, path = Impatient(cost=loader_bound, interrupt_at=8, seconds=4.0), tmp_path / "kept.study"
    with closing(StudyStorage(path)) as kept, pytest.raises(KeyboardInterrupt):
        tuner_of(machine, few_of(GPU), GPU, host(), 600.0).result(kept)
    machine.interrupt_at = None
    with closing(StudyStorage(path)) as kept:
        again = tuner_of(machine, few_of(GPU), GPU, host(), 600.0, max_trials=5)  # no further one
        again.budget.start = machine.time
        assert again.result(kept).verdict == "faster"
