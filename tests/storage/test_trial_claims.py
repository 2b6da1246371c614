from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from typing import Any

import optuna
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from optuna.distributions import IntDistribution
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, TrialState

from autotune.config import Config
from autotune.records import Kind, Trial
from autotune.storage import trial_claims as claims
from autotune.storage.server import Heartbeat, open_database
from autotune.storage.study_records import RECORD, frozen_trial
from autotune.storage.trial_claims import Claim, Claimed, Claims
from tests import examples

pytestmark = pytest.mark.server

HEARTBEAT = Heartbeat(interval=1, grace=2)
DISTRIBUTIONS = {"batch_size": IntDistribution(1, 1024)}
NAMES = (f"study {number}" for number in itertools.count())


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RDBStorage]:
    found = open_database(f"sqlite:///{tmp_path_factory.mktemp('claims') / 'a.db'}", HEARTBEAT)
    yield found
    found.engine.dispose()


def new_study(database: RDBStorage) -> int:
    name = next(NAMES)
    optuna.create_study(study_name=name, storage=database, direction="maximize")
    return database.get_study_id_from_name(name)


@pytest.fixture
def study_id(database: RDBStorage) -> int:
    return new_study(database)


def tuner(database: RDBStorage, study_id: int, **options: Any) -> Claims:
    return Claims(database, study_id, HEARTBEAT, **options)


def planned(batch_size: int, kind: Kind = "search") -> FrozenTrial:
    claim = Claimed(config=Config(batch_size=batch_size), kind=kind, by="a host")
    return claims.planned_trial(claim, {"batch_size": batch_size}, DISTRIBUTIONS)


def ended(batch_size: int, number: int = 0, kind: Kind = "search", **changes: Any) -> FrozenTrial:
    record: Trial = examples.trial(number=number, kind=kind, config=Config(batch_size=batch_size), **changes)
    return frozen_trial(record, {"batch_size": batch_size}, DISTRIBUTIONS, -0.5)


def states(database: RDBStorage, study_id: int) -> list[TrialState]:
    return [trial.state for trial in database.get_all_trials(study_id)]


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(wanted=st.lists(st.integers(1, 2), min_size=2, max_size=5), data=st.data())
def test_however_their_steps_interleave_each_configuration_is_measured_once(
    database: RDBStorage, wanted: list[int], data: st.DataObject
) -> None:
    """Every tuner claims, looks, and completes what it still has, in that order; whose turn it is is drawn."""
    study_id = new_study(database)
    tuners = [tuner(database, study_id) for _ in wanted]
    held: dict[int, Claim] = {}
    turns = data.draw(st.permutations([index for index in range(len(wanted)) for _ in range(3)]))
    step = [0] * len(wanted)
    for index in turns:
        own, batch_size = tuners[index], wanted[index]
        if step[index] == 0:
            held[index] = own.begin(planned(batch_size))
        elif step[index] == 1 and own.is_needless(planned(batch_size), held[index]):
            own.withdraw(held.pop(index))
        elif step[index] == 2 and index in held:
            own.complete(held[index], ended(batch_size))
        step[index] += 1
    trials = database.get_all_trials(study_id)
    measured = [trial.params["batch_size"] for trial in trials if trial.state is TrialState.COMPLETE]
    assert sorted(measured) == sorted(set(wanted))
    assert TrialState.RUNNING not in {trial.state for trial in trials}
    assert all(trial.system_attrs[RECORD]["number"] == trial.number for trial in trials if trial.value)


def test_a_claim_is_a_running_trial_with_its_parameters_and_others_see_it(database: RDBStorage, study_id: int) -> None:
    one, other = tuner(database, study_id), tuner(database, study_id)
    assert one.others() == ()
    claim = one.begin(planned(64))
    (trial,) = database.get_all_trials(study_id)
    assert (trial.state, trial.params) == (TrialState.RUNNING, {"batch_size": 64})
    assert other.others() == (Claimed(config=Config(batch_size=64), kind="search", by="a host"),)
    assert other.is_needless(planned(64))
    assert not other.is_needless(planned(32))
    one.complete(claim, ended(64))
    (trial,) = database.get_all_trials(study_id)
    assert (trial.state, trial.value) == (TrialState.COMPLETE, 1234.5)
    assert trial.constraints == {"feasible": -0.5}
    assert other.others() == ()
    assert other.is_needless(planned(64))


def test_a_trial_that_was_only_skipped_or_withdrawn_may_be_measured(database: RDBStorage, study_id: int) -> None:
    one = tuner(database, study_id)
    one.complete(Claim(), ended(64, kind="skipped", measurement=None))
    one.withdraw(one.begin(planned(32)))
    assert not one.is_needless(planned(64))
    assert not one.is_needless(planned(32))
    assert one.is_needless(planned(64, "skipped"))


def test_a_claim_that_only_skips_keeps_no_one_from_measuring(database: RDBStorage, study_id: int) -> None:
    """As it is left by a tuner that is killed then."""
    gone, other = tuner(database, study_id), tuner(database, study_id)
    gone.begin(planned(64, "skipped"))
    gone.close()
    assert not other.is_needless(planned(64), other.begin(planned(64)))
    assert other.is_needless(planned(64, "skipped"))


def test_of_two_that_claim_the_last_trial_at_once_one_gives_back(database: RDBStorage, study_id: int) -> None:
    one, other = tuner(database, study_id), tuner(database, study_id)
    one.complete(Claim(), ended(8, kind="baseline", measurement=None))  # it is measured again
    one.complete(Claim(), ended(8, kind="baseline"))
    one.complete(Claim(), ended(16, kind="skipped", measurement=None))
    one.withdraw(one.begin(planned(32)))
    first, second = one.begin(planned(64)), other.begin(planned(128))
    assert not one.is_needless(planned(64), first, 2)
    assert other.is_needless(planned(128), second, 2)
    assert not other.is_needless(planned(128), second, 3)
    one.complete(first, ended(64))
    assert other.is_needless(planned(128), second, 2)
    other.withdraw(second)


def test_a_baseline_that_failed_is_measured_again_and_one_that_did_not_is_not(
    database: RDBStorage, study_id: int
) -> None:
    one = tuner(database, study_id)
    one.complete(Claim(), ended(32, kind="baseline", measurement=None))
    assert not one.is_needless(planned(32, "baseline"))
    one.complete(Claim(), ended(32, kind="baseline"))
    assert one.is_needless(planned(32, "baseline"))


def test_only_the_claims_of_tuners_that_are_gone_are_failed(database: RDBStorage, study_id: int) -> None:
    alive, gone = tuner(database, study_id), tuner(database, study_id)
    lives, _ = alive.begin(planned(1)), gone.begin(planned(2))
    gone.close()
    wait_until_stale(alive, database, study_id, 1)
    assert states(database, study_id) == [TrialState.RUNNING, TrialState.FAIL]
    assert [claim.config.batch_size for claim in gone.others()] == [1]
    alive.withdraw(lives)


def test_a_tuner_that_was_killed_before_its_first_sign_of_life_is_found_gone_too(
    database: RDBStorage, study_id: int
) -> None:
    clock = [0.0]
    database.create_new_trial(study_id, template_trial=planned(64))  # and no heartbeat
    other = tuner(database, study_id, now=lambda: clock[0])
    other.fail_stale()
    time.sleep(2 * HEARTBEAT.grace)
    other.fail_stale()
    assert states(database, study_id) == [TrialState.RUNNING]  # Optuna alone would wait for ever
    clock[0] = HEARTBEAT.grace + 1.0
    wait_until_stale(other, database, study_id, 0)


def test_no_tuner_shows_signs_of_life_for_another(database: RDBStorage, study_id: int) -> None:
    """A trial may well take longer than the time after which its tuner would count as gone."""
    clock = [0.0]
    one, other = tuner(database, study_id), tuner(database, study_id, now=lambda: clock[0])
    one.begin(planned(64))
    one.close()
    other.fail_stale()
    clock[0] = HEARTBEAT.grace + 1.0
    begin = time.monotonic()
    other.fail_stale()
    wait_until_stale(other, database, study_id, 0)
    assert time.monotonic() - begin < HEARTBEAT.grace + 2.0


def wait_until_stale(claims: Claims, database: RDBStorage, study_id: int, number: int) -> None:
    end = time.monotonic() + 10 * HEARTBEAT.grace
    while states(database, study_id)[number] is TrialState.RUNNING:
        assert time.monotonic() < end
        time.sleep(0.2)
        claims.fail_stale()


def test_what_was_taken_for_gone_and_ends_after_all_is_a_new_trial(database: RDBStorage, study_id: int) -> None:
    slow = tuner(database, study_id)
    claim = slow.begin(planned(64))
    assert claim.trial_id is not None
    database.set_trial_state_values(claim.trial_id, TrialState.FAIL)
    slow.complete(claim, ended(64))
    assert states(database, study_id) == [TrialState.FAIL, TrialState.COMPLETE]
    assert database.get_all_trials(study_id)[1].system_attrs[RECORD]["number"] == 1
    slow.withdraw(slow.begin(planned(32)))


def test_writing_what_was_written_already_changes_nothing(database: RDBStorage, study_id: int) -> None:
    """As where the server's answer was lost, and not what it was asked."""
    one = tuner(database, study_id)
    for count, (claim, batch_size) in enumerate(((one.begin(planned(64)), 64), (Claim(), 32)), start=1):
        for _ in range(2):
            one.complete(claim, ended(batch_size))
            assert states(database, study_id) == [TrialState.COMPLETE] * count


def test_running_trials_that_are_not_ours_stand_in_no_ones_way(database: RDBStorage, study_id: int) -> None:
    database.create_new_trial(study_id)
    damaged = planned(64)
    damaged.system_attrs = {claims.CLAIM: {"config": {"dataloader": {"batch_size": -1}}, "kind": "search"}}
    database.create_new_trial(study_id, template_trial=damaged)
    one = tuner(database, study_id)
    assert one.others() == ()
    assert not one.is_needless(planned(64))
