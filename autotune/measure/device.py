"""One face for CPU and accelerators: time marks, synchronisation, memory, precision."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from autotune.errors import UsageError
from autotune.machine.host import MemoryMeter, inspect_host, text_of
from autotune.machine.nvml import NvmlGpu, open_gpu
from autotune.measure.process_memory import reset_peak
from autotune.measure.rank_group import ALONE, RankGroup

Mark = Any
"""A point in a device's time: seconds on CPU, an event on an accelerator. What was passed over is left out."""


class _Event(NamedTuple):
    """An event of an accelerator, and the seconds passed over before it."""

    event: Any
    passed: float


class CpuDevice:
    """Training on the CPU: operators have finished when they return."""

    torch_device = torch.device("cpu")
    is_asynchronous = False
    """Whether operators return before they have run, so that the host runs ahead."""
    passed = 0.0
    """Seconds that were passed over so far."""
    gpu: NvmlGpu | None = None
    """Its state by NVML; ``None`` without."""
    uuid: str | None = None
    """Its UUID or the like; ``None`` for a CPU, and where it has none."""

    def __init__(self) -> None:
        self._host = inspect_host()

    @property
    def name(self) -> str:
        """The CPU's model name."""
        return self._host.cpu_model

    @property
    def amp_modes(self) -> tuple[str, ...]:
        """The precisions the CPU has instructions for; without them they are many times slower."""
        lines = text_of(Path("/proc/cpuinfo")).split("\n")
        flags = next((line for line in lines if line.lower().startswith(("flags", "features"))), "").partition(":")[2]
        instructions = {"bf16": ("avx512_bf16", "amx_bf16", "bf16"), "fp16": ("avx512_fp16", "amx_fp16")}
        return ("off", *(mode for mode, names in instructions.items() if not {*names}.isdisjoint(flags.split())))

    @property
    def memory_limit(self) -> int:
        """Bytes of host memory that this process may use."""
        return self._host.memory_bytes

    def synchronize(self) -> None:
        """Wait until the device has done everything it was asked to do: nothing is pending on a CPU."""

    def clock(self) -> float:
        """Return the seconds of the host's clock, without those passed over."""
        return time.perf_counter() - self.passed

    def mark(self) -> Mark:
        """Mark this point in the stream of work, without waiting: read the clock."""
        return self.clock()

    def pass_over(self, begin: Mark) -> None:
        """Leave the time since a mark out of the clock and of all marks to come."""
        self.passed += self.clock() - begin

    def wait(self, mark: Mark) -> None:
        """Wait until the device has come to a mark; work asked for later goes on."""

    def has_come_to(self, mark: Mark) -> bool:
        """Return, without waiting, whether the device has come to a mark."""
        return True

    def seconds(self, earlier: Mark, later: Mark) -> float:
        """Return the seconds between two marks that the device has come to."""
        return float(later - earlier)

    def peaks(self) -> tuple[int, int] | None:
        """Return peak allocated and reserved bytes; ``None``: host memory is counted over the process tree instead."""
        return None

    def forget_peaks(self) -> None:
        """Free the cache and reset the peaks of memory, this process's."""
        reset_peak()

    allocator_retries = 0
    """How often memory was full so far and the allocator freed its cache: a CPU has none."""
    pinned_bytes = 0
    """Peak of pinned host memory in bytes; nothing is pinned for a CPU."""


class AcceleratorDevice:
    """Training on an accelerator: the host runs ahead, so time is taken from events."""

    is_asynchronous = True
    passed = 0.0

    def __init__(self, device: torch.device, module: Any = None) -> None:
        """Take a device, and the module that drives its kind; torch's own by default."""
        self.torch_device = device
        self._module = module or torch.get_device_module(device)
        self._event = event_maker(self._module, device)
        self.uuid = uuid_of(device)
        self.gpu: NvmlGpu | None = open_gpu(self.uuid)

    @property
    def name(self) -> str:
        """The accelerator's name."""
        get_name = getattr(self._module, "get_device_name", None)
        return str(get_name(self.torch_device)) if get_name else self.torch_device.type

    @property
    def amp_modes(self) -> tuple[str, ...]:
        """The precisions the accelerator has units for."""
        supports_bf16 = getattr(self._module, "is_bf16_supported", None)
        if supports_bf16 is None:
            return ("off", "fp16")
        try:
            has_bf16 = supports_bf16(including_emulation=False)
        except TypeError:  # only CUDA's emulates it
            has_bf16 = supports_bf16()
        return ("off", "bf16", "fp16") if has_bf16 else ("off", "fp16")

    @property
    def memory_limit(self) -> int:
        """Bytes of device memory that this process can have: free ones, and those that its allocator holds.

        The rest is taken by contexts, displays and other processes. A device that shares the host's memory can have
        the page cache too, which its driver does not count as free.
        """
        if hasattr(self._module, "mem_get_info"):
            free = int(self._module.mem_get_info(self.torch_device)[0])
            describe = getattr(self._module, "get_device_properties", None)
            if describe and getattr(describe(self.torch_device), "is_integrated", False):
                free = max(free, MemoryMeter().available())
            reserved = getattr(self._module, "memory_reserved", None)
            return free + (int(reserved(self.torch_device)) if reserved else 0)
        if hasattr(self._module, "recommended_max_memory"):  # mps
            return int(self._module.recommended_max_memory())
        return inspect_host().memory_bytes

    @property
    def pinned_bytes(self) -> int:
        """Peak of pinned host memory in bytes, rounded up as torch's allocator does it; 0 where it does not say."""
        get_stats = getattr(self._module, "host_memory_stats", None)
        return int(get_stats().get("allocated_bytes.peak", 0)) if get_stats else 0

    def synchronize(self) -> None:
        """Wait for the device."""
        self._module.synchronize()

    def clock(self) -> float:
        """Return the seconds of the host's clock, without those passed over."""
        return time.perf_counter() - self.passed

    def mark(self) -> Mark:
        """Record a timing event on the current stream."""
        event = self._event()
        event.record()
        return _Event(event, self.passed)

    def pass_over(self, begin: Mark) -> None:
        """Wait for the device, and leave its time since a mark out of the clock and of all marks to come."""
        end = self.mark()
        self.synchronize()
        self.passed += self.seconds(begin, end)

    def wait(self, mark: Mark) -> None:
        """Wait for an event."""
        mark.event.synchronize()

    def has_come_to(self, mark: Mark) -> bool:
        """Ask an event."""
        return bool(mark.event.query())

    def seconds(self, earlier: Mark, later: Mark) -> float:
        """Return the seconds between two recorded events."""
        passed: float = later.passed - earlier.passed
        return float(earlier.event.elapsed_time(later.event)) / 1e3 - passed

    def peaks(self) -> tuple[int, int] | None:
        """Return peak allocated and peak reserved bytes; the reserved bytes decide whether a configuration fits."""
        if not hasattr(self._module, "max_memory_reserved"):
            used = int(self._module.driver_allocated_memory())  # mps keeps no peak
            return used, used
        return int(self._module.max_memory_allocated()), int(self._module.max_memory_reserved())

    def forget_peaks(self) -> None:
        """Empty the allocator's cache, so that blocks of another size do not count."""
        reset_peak()
        for name in ("empty_cache", "reset_peak_memory_stats", "reset_peak_host_memory_stats"):
            forget = getattr(self._module, name, None)
            if forget:
                forget()

    @property
    def allocator_retries(self) -> int:
        """Return the caching allocator's count; memory given back and taken again costs time in every step."""
        get_stats = getattr(self._module, "memory_stats", None)
        return int(get_stats().get("num_alloc_retries", 0)) if get_stats else 0


Device = CpuDevice | AcceleratorDevice


def open_device(name: str, group: RankGroup = ALONE) -> Device:
    """Open the device called ``auto``, ``cpu``, ``cuda:0`` and the like; of several ranks each has one of its own.

    Raises ``UsageError`` when this machine or this build of torch does not have it.
    """
    if name == "auto":
        name = str(torch.accelerator.current_accelerator()) if torch.accelerator.is_available() else "cpu"
    if group.size > 1:
        name = _name_for(name, group)
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UsageError(f"--device {name}: unknown; allowed: auto, cpu, cuda, cuda:0, ...") from None
    if device.type == "cpu":
        return CpuDevice()
    _require_accelerator(name, device)
    index = torch.accelerator.current_device_index() if device.index is None else device.index
    torch.accelerator.set_device_index(index)
    return AcceleratorDevice(torch.device(device.type, index))


def event_maker(module: Any, device: torch.device) -> Callable[[], Any]:
    """Return a maker of timing events that the host waits for asleep, where its device module has them.

    A host that spins in its waits takes a CPU from the loader workers.
    """
    make = getattr(module, "Event", None)
    if make is None:
        return partial(torch.Event, device, enable_timing=True)
    if device.type != "mps":  # its events complain where they could not be made
        with suppress(TypeError):
            make(enable_timing=True, blocking=True)
            return partial(make, enable_timing=True, blocking=True)
    return partial(make, enable_timing=True)


def _name_for(name: str, group: RankGroup) -> str:
    if name == "cpu":
        return name
    if ":" in name:
        raise UsageError(
            f"--device {name}: each of {group.size} ranks has a device of its own: pass {name.split(':')[0]}"
        )
    count = torch.accelerator.device_count()
    if 0 < count < group.size:
        raise UsageError(f"--ranks {group.size}: this machine has {count} accelerators; pass --ranks {count}")
    return f"{name}:{group.rank}"


def uuid_of(device: torch.device) -> str | None:
    """Return the UUID of an accelerator, where it has it."""
    if device.type != "cuda":
        return None
    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    return None if uuid is None else str(uuid)


def _reason_of_cuda(device: torch.device) -> str:
    """Return the words of CUDA's driver, or of torch, for why it cannot be used; empty for other devices."""
    try:
        if device.type == "cuda":
            torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        return f" ({str(error).partition('. ')[0].strip()})"
    return ""


def _require_accelerator(name: str, device: torch.device) -> None:
    if not torch.accelerator.is_available():
        raise UsageError(
            f"--device {name}: torch {torch.__version__} finds no accelerator here{_reason_of_cuda(device)}; "
            "pass --device cpu, or install a torch build for this machine's GPU"
        )
    found: torch.device | None = torch.accelerator.current_accelerator()
    if found is None or found.type != device.type:
        raise UsageError(f"--device {name}: this machine's accelerator is {found}")
    if (device.index or 0) >= torch.accelerator.device_count():
        raise UsageError(f"--device {name}: this machine has {torch.accelerator.device_count()} of them")
