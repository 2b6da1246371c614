"""What else the machine was doing during a window: a rate taken beside a busy neighbour says little."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

import psutil

from autotune.measure.memory import cpu_seconds

__all__ = ["CpuLoad", "Snapshot", "snapshot"]

FOREIGN_SHARE = 0.1
"""Share of the CPUs that others may use; one busy neighbour on two CPUs slowed two threads tenfold."""
FULL_SHARE = 0.85
"""Share of the CPUs in use, by all together, below which others take nothing away."""


@dataclass(frozen=True, slots=True)
class CpuLoad:
    """Average number of CPUs in use over a window."""

    own: float
    """By this process and its workers."""
    foreign: float
    """By everything else, the hypervisor's other guests included where they show as steal."""
    cpus: int
    """CPUs that this process may be scheduled on."""

    @property
    def is_disturbed(self) -> bool:
        """Whether others took CPUs that the measurement could have used."""
        busy = self.own + self.foreign
        return self.foreign > FOREIGN_SHARE * self.cpus and busy > FULL_SHARE * self.cpus


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Counters at one moment."""

    clock: float
    """Seconds."""
    own: float
    """CPU seconds used by this process tree."""
    busy: float
    """CPU seconds used by everybody on this process's CPUs."""

    def load_until(self, later: Snapshot) -> CpuLoad:
        """Return the average load between two moments."""
        seconds = later.clock - self.clock
        own = (later.own - self.own) / seconds
        return CpuLoad(own, max(0.0, (later.busy - self.busy) / seconds - own), len(_cpus()))


def snapshot() -> Snapshot:
    """Read the counters; takes a few milliseconds, so only at the ends of a window."""
    times = psutil.cpu_times(percpu=True)
    busy = sum(_busy(times[cpu]) for cpu in _cpus() if cpu < len(times))
    return Snapshot(time.perf_counter(), cpu_seconds(), busy)


def _busy(times: object) -> float:
    names = ("user", "nice", "system", "irq", "softirq", "steal")  # guest time is part of user
    return float(sum(getattr(times, name, 0.0) for name in names))


def _cpus() -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))
