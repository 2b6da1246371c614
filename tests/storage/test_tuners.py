"""Tuners of one study on a real server, here in one process: each knows of the others."""

from __future__ import annotations

import itertools
import os
import random
import signal
import sys
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import optuna
import pytest
from optuna.trial import TrialState

from autotune.cli import main
from autotune.config import Config
from autotune.errors import NothingFeasibleError, StorageError, UsageError
from autotune.limits import Budget
from autotune.messages import Messages, Progress
from autotune.records import Kind, Request
from autotune.search.read import read_study
from autotune.search.setup import Setup
from autotune.search.study import TuningStudy, open_study
from autotune.storage.identity import Identity
from autotune.storage.open import StudyStorage
from autotune.storage.server import Heartbeat
from tests.server import PASSWORD, Server, free_port
from tests.simulated import (
    SimulatedMachine,
    StepCost,
    few_of,
    gpu_facts,
    host,
    larger_batches_pay,
    search_only,
    tuner_of,
)
from tests.storage.test_open import HERE, history_at

pytestmark = pytest.mark.server

REQUEST = Request(seconds=1.0)
FACTS = gpu_facts()
SOON = Heartbeat(interval=1, grace=2)
NUMBERS = itertools.count()
SPACE = few_of(FACTS, amp="off", batch_size="16..512", num_workers="0..8")


def rough(config: Config) -> StepCost:
    """Waiting depends on the configuration in a way that nothing foretells, so there is always more to try."""
    share = zlib.crc32(repr(config).encode()) / 2**32
    return StepCost(wait=1e-4 * config.batch_size * 30**share, compute=2e-6 * config.batch_size)


class Tuner:
    def __init__(self, url: str, folder: Path, heartbeat: Heartbeat = SOON, **options: Any) -> None:
        self.storage = StudyStorage(url, local=folder / "autotune.study", heartbeat=heartbeat)
        self.storage.by = f"tuner {next(NUMBERS)}"
        self.machine = SimulatedMachine(**{"cost": rough, **options})
        self.told: list[Progress] = []
        self.budget = Budget(10_000.0, self.machine.now)
        self.messages = Messages(self.budget, self.told.append)
        self.study: TuningStudy = open_study(
            Setup(space=SPACE, facts=FACTS, host=host()), storage=self.storage, messages=self.messages
        )

    def search(self, trials: int, **options: Any) -> str:
        return search_only(self.machine, self.study, self.budget, self.messages, max_trials=trials, **options).text

    def ask(self) -> tuple[Config, Kind]:
        asked = self.study.ask()
        assert asked
        return asked

    def tell(self, asked: tuple[Config, Kind]) -> None:
        self.study.tell(self.machine.measure(asked[0], REQUEST), *asked)

    def measure(self) -> None:
        self.tell(self.ask())

    @property
    def said(self) -> list[str]:
        return [told.message for told in self.told if told.message]


Join = Callable[..., Tuner]


@pytest.fixture
def join(database: str, tmp_path: Path) -> Iterator[Join]:
    joined: list[Tuner] = []

    def join(**options: Any) -> Tuner:
        joined.append(Tuner(database, tmp_path, **options))
        return joined[-1]

    yield join
    for tuner in joined:
        tuner.storage.close()
        assert tuner.storage.failure is None
    assert not list(tmp_path.iterdir())


def test_tuners_in_any_order_measure_nothing_twice_and_know_the_same(join: Join) -> None:
    tuners, order = [join(seed=number) for number in range(3)], random.Random(0)
    tuners[0].measure()
    asked: dict[int, Any] = {}
    done = [SPACE.base]
    for _ in range(30):
        index = order.randrange(3)
        study = tuners[index].study
        if index in asked:
            done.append(asked[index][0])
            tuners[index].tell(asked.pop(index))
        else:
            study.refresh()
            if found := study.ask():
                asked[index] = found
    for tuner in tuners:
        tuner.study.abandon()
    for tuner in tuners:
        tuner.study.refresh()
    assert len(done) > 9
    assert [config for config, count in Counter(done).items() if count > 1] == []
    (history,) = {tuple(tuner.study.known.trials) for tuner in tuners}
    assert sorted(trial.config.batch_size for trial in history) == sorted(config.batch_size for config in done)
    numbers = [trial.number for trial in history]
    assert numbers == sorted(set(numbers))
    assert {each.state for each in tuners[0].storage.trials} <= {TrialState.COMPLETE, TrialState.FAIL}


def test_what_another_measures_is_left_out_and_what_is_like_it_is_worth_less(join: Join) -> None:
    one, other = join(), join()
    one.search(6)
    other.study.refresh()
    before = other.study.known.forecast
    config, _ = one.ask()
    other.study.refresh()
    forecast = other.study.known.forecast
    position = forecast.position[config]
    assert [claimed for _, claimed in other.study.known.others] == [config]
    assert (before.is_open[position], forecast.is_open[position]) == (True, False)
    assert forecast.proposal() != config
    assert (forecast.posterior.means == before.posterior.means).all()  # nobody counts on it
    assert forecast.promised
    assert (forecast.promised.errors <= forecast.posterior.errors + 1e-12).mean() > 0.9
    assert forecast.promised.errors[position] < forecast.posterior.errors[position]
    one.study.abandon()
    other.study.refresh()
    assert other.study.known.others == ()
    assert other.study.known.forecast.promised is None


def test_looks_at_the_same_by_two_tuners_count_once(join: Join) -> None:
    one, other = join(), join()
    one.measure()
    other.study.refresh()
    for tuner in (one, other):
        tuner.study.looked("loader", SPACE.base, tuner.machine.measure(SPACE.base, replace(REQUEST, part="loader")))
    one.study.refresh()
    assert len(one.study.known.probes) == 1


def test_the_baseline_is_waited_for_and_that_is_said_once(join: Join) -> None:
    one, other = join(), join()
    asked = one.ask()
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            one.tell(asked)

    assert other.search(1, sleep=sleep) == "all 1 trials that were asked for are done"
    assert len(slept) == 3
    (said,) = other.said
    assert "to measure the baseline" in said
    assert other.machine.calls == []


def test_no_baseline_is_waited_for_longer_than_the_budget(join: Join) -> None:
    one, other = join(), join()
    assert one.study.ask()

    def sleep(seconds: float) -> None:
        other.machine.time += 4000.0

    with pytest.raises(NothingFeasibleError, match=rf"{one.storage.by} still measures the baseline; pass"):
        other.search(1, sleep=sleep)
    assert other.machine.time == 12_000.0


def test_no_search_ends_while_others_may_still_find_something(join: Join) -> None:
    """The last configurations that could win are being measured: what comes of them is waited for."""
    one, other = join(cost=larger_batches_pay), join(cost=larger_batches_pay)
    one.search(2)
    asked = one.ask()
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        one.tell(asked)

    other.search(50, sleep=sleep)
    assert slept
    assert asked[0] in [trial.config for trial in other.study.known.trials]


def test_a_server_that_goes_away_before_the_file_is_written_is_told(
    server: Server, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    def tune(storage: StudyStorage, **arguments: Any) -> Any:
        result = tuner_of(SimulatedMachine(cost=rough), SPACE, FACTS, host(), max_trials=4).result(storage)
        server.stop()
        return result

    monkeypatch.setattr("autotune.api.tune", tune)
    assert main(["--model", "m:b", "--storage", database]) == 0
    (path,) = tmp_path.glob("*.study")
    errors = capsys.readouterr().err
    assert f"autotune report {path.name} shows it" in errors
    assert "autotune report postgresql" not in " ".join(errors.split())
    assert read_study(path).result
    assert len(read_study(path).history) > 4


def test_tuners_that_find_an_empty_database_at_the_same_time_make_one_study(database: str, tmp_path: Path) -> None:
    storages = [StudyStorage(database) for _ in range(4)]
    with ThreadPoolExecutor(len(storages)) as pool:
        list(pool.map(lambda storage: storage.open(HERE), storages))
    assert optuna.get_all_study_names(database.replace("postgresql", "postgresql+psycopg")) == [HERE.name]
    for storage in storages:
        storage.close()


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
def test_one_tuner_gets_the_baseline_whatever_the_databases_own_isolation_is(
    database: str, tmp_path: Path, isolation: str
) -> None:
    option = quote("-c default_transaction_isolation=" + isolation.replace(" ", "\\ "))
    tuners = [Tuner(f"{database}?options={option}", tmp_path) for _ in range(5)]
    start = threading.Barrier(len(tuners))

    def ask(tuner: Tuner) -> object:
        start.wait()
        return tuner.study.ask()

    with ThreadPoolExecutor(len(tuners)) as pool:
        assert sum(asked is not None for asked in pool.map(ask, tuners)) == 1
    for tuner in tuners:
        assert tuner.said == []
        tuner.storage.close()


def test_in_a_common_database_only_studies_of_the_same_workload_are_compared(database: str, tmp_path: Path) -> None:
    def notes(**change: str) -> tuple[str, ...]:
        storage, messages = StudyStorage(database), Messages()
        storage.open(Identity(parts={**HERE.parts, **change}), messages=messages)
        storage.close()
        return messages.notes

    assert notes() == ()
    assert notes(workload="another") == ()
    (note,) = notes(torch="1.0")
    assert f"was made with torch {HERE.parts['torch']}, here is 1.0" in note


def test_a_tuner_that_is_killed_at_any_moment_of_a_trial_keeps_nobody_waiting(join: Join) -> None:
    """Its trial without a sign of life, or with the last of them long ago, is failed by the others."""
    killed, silent, other = (join() for _ in range(3))
    killed.ask()
    silent.storage.do(lambda study: study.ask())  # killed before it has said anything
    end = time.monotonic() + 30.0
    while other.study.ask() is None:
        assert time.monotonic() < end
        time.sleep(0.2)
        other.study.refresh()
    while [each.state for each in other.storage.trials][:2] != [TrialState.FAIL] * 2:
        assert time.monotonic() < end
        time.sleep(0.2)
        other.study.refresh()
    assert other.study.known.others == ()


def test_what_was_measured_by_a_tuner_that_was_taken_for_gone_is_kept(join: Join) -> None:
    late, other = join(), join()
    asked = late.ask()
    time.sleep(3.0)  # without a sign of life
    other.study.refresh()
    assert other.study.known.others == ()
    late.tell(asked)
    other.study.refresh()
    assert [trial.config for trial in other.study.known.trials] == [asked[0]]


def test_a_measurement_longer_than_the_grace_is_not_taken_for_gone(join: Join) -> None:
    busy, other = join(), join()
    asked = busy.ask()
    with busy.study.beating():
        time.sleep(4.0)
        other.study.refresh()
        assert [config for _, config in other.study.known.others] == [asked[0]]


def test_a_server_that_is_away_when_the_study_is_read_is_gone_without(
    server: Server, database: str, tmp_path: Path
) -> None:
    tuner = Tuner(database, tmp_path)
    tuner.search(3)
    server.stop()
    tuner.study.refresh()
    assert tuner.search(5) == "all 5 trials that were asked for are done"
    assert "the run goes on without it" in str(tuner.storage.failure)
    tuner.storage.close()


def test_of_two_tuners_one_is_killed_and_the_server_restarted_and_nothing_is_stuck_or_measured_twice(
    server: Server, database: str, tmp_path: Path
) -> None:
    tuner, killed = Tuner(database, tmp_path), Tuner(database, tmp_path)
    tuner.search(3)
    killed.study.refresh()
    lost = killed.ask()
    asked = tuner.ask()
    assert asked[0] != lost[0]
    server.stop()
    tuner.tell(asked)
    server.start()
    assert tuner.search(6) == "all 6 trials that were asked for are done"
    tuner.storage.close()
    said = " ".join(tuner.said)
    assert "the run goes on without it" in said
    assert PASSWORD not in said
    (path,) = tmp_path.iterdir()
    assert f"--storage {path} continues it" in str(tuner.storage.failure)
    assert [trial.config for trial in read_study(path).history] == [trial.config for trial in tuner.study.known.trials]
    assert len(tuner.study.known.trials) == len({trial.config for trial in tuner.study.known.trials}) == 6
    assert tuner.study.known.probes


@pytest.mark.parametrize("when", ["server", "file"])
def test_an_interrupt_while_a_server_fails_loses_nothing(
    server: Server, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    tuner = Tuner(database, tmp_path)
    tuner.measure()
    asked = tuner.ask()
    server.stop()
    name = "_reason" if when == "server" else "_begin_anew"
    work = getattr(tuner.storage, name)

    def interrupted(*arguments: Any) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        return work(*arguments)

    monkeypatch.setattr(tuner.storage, name, interrupted)
    with pytest.raises(KeyboardInterrupt):
        tuner.tell(asked)
    tuner.storage.close()
    (path,) = tmp_path.iterdir()
    assert f"--storage {path} continues it" in str(tuner.storage.failure)
    assert len(read_study(path).history) == 2


# --- what keeps from the server ---


@pytest.mark.parametrize("scheme", ["postgresql", "postgresql+psycopg", "postgres"])
def test_urls_of_every_form_are_understood(database: str, scheme: str) -> None:
    assert history_at(database.replace("postgresql", scheme, 1)) == ()
    assert "psycopg" in sys.modules


def test_of_the_drivers_of_postgresql_only_psycopg_shares_a_study() -> None:
    with pytest.raises(UsageError, match=r"postgresql\+psycopg2.* write postgresql://"):
        StudyStorage(f"postgresql+psycopg2://u:{PASSWORD}@h/db")


def test_a_wrong_password_is_said_and_not_shown(server: Server) -> None:
    said = refused(server.url("postgres", password="another-s3cret%21"))
    assert 'FATAL: password authentication failed for user "tuner"' in said
    assert "s3cret" not in said


def test_a_server_that_is_not_there_and_a_missing_driver_are_named(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"postgresql://u:{PASSWORD}@127.0.0.1:{(port := free_port())}/d"
    assert f"port {port} failed: Connection refused" in refused(url)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    assert refused(url).endswith("cannot be opened: its driver is missing: pip install 'torch-autotune[postgresql]'")


def refused(url: str) -> str:
    with pytest.raises(StorageError, match="cannot be opened: ") as caught:
        StudyStorage(url).open(HERE)
    with pytest.raises(StorageError, match="cannot be read: "):
        read_study(url)
    assert "\n" not in str(caught.value)
    assert PASSWORD not in str(caught.value)
    return str(caught.value)
