from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from autotune.config import Config
from autotune.errors import InterruptedRunError, NothingFeasibleError, UsageError, UserCodeError
from autotune.knobs import as_baseline
from autotune.limits import DEFAULT_MEMORY_LIMIT, MemoryLimit
from autotune.messages import Progress
from autotune.outcome import Outcome
from autotune.probes import NumericsCheck
from autotune.records import Attempt, Measurement, Request, WorkloadFacts
from autotune.report.result import Result
from autotune.report.text import verdict_sentence
from autotune.result import Verdict
from autotune.search.agenda import LITTLE
from autotune.search.read import read_study
from autotune.search.run import SECOND
from autotune.search.space import build_space
from autotune.storage.open import StudyStorage
from tests import examples
from tests.search.test_study import optuna_trials
from tests.search.there import there
from tests.simulated import (
    SimulatedMachine,
    StepCost,
    each_third,
    equal_everywhere,
    few_of,
    four_shared_cores,
    gpu_facts,
    host,
    larger_batches_pay,
    loader_bound,
    tuner_of,
)

GPU = gpu_facts()
CPU = examples.facts(intra_op_threads=4)


def two_threads(config: Config) -> StepCost:
    """Two CPUs compute, and workers gain nothing."""
    return StepCost(compute=config.batch_size / 1000, cpus=2.0)


def tuned(
    machine: SimulatedMachine,
    facts: WorkloadFacts = GPU,
    *,
    cpus: int = 8,
    budget: float = 180.0,
    tell: Callable[[Progress], None] = lambda progress: None,
    baseline: Config = examples.BASELINE,
    trials: int | None = None,
    memory_limit: MemoryLimit = DEFAULT_MEMORY_LIMIT,
    storage: Path | None = None,
    **given: Any,
) -> Result:
    space, plan = few_of(facts, cpus, baseline, **given), {"max_trials": trials, "memory_limit": memory_limit}
    with closing(StudyStorage(storage)) as kept:
        return tuner_of(machine, space, facts, host(cpus), budget, tell, **plan).result(kept)


def in_the_loader(config: Config) -> tuple[object, ...]:
    return (*config.dataloader_kwargs().items(), config.amp)


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "study.journal"


def searched(result: Result) -> list[Any]:
    return [trial for trial in result.history if trial.kind != "confirm"]


FAMILIES = {
    "loader-bound": (loader_bound, GPU, 8),
    "compute-bound, larger batches pay": (larger_batches_pay, GPU, 8),
    "workers and threads share four cores": (four_shared_cores, CPU, 4),
}


@pytest.mark.parametrize(("cost", "facts", "cpus"), FAMILIES.values(), ids=FAMILIES)
def test_the_best_of_a_known_machine_is_found_within_twenty_trials(cost: Any, facts: Any, cpus: int) -> None:
    machine = SimulatedMachine(cost=cost, noise=0.005)
    result = tuned(machine, facts, cpus=cpus, trials=20)
    assert len(searched(result)) <= 20
    assert machine.rate(result.config) >= 0.95 * machine.best(few_of(facts, cpus))
    assert result.verdict is Verdict.FASTER


@pytest.mark.parametrize(("budget", "baselines"), [(90.0, 1), (600.0, 2)])
def test_the_promised_numbers_are_those_of_the_confirmation(budget: float, baselines: int) -> None:
    result = tuned(SimulatedMachine(cost=loader_bound, noise=0.02), budget=budget)
    confirmed = [t for t in result.history if t.kind == "confirm" and not there(t.round).startswith(SECOND)]
    after = [t.rate for t in confirmed if in_the_loader(t.config) == in_the_loader(result.config)]
    before = [t.rate for t in confirmed if t.config == examples.BASELINE]
    assert (len(after), len(before)) == (result.rounds, baselines * result.rounds)
    assert result.verdict is Verdict.FASTER
    assert result.samples_per_second == pytest.approx(statistics.harmonic_mean(after))
    assert result.baseline_samples_per_second == pytest.approx(statistics.harmonic_mean(before))
    assert result.samples_per_second not in [t.rate for t in searched(result)]
    assert result.measurement.samples_per_second == sorted(after)[len(after) // 2]
    low, high = there(result.speedup_ci95)
    assert 1 < low <= result.speedup <= high


def test_a_winner_by_luck_of_the_search_is_not_believed() -> None:
    few = {"batch_size": "32,64", "num_workers": "0..2", "amp": "off,bf16", "threads": 1}
    results = [
        tuned(SimulatedMachine(cost=equal_everywhere, noise=0.05, seed=seed), budget=300.0, trials=15, **few)
        for seed in range(15)
    ]
    lucky = [result for result in results if max(t.rate for t in searched(result)) > searched(result)[0].rate]
    assert len(lucky) >= 5  # so many searches had a winner
    assert sum(result.verdict is Verdict.FASTER for result in results) <= 1


KEPT: dict[str, Any] = {"batch_size": 32, "amp": "off", "threads": "1,2"}
"""Bounds as those of a script without autocast."""


def test_where_bounds_leave_nothing_to_gain_the_baseline_is_measured_at_another_place_and_nothing_else() -> None:
    machine = SimulatedMachine(cost=two_threads, noise=0.005)
    result = tuned(machine, replace(CPU, intra_op_threads=2), cpus=2, **KEPT)
    assert [config for config, _ in machine.calls] == [examples.BASELINE] * 2
    assert len({request.seed for _, request in machine.calls}) == 2
    assert (result.verdict, result.rounds, result.likeliest) == (Verdict.NO_GAIN, 0, None)
    assert 0 < there(result.most_gain) < 0.03
    assert "your loader is not the limit" in verdict_sentence(result)
    assert result.config == result.baseline


@pytest.mark.parametrize(
    "machine",
    [
        SimulatedMachine(cost=lambda config: gaining(0.06)(config)),  # training waits
        SimulatedMachine(cost=two_threads, neighbour=lambda time: 1.0),
        SimulatedMachine(cost=lambda config: StepCost(compute=0.03 if config.intra_op_threads == 1 else 0.032, cpus=2)),
    ],
    ids=["waiting", "a neighbour", "threads"],
)
def test_bounds_that_leave_a_gain_or_are_not_sure_settle_nothing(machine: SimulatedMachine) -> None:
    tuned(machine, replace(CPU, intra_op_threads=2), cpus=2, **KEPT)
    assert len({config for config, _ in machine.calls}) > 1


def test_a_failing_candidate_gives_the_baseline_and_a_note() -> None:
    fails = {"fails_fresh": lambda config: Outcome.SHM if config.num_workers else None}
    result = tuned(SimulatedMachine(cost=loader_bound, **fails))
    assert (result.verdict, result.config.num_workers) == (Verdict.UNDECIDED, 0)
    assert (result.rounds, result.likeliest) == (0, None)
    assert any("no finalist ran beside your settings in a fresh process (shm" in note for note in result.notes)


THEIRS = (Outcome.USER_ERROR, Outcome.NUMERICS, Outcome.WORKER_DIED, Outcome.CRASHED)


@pytest.mark.parametrize("outcome", [*THEIRS, Outcome.DEVICE_OOM, Outcome.HOST_OOM, Outcome.SHM, Outcome.TIMEOUT])
def test_a_baseline_that_fails_ends_it_all_as_the_users_error_or_as_nothing_feasible(outcome: Outcome) -> None:
    machine = SimulatedMachine(cost=loader_bound, fails=lambda config: outcome)
    with pytest.raises((UserCodeError, NothingFeasibleError), match="the baseline configuration") as caught:
        tuned(machine)
    if outcome in THEIRS:
        assert isinstance(caught.value, UserCodeError)
        assert caught.value.user_traceback == "its traceback"
    else:
        assert isinstance(caught.value, NothingFeasibleError)
        assert str(outcome) in str(caught.value)
    assert (len(machine.calls), machine.looks) == (1, [])


@pytest.mark.parametrize(
    ("seconds", "rounds", "said"), [(9.0, 1, "in about 19 s"), (20.0, 0, "a round of the proof takes 41 s")]
)
def test_after_an_interrupt_a_round_of_half_a_minute_is_measured_and_a_longer_one_is_told(
    seconds: float, rounds: int, said: str
) -> None:
    told: list[Progress] = []
    machine = SimulatedMachine(cost=loader_bound, seconds=seconds, interrupt_at=3)
    result = tuned(machine, budget=3600.0, tell=told.append)
    assert (result.interrupted, len(there(result.likeliest).ratios) if result.likeliest else 0) == (True, rounds)
    assert [each.message for each in told if each.message and said in each.message]


def test_the_trial_that_was_interrupted_is_not_left_running_and_confirmation_is_short(journal: Path) -> None:
    tuned(SimulatedMachine(cost=loader_bound, interrupt_at=3), storage=journal)
    assert [trial.state.name for trial in optuna_trials(journal)][:3] == ["COMPLETE", "COMPLETE", "FAIL"]
    assert "RUNNING" not in {trial.state.name for trial in optuna_trials(journal)}
    machine = SimulatedMachine(cost=loader_bound, noise=0.05, interrupt_at=6)
    tuned(machine, budget=3600.0)
    assert machine.time <= 5 * machine.seconds + len(machine.looks) * machine.seconds / 4 + 15.0


def test_an_interrupt_before_the_baseline_is_measured_is_an_error(journal: Path) -> None:
    with pytest.raises(InterruptedRunError):
        tuned(SimulatedMachine(cost=loader_bound, interrupt_at=1), storage=journal)
    result = tuned(SimulatedMachine(cost=loader_bound), storage=journal)  # starts again
    assert result.history[0].kind == "baseline"
    assert len({trial.number for trial in result.history}) == len(result.history)


def test_a_search_ends_when_nothing_more_can_be_gained() -> None:
    result = tuned(SimulatedMachine(cost=loader_bound), budget=100_000.0, num_workers="0,4,8,12")
    assert result.stop_reason.startswith("within 3 % of the ceiling")
    assert len(searched(result)) <= 6
    assert result.remaining_gain == pytest.approx(0.0, abs=0.01)
    bounded = tuned(SimulatedMachine(cost=loader_bound), num_workers="0..2", batch_size="32,128")
    assert bounded.config.num_workers == 2
    assert bounded.remaining_gain == pytest.approx(4.0, rel=0.01)  # 2000 of 10,000 samples per second
    unseen = tuned(SimulatedMachine(cost=loader_bound), num_workers="0..2", trials=1)
    assert unseen.remaining_gain > 5.0  # batches of 512 were never tried


@pytest.mark.parametrize(("until", "times"), [(1.0, 2), (2.0, 2), (5.0, 3)])
def test_a_disturbed_baseline_is_measured_again_and_compared_with_only_then(until: float, times: int) -> None:
    moments = list[Progress]()
    machine = SimulatedMachine(cost=two_threads, neighbour=lambda time: 1.0 if time < until else 0.0)
    result = tuned(machine, CPU, cpus=2, tell=moments.append)
    baselines = [trial for trial in result.history if trial.kind == "baseline"]
    assert [trial.is_disturbed for trial in baselines] == [True] * (times - 1) + [False]
    assert {moment.baseline_rate for moment in moments} == {None, baselines[-1].rate}
    assert sum(config == examples.BASELINE and not request.fresh for config, request in machine.calls) == times


def test_a_baseline_that_is_always_disturbed_is_measured_twice() -> None:
    result = tuned(SimulatedMachine(cost=two_threads, neighbour=lambda time: 1.0), CPU, cpus=2)
    assert sum(trial.kind == "baseline" for trial in result.history) == 2


def test_a_stalled_look_is_taken_again_in_a_process_of_its_own() -> None:
    machine = SimulatedMachine(cost=larger_batches_pay, stall=each_third(10.0))
    result = tuned(machine)
    seen, again = set[tuple[str, Config]](), list[bool]()
    for config, request in machine.looks:
        is_again = (request.part, config) in seen
        again.append(is_again)
        assert request.fresh == is_again
        seen.add((request.part, config))
    assert any(again)
    assert machine.rate(result.config) >= 0.97 * machine.rate(tuned(SimulatedMachine(cost=larger_batches_pay)).config)


@pytest.mark.parametrize("is_busy", [False, True])
def test_fewer_than_three_rounds_are_no_answer_and_tell_no_factor(is_busy: bool) -> None:
    outcome = Outcome.SUSPECT if is_busy else None
    machine = SimulatedMachine(cost=loader_bound, fails=lambda config: outcome, seconds=6.0)
    result = tuned(machine, budget=35.0)
    assert (result.verdict, result.rounds < 3) == (Verdict.UNDECIDED, True)
    assert (result.config, result.speedup) == (result.baseline, 1.0)
    assert " times " not in verdict_sentence(result)
    assert any(what.startswith("a quieter machine") for what in result.missing) == is_busy


FEW_WORKERS = {"batch_size": 32, "num_workers": "0,2", "amp": "off", "pin_memory": False}


def gaining(share: float) -> Callable[[Config], StepCost]:
    """Training waits for batches without workers, and is faster by so much with them."""
    seconds = 1 / 1000 / (1 + share)

    def cost(config: Config) -> StepCost:
        return StepCost(
            wait=config.batch_size * seconds * (0 if config.num_workers else share), compute=config.batch_size * seconds
        )

    return cost


def test_what_is_undecided_says_what_would_decide_it() -> None:
    machine = SimulatedMachine(cost=gaining(0.04), noise=0.1, fails=lambda config: Outcome.SUSPECT, seed=3)
    undecided = tuned(machine, budget=60.0, **FEW_WORKERS)
    assert undecided.verdict is Verdict.UNDECIDED
    assert undecided.missing[0] == "more time (--budget 2m)"
    assert undecided.missing[1].startswith("a quieter machine (")
    assert "More time (--budget 2m) and a quieter machine (" in verdict_sentence(undecided)


@pytest.mark.parametrize("interrupt_at", [3, 12])
def test_after_an_interrupt_no_budget_is_proposed(interrupt_at: int) -> None:
    machine = SimulatedMachine(cost=gaining(0.03), noise=0.2, seed=3, interrupt_at=interrupt_at)
    result = tuned(machine, **FEW_WORKERS)
    assert (result.interrupted, result.verdict, result.missing) == (True, Verdict.UNDECIDED, ())
    assert "--budget" not in verdict_sentence(result)


class Fading(SimulatedMachine):
    def measure(self, config: Config, request: Request) -> Attempt:
        attempt = super().measure(config, request)
        if not (request.fresh and config.num_workers and attempt.measurement):
            return attempt
        half = attempt.measurement.samples_per_second / 2
        return replace(attempt, payload=replace(attempt.measurement, samples_per_second=half))


def test_more_time_is_not_proposed_for_an_alternative_that_was_slower() -> None:
    result = tuned(Fading(cost=gaining(0.3), seconds=6.0), budget=45.0, **FEW_WORKERS)
    assert result.verdict is Verdict.UNDECIDED
    assert there(result.likeliest).speedup < 1
    assert result.missing == ()
    assert "keep your settings for now." in verdict_sentence(result)
    assert "--budget" not in verdict_sentence(result)


@pytest.mark.parametrize("budget", [30.0, 40.0, 60.0, 75.0])
@pytest.mark.parametrize("noise", [0.01, 0.2])
def test_in_every_budget_the_best_alternative_is_compared_and_the_reason_true(budget: float, noise: float) -> None:
    machine = SimulatedMachine(cost=four_shared_cores, noise=noise, seconds=4.0)
    result = tuned(machine, CPU, cpus=4, budget=budget)
    assert result.likeliest is not None
    assert result.rounds >= 1
    left = budget - machine.time
    if result.stop_reason == "the budget is spent":
        assert left < max(4.0, LITTLE * budget)
    elif "are left, too little for another trial and its confirmation" in result.stop_reason:
        assert left < 4.0 + 3 * 2 * 7.0
    assert machine.time <= budget + 2 * machine.seconds


def test_what_confirmation_leaves_of_its_time_goes_to_the_search() -> None:
    machine = SimulatedMachine(cost=four_shared_cores, noise=0.02, seconds=6.0)
    result = tuned(machine, CPU, cpus=4, budget=250.0, batch_size="64..512", num_workers="0..8")
    assert (result.verdict, result.no_alternative) == (Verdict.FASTER, "")  # nothing is tried for another objective
    fresh = [request.fresh for _, request in machine.calls]
    assert False in fresh[fresh.index(True) :]  # trials after the first round


@pytest.mark.parametrize("facts", [CPU, GPU], ids=["cpu", "gpu"])
def test_a_precision_that_there_was_no_time_to_look_at_leaves_it_undecided_and_is_named(facts: WorkloadFacts) -> None:
    untried = 0
    for seconds in (2.0, 5.0, 8.0, 12.0, 18.0):
        machine = SimulatedMachine(cost=equal_everywhere, seconds=seconds)
        result = tuned(machine, facts, budget=60.0)
        if not any(config.amp == "bf16" for config, _ in machine.looks + machine.calls):
            untried += 1
            assert result.verdict is Verdict.UNDECIDED
            assert result.missing[0].startswith("time to try bf16 (--budget ")
            assert result.most_gain is None
    assert 0 < untried < 5


class HangingWorkers(SimulatedMachine):
    """Loader workers never answer: the runner gives them up."""

    def measure(self, config: Config, request: Request) -> Attempt:
        if not config.num_workers:
            return super().measure(config, request)
        (self.calls if request.part == "training" else self.looks).append((config, request))
        self.time += request.time_limit
        return Attempt(outcome=Outcome.TIMEOUT, message="no answer", seconds=request.time_limit)


@pytest.mark.parametrize("budget", [40.0, 60.0, 300.0])
def test_workers_that_hang_take_a_share_of_the_time_and_the_rest_is_tuned(budget: float) -> None:
    machine = HangingWorkers(cost=larger_batches_pay)
    result = tuned(machine, CPU, budget=budget)
    hung = [request.time_limit for config, request in machine.looks + machine.calls if config.num_workers]
    assert 0 < sum(hung) <= 2 * max(8.0, 0.15 * budget)
    assert not [config for config, request in machine.calls if request.fresh and config.num_workers]
    assert result.verdict is Verdict.FASTER
    assert result.config.batch_size >= 512
    assert [note for note in result.notes if note == "loader workers: no answer: left out"]


ROUNDS = "more than 16 rounds (with --storage FILE the rounds of several runs add up)"


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"trials": 2}, "more than 2 trials (--trials)"),
        ({"budget": 60.0}, "rounds that differ less: the gain is smaller than their differences"),
        ({"budget": 3600.0}, ROUNDS),
    ],
)
def test_what_would_decide_it_is_what_ended_it(options: dict[str, Any], wanted: str) -> None:
    machines = [SimulatedMachine(cost=gaining(0.03), noise=0.1, seed=seed) for seed in range(4)]
    results = [tuned(machine, **FEW_WORKERS, **options) for machine in machines]
    undecided = [result for result in results if result.verdict is Verdict.UNDECIDED]
    assert all(there(each.likeliest).speedup < 1 for each in undecided if not each.missing)
    missing = {each.missing[0] for each in undecided if each.missing}
    assert wanted in missing
    assert missing <= {wanted, ROUNDS, "more time (--budget 2m)"}


def test_the_baseline_is_not_improved_upon_by_what_was_not_allowed() -> None:
    baseline = Config(num_workers=2)
    machine = SimulatedMachine(cost=equal_everywhere, persistence_gain=0.05)
    result = tuned(machine, baseline=baseline, num_workers="4..8")
    assert result.config.to_document()["dataloader"] == baseline.to_document()["dataloader"]


def overflowing(amp: str) -> NumericsCheck:
    return examples.numerics_check(settles=amp != "fp16")


def bf16_is_fast_and_fp16_faster(config: Config) -> StepCost:
    gain = {"off": 1.0, "bf16": 1.5, "fp16": 3.0}[config.amp]
    return StepCost(compute=config.batch_size / (1000 * gain))


def test_where_the_only_precision_allowed_does_not_train_the_baseline_stays() -> None:
    machine = SimulatedMachine(cost=bf16_is_fast_and_fp16_faster, numerics=overflowing)
    result = tuned(machine, amp="fp16")
    assert {config.amp for config, _ in machine.calls} == {"off"}
    assert (result.verdict, result.config.amp) == (Verdict.UNDECIDED, "off")
    assert result.missing == ("another configuration (no other is allowed, or none could run)",)
    assert "in fp16 gradients overflow at every scale of the loss: left out" in result.notes


def test_the_samples_of_a_step_stay_the_same_in_every_trial_and_look() -> None:
    machine = SimulatedMachine(cost=larger_batches_pay)
    facts = gpu_facts(epoch_samples=None, has_batch_norm=True)
    result = tuner_of(machine, build_space(facts, 8, as_baseline(None, 256), {}, 256), facts, host(8)).result()
    asked = [config for config, _ in (*machine.calls, *machine.looks)]
    assert {config.batch_size * config.accumulation_steps for config in asked} == {256}
    assert (result.config.batch_size, result.config.accumulation_steps) == (256, 1)
    assert result.config.scaled_lr(0.1) == 0.1
    assert any("batch normalisation" in note for note in result.notes)


@pytest.mark.parametrize(("optimizer", "rule"), [("AdamW", math.sqrt), ("SGD", lambda ratio: ratio)])
def test_a_larger_batch_comes_with_its_cost_and_its_learning_rate(
    optimizer: str, rule: Callable[[float], float]
) -> None:
    result = tuned(SimulatedMachine(cost=larger_batches_pay), gpu_facts(optimizer=optimizer))
    ratio = result.config.batch_size / examples.BASELINE.batch_size
    assert ratio > 1
    assert result.config.scaled_lr(0.1) == pytest.approx(0.1 * rule(ratio), rel=1e-5)
    assert f"multiply the learning rate by {rule(ratio):.3g}" in " ".join(str(result).split())
    assert result.noise is not None
    assert result.same_loss_speedup is not None
    low, high = result.same_loss_speedup
    least, most = result.noise.overheads(32, result.config.batch_size)
    assert 0 < low <= result.speedup / most < result.speedup / least <= high < result.speedup
    assert "The pace to the same loss was measured over your first 1,000 samples." in " ".join(str(result).split())


def test_the_cost_of_a_batch_is_not_looked_at_where_the_batch_stays_or_the_steps_are_a_script_s() -> None:
    machine = SimulatedMachine(cost=loader_bound)
    fixed = tuned(machine, batch_size=32)
    assert fixed.verdict is Verdict.FASTER
    assert (fixed.noise, fixed.no_noise) == (None, "")
    of_script = SimulatedMachine(cost=larger_batches_pay)
    result = tuned(of_script, gpu_facts(loader_site="train.py:31 Photos[50000]"))
    assert result.no_noise == "a script's step cannot be split into small batches"
    assert not [request for _, request in (*machine.looks, *of_script.looks) if request.part == "noise"]


def test_a_look_at_the_noise_that_fails_leaves_the_answer_and_says_why() -> None:
    class Failing(SimulatedMachine):
        def measure(self, config: Config, request: Request) -> Attempt:
            failed = Attempt(outcome=Outcome.USER_ERROR, message="a batch of 2 is too small", seconds=1.0)
            return failed if request.part == "noise" else super().measure(config, request)

    result = tuned(Failing(cost=larger_batches_pay))
    assert result.verdict is Verdict.FASTER
    assert result.no_noise == "the noise of the gradients could not be measured: a batch of 2 is too small"


@dataclass(kw_only=True)
class Growing(SimulatedMachine):
    grows: Callable[[Config, Request], bool]
    numbers: dict[str, int]

    def measure(self, config: Config, request: Request) -> Attempt:
        found = super().measure(config, request)
        if not found.measurement or not self.grows(config, request):
            return found
        return replace(found, payload=replace(found.measurement, **self.numbers))


def test_a_finalist_that_takes_more_memory_in_a_fresh_process_is_no_answer() -> None:
    grows = {"grows": lambda config, request: request.fresh and config.batch_size > 32}
    machine = Growing(cost=larger_batches_pay, numbers={"peak_memory_bytes": 3 * 2**30}, **grows)
    result = tuned(machine, CPU, memory_limit=MemoryLimit(most=2**31))
    assert (result.verdict, result.config.batch_size) == (Verdict.UNDECIDED, 32)
    assert any("it took too long or too much memory" in note for note in result.notes)


def test_a_baseline_that_takes_too_much_memory_is_refused_and_in_a_study_that_goes_on_too(journal: Path) -> None:
    machine, less = SimulatedMachine(cost=larger_batches_pay, peak=lambda config: 2**31), MemoryLimit(most=2**30)
    with pytest.raises(UsageError, match=r"--max-memory 1\.0 GiB: the baseline takes 2\.0 GiB"):
        tuned(machine, memory_limit=less)
    tuned(machine, CPU, trials=3, storage=journal)
    with pytest.raises(UsageError, match="--max-memory"):
        tuned(machine, CPU, trials=3, storage=journal, memory_limit=less)


def test_a_study_goes_on_with_narrower_bounds(journal: Path) -> None:
    wide = {"batch_size": "64,128,256", "amp": "off,bf16", "threads": "1,4"}
    for trials, narrow in ((5, {}), (8, {"batch_size": "64,128"}), (8, {"amp": "off"}), (8, {"threads": 1})):
        given = {"baseline": Config(batch_size=256), "trials": trials, "storage": journal, **wide, **narrow}
        assert tuned(SimulatedMachine(cost=larger_batches_pay), CPU, **given).config.batch_size in (64, 128, 256)


def test_progress_goes_through_the_phases_in_order_and_each_trial_is_in_the_file_when_it_is_told(journal: Path) -> None:
    seen: list[Progress] = []

    def tell(progress: Progress) -> None:
        seen.append(progress)
        assert progress.finished is None or progress.finished in read_study(journal).history

    result = tuned(SimulatedMachine(cost=loader_bound), tell=tell, storage=journal)
    phases = [progress.phase for progress in seen]
    assert list(dict.fromkeys(phases)) == ["baseline", "search", "probe", "confirm"]  # a trial ends in the search
    assert [progress.finished for progress in seen if progress.finished] == list(result.history)
    assert [p.looked.config for p in seen if p.looked] == [p.running for p in seen if p.running and p.phase == "probe"]
    left = [progress.seconds_left for progress in seen]
    assert left == sorted(left, reverse=True)


# --- places of the epoch ---


def dearer_later(config: Config, place: float) -> float:
    """Samples in the order of their length: the last take ten times as long as the first."""
    return 1 + 9 * place


def test_rates_are_those_of_an_epoch_and_it_is_said_that_they_depend_on_the_place() -> None:
    machine = SimulatedMachine(cost=loader_bound, noise=0.01, by_place=dearer_later)
    result = tuned(machine, budget=300.0)
    assert result.verdict is Verdict.FASTER
    assert result.baseline_samples_per_second == pytest.approx(machine.rate(examples.BASELINE) / 5.5, rel=0.25)
    low, high = there(result.baseline_ci95)
    assert low <= machine.rate(examples.BASELINE) / 5.5 <= high
    assert [note for note in result.notes if "depends on the place in the epoch" in note]


@pytest.mark.parametrize(("by_place", "expected"), [(None, Verdict.NO_GAIN), (dearer_later, Verdict.UNDECIDED)])
def test_no_gain_is_only_claimed_where_the_search_has_seen_what_an_epoch_is_like(
    by_place: Any, expected: Verdict
) -> None:
    options = {"by_place": by_place} if by_place else {}
    machine = SimulatedMachine(cost=lambda config: replace(equal_everywhere(config), wait=1e-6), noise=0.002, **options)
    result = tuned(machine, budget=600.0)
    assert result.verdict is expected


def test_of_an_iterable_dataset_it_is_said_what_was_seen() -> None:
    result = tuned(SimulatedMachine(cost=loader_bound, beginning_samples=9600))
    assert [note for note in result.notes if "was measured on its first 9,600 samples only" in note]
    assert there(result.config.measured)["beginning_samples"] == 9600
    assert ", for the first 9,600 samples of an epoch" in str(result.config)
    whole = tuned(SimulatedMachine(cost=loader_bound))
    assert "beginning_samples" not in there(whole.config.measured)


def of_three_shards(config: Config) -> StepCost:
    """As bound by the loader, with data for three workers at most."""
    return loader_bound(replace(config, num_workers=min(3, config.num_workers), prefetch_factor=None))


SHARDS: dict[str, Any] = {"cost": of_three_shards, "shards": 3, "noise": 0.005}


class RunningOut(SimulatedMachine):
    """A worker of several has nothing left while the others go on."""

    def _measurement(self, config: Config, place: float, *, is_disturbed: bool) -> Measurement:
        found = super()._measurement(config, place, is_disturbed=is_disturbed)
        return replace(found, is_uneven=config.num_workers > 1)


@pytest.mark.parametrize("site", [None, "train.py:31 Stream[]"])
@pytest.mark.parametrize("kind", ["idle", "idle beside others", "out of data"])
def test_the_beginning_of_a_stream_proves_nothing_where_workers_get_different_amounts(
    kind: str, site: str | None
) -> None:
    machine = {
        "idle": SimulatedMachine(**SHARDS, beginning_samples=768),
        "idle beside others": SimulatedMachine(**SHARDS, beginning_samples=768, fails=lambda config: Outcome.SUSPECT),
        "out of data": RunningOut(cost=loader_bound, noise=0.005, beginning_samples=768),
    }[kind]
    result = tuned(machine, gpu_facts(loader_site=site), batch_size="32", num_workers="0,1,2,3,4,8")
    assert (result.verdict, result.config.plain()) == (Verdict.UNDECIDED, result.baseline.plain())
    (wanted,) = result.missing
    assert "short enough to be measured whole" in wanted
    assert "--num-workers 0,1" in wanted
    assert ("epoch_batches" in wanted) is (site is None)
    assert there(result.likeliest).speedup > 2
    said = "had no data left while others went on" if kind == "out of data" else "loader workers got no data"
    assert [note for note in result.notes if said in note and "only its beginning was measured" in note]
    assert "would decide it" in verdict_sentence(result)


def test_that_a_loader_is_no_limit_is_not_said_of_the_beginning_of_its_data() -> None:
    for beginning, expected in ((768, Verdict.UNDECIDED), (None, Verdict.NO_GAIN)):
        machine = SimulatedMachine(cost=equal_everywhere, noise=0.002, shards=1, beginning_samples=beginning)
        result = tuned(machine, baseline=Config(batch_size=32, num_workers=2), budget=600.0)
        assert result.verdict is expected
        assert "--num-workers" not in " ".join(result.missing)  # the baseline has several all the same


class Keeping(SimulatedMachine):
    """The dataset keeps what it has read, so that it takes a part of the time to read it again."""

    part: float = 0.1
    elsewhere: float | None = None
    """The part in another process."""

    def later(self, config: Config) -> StepCost:
        """The cost in later epochs: each process that lives on has read its share."""
        build, compute = 1e-3 * config.batch_size, 1e-4 * config.batch_size
        if config.keeps_readers:
            build *= 1 - (1 - self.part) / config.readers
        return StepCost(
            wait=max(0.0, build / config.num_workers - compute) if config.num_workers else build, compute=compute
        )

    def measure(self, config: Config, request: Request) -> Attempt:
        first, is_later = self.cost, request.later_epochs and config.keeps_readers
        self.cost = self.later if is_later else first
        attempt = super().measure(config, request)
        self.cost = first
        if attempt.measurement is not None:
            return replace(attempt, payload=replace(attempt.measurement, later_epochs=is_later))
        if attempt.loader is None:
            return attempt
        seconds = statistics.fmean(attempt.loader.build_seconds)
        kept = {"again_seconds": self.part * seconds, "elsewhere_seconds": self.elsewhere and self.elsewhere * seconds}
        return replace(attempt, payload=replace(attempt.loader, **kept))


@pytest.mark.parametrize(("part", "is_kept"), [(0.1, True), (0.9, False)])
def test_where_samples_are_kept_it_is_said_and_none_are_left_from_one_trial_to_the_next(
    part: float, is_kept: bool
) -> None:
    machine = Keeping(cost=lambda config: StepCost(wait=1e-3 * config.batch_size, compute=0.01))
    machine.part = part
    result = tuned(machine, num_workers="0")
    said = "building a batch took "
    assert [note.startswith(said) for note in result.notes if "the same batch again" in note] == [True] * is_kept
    assert {request.fresh for _, request in machine.calls[1:]} == ({True} if is_kept else {False, True})
    assert not any(request.later_epochs for _, request in machine.calls)


@pytest.mark.parametrize(
    ("part", "elsewhere", "base", "workers"),
    [
        (0.1, 1.0, {}, 0),  # workers that begin anew read for ever what the process itself has kept
        (0.6, 1.0, {}, 3),  # they gain all the same
        (0.1, 0.1, {}, 3),  # the system keeps it, for all processes
        (0.1, 1.0, {"num_workers": 1}, 3),  # present workers begin anew as well
        (0.1, 1.0, {"num_workers": 1, "persistent_workers": True}, 1),
    ],
)
def test_where_the_dataset_keeps_samples_itself_the_answer_is_that_of_later_epochs(
    part: float, elsewhere: float, base: dict[str, Any], workers: int
) -> None:
    machine = Keeping(cost=loader_bound)
    machine.part, machine.elsewhere = part, elsewhere
    result = tuned(machine, baseline=replace(examples.BASELINE, **base), batch_size="32", num_workers="0,1,2,3")
    if elsewhere == 1.0:
        machine.cost = machine.later
    is_kept = elsewhere == 1.0 and result.baseline.keeps_readers
    assert result.config.num_workers == workers
    assert (result.verdict is Verdict.FASTER) == (result.config != result.baseline)
    assert result.speedup == pytest.approx(machine.rate(result.config) / machine.rate(result.baseline), rel=0.02)
    assert result.baseline_measurement.later_epochs == is_kept
    assert (result.config.measured or {}).get("later_epochs", False) == is_kept
    assert any("the rates are those of later epochs" in note for note in result.notes) == (
        part < 0.5 and elsewhere == 1.0
    )


@pytest.mark.parametrize(
    ("argument", "epoch", "is_said"),
    [("collate_fn", 10**6, 1), ("batch_sampler", 10**6, 1), ("collate_fn", 600, 0), ("sampler", 10**6, 0)],
)
def test_where_batches_may_be_of_any_size_it_is_said_how_many_samples_were_seen(
    argument: str, epoch: int, is_said: int
) -> None:
    facts = replace(GPU, loader_arguments=(argument,), epoch_samples=epoch)
    result = tuned(SimulatedMachine(cost=loader_bound), facts)
    notes = [note for note in result.notes if "was measured on" in note]
    assert len(notes) == is_said
    if notes:
        trials = [trial.measurement for trial in result.history if of_answer(trial, result)]
        most = sum(there(measured).samples for measured in trials)
        said = re.match(r"the answer was measured on about ([0-9,]+) of an epoch's 1,000,000 samples", notes[0])
        assert most * (1 - most / 10**6) < int(there(said)[1].replace(",", "")) < most  # some were seen twice
        assert "with up to 0.5 GiB of host memory: a batch with a larger sample takes more" in notes[0]


def of_answer(trial: Any, result: Result) -> bool:
    return in_the_loader(trial.config) == in_the_loader(result.config)
