from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState

from autotune.config import Config
from autotune.encoding import to_json
from autotune.outcome import Outcome
from autotune.proof import Turn
from autotune.records import Attempt, Part, Request, Trial
from autotune.search.setup import Setup
from autotune.search.study import TuningStudy, open_study
from autotune.storage.open import StudyStorage
from tests import examples
from tests.search.there import there
from tests.simulated import (
    SimulatedMachine,
    few_of,
    gpu_facts,
    host,
    larger_batches_pay,
    loader_bound,
)

REQUEST = Request(seconds=1.0)
_OPEN: dict[Path, StudyStorage] = {}


def opened(storage: Path | None = None, **bounds: Any) -> TuningStudy:
    """Open a study, as a new process would: what an earlier one held is free."""
    space = few_of(gpu_facts(), **bounds)
    if storage is None:
        return open_study(Setup(space=space, facts=gpu_facts(), host=host()))
    if storage in _OPEN:
        _OPEN[storage].close()
    _OPEN[storage] = StudyStorage(storage)
    return open_study(Setup(space=space, facts=gpu_facts(), host=host()), storage=_OPEN[storage])


def run(study: TuningStudy, machine: SimulatedMachine, trials: int) -> list[Trial]:
    done: list[Trial] = []
    for _ in range(trials):
        if study.known.trials and study.known.forecast.proposal() is None:
            break
        config, kind = study.ask()
        done.append(study.tell(machine.measure(config, REQUEST), config, kind))
    return done


def optuna_trials(storage: Path) -> list[optuna.trial.FrozenTrial]:
    """What Optuna itself, and with it the dashboard, sees of a journal file."""
    backend = optuna.storages.journal.JournalFileBackend(str(storage))
    journal = optuna.storages.JournalStorage(backend)
    (name,) = optuna.get_all_study_names(journal)
    return optuna.load_study(study_name=name, storage=journal).get_trials()


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "study.journal"


@pytest.mark.parametrize("outcome", [outcome for outcome in Outcome if outcome is not Outcome.OK])
def test_every_trial_carries_its_full_record_and_failures_are_pruned_and_infeasible(
    outcome: Outcome, journal: Path
) -> None:
    machine = SimulatedMachine(
        cost=loader_bound, noise=0.1, fails=lambda config: outcome if config.num_workers > 2 else None
    )
    told = run(opened(journal), machine, 12)
    assert {trial.outcome for trial in told} == {Outcome.OK, outcome}
    assert opened(journal).known.trials == tuple(told)
    for stored, trial in zip(optuna_trials(journal), told, strict=True):
        assert stored.user_attrs["outcome"] == str(trial.outcome)
        assert (stored.user_attrs.get("message", ""), stored.value) == (trial.attempt.message, trial.rate)
        failed = trial.outcome not in (Outcome.OK, Outcome.SUSPECT)  # what was disturbed gave numbers
        assert (stored.state is TrialState.PRUNED) == failed
        assert (stored.constraints["memory"] > 0) == failed
        config = trial.config
        of_workers = ("prefetch_factor", "persistent_workers") if config.num_workers else ()
        assert stored.params == {
            "threads": config.intra_op_threads or gpu_facts().intra_op_threads,
            **{name: getattr(config, name) for name in ("batch_size", "num_workers", "pin_memory", "amp", *of_workers)},
        }


def test_a_trial_that_a_killed_run_was_at_is_not_counted(journal: Path) -> None:
    machine = SimulatedMachine(cost=loader_bound)
    killed = opened(journal)
    run(killed, machine, 3)
    lost, _ = killed.ask()
    reopened = opened(journal)
    assert len(reopened.known.trials) == 3
    assert [trial.state for trial in optuna_trials(journal)] == [*[TrialState.COMPLETE] * 3, TrialState.FAIL]
    assert run(reopened, machine, 1)[0].config == lost  # it was never measured


def test_a_baseline_that_failed_is_measured_again(journal: Path) -> None:
    run(opened(journal), SimulatedMachine(cost=loader_bound, fails=lambda c: Outcome.CRASHED), 1)
    reopened = opened(journal)
    assert reopened.known.trials == ()
    baseline, following = run(reopened, SimulatedMachine(cost=loader_bound), 2)
    assert (baseline.kind, baseline.outcome) == ("baseline", Outcome.OK)
    assert following.kind == "search"
    assert reopened.known.history == (baseline, following)


def test_of_what_the_users_code_says_at_great_length_the_telling_part_is_kept() -> None:
    study = opened()
    run(study, SimulatedMachine(cost=loader_bound), 1)
    for letter in ("m", "\u2502", "\U0001f525"):
        said = 10**6 * letter
        attempt = Attempt(outcome=Outcome.USER_ERROR, message=f"first{said}", details=f"{said}last")
        kept = study.tell(attempt, *study.ask())
        assert kept.attempt.message.startswith("first")
        assert kept.attempt.details.endswith("last")
        assert 5000 < len(json.dumps(to_json(kept))) < 2**16 - 1


def test_numbers_stay_unique_when_a_confirmed_study_goes_on(journal: Path) -> None:
    machine = SimulatedMachine(cost=loader_bound)
    first = opened(journal)
    first.ask()
    first.abandon()
    for _ in range(2):
        study = opened(journal)
        run(study, machine, 3)
        study.confirmed(machine.measure(Config(), REQUEST), Turn(Config(), 0, "a-0"))
    assert len({trial.number for trial in study.known.history}) == len(study.known.history) == 8


KEPT = Config(num_workers=4, persistent_workers=True)


def tell_rates(study: TuningStudy, rates: Mapping[Config, float]) -> None:
    for config, rate in rates.items():
        _, kind = study.ask()
        measured = examples.measurement(samples_per_second=rate, ceiling_samples_per_second=1e5)
        study.tell(Attempt(outcome=Outcome.OK, payload=measured), config, kind)


def study_with(rates: Mapping[Config, float]) -> TuningStudy:
    study = opened(num_workers="0,2,4,6,8")
    tell_rates(study, {Config(): 1000.0, **rates})
    return study


def test_finalists_are_the_cheapest_of_the_fastest_and_then_the_fastest_of_the_others() -> None:
    rates = {replace(KEPT, num_workers=count): rate for count, rate in ((8, 2000.0), (6, 1990.0), (4, 1980.0))}
    study = study_with({**rates, replace(KEPT, num_workers=2): 1500.0})
    found = [[trial.config.num_workers for trial in study.known.finalists(most)] for most in (1, 2, 3, 4)]
    assert found == [[4], [4, 8], [4, 8, 6], [4, 8, 6]]
    left = study.known.finalists(2, lambda trial: trial.config.num_workers < 6)
    assert [trial.config.num_workers for trial in left] == [4]
    assert [t.config.num_workers for t in study.known.finalists(2, lambda trial: trial.config.num_workers < 4)] == [2]


@pytest.mark.parametrize("rate", [1000.0, 995.0, 1030.0, 900.0])
def test_the_best_alternative_is_a_finalist_however_slow_and_the_baseline_never_is(rate: float) -> None:
    assert [trial.config for trial in study_with({KEPT: rate}).known.finalists(3)] == [KEPT]
    assert study_with({}).known.finalists(3) == ()


@pytest.mark.parametrize(("rate", "is_tried_first"), [(600.0, True), (970.0, False)])
def test_something_untried_comes_before_a_trial_that_was_clearly_slower(rate: float, is_tried_first: bool) -> None:
    slower = replace(KEPT, num_workers=2)
    study = study_with({Config(): 1000.0, slower: rate})
    assert (study.known.candidate is not None) == is_tried_first
    assert study.known.candidate not in (Config(), slower)


def test_opening_a_study_leaves_optunas_verbosity_as_it_was() -> None:
    before = optuna.logging.get_verbosity()
    opened()
    assert optuna.logging.get_verbosity() == before


def looked_at(study: TuningStudy, machine: SimulatedMachine, *parts: tuple[Part, Config]) -> None:
    for part, config in parts:
        study.looked(part, config, machine.measure(config, Request(seconds=1.0, part=part)))


def test_a_trial_carries_what_was_expected_of_it() -> None:
    machine = SimulatedMachine(cost=loader_bound)
    study = opened()
    run(study, machine, 1)
    looked_at(study, machine, ("loader", Config()), ("compute", Config()))
    (trial,) = run(study, machine, 1)
    assert there(trial.predicted) == pytest.approx(trial.rate, rel=0.1)
    assert there(trial.bound) >= machine.cost(trial.config).compute ** -1 * trial.config.batch_size


def test_what_leaves_too_little_memory_free_is_infeasible_and_never_the_best(journal: Path) -> None:
    machine = SimulatedMachine(cost=larger_batches_pay, peak=lambda config: config.batch_size * 2**24)  # 8 GiB at 512
    study = opened(journal)
    trials = run(study, machine, 40)
    limit = 0.9 * 8 * 2**30
    assert there(there(study.known.best).measurement).peak_memory_bytes <= limit
    for trial, stored in zip(trials, optuna_trials(journal), strict=True):
        peak = there(trial.measurement).peak_memory_bytes
        assert stored.constraints["memory"] == pytest.approx(peak / limit - 1)
