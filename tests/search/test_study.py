from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState

from autotune.config import Config
from autotune.errors import StorageError
from autotune.records import Attempt, Outcome, Request, Trial
from autotune.search.guess import first_guesses
from autotune.search.space import KNOBS, Space
from autotune.search.study import TuningStudy, open_study
from tests import examples
from tests.simulated import (
    SimulatedMachine,
    equal_everywhere,
    four_shared_cores,
    gpu_facts,
    larger_batches_pay,
    loader_bound,
    space_of,
)

REQUEST = Request(seconds=1.0)
NAME = "a study"
LOADER_KNOBS = ("num_workers", "prefetch_factor", "pin_memory", "persistent_workers")


def opened(space: Space, storage: Path | None = None, **options: Any) -> TuningStudy:
    def guesses(baseline: Trial) -> list[Config]:
        return first_guesses(baseline, space, gpu_facts(), 8)

    return open_study(space, guesses, name=NAME, storage=None if storage is None else str(storage), **options)


def run(study: TuningStudy, machine: SimulatedMachine, trials: int) -> list[Trial]:
    """Ask, measure and tell so many times."""
    done = []
    for _ in range(trials):
        config, kind = study.ask()
        done.append(study.tell(machine.measure(config, REQUEST), config, kind))
    return done


def optuna_trials(storage: Path) -> list[optuna.trial.FrozenTrial]:
    """What Optuna itself, and with it the dashboard, sees of a journal file."""
    backend = optuna.storages.journal.JournalFileBackend(str(storage))
    study = optuna.load_study(study_name=NAME, storage=optuna.storages.JournalStorage(backend))
    return study.get_trials()


def too_large(config: Config) -> Outcome | None:
    return Outcome.DEVICE_OOM if config.batch_size > 128 else None


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "study.journal"


def test_the_baseline_is_the_first_trial_even_beyond_the_bounds() -> None:
    space = space_of(gpu_facts(), batch_size="64..256")
    baseline, *others = run(opened(space), SimulatedMachine(cost=loader_bound), 15)
    assert (baseline.number, baseline.kind, baseline.config) == (0, "baseline", examples.BASELINE)
    assert all(trial.kind != "baseline" for trial in others)


@pytest.mark.parametrize("cost", [equal_everywhere, loader_bound, larger_batches_pay, four_shared_cores])
def test_no_configuration_is_measured_twice(cost: Any) -> None:
    machine = SimulatedMachine(cost=cost, noise=0.02, fails=too_large)
    trials = run(opened(space_of(gpu_facts())), machine, 60)
    repeated = [config for config, count in Counter(trial.config for trial in trials).items() if count > 1]
    assert repeated == []
    assert [trial.number for trial in trials] == list(range(60))
    assert {"baseline", "guess", "sweep", "model"} == {trial.kind for trial in trials}


@pytest.mark.parametrize(
    ("bounds", "allowed"),
    [
        ({"batch_size": "64..256"}, {"batch_size": {64, 128, 256}}),
        ({"num_workers": "1..2", "amp": "bf16"}, {"num_workers": {1, 2}, "amp": {"bf16"}}),
        ({"threads": 1, "pin_memory": True}, {"intra_op_threads": {1}, "pin_memory": {True}}),
        ({"prefetch_factor": "4,8"}, {"prefetch_factor": {None, 4, 8}}),
        (
            {"persistent_workers": True, "num_workers": "2,4"},
            {"persistent_workers": {True}, "num_workers": {2, 4}},
        ),
    ],
)
def test_every_proposal_but_the_baseline_respects_the_bounds(
    bounds: dict[str, Any], allowed: dict[str, set[Any]]
) -> None:
    _, *proposals = run(opened(space_of(gpu_facts(), **bounds)), SimulatedMachine(cost=loader_bound, noise=0.05), 25)
    for name, values in allowed.items():
        assert {getattr(trial.config, name) for trial in proposals} <= values


FAILURES = [outcome for outcome in Outcome if outcome is not Outcome.OK]


@pytest.mark.parametrize("outcome", FAILURES)
def test_failures_are_pruned_and_infeasible(outcome: Outcome, journal: Path) -> None:
    machine = SimulatedMachine(cost=loader_bound, fails=lambda config: outcome if config.num_workers else None)
    run(opened(space_of(gpu_facts()), journal), machine, 12)
    stored = optuna_trials(journal)
    assert {trial.state for trial in stored} == {TrialState.COMPLETE, TrialState.PRUNED}
    for trial in stored:
        failed = trial.user_attrs["record"]["outcome"] != "ok"
        assert (trial.state is TrialState.PRUNED) == failed
        assert (trial.constraints["feasible"] > 0) == failed


def test_every_trial_carries_its_full_record(journal: Path) -> None:
    machine = SimulatedMachine(
        cost=loader_bound,
        noise=0.1,
        fails=lambda config: Outcome.DEVICE_OOM if config.batch_size > 64 else None,
    )
    told = run(opened(space_of(gpu_facts()), journal), machine, 12)
    assert {trial.outcome for trial in told} == {Outcome.OK, Outcome.DEVICE_OOM}
    assert opened(space_of(gpu_facts()), journal).trials == tuple(told)
    stored = optuna_trials(journal)
    assert [trial.user_attrs["record"]["message"] for trial in stored] == [trial.message for trial in told]
    assert [trial.value for trial in stored] == [trial.rate for trial in told]
    assert all(set(trial.params) == set(KNOBS) for trial in stored)


def test_a_reopened_study_continues(journal: Path) -> None:
    machine = SimulatedMachine(cost=loader_bound, noise=0.02)
    before = run(opened(space_of(gpu_facts()), journal), machine, 6)
    reopened = opened(space_of(gpu_facts()), journal)
    assert reopened.trials == tuple(before)
    after = run(reopened, machine, 20)
    assert [trial.number for trial in after] == list(range(6, 26))
    assert not {trial.config for trial in before} & {trial.config for trial in after}
    assert all(trial.kind != "baseline" for trial in after)


def test_a_reopened_study_proposes_what_an_uninterrupted_one_would(journal: Path) -> None:
    space = space_of(gpu_facts())
    whole = run(opened(space), SimulatedMachine(cost=four_shared_cores), 30)
    machine = SimulatedMachine(cost=four_shared_cores)
    parts = [trial for count in (4, 9, 17) for trial in run(opened(space, journal), machine, count)]
    assert [trial.config for trial in parts] == [trial.config for trial in whole]


def test_a_trial_left_behind_by_a_killed_run_fails_and_is_not_counted(journal: Path) -> None:
    machine = SimulatedMachine(cost=loader_bound)
    killed = opened(space_of(gpu_facts()), journal)
    run(killed, machine, 3)
    lost, _ = killed.ask()
    reopened = opened(space_of(gpu_facts()), journal)
    assert [trial.state for trial in optuna_trials(journal)][3] is TrialState.FAIL
    assert len(reopened.trials) == 3
    assert run(reopened, machine, 1)[0].config == lost  # it was never measured


def test_a_baseline_that_failed_is_measured_again(journal: Path) -> None:
    run(
        opened(space_of(gpu_facts()), journal),
        SimulatedMachine(cost=loader_bound, fails=lambda c: Outcome.CRASHED),
        1,
    )
    reopened = opened(space_of(gpu_facts()), journal)
    assert reopened.trials == ()
    baseline, following = run(reopened, SimulatedMachine(cost=loader_bound), 2)
    assert (baseline.kind, baseline.outcome, baseline.number) == ("baseline", Outcome.OK, 0)
    assert (following.kind, following.number) == ("guess", 1)


def test_numbers_stay_unique_when_a_confirmed_study_goes_on(journal: Path) -> None:
    machine = SimulatedMachine(cost=loader_bound)
    first = opened(space_of(gpu_facts()), journal)
    first.ask()
    first.abandon()
    for _ in range(2):
        study = opened(space_of(gpu_facts()), journal)
        run(study, machine, 3)
        study.confirmed(machine.measure(Config(), REQUEST), Config())
    assert study.trials[0].number == 0
    assert sorted(trial.number for trial in study.history) == list(range(8))


def test_an_abandoned_trial_fails_and_may_be_asked_for_again() -> None:
    study = opened(space_of(gpu_facts()))
    run(study, SimulatedMachine(cost=loader_bound), 2)
    lost, _ = study.ask()
    study.abandon()
    study.abandon()  # there is nothing left to give up
    assert len(study.trials) == 2
    assert study.ask()[0] == lost


def test_the_loader_is_left_alone_when_the_best_is_at_its_ceiling() -> None:
    study = opened(space_of(gpu_facts()))
    run(study, SimulatedMachine(cost=larger_batches_pay), 1)
    assert all(_changed(study, point).isdisjoint(LOADER_KNOBS) for point in study.moves_left(study.trials))
    assert study.moves_left(study.trials)


def test_the_loader_is_moved_when_it_is_the_limit() -> None:
    study = opened(space_of(gpu_facts()))
    run(study, SimulatedMachine(cost=loader_bound), 1)
    assert any("num_workers" in _changed(study, point) for point in study.moves_left(study.trials))


@pytest.mark.parametrize(("share", "is_moved"), [(0.99, False), (0.97, True)])
def test_two_percent_below_the_ceiling_is_at_the_ceiling(share: float, is_moved: bool) -> None:
    study = opened(space_of(gpu_facts()))
    config, kind = study.ask()
    measured = examples.measurement(samples_per_second=1000 * share, ceiling_samples_per_second=1000.0)
    study.tell(Attempt(outcome=Outcome.OK, measurement=measured), config, kind)
    moved = {knob for point in study.moves_left(study.trials) for knob in _changed(study, point)}
    assert bool(moved & set(LOADER_KNOBS)) is is_moved


def _changed(study: TuningStudy, point: tuple[int, ...]) -> set[str]:
    best = study.best
    assert best is not None
    return {knob for knob, a, b in zip(KNOBS, study.point(best.config), point, strict=True) if a != b}


def test_sweeps_move_one_knob_from_the_best_so_far() -> None:
    space = space_of(gpu_facts())
    trials = run(opened(space), SimulatedMachine(cost=four_shared_cores), 30)
    sweeps = [trial for trial in trials if trial.kind == "sweep"]
    assert sweeps
    for trial in sweeps:
        best = max(trials[: trial.number], key=lambda known: known.rate or 0.0)
        pairs = zip(space.point(trial.config), space.point(best.config), strict=True)
        distance = sum(a != b for a, b in pairs)
        assert distance == 1 or not (trial.config.num_workers and best.config.num_workers)


def test_a_failed_or_disturbed_trial_is_never_the_best() -> None:
    machine = SimulatedMachine(
        cost=larger_batches_pay, fails=lambda config: Outcome.SUSPECT if config.batch_size > 32 else None
    )
    study = opened(space_of(gpu_facts()))
    trials = run(study, machine, 20)
    assert max(trials, key=lambda trial: trial.rate or 0.0).outcome is Outcome.SUSPECT
    assert study.best is not None
    assert study.best.config.batch_size <= 32


KEPT = Config(num_workers=4, persistent_workers=True)


@pytest.mark.parametrize(
    ("rate_of_cheaper", "is_chosen"), [(1000.0, True), (985.0, True), (975.0, False)], ids=["equal", "tie", "slower"]
)
@pytest.mark.parametrize(
    ("dear", "cheap"),
    [
        (KEPT, replace(KEPT, num_workers=2)),
        (replace(KEPT, prefetch_factor=8), KEPT),
        (Config(pin_memory=True), Config(pin_memory=False)),
        (Config(amp="bf16"), Config(batch_size=128, amp="off")),
    ],
    ids=["workers", "prefetch", "pinning", "precision"],
)
def test_among_equally_fast_configurations_the_cheapest_is_the_finalist(
    dear: Config, cheap: Config, rate_of_cheaper: float, is_chosen: bool
) -> None:
    study = opened(space_of(gpu_facts()))
    for config, rate in ((Config(batch_size=512), 100.0), (dear, 1000.0), (cheap, rate_of_cheaper)):
        study.ask()
        measured = examples.measurement(samples_per_second=rate)
        study.tell(Attempt(outcome=Outcome.OK, measurement=measured), config, "sweep")
    assert study.finalist is not None
    assert study.finalist.config == (cheap if is_chosen else dear)


def test_without_any_number_there_is_no_best_but_a_next_proposal() -> None:
    study = opened(space_of(gpu_facts()))
    trials = run(study, SimulatedMachine(cost=loader_bound, fails=lambda config: Outcome.SUSPECT), 10)
    assert study.best is None
    assert len({trial.config for trial in trials}) == 10


def until_exhausted(study: TuningStudy, machine: SimulatedMachine, limit: int = 500) -> tuple[list[Trial], str]:
    trials: list[Trial] = []
    for _ in range(limit):
        reason = study.is_exhausted()
        if reason is not None:
            return trials, reason
        trials += run(study, machine, 1)
    raise AssertionError("never exhausted")


SMALL: dict[str, Any] = {
    "batch_size": "16,32",
    "num_workers": "0,2",
    "prefetch_factor": 2,
    "pin_memory": False,
    "persistent_workers": False,
    "amp": "off",
    "threads": "1,2",
}


@pytest.mark.parametrize(
    ("bounds", "trials"),
    [
        ({"num_workers": 0}, 4),
        ({"threads": 2}, 4),
        ({"batch_size": 32, "num_workers": 0, "threads": 2}, 1),
        ({"batch_size": 64, "threads": 2}, 3),  # the baseline lies outside
    ],
)
@pytest.mark.parametrize("outcome", [None, Outcome.SHM])
def test_a_small_space_is_measured_completely_and_then_ends(
    bounds: dict[str, Any], trials: int, outcome: Outcome | None
) -> None:
    space = space_of(gpu_facts(), **{**SMALL, **bounds})
    machine = SimulatedMachine(cost=loader_bound, fails=lambda config: outcome if config.num_workers else None)
    measured, reason = until_exhausted(opened(space), machine)
    assert reason == "every configuration within the bounds was measured"
    assert len(measured) == trials


def test_a_search_without_gains_ends_and_says_so() -> None:
    trials, reason = until_exhausted(opened(space_of(gpu_facts())), SimulatedMachine(cost=equal_everywhere))
    assert reason.startswith("no gain above 2% in the last 5 trials")
    assert len(trials) < 40


def test_confirmations_are_kept_beside_the_trials(journal: Path) -> None:
    machine = SimulatedMachine(cost=loader_bound)
    study = opened(space_of(gpu_facts()), journal)
    trials = run(study, machine, 3)
    confirmations = [
        study.confirmed(machine.measure(config, REQUEST), config) for config in (Config(), examples.ANSWER)
    ]
    assert [trial.kind for trial in confirmations] == ["confirm", "confirm"]
    for current in (study, opened(space_of(gpu_facts()), journal)):
        assert current.trials == tuple(trials)
        assert current.history == (*trials, *confirmations)
        assert [trial.number for trial in current.history] == list(range(5))


def test_an_url_opens_a_database(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'study.db'}"
    space = space_of(gpu_facts())
    trials = run(open_study(space, lambda baseline: [], name=NAME, storage=url), SimulatedMachine(cost=loader_bound), 3)
    assert open_study(space, lambda baseline: [], name=NAME, storage=url).trials == tuple(trials)


@pytest.mark.parametrize(
    "storage", ["missing/folder/study.journal", ".", "nosuch://host/db", "sqlite:////no/folder/s.db"]
)
def test_a_storage_that_cannot_be_opened_is_named(
    storage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StorageError, match=f"--storage {storage}: cannot be opened"):
        open_study(space_of(gpu_facts()), lambda baseline: [], name=NAME, storage=storage)


def test_a_file_that_is_no_journal_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("these are my notes\n")
    with pytest.raises(StorageError, match="cannot be opened"):
        opened(space_of(gpu_facts()), path)
    assert path.read_text() == "these are my notes\n"


def test_opening_a_study_leaves_optunas_verbosity_as_it_was() -> None:
    before = optuna.logging.get_verbosity()
    opened(space_of(gpu_facts()))
    assert optuna.logging.get_verbosity() == before


def test_studies_of_one_seed_are_equal_and_of_another_are_not() -> None:
    def proposals(seed: int) -> list[Config]:
        machine = SimulatedMachine(cost=equal_everywhere)
        return [trial.config for trial in run(opened(space_of(gpu_facts()), seed=seed), machine, 30)]

    assert proposals(1) == proposals(1)
    assert proposals(1) != proposals(2)


def test_the_model_finds_what_one_knob_moves_cannot() -> None:
    """A peak that needs two knobs at once is found once the sweep around the baseline has ended."""
    space = space_of(gpu_facts())

    def cost(config: Config) -> Any:
        step = equal_everywhere(config)
        both = config.amp == "bf16" and config.intra_op_threads == 1
        return replace(step, compute=step.compute / (2 if both else 1))

    machine = SimulatedMachine(cost=cost)
    trials = list(itertools.islice(run(opened(space), machine, 40), 40))
    assert max(trial.rate or 0.0 for trial in trials) == pytest.approx(2000)
