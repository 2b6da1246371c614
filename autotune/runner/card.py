"""NVIDIA's cards as the tuner sees them, by NVML, which initialises no CUDA."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import psutil

from autotune.machine.nvml import NvmlGpu, memory_holders

MOST_NAMED = 3
"""Processes that are named at most."""
PATIENCE, NAP = 10.0, 0.1
"""Seconds for which a killed session's memory is waited for, and between two looks."""
FULL = 0.1
"""Share of a card's memory; with less free, its holders are named."""
SLACK = 256 * 2**20
"""Bytes that may be missing then."""


class Cards:
    """The cards of this tuner's sessions, kept open: a driver may take down a GPU between two sessions otherwise."""

    def __init__(
        self,
        gpus: Sequence[NvmlGpu] = (),
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._gpus, self._clock, self._sleep = gpus, clock, sleep
        self._before: int | None = None
        self.was_killed = False
        """Whether the last session was killed: the driver may still hold its memory."""

    def prepare(self) -> None:
        """Wait before a session is opened, until the memory of one that was killed is back."""
        end, used = self._clock() + PATIENCE, self._used()
        while self.was_killed and _is_more(used, self._before) and self._clock() < end:
            self._sleep(NAP)
            used = self._used()
        self._before, self.was_killed = used, False

    def _used(self) -> int | None:
        """Return the memory in use on all cards; ``None`` where it is not known of one, or there is none."""
        used = [gpu.used_bytes() for gpu in self._gpus]
        known = [each for each in used if each is not None]
        return sum(known) if known and len(known) == len(used) else None


def _is_more(used: int | None, before: int | None) -> bool:
    return used is not None and before is not None and used > before + SLACK


def holders() -> str:
    """Return the processes that hold most memory of full cards, in words; empty where NVML shows none."""
    texts = []
    for used, process, number in memory_holders(FULL)[:MOST_NAMED]:
        amount = f"{used / 2**30:.1f} GiB" if used else "memory"
        texts.append(f"process {process}{_name(process)} holds {amount} of GPU {number}")
    return ", ".join(texts)


def _name(process: int) -> str:
    with suppress(psutil.Error):  # gone, or of another container
        return f" ({psutil.Process(process).name()})"
    return ""
