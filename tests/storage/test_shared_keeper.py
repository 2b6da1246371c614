"""Tuners of one study on a real server, here in one process: what each knows of the others."""

from __future__ import annotations

import os
import random
import re
import signal
import sys
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from sqlalchemy import text

from autotune.cli import main
from autotune.config import Config
from autotune.errors import NothingFeasibleError, StorageError, UsageError
from autotune.limits import Budget
from autotune.messages import Messages, Progress
from autotune.records import Kind, Request
from autotune.search.loop import Search
from autotune.search.study import TuningStudy, open_study
from autotune.storage import study_records as stored
from autotune.storage.keeper import Keeper
from autotune.storage.read import read_study
from autotune.storage.server import LIMITS, Limits, open_database
from autotune.storage.shared_keeper import SharedKeeper, open_keeper
from autotune.storage.study_records import Identity, identify
from tests.server import PASSWORD, Server, free_port
from tests.simulated import SimulatedMachine, StepCost, few_of, gpu_facts, host, larger_batches_pay, tuner_of
from tests.storage.test_keeper import HERE

pytestmark = pytest.mark.server

REQUEST = Request(seconds=1.0)
FACTS = gpu_facts()
SPACE = few_of(FACTS, amp="off", batch_size="16..512", num_workers="0..8")


def rough(config: Config) -> StepCost:
    """Waiting depends on the configuration in a way that nothing foretells, so there is always more to try."""
    share = zlib.crc32(repr(config).encode()) / 2**32
    return StepCost(wait=1e-4 * config.batch_size * 30**share, compute=2e-6 * config.batch_size)


def keeper_of(url: str, folder: Path, **options: Any) -> SharedKeeper:
    return SharedKeeper(url, local=folder / "autotune.study", **options)


class Tuner:
    """A study, its keeper and a machine of its own."""

    def __init__(self, url: str, folder: Path, limits: Limits = LIMITS, **options: Any) -> None:
        self.keeper = keeper_of(url, folder, limits=limits)
        self.machine = SimulatedMachine(**{"cost": rough, **options})
        self.told: list[Progress] = []
        self.budget = Budget(10_000.0, self.machine.now)
        self.messages = Messages(self.budget, self.told.append)
        self.study: TuningStudy = open_study(SPACE, FACTS, host(), keeper=self.keeper, messages=self.messages)

    def search(self, trials: int, **options: Any) -> str:
        run: dict[str, Any] = {"runner": self.machine, "study": self.study, "space": SPACE, "budget": self.budget}
        return Search(**run, messages=self.messages, max_trials=trials, **options).run().text

    def ask(self) -> tuple[Config, Kind]:
        asked = self.study.ask()
        assert asked
        return asked

    def tell(self, asked: tuple[Config, Kind]) -> None:
        """Measure what was asked, and tell the study."""
        self.study.tell(self.machine.measure(asked[0], REQUEST), *asked)

    def measure(self) -> None:
        self.tell(self.ask())

    @property
    def said(self) -> list[str]:
        return [told.message for told in self.told if told.message]


Join = Callable[..., Tuner]


@pytest.fixture
def join(database: str, tmp_path: Path) -> Iterator[Join]:
    """Opens the study once more, as another tuner."""
    joined: list[Tuner] = []

    def join(**options: Any) -> Tuner:
        joined.append(Tuner(database, tmp_path, **options))
        return joined[-1]

    yield join
    for tuner in joined:
        tuner.keeper.close()
        assert tuner.keeper.failure is None
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("seed", [0])
def test_tuners_in_any_order_measure_nothing_twice_and_know_the_same(join: Join, seed: int) -> None:
    tuners, order = [join(seed=number) for number in range(3)], random.Random(seed)
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
    (history,) = {tuple(tuner.study.trials) for tuner in tuners}
    assert sorted(trial.config.batch_size for trial in history) == sorted(config.batch_size for config in done)
    numbers = [trial.number for trial in history]
    assert numbers == sorted(set(numbers))


def test_what_another_measures_is_left_out_and_what_is_like_it_is_worth_less(join: Join) -> None:
    one, other = join(), join()
    one.search(6)
    other.study.refresh()
    before = other.study.forecast
    config, _ = one.ask()
    other.study.refresh()
    forecast = other.study.forecast
    position = forecast.position[config]
    assert [claim.config for claim in other.study.claims] == [config]
    assert (before.is_open[position], forecast.is_open[position]) == (True, False)
    assert forecast.proposal() != config
    assert (forecast.posterior.means == before.posterior.means).all()  # nobody counts on it
    assert forecast.promised
    assert (forecast.promised.errors <= forecast.posterior.errors + 1e-12).mean() > 0.9
    assert forecast.promised.errors[position] < forecast.posterior.errors[position]
    one.study.abandon()
    other.study.refresh()
    assert other.study.claims == ()
    assert other.study.forecast.promised is None


def test_looks_at_the_same_by_two_tuners_count_once(join: Join) -> None:
    one, other = join(), join()
    one.measure()
    other.study.refresh()
    for tuner in (one, other):
        tuner.study.looked("loader", SPACE.base, tuner.machine.measure(SPACE.base, replace(REQUEST, part="loader")))
    one.study.refresh()
    assert len(one.study.probes) == 1
    kept = one.keeper.refresh()
    assert kept
    assert len(kept.probes) == 2  # neither has overwritten the other


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

    with pytest.raises(NothingFeasibleError, match=rf", process {os.getpid()} still measures the baseline; pass"):
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
    assert asked[0] in [trial.config for trial in other.study.trials]


def test_an_interrupt_while_the_result_is_kept_costs_no_answer(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper, write = keeper_of(database, tmp_path), stored.write_result

    def interrupted(*arguments: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        write(*arguments)

    monkeypatch.setattr(stored, "write_result", interrupted)
    result = tuner_of(SimulatedMachine(cost=rough), SPACE, FACTS, host(), max_trials=4).result(keeper)
    keeper.close()
    study = read_study(database)
    assert study.result.samples_per_second == result.samples_per_second
    assert not list(tmp_path.iterdir())


def test_a_server_that_goes_away_before_the_file_is_written_is_told(
    server: Server, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    def tune(storage: Keeper, **arguments: Any) -> Any:
        result = tuner_of(SimulatedMachine(cost=rough), SPACE, FACTS, host(), max_trials=4).result(storage)
        server.stop()
        return result

    monkeypatch.setattr("autotune.api.tune", tune)
    assert main(["--model", "m:b", "--storage", database]) == 0
    (path,) = tmp_path.glob("*.study")
    errors = capsys.readouterr().err
    assert "what was measured since could not be written there" in errors
    assert f"autotune report {path.name} shows it" in errors
    assert "autotune report postgresql" not in " ".join(errors.split())
    assert len(read_study(path).history) > 4


def test_tuners_that_find_an_empty_database_at_the_same_time_make_one_study(database: str, tmp_path: Path) -> None:
    keepers = [keeper_of(database, tmp_path) for _ in range(4)]
    with ThreadPoolExecutor(len(keepers)) as pool:
        list(pool.map(lambda keeper: keeper.open(HERE), keepers))
    assert {(keeper.is_kept, keeper.name) for keeper in keepers} == {(True, f"{HERE.name}-1")}
    assert len(keepers[0]._studies()) == 1
    for keeper in keepers:
        keeper.close()


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
    assert tuners[0].keeper._database
    trials = tuners[0].keeper._database.get_all_trials(tuners[0].keeper._study_id)
    assert [trial.number for trial in trials] == list(range(len(trials)))
    for tuner in tuners:
        assert tuner.said == []
        tuner.keeper.close()


def test_in_a_common_database_only_studies_of_the_same_workload_are_compared(database: str, tmp_path: Path) -> None:
    def notes(**change: str) -> tuple[str, ...]:
        keeper, messages = keeper_of(database, tmp_path), Messages()
        keeper.open(Identity(parts={**HERE.parts, **change}), messages)
        keeper.close()
        return messages.notes

    assert notes() == ()
    assert notes(workload="another") == ()
    (note,) = notes(torch="1.0")
    assert f"was made with torch {HERE.parts['torch']}, here is 1.0" in note


def test_nobody_waits_for_a_tuner_that_goes_on_alone(server: Server, database: str, tmp_path: Path) -> None:
    tuner = Tuner(database, tmp_path)
    asked = tuner.ask()
    claim = tuner.keeper._claim
    server.stop()
    tuner.tell(asked)
    assert claim.is_over.is_set()  # its heartbeat does not go on once the server is back
    server.start()
    tuner.keeper.close()


def test_a_server_that_is_frozen_keeps_no_tuner_waiting_and_its_study_goes_on_in_a_file(
    server: Server, database: str, tmp_path: Path
) -> None:
    tuner = Tuner(database, tmp_path, limits=Limits(answer=1.0))
    tuner.search(3)
    server.freeze()
    begin = time.monotonic()
    assert tuner.search(6) == "all 6 trials that were asked for are done"
    assert time.monotonic() - begin < 20
    server.thaw()
    tuner.keeper.close()
    said = " ".join(tuner.said)
    assert re.search("no answer within 1 s|connection timeout expired", said)  # by what was asked first
    assert "the run goes on without it" in said
    assert PASSWORD not in said
    (path,) = tmp_path.iterdir()
    with closing(Keeper(path)) as keeper:
        kept = keeper.open(identify(FACTS, host(), SPACE.fingerprint))
    assert (kept.trials, kept.probes) == (tuner.study.trials, tuner.study.probes)


@pytest.mark.parametrize("when", ["server", "file"])
def test_an_interrupt_while_a_server_fails_loses_nothing(
    server: Server, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    tuner = Tuner(database, tmp_path)
    tuner.measure()
    asked = tuner.ask()
    server.stop()
    name = "complete" if when == "server" else "_begin_file"
    owner = tuner.keeper._server if when == "server" else tuner.keeper
    work = getattr(owner, name)

    def interrupted(*arguments: Any) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        return work(*arguments)

    monkeypatch.setattr(owner, name, interrupted)
    with pytest.raises(KeyboardInterrupt):
        tuner.tell(asked)
    tuner.keeper.close()
    (path,) = tmp_path.iterdir()
    assert f"--storage {path} continues it" in str(tuner.keeper.failure)
    assert len(read_study(path).history) == 2


# --- what keeps from the server ---


def test_a_tuner_that_disappears_in_the_middle_of_a_transaction_holds_no_one_up(database: str, tmp_path: Path) -> None:
    gone = open_database(database, limits=Limits(idle=1.0))
    tuner = Tuner(database, tmp_path)
    with gone.engine.connect() as connection:
        connection.execute(text("SELECT * FROM studies FOR UPDATE"))
        assert tuner.study.ask()
        connection.invalidate()
    assert tuner.said == []
    assert tuner.keeper.number == 0
    tuner.keeper.close()
    gone.engine.dispose()


def test_what_others_have_locked_for_long_is_gone_without(database: str, tmp_path: Path) -> None:
    tuner = Tuner(database, tmp_path, limits=Limits(lock=1.0))
    import psycopg

    with psycopg.connect(database) as holder:
        holder.execute("SELECT * FROM studies FOR UPDATE")
        begin = time.monotonic()
        asked = tuner.study.ask()
        assert time.monotonic() - begin < 5
        assert asked
        assert "canceling statement due to lock timeout" in tuner.said[0]
        tuner.tell(asked)
    tuner.keeper.close()
    (path,) = tmp_path.iterdir()
    assert [trial.number for trial in read_study(path).history] == [0]


@pytest.mark.parametrize("scheme", ["postgresql", "postgresql+psycopg", "postgres"])
def test_urls_of_every_form_are_understood(database: str, scheme: str) -> None:
    keeper = open_keeper(database.replace("postgresql", scheme, 1))
    assert isinstance(keeper, SharedKeeper)
    keeper.open(HERE)
    assert keeper.is_kept
    keeper.close()


def test_of_the_drivers_of_postgresql_only_psycopg_shares_a_study() -> None:
    with pytest.raises(UsageError, match=r"postgresql\+psycopg2.* write postgresql://"):
        open_keeper(f"postgresql+psycopg2://u:{PASSWORD}@h/db")


@pytest.mark.parametrize(
    "location", [None, "a.study", "sqlite:///a.db", Path("a.study"), "a:b@c.study", "mysql://u@h/db", "mariadb://h/db"]
)
def test_what_is_no_server_is_kept_as_ever(location: Any) -> None:
    assert type(open_keeper(location)) is Keeper


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


@pytest.mark.parametrize(
    ("problem", "said"), [("role", "permission denied for table trials"), ("replica", "in a read-only transaction")]
)
def test_a_study_that_may_only_be_read_is_not_opened(
    server: Server, database: str, tmp_path: Path, problem: str, said: str
) -> None:
    import psycopg

    Tuner(database, tmp_path).keeper.close()
    url = f"{database}?options={quote('-c default_transaction_read_only=on')}"
    if problem == "role":
        role = f"r{database[-8:]}"
        with psycopg.connect(database) as connection:
            connection.execute(f"CREATE ROLE {role} LOGIN PASSWORD '{PASSWORD}'".encode())
            connection.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}".encode())
        url = server.url(database.rpartition("/")[2], user=role)
    begin = time.monotonic()
    with pytest.raises(StorageError, match=said):
        Tuner(url, tmp_path)
    assert time.monotonic() - begin < 3
    with pytest.raises(StorageError, match=r": holds no measurement yet$"):
        read_study(url)


def test_rights_that_are_lost_on_the_way_are_not_waited_for(database: str, tmp_path: Path) -> None:
    import psycopg

    tuner = Tuner(database, tmp_path)
    tuner.measure()
    with psycopg.connect(database) as connection:
        connection.execute("ALTER TABLE trials RENAME TO other")
    begin = time.monotonic()
    tuner.search(4)
    tuner.keeper.close()
    assert time.monotonic() - begin < 5
    assert 'relation "trials" does not exist' in str(tuner.keeper.failure)
    (path,) = tmp_path.iterdir()
    assert len(read_study(path).history) == 4


def refused(url: str) -> str:
    with pytest.raises(StorageError, match="cannot be opened: ") as caught:
        open_keeper(url).open(HERE)
    with pytest.raises(StorageError, match="cannot be read: "):
        read_study(url)
    assert "\n" not in str(caught.value)
    assert PASSWORD not in str(caught.value)
    return str(caught.value)
