"""One host of a Ray cluster, seen from the tuner: what is asked of its outpost, and what no answer means."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from autotune.budget import Clock
from autotune.config import Config
from autotune.connecting import reason_of
from autotune.errors import AutotuneError, UsageError
from autotune.likeness import Described
from autotune.outpost import Refusal, Report
from autotune.records import Attempt, Outcome, Request
from autotune.runner import LEAST_RELOAD, LOAD_LIMIT, RELOAD_FACTOR

__all__ = ["Connection", "RemoteHost"]

REOPENING = 60.0
"""The same for a host on which an outpost was lost."""
OVERTIME = 60.0
"""Seconds after the end of the budget in which every wait for a host has ended."""
SLACK = 30.0
"""Seconds that an answer may take longer than its own limits say, before its host counts as lost."""
TICK = 0.2
"""Seconds between two looks at whether an answer is there."""


class Connection(Protocol):
    """The cluster that a host belongs to."""

    ray: Any
    """Ray itself."""
    clock: Clock
    """The budget."""
    is_closing: threading.Event
    """Whether all is being given back."""

    def watch(self) -> None:
        """Raise ``ClusterError`` where the cluster is gone."""

    def is_alive(self, node_id: str) -> bool:
        """Tell whether Ray counts a node among the living."""

    def start(self, host: RemoteHost) -> None:
        """Have an outpost started on a host, unless all are being given back."""


class _LostError(Exception):
    """No answer comes any more, or not in time."""


class _OutOfMemoryError(Exception):
    """What ran was ended because it took too much memory."""


@dataclass(slots=True, eq=False, kw_only=True)
class RemoteHost:
    """One host, seen from the tuner."""

    cluster: Connection
    node_id: str
    """Ray's name of it."""
    name: str
    """What the user calls it."""
    cpus: float
    """CPUs that it offers."""
    gpus: float
    """GPUs that it offers."""
    actor: Any = None
    """Its outpost; ``None`` where there is none."""
    reached: Any = None
    """Comes when the outpost runs."""
    report: Any = None
    """Comes when the workload is loaded there."""
    _answer: Report | Refusal | None = None
    _cancelled: threading.Event = field(default_factory=threading.Event)

    @property
    def described(self) -> Described:
        """What the host is."""
        assert isinstance(self._answer, Report)
        return Described(name=self.name, host=self._answer.host, facts=self._answer.facts)

    @property
    def opening(self) -> float:
        """Seconds that loading the workload took there."""
        assert isinstance(self._answer, Report)
        return self._answer.opening

    @property
    def niceness(self) -> int:
        """By how much less than Ray's own processes what is measured there is scheduled."""
        assert isinstance(self._answer, Report)
        return self._answer.niceness

    @property
    def memory_bytes(self) -> int:
        """Its memory."""
        return self.described.host.memory_bytes

    @property
    def is_up(self) -> bool:
        """Whether the tuner has something there that can measure."""
        return self.actor is not None

    @property
    def is_reached(self) -> bool:
        """Whether the host is reserved for the tuner, or was refused."""
        return bool(self.cluster.ray.wait([self.reached], timeout=0)[0])

    @property
    def has_answered(self) -> bool:
        """Whether it has said what it is, or that it cannot."""
        if self._answer is None and self.cluster.ray.wait([self.report], timeout=0)[0]:
            try:
                self._answer = self.cluster.ray.get(self.report)
            except Exception as error:
                last = str(error).strip().splitlines()[-1:] or [type(error).__name__]
                self._answer = Refusal(kind=UsageError, message=f"no outpost could be started there: {last[0].strip()}")
        return self._answer is not None

    @property
    def refusal(self) -> AutotuneError | None:
        """Why it cannot measure; ``None`` where it can."""
        return self._answer.error if isinstance(self._answer, Refusal) else None

    def measure(self, config: Config, request: Request) -> Attempt:
        """Measure there; what ran there is given up where no answer comes in time."""
        begin, actor, cancelled = time.monotonic(), self.actor, self._cancelled
        load = min(LOAD_LIMIT, max(LEAST_RELOAD, RELOAD_FACTOR * self.opening))
        limit = min(request.time_limit + load, max(request.time_limit, self.cluster.clock.left + OVERTIME)) + SLACK
        try:
            if actor is None:
                raise _LostError("nothing of the tuner runs there any more")
            found: Attempt = self._await(actor.measure.remote(config, request), limit, cancelled)
        except _OutOfMemoryError as lost:
            self.reopen()
            return Attempt(outcome=Outcome.HOST_OOM, message=str(lost), seconds=time.monotonic() - begin)
        except _LostError as lost:
            if not cancelled.is_set():
                self.drop()
            message = f"lost with its host, {self.name}: {lost}"
            return Attempt(outcome=Outcome.LOST, message=message, seconds=time.monotonic() - begin)
        return found

    def reopen(self) -> bool:
        """Have a new outpost started, where the host lives; tell whether it is ready."""
        self.drop()
        limit, cancelled = min(REOPENING, self.cluster.clock.left), self._cancelled
        try:
            if not self.cluster.is_alive(self.node_id):
                return False
            self.cluster.start(self)
            return self.actor is not None and isinstance(self._await(self.report, limit, cancelled), Report)
        except _LostError:
            self.drop()
            return False

    def cancel(self) -> None:
        """End what is being measured; the host may be used again."""
        cancelled, self._cancelled = self._cancelled, threading.Event()
        cancelled.set()
        if self.actor is not None:
            self.actor.cancel.remote()

    def drop(self) -> None:
        """Give the host back, and end all that runs there for the tuner."""
        actor, self.actor = self.actor, None
        if actor is not None:
            with suppress(Exception):  # it is gone already
                self.cluster.ray.kill(actor)

    def _await(self, reference: Any, limit: float, cancelled: threading.Event) -> Any:
        """Wait for an answer. Raises ``_LostError`` where none comes."""
        ray, end = self.cluster.ray, time.monotonic() + limit
        while not ray.wait([reference], timeout=TICK)[0]:
            self.cluster.watch()
            if cancelled.is_set() or self.cluster.is_closing.is_set():
                raise _LostError("it was ended")
            if time.monotonic() >= end:
                raise _LostError(f"no answer came within {limit:.0f} s")
        try:
            return ray.get(reference)
        except ray.exceptions.OutOfMemoryError:
            raise _OutOfMemoryError("Ray ended it because the host was low on memory") from None
        except ray.exceptions.RayActorError as error:
            raise _LostError(f"the tuner's outpost there has ended ({type(error).__name__})") from None
        except Exception as error:
            raise _LostError(reason_of(error)) from None
