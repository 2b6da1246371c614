"""NVIDIA's GPUs by NVML, the library of their driver, which initialises no CUDA."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

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
class Gpu:
    """One GPU as its driver describes it."""

    uuid: str
    """Stays the same over reboots and renumbering, ``GPU-`` first."""
    name: str
    memory_bytes: int | None
    """All of its memory; ``None`` where the driver does not say."""
    driver: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReading:
    """The state of a GPU at the end of a window, while it still works."""

    utilisation: float | None
    """Share of the last sampling period (1/6 to 1 s) in which a kernel ran; says nothing about how well."""
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

    def describe(self, driver: str) -> Gpu | None:
        """Return the GPU's facts beside its driver's version; ``None`` for a GPU that has fallen off the bus."""
        uuid = _answer(lambda: str(self._nvml.nvmlDeviceGetUUID(self._handle)))
        name = _answer(lambda: str(self._nvml.nvmlDeviceGetName(self._handle)))
        memory = self.memory()  # GPUs that share the host's memory do not say
        size = None if memory is None else int(memory.total)
        return None if uuid is None or name is None else Gpu(uuid=uuid, name=name, memory_bytes=size, driver=driver)

    def read(self) -> GpuReading:
        """Read the GPU's state; ``None`` for values that it does not give."""
        nvml, handle = self._nvml, self._handle
        rates = _answer(lambda: nvml.nvmlDeviceGetUtilizationRates(handle))
        reasons = _answer(lambda: int(nvml.nvmlDeviceGetCurrentClocksEventReasons(handle)))
        if reasons is None:  # drivers before R530 know the other name only, whatever the library has
            reasons = _answer(lambda: int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)))
        return GpuReading(
            utilisation=None if rates is None else rates.gpu / 100,
            foreign_bytes=_foreign_bytes(self.held()),
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
        if samples is None or os.getpid() not in use.keys() | self.held().keys():
            return None
        count = max(map(len, use.values()), default=1)  # a process has no sample where it did nothing
        return {pid: sum(shares) / count for pid, shares in use.items() if any(shares) and pid not in own}

    def held(self) -> dict[int, int | None]:
        """Return the bytes of each process, as far as they are shown."""
        processes = _answer(lambda: self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle))
        return {process.pid: process.usedGpuMemory for process in processes or ()}

    def memory(self) -> Any:
        """Return the bytes of device memory: ``total``, ``used`` by all processes and the driver, and ``free``.

        ``None`` where they are not told.
        """
        return _answer(lambda: self._nvml.nvmlDeviceGetMemoryInfo(self._handle))

    def used_bytes(self) -> int | None:
        """Return the device memory that all processes and the driver hold; ``None`` where it is not told."""
        memory = self.memory()
        return None if memory is None else int(memory.used)


def find_gpus() -> tuple[Gpu, ...]:
    """Return the GPUs in the driver's order; empty without library, driver or GPU."""
    found: list[Gpu | None] = []
    with suppress(Exception), _opened() as nvml:
        driver = str(nvml.nvmlSystemGetDriverVersion())
        found = [gpu.describe(driver) for _, gpu in _all(nvml)]
    return tuple(gpu for gpu in found if gpu is not None)


def memory_holders(full: float) -> list[tuple[int, int, int]]:
    """Return the bytes, process and GPU of all that hold memory of GPUs with less than this share of it free.

    The most come first; 0 bytes where the driver does not tell them.
    """
    found: list[tuple[int, int, int]] = []
    with suppress(Exception), _opened() as nvml:
        for number, gpu in _all(nvml):
            memory = gpu.memory()
            if memory is not None and memory.free < full * memory.total:
                found += [(used or 0, process, number) for process, used in gpu.held().items()]
    return sorted(found, reverse=True)


def open_gpu(uuid: str | None) -> NvmlGpu | None:
    """Open the GPU, or the part of one (MIG), with this UUID as CUDA reports it; ``None`` without NVML.

    CUDA leaves out the prefix that tells a GPU from a part. NVML then stays open in this process.
    """
    nvml = None if uuid is None else _answer(_library)
    if nvml is None:
        return None
    names = (uuid, f"GPU-{uuid}", f"MIG-{uuid}")
    handles = [_answer(partial(nvml.nvmlDeviceGetHandleByUUID, name)) for name in names]
    return next((NvmlGpu(nvml, handle) for handle in handles if handle is not None), None)


def _library() -> Any:
    """Return the initialised library; raises in many ways without library, driver or permission."""
    import pynvml

    pynvml.nvmlInit()
    return pynvml


@contextmanager
def _opened() -> Iterator[Any]:
    nvml = _library()
    try:
        yield nvml
    finally:
        with suppress(Exception):
            nvml.nvmlShutdown()


def _all(nvml: Any) -> Iterator[tuple[int, NvmlGpu]]:
    for number in range(nvml.nvmlDeviceGetCount()):
        handle = _answer(partial(nvml.nvmlDeviceGetHandleByIndex, number))
        if handle is not None:
            yield number, NvmlGpu(nvml, handle)


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
