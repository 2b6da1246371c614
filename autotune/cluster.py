"""A running Ray cluster: its hosts, and the tuner's outpost on each. With ``connecting`` all that speaks to Ray.

An outpost is an actor that reserves all CPUs and GPUs of its host, so nothing else that Ray starts runs beside a trial.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import cloudpickle

from autotune.budget import Clock
from autotune.config import Config
from autotune.connecting import HOW_TO_START, answers, connect, import_ray, reason_of, require_own_host, silence
from autotune.errors import AutotuneError, ClusterError, UsageError
from autotune.likeness import Described, difference, largest_group
from autotune.outpost import Outpost, Refusal, Report
from autotune.records import Attempt, Outcome, Request
from autotune.runner import LEAST_RELOAD, LOAD_LIMIT, RELOAD_FACTOR
from autotune.workload import WorkloadSource

__all__ = ["Cluster", "RemoteHost"]

PATIENCE, PATIENCE_SHARE = 60.0, 0.25
"""Seconds for which a host is waited for that others have reserved, and share of the budget, whichever is less."""
REOPENING = 60.0
"""The same for a host on which an outpost was lost."""
OVERTIME = 60.0
"""Seconds after the end of the budget in which every wait for a host has ended."""
SLACK = 30.0
"""Seconds that an answer may take longer than its own limits say, before its host counts as lost."""
TICK = 0.2
"""Seconds between two looks at whether an answer is there."""
BETWEEN_WATCHES, MOST_SILENCES = 2.0, 2
"""Seconds between two looks at the head node, and how many in a row may be in vain before it is gone."""
BETWEEN_NODES = 5.0
"""Seconds between two looks at which hosts there are."""
TELL_AFTER = 3.0
"""Seconds after which it is said what is waited for."""
LAST_SECONDS = 5.0
"""Seconds in which Ray must have let go of everything."""


class _LostError(Exception):
    """No answer comes any more, or not in time."""


class _OutOfMemoryError(Exception):
    """What ran was ended because it took too much memory."""


class Cluster:
    """The cluster that this host belongs to, from connecting until all is given back."""

    def __init__(
        self, source: WorkloadSource, device: str, baseline: Config, clock: Clock, tell: Callable[[str], object]
    ) -> None:
        """Connect. Raises ``UsageError`` where there is no Ray, or no cluster."""
        self.ray = import_ray()
        self.clock = clock
        self.baseline = baseline
        self._path = source.path
        self._tell = tell
        self.notes: list[str] = []
        """Which hosts take no part, and why."""
        self.lock = threading.Lock()
        self.is_closing = threading.Event()
        self._hosts: dict[str, RemoteHost] = {}
        self._centre: Described | None = None
        self._done: set[str] = set()
        self._looked_at = 0.0
        self._watched_at, self._silences = 0.0, 0
        self._is_gone = False
        self._patience = min(PATIENCE, PATIENCE_SHARE * clock.left)
        self._is_ours = not self.ray.is_initialized()
        if self._is_ours:
            connect(self.ray)
        require_own_host(self.ray)
        arguments = cloudpickle.dumps((source, device, os.getcwd(), PATIENCE_SHARE * clock.left))
        self._outpost = self.ray.put(arguments)  # once for all hosts
        self._quiet = silence()
        self._head = str(self.ray.get_runtime_context().gcs_address)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def gather(self) -> list[RemoteHost]:
        """Wait until the hosts have said what they are, and return the largest group of like ones.

        A host that others have reserved is waited for, for a while. Raises ``UsageError`` where there is none then, and
        what loading the workload raises where it can be loaded nowhere.
        """
        begin, end = time.monotonic(), time.monotonic() + self._patience
        is_told = False
        while not self._is_gathered(end):
            self.watch()
            if not is_told and time.monotonic() > begin + TELL_AFTER and (waiting := self._unreached()):
                self._tell(f"waiting for {waiting} of the Ray cluster: other work has reserved it, or it is starting")
                is_told = True
            time.sleep(TICK)
        ready = self._newly_described()
        if not ready:
            raise self._refusals()
        group, others = largest_group([host.described for host in ready], self._own_name)
        self._centre = group[0]
        for host in ready:
            if host.described.name in others:
                self._leave_out(host, others[host.described.name])
        if waiting := self._unreached():
            self._tell(f"{waiting}: reserved by other work; takes part as soon as it is free")
        found = {host.described.name: host for host in ready}
        used = sorted((found[each.name] for each in group), key=lambda host: (host.memory_bytes, host.name))
        self._tell_of_niceness(used)
        return used  # the first one has the least memory, so what fits there fits everywhere

    def arrivals(self) -> Sequence[RemoteHost]:
        """Return like hosts that have become ready since."""
        self._notice()
        found = []
        for host in self._newly_described():
            assert self._centre is not None
            why = difference(host.described, self._centre)
            if why is None:
                self._tell(f"host {host.name}: takes part from here on")
                found.append(host)
            else:
                self._leave_out(host, why)
        return found

    def watch(self) -> None:
        """Raise ``ClusterError`` where the head node is gone: Ray ends every process that was connected to it soon."""
        with self.lock:
            if time.monotonic() >= self._watched_at + BETWEEN_WATCHES and not self._is_gone:
                self._silences = 0 if answers(self._head) else self._silences + 1
                self._watched_at = time.monotonic()
                self._is_gone = self._silences >= MOST_SILENCES
        if self._is_gone:
            raise ClusterError(
                f"the head node of the Ray cluster, {self._head}, is gone: start the cluster again; the same command "
                "continues what was measured"
            )

    def is_alive(self, node_id: str) -> bool:
        """Tell whether Ray counts a node among the living."""
        return any(node["NodeID"] == node_id and node["Alive"] for node in self._nodes())

    def _nodes(self) -> list[dict[str, Any]]:
        """Return all nodes as Ray has them; none where the head node does not answer, for which Ray waits a minute."""
        return list(self.ray.nodes()) if answers(self._head) else []

    def start(self, host: RemoteHost) -> None:
        """Have an outpost started on a host, unless all are being given back."""
        with self.lock:
            if not self.is_closing.is_set():
                host.actor = self._actor(host)
                host.reached = host.actor.process.remote()
                host.report = host.actor.describe.remote(self.baseline)

    def close(self) -> None:
        """Give every host back, with all that runs there; may be called again."""
        with self.lock:
            is_first = not self.is_closing.is_set()
            self.is_closing.set()
        if not is_first:
            return
        release = threading.Thread(target=self._release, daemon=True)
        release.start()
        release.join(LAST_SECONDS)
        self._quiet()

    def _release(self) -> None:
        for host in self._hosts.values():
            host.drop()
        if self._is_ours:
            self.ray.shutdown()

    def _actor(self, host: RemoteHost) -> Any:
        strategies = importlib.import_module("ray.util.scheduling_strategies")
        remote = self.ray.remote(_outpost_class()).options(
            num_cpus=host.cpus,
            num_gpus=host.gpus,
            max_restarts=0,
            max_task_retries=0,
            max_concurrency=2,
            scheduling_strategy=strategies.NodeAffinitySchedulingStrategy(host.node_id, soft=False),
        )
        return remote.remote(self._path, self._outpost)

    @property
    def _own_name(self) -> str | None:
        own = self._hosts.get(self.ray.get_runtime_context().get_node_id())
        return own.name if own else None

    def _is_gathered(self, end: float) -> bool:
        """Tell whether to begin: every host has answered, or those that others have reserved were waited for."""
        self._notice()
        open_hosts = [host for host in self._hosts.values() if not host.has_answered]
        if self._hosts and not open_hosts:
            return True
        is_late = time.monotonic() >= end
        if is_late and any(host.has_answered and not host.refusal for host in self._hosts.values()):
            return True
        if is_late and not any(host.is_reached for host in open_hosts):
            return True
        return self.clock.left <= 0

    def _notice(self) -> None:
        """Start an outpost on every host that was not seen before."""
        if time.monotonic() < self._looked_at + (BETWEEN_NODES if self._hosts else 0.0):
            return
        self._looked_at = time.monotonic()
        for node in self._nodes():
            cpus = node["Resources"].get("CPU", 0)
            if node["Alive"] and node["NodeID"] not in self._hosts and cpus >= 1:
                host = RemoteHost(
                    cluster=self,
                    node_id=node["NodeID"],
                    name=self._name_of(node),
                    cpus=cpus,
                    gpus=node["Resources"].get("GPU", 0),
                )
                self._hosts[host.node_id] = host
                self.start(host)

    def _name_of(self, node: dict[str, Any]) -> str:
        name = str(node["NodeManagerHostname"])
        taken = {host.name for host in self._hosts.values()}
        return name if name not in taken else f"{name}-{node['NodeID'][:6]}"

    def _newly_described(self) -> list[RemoteHost]:
        """Return the hosts that have said what they are since this was asked last; say which cannot measure."""
        new = [host for host in self._hosts.values() if host.node_id not in self._done and host.has_answered]
        self._done |= {host.node_id for host in new}
        for host in new:
            if host.refusal:
                self._leave_out(host, str(host.refusal))
        return [host for host in new if not host.refusal]

    def _unreached(self) -> str:
        return ", ".join(host.name for host in self._hosts.values() if not host.is_reached)

    def _refusals(self) -> AutotuneError:
        """Return why there is no host to begin with."""
        for host in self._hosts.values():
            if host.has_answered and host.refusal:
                return host.refusal
        who = ", ".join(host.name for host in self._hosts.values())
        if not who:
            return UsageError(f"--engine ray: no host of the Ray cluster offers a CPU; {HOW_TO_START}")
        if any(host.is_reached for host in self._hosts.values()):
            return UsageError(f"--engine ray: {who}: the workload was not loaded within the budget; give a larger one")
        return UsageError(
            f"--engine ray: {who}: reserved by other work in the Ray cluster for the {self._patience:.0f} s that were "
            "waited; wait until that has ended, or give a larger --budget"
        )

    def _tell_of_niceness(self, hosts: Sequence[RemoteHost]) -> None:
        if nice := [host.name for host in hosts if host.niceness > 0]:
            self.notes.append(
                f"Ray let trials run with less priority than all else on {', '.join(nice)}: what else ran there took "
                "CPUs from them first; set RAY_worker_niceness=0 where ray start runs"
            )
            self._tell(self.notes[-1])

    def _leave_out(self, host: RemoteHost, why: str) -> None:
        host.drop()
        self.notes.append(f"host {host.name}: left out: {why}")
        self._tell(self.notes[-1])


@dataclass(slots=True, eq=False, kw_only=True)
class RemoteHost:
    """One host, seen from the tuner."""

    cluster: Cluster
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


def _outpost_class() -> type:
    """Return the class of the actor; made here, it travels whole, and so tells its process where autotune is."""

    class Remote:
        def __init__(self, path: Sequence[str], arguments: bytes) -> None:
            sys.path.extend(entry for entry in path if entry not in sys.path)
            import cloudpickle

            from autotune.outpost import Outpost

            self.outpost: Outpost = Outpost(*cloudpickle.loads(arguments))

        def process(self) -> int:
            return os.getpid()

        def describe(self, baseline: Config) -> Any:
            return self.outpost.describe(baseline)

        def measure(self, config: Config, request: Request) -> Any:
            return self.outpost.measure(config, request)

        def cancel(self) -> None:
            self.outpost.cancel()

    return Remote
