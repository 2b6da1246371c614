"""Ends a measurement before the kernel kills a process: while it runs, memory is read twice a second.

A reading takes some 0.2 ms, which is 0.04 % of one of the CPUs that are being timed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import psutil

from autotune.limits import format_size
from autotune.machine.host import MemoryMeter, oom_kills, read_fields, shared_memory
from autotune.machine.postmortem import lost_batch
from autotune.outcome import Outcome

INTERVAL = 0.5
"""Seconds between two readings; a process that writes to new memory may take a gibibyte meanwhile."""
NEAR = 4
"""Reserves left below which every call reads memory."""
KILL_SECONDS = 2.0
"""Seconds in which the kernel takes back the memory of a process that it has killed."""
RESERVE_SHARE, LARGEST_RESERVE = 0.03, 2**30
"""Share of the memory that must stay available, and the most bytes of it. The kernel's killer acts close to zero; a
machine in use has several times this share available, so a healthy one is not disturbed."""
LOST_BATCH_LIMIT = 5.0
"""Seconds in which a reply may follow a lost batch: the error may be raised, and then it is the answer."""
FULL = 1 / 64
"""Free share of /dev/shm below which it holds no batch worth speaking of."""


class Watchdog:
    """Watches the memory of the machine, or of the cgroup, from the moment that it is made."""

    def __init__(
        self,
        processes: Callable[[], Iterable[psutil.Process]],
        root: Path = Path("/"),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take a list of the watched processes, and the root of /proc and /sys."""
        self._processes = processes
        self._root = root
        self._clock = clock
        self._meter = MemoryMeter(root)
        self._kills = oom_kills(root)
        self._begin = self._meter.available()
        # a machine that had next to nothing left before is not disturbed by what takes little of it
        self._reserve = min(RESERVE_SHARE * self._meter.total, LARGEST_RESERVE, self._begin / 2)
        _, self._shared, _ = shared_memory()
        self._due = 0.0

    def reason_to_end(self) -> tuple[Outcome, str] | None:
        """Return why the measurement must end now, or ``None``; looks twice a second, more often when little is left.

        Memory taken by others is not its fault: then it is suspect, and not out of memory.
        """
        if self._clock() < self._due:
            return None
        left = self._meter.available()
        self._due = self._clock() + (INTERVAL if left > NEAR * self._reserve else 0.0)
        if left >= self._reserve:
            return None
        gone, own = self._begin - left, self._own()
        if self._kernel_was_first():  # asked last: a process that is being killed holds little
            return None
        sizes = [format_size(size) for size in (left, self._meter.total, self._begin, own)]
        message = "stopped before memory ran out: {} of {} were left, {} at its start; it had taken {}".format(*sizes)
        if own < gone / 2:
            return Outcome.SUSPECT, f"{message}, other programs the rest"
        return Outcome.HOST_OOM, message

    def _kernel_was_first(self) -> bool:
        """Return whether the kernel has just killed a process: then memory comes back, and an answer follows."""
        before, self._kills = self._kills, oom_kills(self._root)
        if before == self._kills:
            return False
        self._due = self._clock() + KILL_SECONDS
        return True

    def _own(self) -> int:
        """Return the unreclaimable bytes of the processes, and the bytes left in shared memory."""
        _, shared, _ = shared_memory()
        return max(0, shared - self._shared) + sum(_proportional_bytes(process) for process in self._processes())


class LostBatch:
    """Notices a batch that its worker could not hand over: training waits for it, and no reply follows."""

    def __init__(self, written: Callable[[], str], clock: Callable[[], float] = time.monotonic) -> None:
        """Take a function that returns the end of the output."""
        self._written = written
        self._clock = clock
        self._seen: float | None = None
        self._due = clock() + INTERVAL

    def is_final(self) -> bool:
        """Return whether a batch was lost and no reply has followed for a while; looks twice a second."""
        if self._clock() < self._due:
            return False
        self._due = self._clock() + INTERVAL
        if self._seen is None and lost_batch(self._written()):
            self._seen = self._clock()
        return self._seen is not None and self._clock() - self._seen > LOST_BATCH_LIMIT


def is_shared_memory_full() -> bool:
    """Return whether /dev/shm has no room for another batch; false where there is none."""
    total, _, free = shared_memory()
    return free < FULL * total


def _proportional_bytes(process: psutil.Process) -> int:
    """Return the bytes of a process that are neither a file's nor in shared memory, its share of what others hold."""
    with suppress(psutil.Error, OSError):
        own = read_fields(Path(f"/proc/{process.pid}/smaps_rollup"), ":").get("Pss_Anon")
        return 1024 * int(own.removesuffix("kB")) if own else int(process.memory_full_info().uss)
    return 0
