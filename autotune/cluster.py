"""A running Ray cluster: its hosts, and the tuner's outpost on each. With ``remote`` and ``connecting`` all of Ray.

An outpost is an actor that reserves all CPUs and GPUs of its host: nothing else runs beside a trial that asks Ray for
some.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

import cloudpickle

from autotune.budget import Clock
from autotune.config import Config
from autotune.connecting import HOW_TO_START, answers, connect, import_ray, require_own_host, silence
from autotune.errors import AutotuneError, ClusterError, UsageError
from autotune.likeness import Described, difference, largest_group
from autotune.outpost import Outpost
from autotune.records import Request
from autotune.remote import RemoteHost
from autotune.workload import WorkloadSource

__all__ = ["Cluster"]

PATIENCE, PATIENCE_SHARE = 60.0, 0.25
"""Seconds for which a host is waited for that others have reserved, and share of the budget, whichever is less."""
TICK = 0.2
"""Seconds between two looks at whether the hosts have answered."""
BETWEEN_WATCHES, MOST_SILENCES = 2.0, 2
"""Seconds between two looks at the head node, and how many in a row may be in vain before it is gone."""
BETWEEN_NODES = 5.0
"""Seconds between two looks at which hosts there are."""
TELL_AFTER = 3.0
"""Seconds after which it is said what is waited for."""
LAST_SECONDS = 5.0
"""Seconds in which Ray must have let go of everything."""


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
