"""The hosts of a cluster side by side in one search, a lane for each; what is compared runs on one of them.

A host may be lost at any time. What it was measuring is measured elsewhere, and the search goes on with the others.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from autotune.config import Config
from autotune.errors import AutotuneError, NothingFeasibleError, UsageError, UserCodeError
from autotune.likeness import Described
from autotune.records import Attempt, Outcome, Request, Runner, Trial
from autotune.report.words import rate_text
from autotune.search.attempt import HostLostError, measure_once_more
from autotune.search.board import Board, Seat
from autotune.search.losses import MOST_LOSSES
from autotune.search.stages import Search
from autotune.search.stopping import Ending, Stop

__all__ = ["Lanes", "OpenSearch", "Station"]

TOLERANCE = 0.15
"""Share by which a host's baseline may differ from the first host's: hosts that look alike may not be equally fast."""
MOST_FAILURES = 2
"""Hosts on which the baseline may fail before it is said to fail: one host may be sick."""
TICK = 0.2
"""Seconds between two looks at how the lanes stand."""
LAST_SECONDS = 10.0
"""Seconds in which a lane that is stopped has ended."""
LEAST_CHECK, CHECK_FACTOR = 30.0, 10.0
"""A host's own baseline is stuck after so many times the first host's seconds, and so many at least."""
NO_HOST = "no host is left that could measure"


class Station(Protocol):
    """A host of a cluster, which measures one configuration at a time."""

    @property
    def described(self) -> Described:
        """What the host is."""

    @property
    def opening(self) -> float:
        """Seconds that loading the workload took there."""

    @property
    def is_up(self) -> bool:
        """Whether the tuner has something there that can measure."""

    def measure(self, config: Config, request: Request) -> Attempt:
        """Measure; ``Outcome.LOST`` where the host, or what ran on it for the tuner, is gone."""

    def reopen(self) -> bool:
        """Make a host ready again on which what ran was lost; tell whether it is."""

    def cancel(self) -> None:
        """End what is being measured."""

    def drop(self) -> None:
        """Give the host back."""


OpenSearch = Callable[[Seat, Runner, float, Callable[[float], object]], Search]
"""Opens the search of one host: its seat, what measures, the seconds of loading, and how it waits."""


class _StoppedError(Exception):
    """The search is over."""


@dataclass(slots=True, eq=False)
class _Lane:
    """One host's part in the search."""

    station: Station
    seat: Seat
    search: Search
    thread: threading.Thread
    losses: int = 0
    """How often what ran there was lost."""
    is_up: bool = True
    """Whether nothing was lost since it was opened."""
    is_sound: bool = False
    """Whether its baseline is the first host's."""
    is_left_out: bool = False
    """Whether it is known not to be."""

    @property
    def name(self) -> str:
        return self.station.described.name


@dataclass(slots=True)
class Lanes:
    """The hosts; as a runner, the one on which what is compared is measured."""

    stations: Sequence[Station]
    """Those that are ready, like one another."""
    tell: Callable[[str], object]
    """Hears what becomes of hosts."""
    arrivals: Callable[[], Sequence[Station]] = tuple
    """Returns the hosts that have come since it was asked last."""
    watch: Callable[[], None] = lambda: None
    """Raises where there is no cluster any more."""
    notes: list[str] = field(default_factory=list)
    """What became of hosts that did not take part to the end."""
    current: Station | None = field(default=None, init=False)
    """The host that compares, once the search is over."""
    _lanes: list[_Lane] = field(default_factory=list, init=False)
    _failures: list[AutotuneError] = field(default_factory=list, init=False)
    _error: BaseException | None = field(default=None, init=False)
    _stop: Stop | None = field(default=None, init=False)
    _first: threading.Lock = field(default_factory=threading.Lock, init=False)
    """Held while the first baseline is measured: on one host at a time."""
    _is_over: threading.Event = field(default_factory=threading.Event, init=False)

    def search(self, board: Board, open_search: OpenSearch) -> Stop:
        """Search on all hosts until each has found a reason to stop; return the last one's.

        Raises what ``Search.run`` does, but for a host that is lost, and what ``watch`` does.
        """
        try:
            for station in self.stations:
                self._begin(station, board, open_search)
            while self._goes_on:
                self.watch()
                for station in self.arrivals() if self._stop is None else ():
                    self._begin(station, board, open_search)
                self._is_over.wait(TICK)
        finally:
            self._end()
        if self._error is not None:
            raise self._error
        if self._stop is None and not board.has_baseline:
            raise self._failures[0] if self._failures else NothingFeasibleError(NO_HOST)
        return self._stop or Stop(Ending.NO_HOST, NO_HOST)

    @property
    def _goes_on(self) -> bool:
        """Whether a lane is still searching; one whose host is only being opened again is not waited for."""
        waits_for_hosts = self._stop is None
        return self._error is None and any(
            lane.thread.is_alive() and (lane.is_up or waits_for_hosts) for lane in self._lanes
        )

    def measure(self, config: Config, request: Request) -> Attempt:
        """Measure on the host that compares. Raises ``HostLostError`` where there is none."""
        if self.current is None:
            raise HostLostError(NO_HOST)
        return _measured(self.current, config, request)

    def close(self) -> None:
        """End what is being measured there."""
        if self.current is not None:
            self.current.cancel()

    def move_on(self) -> bool:
        """Compare on another host, after the one that did was lost; tell whether there is one."""
        for lane in self._lanes:
            if lane.station is self.current:
                self._lose(lane, "lost in the middle of a comparison, which begins anew where a host is left")
        self._choose()
        return self.current is not None

    def _begin(self, station: Station, board: Board, open_search: OpenSearch) -> None:
        seat = board.seat(station.described.name)
        search = open_search(seat, _OnHost(station, self._is_over), station.opening, self._pause)
        lane = _Lane(station, seat, search, threading.Thread(daemon=True))
        lane.thread = threading.Thread(target=self._work, args=(lane, board), daemon=True)
        self._lanes.append(lane)
        lane.thread.start()

    def _end(self) -> None:
        """Stop the lanes that go on, and choose the host that compares."""
        self._is_over.set()
        running = [lane for lane in self._lanes if lane.thread.is_alive()]
        end = time.monotonic() + LAST_SECONDS
        while running and time.monotonic() < end:
            for lane in running:
                lane.station.cancel()  # again, in case that a measurement was just beginning
            running[0].thread.join(LAST_SECONDS / 5)
            running = [lane for lane in running if lane.thread.is_alive()]
        self._choose()

    def _choose(self) -> None:
        """Choose what is up before what has to be opened again, and what was never lost before what was.

        Where there was no time to compare baselines, one that was not compared does: it measures both sides.
        """
        self.current = None
        for lane in sorted(self._lanes, key=lambda lane: (not lane.is_sound, not lane.is_up, lane.losses)):
            if not lane.is_left_out and lane.losses < MOST_LOSSES and (lane.is_up or lane.station.reopen()):
                self.current, lane.is_up = lane.station, True
                return

    def _pause(self, seconds: float) -> None:
        if self._is_over.wait(seconds):
            raise _StoppedError

    def _work(self, lane: _Lane, board: Board) -> None:
        """Search on one host, and once more after a loss."""
        try:
            while not self._is_over.is_set():
                try:
                    if self._takes_part(lane, board):
                        self._stop = lane.search.run()
                    return
                except HostLostError as lost:
                    lane.search.study.abandon()
                    self._lose(lane, str(lost))
                    _require_hope(board, str(lost))
                    if lane.losses >= MOST_LOSSES or not lane.station.reopen():
                        return
                    lane.is_up = True
        except _StoppedError:
            pass
        except BaseException as error:
            self._error = self._error or error
            self._is_over.set()
        finally:
            lane.seat.leave()

    def _lose(self, lane: _Lane, what: str) -> None:
        lane.losses += 1
        lane.is_up = False
        is_last = lane.losses >= MOST_LOSSES
        self._say(f"host {lane.name}: {what}{'; it is not used any more' if is_last else ''}")
        if is_last:
            lane.station.drop()

    def _takes_part(self, lane: _Lane, board: Board) -> bool:
        """Have the first baseline measured, or this host's own compared with it; tell whether it takes part."""
        with self._first:
            if self._is_over.is_set():
                return False
            if not board.has_baseline:
                return self._opens(lane, board)
        lane.search.open()
        baseline = lane.search.study.trials[0]
        if not lane.is_sound and baseline.host != lane.name:
            if lane.search.left < baseline.seconds:
                return False  # it is too late to be of any use
            why = self._what_differs(lane, baseline)
            if why is not None:
                self._leave_out(lane, why)
                return False
        lane.is_sound = True
        return True

    def _leave_out(self, lane: _Lane, why: object) -> None:
        lane.is_left_out = True
        self._say(f"host {lane.name}: left out: {why}")
        lane.station.drop()

    def _opens(self, lane: _Lane, board: Board) -> bool:
        """Measure the first baseline; a single host on which that fails is left out."""
        try:
            lane.search.open()
        except (UserCodeError, NothingFeasibleError, UsageError) as error:
            self._failures.append(error)
            if board.has_baseline or len(self._failures) >= MOST_FAILURES:  # where it is known, it is what is wrong
                raise self._failures[-1 if board.has_baseline else 0] from None
            self._leave_out(lane, error)
            return False
        lane.is_sound = True
        return True

    def _what_differs(self, lane: _Lane, baseline: Trial) -> str | None:
        """Return why a host cannot take part, by a measurement of its own of the baseline."""
        search = lane.search
        limit = min(max(LEAST_CHECK, CHECK_FACTOR * baseline.seconds), max(LEAST_CHECK, search.left))
        request = Request(seconds=search.longest_window, time_limit=limit)
        search.report("baseline", running=baseline.config)
        found = measure_once_more(
            search.runner, baseline.config, request, lambda attempt: search.left > 0, if_disturbed=True
        )
        if found.outcome is Outcome.LOST:
            raise HostLostError(found.message)
        if found.measurement is None or baseline.rate is None:
            return f"the baseline fails there ({found.outcome}): {found.message}"
        if Outcome.SUSPECT in (found.outcome, baseline.outcome):
            return None  # measured while a machine was disturbed, which says nothing of the hosts
        rate = found.measurement.samples_per_second
        if abs(rate / baseline.rate - 1) <= TOLERANCE:
            return None
        return (
            f"the baseline gives {rate_text(rate)} samples/s there and {rate_text(baseline.rate)} on "
            f"{baseline.host or 'the host of the study so far'}; hosts that look alike should be equally fast"
        )

    def _say(self, message: str) -> None:
        self.notes.append(message)
        self.tell(message)


@dataclass(frozen=True, slots=True)
class _OnHost:
    """Measures for one lane, for as long as the search goes on."""

    station: Station
    is_over: threading.Event

    def measure(self, config: Config, request: Request) -> Attempt:
        self._go_on()
        if not self.station.is_up:  # lost while a measurement was repeated, of which the first was kept
            raise HostLostError("lost with its last measurement")
        attempt = _measured(self.station, config, request)
        self._go_on()
        return attempt

    def _go_on(self) -> None:
        if self.is_over.is_set():
            raise _StoppedError


def _measured(station: Station, config: Config, request: Request) -> Attempt:
    return replace(station.measure(config, request), host=station.described.name)


def _require_hope(board: Board, lost: str) -> None:
    """Raise ``NothingFeasibleError`` where the baseline itself was lost too often."""
    if board.lost_baselines >= MOST_LOSSES:
        raise NothingFeasibleError(f"the baseline was lost {board.lost_baselines} times with its host: {lost}")
