"""The state of the machine during a window: a rate beside a busy neighbour says little.

Counters are read before the window and after it and subtracted; nothing runs inside it.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Container
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import psutil

from autotune.host import text_of, throttled_seconds
from autotune.measure.process_memory import cpu_seconds, process_tree
from autotune.records import Conditions

FOREIGN_SHARE = 0.1
"""Share of the CPUs that others may use; one busy neighbour on two CPUs slowed two threads tenfold."""
LEAST_THREAD_SHARE = 0.05
"""Least share of the time in which a counted thread worked; a loader worker has threads that only pass data on."""
SENDERS = ("QueueFeederThread", "(_serve)")
"""Ends of the names of threads in which multiprocessing sends objects and files."""
SENDER = "sender"
"""The name that these get in the system."""
LEAST_READ = 2**20
"""Bytes below which next to nothing was read: then it does not matter where from."""
FULL_SHARE = 0.85
"""Share of the CPUs in use, by all together, below which others take nothing away."""
HEAT_SHARE = 0.01
"""Share of the window for which heat may keep a GPU's clocks down."""
T = TypeVar("T")
POWER_BRAKE = "hardware power brake"
SLOWDOWNS = {
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: POWER_BRAKE,
}
"""Bits of NVML's clock event reasons that mean the GPU could not run as usual; a software power cap is usual."""


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
    """Seconds in which the main thread was ``waiting`` for a CPU, the cgroup's quota ``throttled`` it, some process on
    the machine waited (``pressure``, PSI), and ``heat`` kept the GPU's clocks down. ``None`` where that is not counted.
    """
    read: dict[int, tuple[int, int]]
    """Per live process: bytes read in all, and bytes of them that came from storage."""
    threads: dict[int, dict[int, float]]
    """Per loader worker: CPU seconds of each of its threads."""
    foreign: dict[int, float] | None = None
    """Per other process: share of the time since the GPU was asked before in which it computed there.
    ``None`` without a GPU, where processes are hidden, and where their use is not sampled."""


def snapshot(root: Path = Path("/"), job: int | None = None, gpu: NvmlGpu | None = None) -> Snapshot:
    """Read the counters; takes a few milliseconds, so only at the ends of a window.

    ``job`` is the process that has started this one as a rank among others: none of them is a neighbour.
    ``gpu`` is the GPU that it trains on.
    """
    times = psutil.cpu_times(percpu=True)
    names = ("user", "nice", "system", "irq", "softirq", "steal")  # guest time is part of user
    schedule = text_of(root / "proc/self/schedstat").split()
    pressure = text_of(root / "proc/pressure/cpu").partition("\n")[0].rpartition("total=")[2]
    return Snapshot(
        own=cpu_seconds(job),
        busy=sum(getattr(times[cpu], name, 0.0) for cpu in _cpus() if cpu < len(times) for name in names),
        lost={
            "waiting": int(schedule[1]) / 1e9 if len(schedule) >= 2 and schedule[1].isdigit() else None,
            "throttled": throttled_seconds(root),
            "pressure": int(pressure) / 1e6 if pressure.isdigit() else None,
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
    cpus = len(_cpus())
    others = None if begin.foreign is None else end.foreign
    pairs = {name: (counted, end.lost.get(name)) for name, counted in begin.lost.items()}
    shares = {name: max(0.0, b - a) / seconds for name, (a, b) in pairs.items() if a is not None and b is not None}
    return Conditions(
        own_cpus=own,
        foreign_cpus=foreign,
        cpus=cpus,
        is_crowded=foreign > FOREIGN_SHARE * cpus and own + foreign > FULL_SHARE * cpus,
        run_queue_share=shares.get("waiting"),
        throttled_share=shares.get("throttled"),
        cpu_pressure_share=shares.get("pressure"),
        storage_share=_storage_share(begin.read, end.read),
        worker_threads=_computing_threads(begin.threads, end.threads, LEAST_THREAD_SHARE * seconds),
        gpu_utilisation=gpu.utilisation if gpu else None,
        gpu_clock_mhz=gpu.clock_mhz if gpu else None,
        gpu_process_bytes=gpu.process_bytes if gpu else None,
        gpu_foreign_bytes=gpu.foreign_bytes if gpu else None,
        gpu_slowdowns=_slowdowns(shares.get("heat"), gpu.slowdowns if gpu else ()),
        gpu_foreign_share=None if others is None else min(1.0, sum(others.values())),
        gpu_foreign_pids=tuple(sorted(others or ())),
        allocator_retries=0,
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
    """Return the share of the bytes read from storage, not the page cache; ``None`` of next to nothing."""
    deltas = [(total - begin[pid][0], stored - begin[pid][1]) for pid, (total, stored) in end.items() if pid in begin]
    total, stored = (sum(each) for each in zip((0, 0), *deltas, strict=True))
    return min(1.0, stored / max(1, total)) if max(total, stored) >= LEAST_READ else None


def _computing_threads(
    begin: dict[int, dict[int, float]], end: dict[int, dict[int, float]], least: float
) -> int | None:
    """Return the most threads that one worker computed in, for ``least`` seconds and a third of its busiest."""
    counts = []
    for pid in begin.keys() & end.keys():
        used = [seconds - begin[pid].get(thread, 0.0) for thread, seconds in end[pid].items()]
        counts.append(sum(seconds >= max(least, max(used) / 3) for seconds in used))
    return max(counts, default=None)


def _cpus() -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


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


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReading:
    """The state of a GPU at the end of a window, while it still works."""

    utilisation: float | None
    """Share of the last sampling period (1/6 to 1 s) in which a kernel ran; says nothing about how well."""
    clock_mhz: int | None
    """Clock of the multiprocessors."""
    process_bytes: int | None
    """Device memory of this process, context and libraries included."""
    foreign_bytes: int | None
    """Device memory of all other processes; ``None`` where processes are hidden, as in some containers."""
    slowdowns: tuple[str, ...]
    """Why the clocks are lower than they could be, where the reason is a fault or heat."""


class NvmlGpu:
    """One GPU, found by UUID: NVML numbers GPUs in another order than CUDA does."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml = nvml
        self._handle = handle
        self._counted = 0

    def read(self) -> GpuReading:
        """Read the GPU's state; ``None`` for values that it does not give."""
        nvml, handle, held = self._nvml, self._handle, self._held()
        rates = _answer(lambda: nvml.nvmlDeviceGetUtilizationRates(handle))
        reasons = _answer(lambda: int(nvml.nvmlDeviceGetCurrentClocksEventReasons(handle)))
        if reasons is None:  # drivers before R530 know the other name only, whatever the library has
            reasons = _answer(lambda: int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)))
        return GpuReading(
            utilisation=None if rates is None else rates.gpu / 100,
            clock_mhz=_answer(lambda: int(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM))),
            process_bytes=held.get(os.getpid()) or None,
            foreign_bytes=_foreign_bytes(held),
            slowdowns=tuple(words for bit, words in SLOWDOWNS.items() if (reasons or 0) & bit),
        )

    def heat_seconds(self) -> float | None:
        """Return the seconds for which heat has kept the clocks down; ``None`` where the driver does not count them."""
        nvml = self._nvml
        ask = partial(nvml.nvmlDeviceGetViolationStatus, self._handle, nvml.NVML_PERF_POLICY_THERMAL)
        return _answer(lambda: ask().violationTime / 1e9)

    def foreign_use(self, own: Container[int]) -> dict[int, float] | None:
        """Return the share of the time since the last call in which each process computed that is not of ``own``."""
        since, self._counted = self._counted, time.time_ns() // 1000  # as NVML's samples are stamped
        samples = _answer(lambda: self._nvml.nvmlDeviceGetProcessUtilization(self._handle, since))
        use: dict[int, list[float]] = {}
        for sample in samples or ():
            if sample.timeStamp > since and sample.smUtil <= 100:  # some entries are never written
                use.setdefault(sample.pid, []).append(sample.smUtil / 100)
        if samples is None or os.getpid() not in use.keys() | self._held().keys():
            return None
        count = max(map(len, use.values()), default=1)  # a process has no sample where it did nothing
        return {pid: sum(shares) / count for pid, shares in use.items() if any(shares) and pid not in own}

    def _held(self) -> dict[int, int | None]:
        """Return the bytes of each process, as far as they are shown."""
        processes = _answer(lambda: self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle))
        return {process.pid: process.usedGpuMemory for process in processes or ()}

    def used_bytes(self) -> int | None:
        """Return the device memory that all processes and the driver hold; ``None`` where it is not told."""
        return _answer(lambda: int(self._nvml.nvmlDeviceGetMemoryInfo(self._handle).used))


def open_gpu(uuid: str | None) -> NvmlGpu | None:
    """Open the GPU, or the part of one (MIG), with this UUID as CUDA reports it; ``None`` without NVML.

    CUDA leaves out the prefix that tells a GPU from a part.
    """
    if uuid is None:
        return None
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # no library, no driver, no permission, another vendor: each means that nothing can be asked
        return None
    names = (uuid, f"GPU-{uuid}", f"MIG-{uuid}")
    handles = [_answer(partial(pynvml.nvmlDeviceGetHandleByUUID, name)) for name in names]
    return next((NvmlGpu(pynvml, handle) for handle in handles if handle is not None), None)


def _foreign_bytes(held: dict[int, int | None]) -> int | None:
    """Return the bytes of others; NVML must show this training process too, to tell it from others."""
    if os.getpid() not in held:
        return None
    others = [used for pid, used in held.items() if pid != os.getpid()]
    known = [used for used in others if used is not None]
    return None if others and not known else sum(known)


def _answer(ask: Callable[[], T]) -> T | None:
    try:
        return ask()
    except Exception:
        return None
