"""Host memory and CPU time of this process and its loader workers."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import psutil

__all__ = ["cpu_seconds", "peak_host_bytes", "process_tree", "reset_peak"]

_GONE = (psutil.NoSuchProcess, psutil.AccessDenied)


def peak_host_bytes() -> int:
    """Return the peak host memory of this process and its loader workers in bytes.

    This process's peak resident size, with every page it shares, and what the workers hold that nobody shares:
    the plain sum of resident sizes over-counted 2.3 times. Takes about 7 ms a process, so it is read between
    windows only.
    """
    own, *workers = process_tree()
    return max(_high_water_bytes(), int(own.memory_info().rss)) + sum(map(_unshared_bytes, workers))


def reset_peak() -> None:
    """Forget this process's peak, where the kernel allows it, so that the next one is its own."""
    with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")


def cpu_seconds() -> float:
    """Return the CPU seconds used so far by this process, its live workers and those that have ended."""
    own = os.times()
    total = own.user + own.system + own.children_user + own.children_system
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(*_GONE):
            times = child.cpu_times()
            total += times.user + times.system
    return total


def process_tree() -> Iterator[psutil.Process]:
    """Yield this process and everything it has started that still lives."""
    own = psutil.Process()
    yield own
    yield from own.children(recursive=True)


def _unshared_bytes(process: psutil.Process) -> int:
    with contextlib.suppress(*_GONE):
        return int(process.memory_full_info().uss)
    return 0


def _high_water_bytes() -> int:
    """Return this process's peak resident size; ``ru_maxrss`` would include the parent's at the time of exec."""
    with contextlib.suppress(OSError), open("/proc/self/status", encoding="ascii") as file:
        for line in file:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0
