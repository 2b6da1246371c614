"""What hosts that share a board know of each other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from optuna.trial import TrialState

from autotune.config import Config
from autotune.records import Attempt, Outcome, Request
from autotune.search import outlook, stages
from autotune.search.board import Board, Seat
from autotune.search.keeping import Keeper
from autotune.search.losses import MOST_LOSSES, owed, settled
from autotune.search.study import TuningStudy, open_study
from tests.simulated import SimulatedMachine, host
from tests.stations import OnStations, SimulatedStation, at
from tests.test_shared import measured, repeated, trials_in
from tests.tuner import FACTS, SPACE, keeper_of, rough

pytestmark = pytest.mark.server

REQUEST = Request(seconds=1.0)
LOST = Attempt(outcome=Outcome.LOST, message="lost")


class Host:
    """A host at a board, which does what a test tells it to."""

    def __init__(self, board: Board, name: str) -> None:
        self.name = name
        self.seat: Seat = board.seat(name)
        self.study: TuningStudy = open_study(SPACE, FACTS, host(), keeper=self.seat)
        self.machine = SimulatedMachine(cost=rough)

    def ask(self, most: int | None = None) -> Config | None:
        self.study.refresh()
        asked = self.study.ask(most)
        return asked and asked[0]

    def tell(self, config: Config, attempt: Attempt | None = None) -> None:
        attempt = replace(attempt or self.machine.measure(config, REQUEST), host=self.name)
        self.study.tell(attempt, config, "search" if self.study.trials else "baseline")

    def measure(self, attempt: Attempt | None = None) -> Config:
        config = self.ask()
        assert config is not None
        self.tell(config, attempt)
        return config


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch) -> tuple[Host, Host]:
    """Two hosts, of which the first has measured the baseline."""
    monkeypatch.setattr(outlook, "HOPE", 5.0)
    board = Board(Keeper())
    first, second = Host(board, "a"), Host(board, "b")
    first.measure()
    return first, second


def test_what_one_host_measures_the_other_leaves_alone(hosts: tuple[Host, Host]) -> None:
    first, second = hosts
    one, other = first.ask(), second.ask()
    assert one is not None
    assert other is not None
    assert one != other
    first.study.refresh()
    assert [claim.config for claim in first.study.claims] == [other]
    first.tell(one)
    second.tell(other)
    second.study.refresh()
    assert [trial.config for trial in second.study.trials] == [SPACE.base, one, other]
    assert [trial.number for trial in second.study.trials] == [0, 1, 2]


def test_the_last_of_so_many_trials_is_begun_once(hosts: tuple[Host, Host]) -> None:
    first, second = hosts
    assert first.ask(most=2) is not None
    assert second.ask(most=2) is None
    first.study.abandon()
    assert second.ask(most=2) is not None


def test_what_was_lost_for_good_is_one_of_so_many_trials(hosts: tuple[Host, Host]) -> None:
    first, second = hosts
    lost = first.measure(LOST)
    assert second.ask(most=2) == lost  # once it does not count
    second.tell(lost, LOST)
    assert first.ask(most=2) is None
    assert first.ask(most=3) is not None
    assert second.ask(most=3) is None


def test_what_was_lost_more_often_than_it_may_be_counts_once(hosts: tuple[Host, Host]) -> None:
    first, second = hosts
    lost = first.measure(LOST)
    assert second.measure(LOST) == lost
    records = first.seat._board._trials
    records.append(replace(records[-1], number=9))  # as where a tuner elsewhere did not see the others
    assert first.ask(most=2) is None
    assert first.ask(most=3) is not None


def test_what_one_host_has_lost_is_the_others_next(hosts: tuple[Host, Host]) -> None:
    first, second = hosts
    lost = first.measure(LOST)
    first.study.refresh()
    assert lost not in [trial.config for trial in first.study.trials]
    assert [claim.config for claim in first.study.claims] == [lost]  # it is another's turn
    assert first.study.owed is None
    assert second.ask() == lost
    second.tell(lost, LOST)
    assert second.study.trials[-1].message == "lost; lost twice with its host, so it is not asked for a third time"
    assert second.study.owed is None
    assert second.ask() != lost


def test_a_host_that_is_alone_makes_its_own_losses_good(hosts: tuple[Host, Host]) -> None:
    first, second = hosts
    lost = first.measure(LOST)
    second.seat.leave()
    assert first.ask() == lost


def test_what_a_host_that_leaves_was_measuring_is_free(hosts: tuple[Host, Host]) -> None:
    first, second = hosts
    config = second.ask()
    second.seat.leave()
    first.study.refresh()
    assert first.study.claims == ()
    assert first.ask() == config


def test_a_look_is_taken_by_one_and_only_by_who_knows_the_others(hosts: tuple[Host, Host]) -> None:
    first, second = hosts
    for each in hosts:
        each.study.refresh()
    assert first.study.claim_look("compute", SPACE.base)
    assert not second.study.claim_look("compute", SPACE.base)
    assert second.study.claim_look("loader", SPACE.base)
    first.study.looked("compute", SPACE.base, first.machine.measure(SPACE.base, replace(REQUEST, part="compute")))
    assert not second.study.claim_look("numerics", SPACE.base)  # what was found may change what is wanted
    second.study.refresh()
    assert second.study.claim_look("numerics", SPACE.base)


def test_losses_are_settled_by_a_result_or_by_too_many_of_them(hosts: tuple[Host, Host]) -> None:
    first, second = hosts
    lost = first.measure(LOST)
    second.study.refresh()
    records = second.study.history
    assert [record.config for record in owed(records)] == [lost]
    assert owed((*records, replace(records[-1], outcome=Outcome.OK))) == ()
    assert owed(records[-1:] * MOST_LOSSES) == ()
    assert len(settled(records)) == 1
    assert len(settled(records[-1:] * 3)) == 2


def test_hosts_fill_a_study_on_a_server(database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outlook, "HOPE", 5.0)
    monkeypatch.setattr(stages, "POLL", 0.01)
    keeper = keeper_of(database, tmp_path)
    run = OnStations([SimulatedStation("a"), SimulatedStation("b", loses=at(6))], keeper=keeper)
    result = run.run(trials=10)
    keeper.close()
    assert keeper.failure is None
    trials = trials_in(database)
    assert TrialState.RUNNING not in {trial.state for trial in trials}
    kept = measured(trials)
    done = [record["config"] for record in kept if record["outcome"] != "lost"]
    assert len(done) == 10
    assert repeated(done) == []
    assert {record["host"] for record in kept} <= {"a", "b"}
    assert result.stop_reason == "10 trials were asked for"
