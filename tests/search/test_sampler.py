"""Samplers of the one study: autotune's own, and Optuna's in its place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, IntDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.trial import TrialState

from autotune.errors import UsageError
from autotune.flags import SAMPLERS
from autotune.limits import Budget
from autotune.records import Probe, Request
from autotune.search.sampler import PredictiveSampler, Seen, make_sampler, running
from autotune.search.setup import Setup, distribution
from autotune.search.study import TuningStudy, open_study
from autotune.storage.open import StudyStorage
from autotune.storage.trials import BY, write_look
from tests import examples
from tests.simulated import SimulatedMachine, few_of, gpu_facts, host, larger_batches_pay, loader_bound, search_only

FACTS = gpu_facts()
SPACE = few_of(FACTS, amp="off", batch_size="16..256", num_workers="0..8")


def searched(sampler: BaseSampler, machine: SimulatedMachine, storage: StudyStorage | None = None) -> TuningStudy:
    study = open_study(Setup(space=SPACE, facts=FACTS, host=host()), storage=storage, sampler=sampler)
    time = Budget(120.0, machine.now)
    search_only(machine, study, time, max_trials=12)
    return study


@pytest.mark.parametrize("name", SAMPLERS)
def test_any_sampler_searches_with_the_same_looks_and_measures_nothing_twice(name: str, tmp_path: Path) -> None:
    machine, path = SimulatedMachine(cost=larger_batches_pay), tmp_path / "a.study"
    storage = StudyStorage(path)
    study = searched(make_sampler(name, 0), machine, storage)
    measured = [config for config, _ in machine.calls]
    assert measured[0] == SPACE.base
    assert len(measured) == len(set(measured)) == len(study.known.trials) >= 2
    assert study.known.probes
    assert set(measured) <= {*SPACE.configs, SPACE.base}
    storage.close()
    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(path)))
    found = optuna.load_study(study_name=None, storage=storage).get_trials()
    assert {trial.state for trial in found} <= {TrialState.COMPLETE, TrialState.PRUNED}


@pytest.mark.parametrize("missing", [(), ("threads",), ("prefetch_factor",), (BY,)])
def test_a_running_trial_that_is_read_in_part_does_not_count_yet(missing: tuple[str, ...]) -> None:
    setup = Setup(space=SPACE, facts=FACTS, host=host())
    config = max(SPACE.configs, key=lambda each: each.num_workers)
    settings = {name: value for name, value in setup.settings(config).items() if name not in missing}
    known = {name: each for name, each in setup.distributions.items() if name in settings}
    trial = optuna.trial.create_trial(
        state=TrialState.RUNNING,
        params=settings,
        distributions=known,
        user_attrs={} if BY in missing else {BY: "another tuner"},
    )
    assert running(setup, [trial]) == ([] if missing else [("another tuner", config)])


def test_no_sampler_measures_where_memory_would_not_do() -> None:
    machine = SimulatedMachine(cost=larger_batches_pay, peak=lambda config: config.batch_size * 2**26)
    searched(RandomSampler(seed=0), machine)
    assert machine.calls
    assert max(config.batch_size for config, _ in machine.calls) * 2**26 <= 0.9 * 8 * 2**30


class Stubborn(BaseSampler):
    def infer_relative_search_space(self, study: Any, trial: Any) -> dict[str, Any]:
        return {}

    def sample_relative(self, study: Any, trial: Any, search_space: Any) -> dict[str, Any]:
        return {}

    def sample_independent(self, study: Any, trial: Any, param_name: str, param_distribution: Any) -> Any:
        numbers = isinstance(param_distribution, IntDistribution)
        return param_distribution.low if numbers else param_distribution.choices[0]


def test_a_sampler_with_nothing_new_ends_the_search_and_says_so() -> None:
    machine = SimulatedMachine(cost=loader_bound)
    study = open_study(Setup(space=SPACE, facts=FACTS, host=host()), sampler=Stubborn())
    time = Budget(600.0, machine.now)
    stop = search_only(machine, study, time)
    assert stop.text == "the sampler has nothing new to propose"
    assert 1 <= len(study.known.trials) <= 2


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("none", "--sampler none: allowed: predictive, tpe, gp, random, or module:function"),
        ("tests.search.test_sampler:host", "returned Host, which is no sampler of Optuna"),
        ("tests.search.test_sampler:nothing", "has no attribute 'nothing'"),
        ("gp", "--sampler gp: Optuna's GPSampler needs scipy and torch"),
    ],
)
def test_what_is_no_sampler_is_said(given: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autotune.search.sampler.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=said):
        make_sampler(given, 0)


def test_a_function_of_the_users_makes_a_sampler() -> None:
    assert type(make_sampler("tests.search.test_sampler:Stubborn", 0)).__name__ == "Stubborn"


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((0, 1, 2, 3), IntDistribution(0, 3)),
        ((2, 4), IntDistribution(2, 4, step=2)),
        ((16, 32, 64), CategoricalDistribution((16, 32, 64))),
        ((False, True), CategoricalDistribution((False, True))),
        ((8,), CategoricalDistribution((8,))),
    ],
)
def test_no_value_between_the_allowed_ones_can_be_drawn(values: tuple[Any, ...], expected: Any) -> None:
    assert distribution(values) == expected


def test_one_sampler_serves_two_studies_one_after_the_other() -> None:
    sampler = PredictiveSampler()
    searched(sampler, SimulatedMachine(cost=larger_batches_pay))
    mixed, alone = (searched(each, SimulatedMachine(cost=loader_bound)) for each in (sampler, PredictiveSampler()))
    assert [trial.config for trial in mixed.known.trials] == [trial.config for trial in alone.known.trials]


def test_a_study_that_autotune_did_not_make_is_refused() -> None:
    study = optuna.create_study(direction="maximize", sampler=PredictiveSampler())
    with pytest.raises(UsageError, match="works in studies of autotune only: take a sampler of Optuna's here"):
        study.ask().suggest_int("batch_size", 8, 16)


def test_looks_tell_it_more_and_it_proposes_what_the_search_proposes(tmp_path: Path) -> None:
    machine = SimulatedMachine(cost=larger_batches_pay)
    study = open_study(Setup(space=SPACE, facts=FACTS, host=host()))
    for _ in range(2):
        config, kind = study.ask() or (SPACE.base, "search")
        study.tell(machine.measure(config, Request(seconds=1.0)), config, kind)
        look = machine.measure(config, Request(seconds=1.0, part="compute"))
        write_look(study._storage.study, Probe(part="compute", config=config, attempt=look))
    copy = optuna.create_study(direction="maximize", sampler=PredictiveSampler())
    for key, value in study._storage.attributes.items():
        copy._storage.set_study_system_attr(copy._study_id, key, value)
    copy.add_trials(study._storage.trials)
    study.refresh()
    asked, _ = study.ask() or (None, None)
    setup = Setup(facts=FACTS, host=host(), memory_limit=study.setup.memory_limit, space=SPACE)
    assert setup.config(copy.ask(dict(setup.distributions)).params) == asked
    assert len(copy.sampler.known(Seen(copy.get_trials(), study._storage.attributes)).probes) == 2  # type: ignore[attr-defined]


def test_the_setup_comes_back_from_a_study_as_it_was() -> None:
    setup = Setup(space=SPACE, facts=FACTS, host=examples.host())
    study = optuna.create_study()
    setup.write(study)
    (document,) = study._storage.get_study_system_attrs(study._study_id).values()
    assert Setup.of(document) == setup
