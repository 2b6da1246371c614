"""The search on several hosts, which are simulated: what one loses the others measure."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.config import Config
from autotune.errors import ClusterError, InterruptedRunError, NothingFeasibleError, UsageError, UserCodeError
from autotune.records import Outcome, Request, Trial
from autotune.report.words import config_text
from autotune.result import Result
from autotune.room import MemoryRoom
from autotune.search import outlook, stages, study
from autotune.search.keeping import Keeper
from autotune.search.losses import FOR_GOOD, NO_OTHER, settled
from autotune.search.reading import read_study
from tests.stations import SPACE, OnStations, SimulatedStation, at

pytestmark = [pytest.mark.server, pytest.mark.usefixtures("hurried")]


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is always something that may be faster, and nobody waits for long."""
    monkeypatch.setattr(outlook, "HOPE", 5.0)
    monkeypatch.setattr(stages, "POLL", 0.002)
    monkeypatch.setattr("autotune.lanes.TICK", 0.01)


def repeated(trials: list[Trial]) -> list[Config]:
    counts = Counter(trial.config for trial in settled(trials))
    return [config for config, count in counts.items() if count > 1]


def hosts(trials: list[Trial]) -> set[str | None]:
    return {trial.host for trial in trials}


def of_hosts(result: Result) -> list[str]:
    """What is said of hosts."""
    return [note for note in result.notes if note.startswith("host ")]


def is_trial(request: Request) -> bool:
    return request.part == "training" and not request.fresh


@pytest.mark.parametrize("count", [1, 2, 3])
def test_so_many_trials_as_were_asked_for_are_made_and_none_twice(count: int) -> None:
    run = OnStations([SimulatedStation(f"host-{number}", seconds=0.05) for number in range(count)])
    result = run.run()
    assert len(run.searched) == 16
    assert repeated(run.searched) == []
    assert sorted(trial.number for trial in result.history) == list(range(len(result.history)))
    assert len(hosts(run.searched)) == count
    assert result.stop_reason == "16 trials were asked for"
    assert result.verdict == "faster"
    assert len(hosts(run.confirmed)) == 1
    assert of_hosts(result) == []


def test_no_look_is_taken_twice_and_each_is_known_to_all() -> None:
    stations = [SimulatedStation(f"host-{number}") for number in range(3)]
    OnStations(stations).run()
    alone = SimulatedStation("host-0")
    OnStations([alone]).run()
    calls = [call for each in stations for call in each.calls]
    looks = [(request.part, config) for config, request in calls if request.part != "training"]
    assert len(looks) == len(set(looks))
    assert Counter(part for part, _ in looks) == Counter(r.part for _, r in alone.calls if r.part != "training")


def test_what_a_host_loses_another_measures() -> None:
    loses = SimulatedStation("b", comes_back=False)
    loses.loses = lambda number, config, request: sum(is_trial(r) for _, r in loses.calls) == 4 and is_trial(request)
    run = OnStations([SimulatedStation("a"), loses])
    result = run.run()
    (lost,) = run.lost
    assert lost.host == "b"
    (again,) = [trial for trial in run.searched if trial.config == lost.config and trial is not lost]
    assert (again.host, again.outcome) == ("a", Outcome.OK)
    assert len(settled(run.searched)) == 16
    assert result.verdict == "faster"
    assert hosts(run.confirmed) == {"a"}
    assert of_hosts(result) == ["host b: lost with its host"]


def test_a_host_that_lives_gets_another_chance_and_no_third_one() -> None:
    flaky = SimulatedStation("b", loses=at(6, 9))
    run = OnStations([SimulatedStation("a", seconds=0.05), flaky])
    result = run.run(trials=30)
    assert flaky.reopened == 1
    assert len(flaky.calls) == 9
    assert of_hosts(result) == [
        "host b: lost with its host",
        "host b: lost with its host; it is not used any more",
    ]
    assert len(settled(run.searched)) == 30


def test_what_takes_down_every_host_is_not_asked_for_a_third_time() -> None:
    victims: list[Config] = []

    def loses(number: int, config: Config, request: Request) -> bool:
        if is_trial(request) and number > 8 and not victims:
            victims.append(config)
        return is_trial(request) and config in victims

    run = OnStations([SimulatedStation(name, loses=loses) for name in ("a", "b", "c")])
    result = run.run()
    asked = [trial for trial in run.searched if trial.config == victims[0]]
    assert [trial.outcome for trial in asked] == [Outcome.LOST] * 2
    assert len(hosts(asked)) == 2
    assert asked[1].message == "lost with its host; lost twice with its host, so it is not asked for a third time"
    assert len(settled(run.searched)) == 16
    assert result.config != victims[0]
    assert result.verdict == "faster"


def test_a_loss_while_a_measurement_is_repeated_costs_no_other_configuration_its_chance() -> None:
    host, disturbed = SimulatedStation("b", comes_back=False), list[Config]()
    host.machine.suspect_has_numbers = False

    def loses(number: int, config: Config, request: Request) -> bool:
        if config in disturbed:
            return True
        host.machine.fails = lambda config: None
        if is_trial(request) and number > 4:
            disturbed.append(config)
            host.machine.fails = lambda config: Outcome.SUSPECT
        return False

    host.loses = loses
    run = OnStations([SimulatedStation("a", seconds=0.05), host])
    result = run.run()
    assert [trial.outcome for trial in run.searched if trial.config in disturbed] == [Outcome.SUSPECT]
    assert run.lost == []
    assert of_hosts(result) == ["host b: lost with its last measurement"]
    assert len(run.searched) == 16


def test_a_look_that_is_lost_is_taken_again() -> None:
    lost: list[tuple[str, Config]] = []

    def loses(number: int, config: Config, request: Request) -> bool:
        is_first = request.part == "compute" and not lost
        lost.extend([(request.part, config)] * is_first)
        return is_first

    stations = [SimulatedStation(name, loses=loses) for name in ("a", "b")]
    OnStations(stations).run()
    looks = [(request.part, config) for each in stations for config, request in each.calls]
    assert looks.count(lost[0]) == 2


def test_a_host_that_is_slower_is_left_out_with_both_rates() -> None:
    slow = SimulatedStation("b", speed=0.5)
    run = OnStations([SimulatedStation("a", seconds=0.002), slow, SimulatedStation("c")])
    slow.seconds = 0.02
    result = run.run()
    assert len(slow.calls) == 1
    assert hosts(run.searched) == {"a", "c"}
    (note,) = of_hosts(result)
    assert note.startswith("host b: left out: the baseline gives ")
    assert note.endswith(" on a; hosts that look alike should be equally fast") or " on c; " in note


def test_a_host_is_not_left_out_for_a_rate_that_was_disturbed() -> None:
    run = OnStations([SimulatedStation("a"), SimulatedStation("b", speed=0.5, is_disturbed=True)])
    assert of_hosts(run.run()) == []
    assert hosts(run.searched) == {"a", "b"}


def test_a_host_that_is_left_out_is_given_back() -> None:
    stations = [SimulatedStation("a"), SimulatedStation("b", speed=0.5)]
    OnStations(stations).run()
    assert [station.dropped for station in stations] == [0, 1]


def test_a_baseline_that_takes_more_than_it_may_is_an_error_on_a_single_host() -> None:
    with pytest.raises(UsageError, match="--max-memory 1 MiB: the baseline takes"):
        OnStations([SimulatedStation("a")]).run(room=MemoryRoom(headroom=0.1, most=2**20))


def test_where_there_was_no_time_to_compare_hosts_one_of_them_confirms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = tmp_path / "a.study"
    OnStations([SimulatedStation("a")], storage).run()
    monkeypatch.setattr(stages, "CONFIRM_SHARE", 1.0)
    monkeypatch.setattr(stages, "CONFIRM_MEASUREMENTS", 10**6)
    run = OnStations([SimulatedStation("b")], storage)
    result = run.run()
    assert hosts(run.searched) == {"a"}
    assert hosts(run.confirmed[-result.rounds :]) == {"b"}
    assert result.verdict == "faster"


def test_a_sick_host_does_not_decide_for_all() -> None:
    sick = SimulatedStation("a")
    sick.machine.fails = lambda config: Outcome.USER_ERROR
    run = OnStations([sick, SimulatedStation("b", seconds=0.02)])
    result = run.run()
    assert result.verdict == "faster"
    assert hosts(run.searched) == {"b"}
    assert of_hosts(result)[0].startswith("host a: left out: the baseline configuration fails")


def test_a_baseline_that_fails_on_two_hosts_fails() -> None:
    stations = [SimulatedStation(name) for name in ("a", "b", "c")]
    for each in stations:
        each.machine.fails = lambda config: Outcome.USER_ERROR
    with pytest.raises(UserCodeError, match="the baseline configuration fails"):
        OnStations(stations).run()
    assert sum(len(each.calls) for each in stations) == 2


def test_a_baseline_that_is_lost_twice_ends_the_run() -> None:
    stations = [SimulatedStation(name, loses=lambda *_: True) for name in ("a", "b", "c")]
    with pytest.raises(NothingFeasibleError, match="the baseline was lost 2 times with its host"):
        OnStations(stations).run()


def test_a_baseline_that_is_lost_once_is_measured_elsewhere() -> None:
    run = OnStations([SimulatedStation("a", loses=at(1), comes_back=False), SimulatedStation("b", seconds=0.02)])
    result = run.run()
    assert result.verdict == "faster"
    assert hosts(run.searched) == {"b"}


def test_confirmation_begins_anew_on_the_next_host() -> None:
    def loses(number: int, config: Config, request: Request) -> bool:
        return request.fresh and sum(r.fresh for _, r in first.calls) == 5

    first, second = SimulatedStation("a", loses=loses, comes_back=False), SimulatedStation("b")
    run = OnStations([first, second])
    result = run.run()
    assert result.verdict == "faster"
    by_host = Counter(trial.host for trial in run.confirmed)
    assert by_host["a"] == 5
    rates = {trial.rate for trial in run.confirmed if trial.host == "b"}
    assert result.measurement.samples_per_second in rates
    assert result.baseline_measurement.samples_per_second in rates
    assert result.rounds >= 2


def test_without_a_host_to_the_end_nothing_is_claimed() -> None:
    def loses(number: int, config: Config, request: Request) -> bool:
        return request.fresh

    run = OnStations([SimulatedStation(name, loses=loses) for name in ("a", "b")])
    result = run.run()
    assert (result.verdict, result.rounds) == ("undecided", 0)
    assert any("nothing could be compared with what you have" in note for note in result.notes)
    assert len(settled(run.searched)) == 16


def test_options_are_tried_to_the_end_on_another_host() -> None:
    looked: list[int] = []

    def loses(number: int, config: Config, request: Request) -> bool:
        is_option = bool(config.options) and request.part == "compute"
        looked.extend([1] * is_option)
        return is_option and len(looked) == 3

    run = OnStations([SimulatedStation("a", loses=loses, comes_back=False), SimulatedStation("b")])
    result = run.run(explore=("channels_last", "compile"))
    assert [tried.option for tried in result.tried] == ["channels_last", "compile"]
    assert all("lost" not in (tried.message or "") for tried in result.tried)


def test_options_that_no_host_is_left_for_are_said_to_be_untried() -> None:
    def loses(number: int, config: Config, request: Request) -> bool:
        return bool(config.options)

    station = SimulatedStation("a", loses=loses, comes_back=False)
    result = OnStations([station]).run(explore=("channels_last", "compile"))
    assert [tried.option for tried in result.tried] == ["channels_last", "compile"]
    assert all(not tried.kept and (tried.message or "").startswith("it was not tried: ") for tried in result.tried)


@pytest.mark.parametrize(("names", "said"), [("a", NO_OTHER), ("ab", FOR_GOOD), ("abc", FOR_GOOD)])
def test_an_option_that_takes_hosts_down_does_not_take_down_all(names: str, said: str) -> None:
    def loses(number: int, config: Config, request: Request) -> bool:
        return "channels_last" in config.options

    run = OnStations([SimulatedStation(name, loses=loses) for name in names])
    result = run.run(explore=("channels_last", "compile"))
    first, second = result.tried
    assert (first.option, first.kept, first.message) == ("channels_last", False, said)
    assert second.option == "compile"
    assert "lost" not in second.message
    assert result.verdict == "faster"
    looks = [config for each in run.stations for config, _ in each.calls if "channels_last" in config.options]
    assert len(looks) == min(2, len(names))


@pytest.mark.parametrize(("names", "said"), [("a", NO_OTHER), ("ab", FOR_GOOD), ("abc", FOR_GOOD)])
def test_a_finalist_that_takes_hosts_down_does_not_keep_the_others_from_being_confirmed(
    names: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(study, "PLAUSIBLE", 1000.0)  # there are several
    victims: list[Config] = []

    def loses(number: int, config: Config, request: Request) -> bool:
        if request.fresh and request.part == "training" and config.num_workers and not victims:
            victims.append(config)
        return request.fresh and config in victims

    run = OnStations([SimulatedStation(name, loses=loses) for name in names])
    result = run.run()
    assert result.verdict == "faster"
    assert result.config != victims[0]
    assert result.finalists
    assert victims[0] not in [finalist.config for finalist in result.finalists]
    assert f"{config_text(victims[0])}: not confirmed: {said}" in result.notes
    lost = [trial for trial in run.confirmed if trial.outcome is Outcome.LOST]
    assert [trial.config for trial in lost] == victims * min(2, len(names))


def test_a_loss_of_the_baseline_in_a_confirmation_drops_no_finalist() -> None:
    def loses(number: int, config: Config, request: Request) -> bool:
        return request.fresh and config == SPACE.base

    run = OnStations([SimulatedStation("a", loses=loses), SimulatedStation("b")])
    result = run.run()
    assert result.verdict == "faster"
    assert not any("not confirmed" in note for note in result.notes)


def test_a_host_that_comes_later_takes_part() -> None:
    first, coming = SimulatedStation("a"), [SimulatedStation("b")]

    def arrivals() -> list[SimulatedStation]:
        return [coming.pop()] if len(first.calls) >= 12 and coming else []

    run = OnStations([first], arrivals=arrivals)
    result = run.run(trials=30)
    assert of_hosts(result) == []
    assert hosts(run.searched) == {"a", "b"}
    assert repeated(run.searched) == []


class FailingKeeper(Keeper):
    """A storage that is lost after some writes."""

    writes = 0

    def keep(self, write: object) -> None:
        self.writes += 1
        if self.writes > 6 and self.failure is None:
            self._give_up(OSError(5, "Input/output error"))
        super().keep(write)  # type: ignore[arg-type]


def test_a_storage_that_is_lost_ends_no_lane_and_loses_no_answer(tmp_path: Path) -> None:
    run = OnStations([SimulatedStation("a"), SimulatedStation("b")], keeper=FailingKeeper(tmp_path / "kept.study"))
    result = run.run()
    assert len(run.searched) == 16
    assert hosts(run.searched) == {"a", "b"}
    assert result.verdict == "faster"
    assert any("the study could not be kept" in note for note in result.notes)


def test_a_study_is_kept_with_its_hosts_and_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "kept.study"
    first = OnStations([SimulatedStation("a"), SimulatedStation("b", loses=at(4))], storage=path)
    first.run(trials=8)
    kept = [trial for trial in read_study(path).history if trial.kind in ("baseline", "search")]
    assert {(t.config, t.host, t.outcome) for t in kept} == {(t.config, t.host, t.outcome) for t in first.searched}
    second = OnStations([SimulatedStation("a"), SimulatedStation("c")], storage=path)
    second.run()
    assert len(settled(second.searched)) == 16
    assert repeated(second.searched) == []


# --- Ctrl-C ---


@pytest.fixture
def interrupt() -> tuple[threading.Event, Callable[[], None]]:
    """An event, and what presses Ctrl-C in the main thread once it is set."""
    event = threading.Event()

    def press() -> None:
        if event.is_set():
            event.clear()
            raise KeyboardInterrupt

    return event, press


Interrupt = tuple[threading.Event, Callable[[], None]]


def test_an_interrupt_stops_all_hosts_and_confirms_on_one(interrupt: Interrupt) -> None:
    event, press = interrupt
    station = SimulatedStation("b", interrupts_at=8, on_interrupt=event.set)
    run = OnStations([SimulatedStation("a"), station], watch=press)
    result = run.run(trials=500)
    assert result.stop_reason == "interrupted by the user"
    assert 1 < len(run.searched) < 500
    assert run.lost == []  # what was ended on purpose is no loss
    assert len(hosts(run.confirmed)) == 1


def test_an_interrupt_before_the_baseline_ends_the_run(interrupt: Interrupt) -> None:
    event, press = interrupt
    station = SimulatedStation("a", interrupts_at=1, on_interrupt=event.set)
    with pytest.raises(InterruptedRunError):
        OnStations([station], watch=press).run()


def test_a_cluster_that_is_gone_is_an_error_and_the_study_is_kept(tmp_path: Path) -> None:
    stations = [SimulatedStation("a"), SimulatedStation("b")]

    def watch() -> None:
        if sum(len(each.calls) for each in stations) > 20:
            raise ClusterError("the head node is gone")

    with pytest.raises(ClusterError):
        OnStations(stations, storage=tmp_path / "kept.study", watch=watch).run(trials=200)
    assert len(read_study(tmp_path / "kept.study").history) > 3
