"""What NVML says of the GPU that trains: utilisation, memory of the process, clocks, reasons for lower clocks.

NVML may be absent, old, or may not support a question on this GPU; then the answer is ``None``, never an error.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

__all__ = ["GpuReading", "NvmlGpu", "open_gpu"]

T = TypeVar("T")

SLOWDOWNS = {
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}
"""Bits of NVML's clock event reasons that mean the GPU could not run as usual; a software power cap is usual."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReading:
    """One look at a GPU; taken at the end of a window, while it still works."""

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

    def read(self) -> GpuReading:
        """Look at the GPU; what it does not say is ``None``."""
        nvml, handle = self._nvml, self._handle
        held = self._held_bytes()
        rates = _answer(lambda: nvml.nvmlDeviceGetUtilizationRates(handle))
        return GpuReading(
            utilisation=None if rates is None else rates.gpu / 100,
            clock_mhz=_answer(lambda: int(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM))),
            process_bytes=held.get(os.getpid()) or None,
            foreign_bytes=_foreign_bytes(held),
            slowdowns=self._slowdowns(),
        )

    def _held_bytes(self) -> dict[int, int | None]:
        """Return what each process holds, as far as it is shown."""
        processes = _answer(lambda: self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle)) or []
        return {process.pid: process.usedGpuMemory for process in processes}

    def _slowdowns(self) -> tuple[str, ...]:
        # the second name is that of drivers before R530
        names = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
        ask = next((getattr(self._nvml, name) for name in names if hasattr(self._nvml, name)), None)
        reasons = None if ask is None else _answer(lambda: int(ask(self._handle)))
        return tuple(words for bit, words in SLOWDOWNS.items() if (reasons or 0) & bit)


def open_gpu(uuid: str | None) -> NvmlGpu | None:
    """Open the GPU with this UUID, as CUDA reports it (with or without the prefix ``GPU-``); ``None`` without NVML."""
    if uuid is None:
        return None
    try:
        import pynvml

        pynvml.nvmlInit()
        name = uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
        return NvmlGpu(pynvml, pynvml.nvmlDeviceGetHandleByUUID(name))
    except Exception:  # no library, no driver, no permission, another vendor: each means that nothing can be asked
        return None


def _foreign_bytes(held: dict[int, int | None]) -> int | None:
    """Return what others hold; this process, which trains, must be among those shown to tell it from others."""
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
