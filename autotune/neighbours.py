"""Who else uses the CPUs, by name, and whether the machine slept: seen from outside of what is measured."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple

import psutil

__all__ = ["Usage", "busiest", "cpu_usage", "own_processes", "suspended_seconds"]

MOST_NAMED = 3
"""Processes that are named at most."""
LEAST_CPUS = 0.1
"""CPUs that a process must have used to be named."""


class Usage(NamedTuple):
    """What a process has used so far."""

    name: str
    """Its name, as the system has it."""
    seconds: float
    """CPU seconds, in user code and in the kernel."""


def cpu_usage() -> dict[int, Usage]:
    """Return what every process that can be seen from here has used, by its number."""
    found: dict[int, Usage] = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            times = process.cpu_times()
            found[process.pid] = Usage(process.name(), times.user + times.system)
    return found


def own_processes() -> set[int]:
    """Return the numbers of this process and of all that it has started."""
    this = psutil.Process()
    with suppress(psutil.Error):
        return {this.pid, *(child.pid for child in this.children(recursive=True))}
    return {this.pid}


def busiest(
    before: Mapping[int, Usage], after: Mapping[int, Usage], own: set[int], seconds: float
) -> tuple[tuple[str, ...], float]:
    """Return which other processes used the CPUs most in so many seconds, in words, and the CPUs they used together.

    What began and ended meanwhile, and what cannot be seen from here, is not among them.
    """
    used = [
        ((usage.seconds - before[number].seconds if number in before else usage.seconds) / seconds, number, usage.name)
        for number, usage in after.items()
        if number not in own
    ]
    named = [each for each in sorted(used, reverse=True) if each[0] >= LEAST_CPUS][:MOST_NAMED]
    texts = tuple(f"{name} (pid {number}) {cpus:.1f}" for cpus, number, name in named)
    return texts, sum(cpus for cpus, _, _ in named)


def suspended_seconds() -> float:
    """Return for how long the machine has slept so far, as on a closed lid; only differences mean anything."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic()
    return time.time() - time.monotonic()
