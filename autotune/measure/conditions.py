"""The state of the machine during a window: a rate beside a busy neighbour says little.

Counters are read before the window and after it and subtracted; nothing runs inside it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil

from autotune.machine.host import affinity_cpus, text_of, throttled_seconds
from autotune.machine.nvml import POWER_BRAKE, GpuReading, NvmlGpu
from autotune.measure.process_memory import cpu_seconds, process_tree
from autotune.records import Conditions

FOREIGN_SHARE = 0.1
"""Share of the CPUs that others may use; one busy neighbour on two CPUs slowed two threads tenfold."""
LEAST_THREAD_SHARE = 0.05
"""Least share of the time in which a counted thread worked; a loader worker has threads that only pass data on."""
PART_OF_WORK = 0.2
"""CPU time of the threads beside a worker's busiest, over that one's, from which they compute."""
SENDERS = ("QueueFeederThread", "(_serve)")
"""Ends of the names of threads in which multiprocessing sends objects and files."""
SENDER = "sender"
"""The name that these get in the system."""
LEAST_READ = 2**20
"""Bytes below which next to nothing was read: then it does not matter where from."""
WHOLE_PAGES = 2.0
"""Bytes from storage for each byte read, up to which they are the rest of its pages."""
FULL_SHARE = 0.85
"""Share of the CPUs in use, by all together, below which others take nothing away."""
HEAT_SHARE = 0.01
"""Share of the window for which heat may keep a GPU's clocks down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Counters at one moment."""

    clock: float
    """Seconds."""
    own: float
    """CPU seconds used by this process tree, or by that of all ranks."""
    busy: float
    """CPU seconds used by everybody on this process's CPUs."""
    lost: dict[str, float | None]
    """Seconds in which the cgroup's quota ``throttled`` its processes, and in which ``heat`` kept the GPU's clocks
    down. ``None`` where that is not counted."""
    read: dict[int, tuple[int, int]]
    """Per live process: bytes read in all, and bytes of them that came from storage."""
    threads: dict[int, dict[int, float]]
    """Per loader worker: CPU seconds of each of its threads."""
    foreign: dict[int, float] | None = None
    """Per other process: share of the time since the GPU was asked before in which it computed there.
    ``None`` without a GPU, where processes are hidden, and where their use is not sampled."""


def snapshot(job: int | None = None, gpu: NvmlGpu | None = None) -> Snapshot:
    """Read the counters; takes a few milliseconds, so only at the ends of a window.

    ``job`` is the process that has started this one as a rank among others: none of them is a neighbour.
    ``gpu`` is the GPU that it trains on.
    """
    times = psutil.cpu_times(percpu=True)
    names = ("user", "nice", "system", "irq", "softirq", "steal")  # guest time is part of user
    return Snapshot(
        own=cpu_seconds(job),
        busy=sum(getattr(times[cpu], name, 0.0) for cpu in affinity_cpus() if cpu < len(times) for name in names),
        lost={
            "throttled": throttled_seconds(),
            "heat": gpu.heat_seconds() if gpu else None,
        },
        read=_bytes_read(),
        threads=_thread_seconds(),
        foreign=gpu.foreign_use({process.pid for process in process_tree(job)}) if gpu else None,
        clock=time.perf_counter(),
    )


def conditions_between(begin: Snapshot, end: Snapshot, gpu: GpuReading | None = None) -> Conditions:
    """Return the conditions between two moments; ``gpu`` was read near the second."""
    seconds = end.clock - begin.clock
    own = (end.own - begin.own) / seconds
    foreign = max(0.0, (end.busy - begin.busy) / seconds - own)
    cpus = len(affinity_cpus())
    others = None if begin.foreign is None else end.foreign
    pairs = {name: (counted, end.lost.get(name)) for name, counted in begin.lost.items()}
    shares = {name: max(0.0, b - a) / seconds for name, (a, b) in pairs.items() if a is not None and b is not None}
    return Conditions(
        own_cpus=own,
        foreign_cpus=foreign,
        cpus=cpus,
        is_crowded=foreign > FOREIGN_SHARE * cpus and own + foreign > FULL_SHARE * cpus,
        throttled_share=shares.get("throttled"),
        storage_share=_storage_share(begin.read, end.read),
        worker_cpus=_fewest_cpus(end.threads),
        worker_threads=_computing_threads(begin.threads, end.threads, LEAST_THREAD_SHARE * seconds),
        gpu_utilisation=gpu.utilisation if gpu else None,
        gpu_foreign_bytes=gpu.foreign_bytes if gpu else None,
        gpu_slowdowns=_slowdowns(shares.get("heat"), gpu.slowdowns if gpu else ()),
        gpu_foreign_share=None if others is None else min(1.0, sum(others.values())),
        gpu_foreign_pids=tuple(sorted(others or ())),
    )


def _slowdowns(heat: float | None, last: tuple[str, ...]) -> tuple[str, ...]:
    """Return why the GPU was slow; ``last`` are the reasons of the last moment, for what the driver does not count.

    It never counts the power brake. A power cap and limits of the board and its voltage are usual.
    """
    if heat is None:
        return last
    hot = ("thermal slowdown",) if heat > HEAT_SHARE else ()
    return (*hot, *(words for words in last if words == POWER_BRAKE))


def _storage_share(begin: dict[int, tuple[int, int]], end: dict[int, tuple[int, int]]) -> float | None:
    """Return the share of the bytes read from storage, not the page cache.

    ``None`` of next to nothing. ``None`` too of files mapped into memory: their bytes from storage are counted, those
    from the page cache are not, so more come from storage than calls have read.
    """
    deltas = [(total - begin[pid][0], stored - begin[pid][1]) for pid, (total, stored) in end.items() if pid in begin]
    total, stored = (sum(each) for each in zip((0, 0), *deltas, strict=True))
    if max(total, stored) < LEAST_READ or stored > WHOLE_PAGES * total:
        return None
    return float(min(1.0, stored / total))


def _computing_threads(
    begin: dict[int, dict[int, float]], end: dict[int, dict[int, float]], least: float
) -> int | None:
    """Return the most threads that one worker computed in, for ``least`` seconds each.

    Those beside the busiest count where they have a part of its work together: a library divides only some of it.
    """
    counts = []
    for pid in begin.keys() & end.keys():
        seconds = (after - begin[pid].get(thread, 0.0) for thread, after in end[pid].items())
        used = sorted(each for each in seconds if each >= least)
        counts.append(len(used) if sum(used[:-1]) >= PART_OF_WORK * max(used, default=0.0) else 1)
    return max(counts, default=None)


def _fewest_cpus(workers: Iterable[int]) -> int | None:
    found = list[int]()
    for worker in workers:
        with contextlib.suppress(psutil.Error, AttributeError):  # not every system has masks
            found.append(len(psutil.Process(worker).cpu_affinity() or ()))
    return min(found, default=None)


def _bytes_read() -> dict[int, tuple[int, int]]:
    found: dict[int, tuple[int, int]] = {}
    for process in process_tree():
        with contextlib.suppress(psutil.Error, AttributeError, OSError):  # not every system counts this
            counters = process.io_counters()
            found[process.pid] = (counters.read_chars, counters.read_bytes)
    return found


def name_senders() -> None:
    """Name the threads of this process in the system that only send other threads' objects."""
    for thread in threading.enumerate():
        if thread.name.endswith(SENDERS):
            with contextlib.suppress(OSError):
                Path(f"/proc/self/task/{thread.native_id}/comm").write_text(SENDER)


def _thread_seconds() -> dict[int, dict[int, float]]:
    found: dict[int, dict[int, float]] = {}
    for worker in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error, OSError):
            used = {thread.id: thread.user_time + thread.system_time for thread in worker.threads()}
            names = {number: text_of(Path(f"/proc/{worker.pid}/task/{number}/comm")).strip() for number in used}
            found[worker.pid] = {number: used[number] for number in used if names[number] != SENDER}
    return found
