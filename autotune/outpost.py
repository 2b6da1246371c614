"""The tuner's outpost on a host of a cluster: describes the host and measures there, told from afar.

It lives in a process that the cluster starts, in which each call may run in another thread.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from autotune.config import Config
from autotune.errors import AutotuneError, UsageError, UserCodeError
from autotune.host import Host, inspect_host
from autotune.interrupts import END_AT_ONCE
from autotune.records import Attempt, Request, WorkloadFacts
from autotune.runner import ProcessRunner
from autotune.workload import WorkloadSource

__all__ = ["Outpost", "Refusal", "Report", "memory_reserve"]

SET_BY_THE_CLUSTER = ("OMP_NUM_THREADS",)
"""Environment variables that the cluster sets in its processes, and the measurement must have as the user has them."""
MEMORY_THRESHOLD, MONITOR_MILLISECONDS = "RAY_memory_usage_threshold", "RAY_memory_monitor_refresh_ms"
THRESHOLD = 0.95
"""Share of a host's memory beyond which Ray kills a process of its own, unless the first of these says another, or the
second is 0."""
BEFORE_RAY = 0.02
"""Share of the memory that is left until then when a measurement is ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a host is, and what the workload is there."""

    host: Host
    facts: WorkloadFacts
    opening: float
    """Seconds that loading the workload took."""
    niceness: int
    """By how much less than the cluster's own processes what is measured is scheduled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why nothing can be measured on a host: an error, which need not be one of the host."""

    kind: type[AutotuneError]
    message: str
    details: str = ""

    @property
    def error(self) -> AutotuneError:
        """The error, to be raised where the tuner is."""
        if issubclass(self.kind, UserCodeError):
            return self.kind(self.message, self.details)
        return self.kind(self.message)


class Outpost:
    """Measures on its host, one configuration at a time."""

    def __init__(self, source: WorkloadSource, device: str, folder: str, patience: float) -> None:
        """Take the workload, the device, the folder that the tuner runs in, and how long to wait for an accelerator."""
        self._given = _environment_of_parent()
        reserve = memory_reserve(self._given)
        self._runner = ProcessRunner(source, device, patience=patience, memory_reserve=reserve)
        self._folder = folder
        self._one = threading.Lock()
        self._is_cancelled = False

    def describe(self, baseline: Config) -> Report | Refusal:
        """Load the workload and say what it and the host are."""
        with self._one:
            niceness = self._be_at_home()
            _die_after_what_is_measured()
            begin = time.monotonic()
            try:
                if not os.path.isdir(self._folder):
                    raise UsageError(f"there is no folder {self._folder}: hosts need the same files as the tuner's own")
                os.chdir(self._folder)
                facts = self._runner.inspect(baseline)
            except AutotuneError as error:
                details = getattr(error, "user_traceback", "")
                return Refusal(kind=type(error), message=str(error), details=details)
            opening = time.monotonic() - begin
            return Report(host=inspect_host(), facts=facts, opening=opening, niceness=niceness)

    def measure(self, config: Config, request: Request) -> Attempt:
        """Measure one configuration; failures are outcomes, never exceptions."""
        with self._one:
            self._be_at_home()
            if self._is_cancelled:
                self._is_cancelled = False
                self._runner.close()  # none of its processes is alive
            return self._runner.measure(config, request)

    def cancel(self) -> None:
        """End what is being measured, in another thread, with all its processes."""
        self._is_cancelled = True
        for end in tuple(END_AT_ONCE):
            with suppress(OSError):
                end()

    def _be_at_home(self) -> int:
        """Have the environment and the priority that the user has given the cluster's own processes on this host.

        Returns what is missing of the priority.
        """
        for name in SET_BY_THE_CLUSTER:
            _restore(name, self._given)
        return _be_scheduled_as_parent()


def memory_reserve(given: Mapping[str, str]) -> float:
    """Return the share of the memory that must stay available for Ray not to end the outpost itself.

    Ray looks four times a second; the only process of its own that it finds here is the outpost.
    """
    if given.get(MONITOR_MILLISECONDS) == "0":
        return 0.0
    try:
        threshold = float(given.get(MEMORY_THRESHOLD, THRESHOLD))
    except ValueError:
        threshold = THRESHOLD
    return max(0.0, 1 - threshold + BEFORE_RAY)


def _be_scheduled_as_parent() -> int:
    """Undo for this thread that Ray makes its workers nice, which only root may; return by how much it still is.

    On Linux each thread has a priority of its own, and what a thread starts has that of the thread.
    """
    with suppress(OSError):
        wanted = os.getpriority(os.PRIO_PROCESS, os.getppid())
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, wanted)
        return os.getpriority(os.PRIO_PROCESS, 0) - wanted
    return 0


def _die_after_what_is_measured() -> None:
    """Where memory runs out, have the kernel's killer take what is measured first: Ray wants its workers taken."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("0", encoding="ascii")


def _environment_of_parent() -> Mapping[str, str]:
    with suppress(psutil.Error):
        return psutil.Process(os.getppid()).environ()
    return {}


def _restore(name: str, given: Mapping[str, str]) -> None:
    if name in given:
        os.environ[name] = given[name]
    else:
        os.environ.pop(name, None)
