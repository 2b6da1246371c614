"""Host memory and CPU time of this process and its loader workers.

Only memory counts that the kernel cannot take back: it reads pages of mapped files again when they are wanted.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from autotune.machine.host import read_fields


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySample:
    """The memory of the loader workers at one moment."""

    batches: int
    private: dict[int, int]
    """Per worker: bytes that only it holds, without shared memory and pages of files."""
    shared: dict[int, int]
    """Per worker: bytes still shared with its parent, which a write or a change of a reference count copies."""
    in_flight: int
    """Bytes of shared memory (/dev/shm) in batches that were built and not yet received."""
    held: int
    """Bytes of shared memory in anything else, such as a dataset that its workers share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryGrowth:
    """How the workers' memory grew while they built batches."""

    kept_per_batch: float
    """Bytes that all workers together keep per batch built by one of them, in a cache or a leak without a known end."""
    copied_per_batch: float
    """Bytes that they copy for it from pages shared with the parent."""
    copyable: int
    """Bytes that are still shared: the copying ends when they are used up."""

    def copied_after(self, batches: int) -> int:
        """Return the bytes that so many further batches would copy, at most."""
        return round(min(self.copied_per_batch * batches, self.copyable))

    def kept_after(self, batches: int) -> int:
        """Return the bytes that the workers would keep after further ``batches``, if the growth goes on."""
        return round(self.kept_per_batch * batches)


def sample_memory(batches: int, known: Container[int], workers: Iterable[int] | None = None) -> MemorySample:
    """Sample the memory of the loader's workers, or of every child, after so many batches.

    ``known`` are the segments of shared memory that were open before the loader was. Takes some 10 ms for each
    worker, so only outside the window.
    """
    private: dict[int, int] = {}
    shared: dict[int, int] = {}
    segments = open_segments(os.getpid())
    for pid in [child.pid for child in psutil.Process().children(recursive=True)] if workers is None else workers:
        with contextlib.suppress(psutil.Error, OSError, ValueError):
            private[pid], shared[pid] = _private_and_shared(psutil.Process(pid))
            segments |= open_segments(pid)
    held = sum(size for inode, size in segments.items() if inode in known)
    in_flight = sum(segments.values()) - held
    return MemorySample(batches=batches, private=private, shared=shared, in_flight=in_flight, held=held)


def open_segments(pid: int) -> dict[int, int]:
    """Return the shared memory segments of torch that a process keeps open: bytes by inode."""
    segments: dict[int, int] = {}
    with contextlib.suppress(OSError):
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if os.readlink(descriptor).startswith("/dev/shm/torch_"):
                    found = os.stat(descriptor)
                    segments[found.st_ino] = found.st_blocks * 512
    return segments


def growth_between(begin: MemorySample, end: MemorySample) -> MemoryGrowth | None:
    """Return the growth between two samples of the second one's workers.

    ``None`` without workers, where one of them did not live through it, and without batches.
    """
    batches, workers = end.batches - begin.batches, end.private.keys()
    if not workers or not workers <= begin.private.keys() or batches <= 0:
        return None
    grown = max(0, sum(end.private[pid] - begin.private[pid] for pid in workers))
    copied = max(0, sum(begin.shared[pid] - end.shared[pid] for pid in workers))
    copied = min(grown, copied)
    return MemoryGrowth(
        kept_per_batch=(grown - copied) / batches,
        copied_per_batch=copied / batches,
        copyable=sum(end.shared.values()),
    )


def least_growth(first: MemoryGrowth, second: MemoryGrowth) -> MemoryGrowth:
    """Return the growth on which two samples, one after the other, agree.

    Pages that a worker gives back look like copies beside others that it keeps, so they agree on the sum of both.
    """
    copied = min(first.copied_per_batch, second.copied_per_batch)
    both = min(each.kept_per_batch + each.copied_per_batch for each in (first, second))
    return MemoryGrowth(kept_per_batch=both - copied, copied_per_batch=copied, copyable=second.copyable)


def peak_host_bytes(workers: MemorySample) -> int:
    """Return the peak host memory of this process and its loader workers in bytes.

    This process's peak, the private memory of each worker, and every segment of shared memory once. The plain sum of
    resident sizes over-counted 2.3 times; the sum of proportional sizes (PSS) under-counts here, where imported
    libraries are shared with the process that sessions are forked from.

    The kernel keeps a peak (VmHWM) only of everything that is resident. Mapped files and shared memory are subtracted
    at their present size: the peak is too low by later mappings, too high by later unmappings, and never below the
    present use. Steps that reach the same peak again and again make both errors small.
    """
    peak = _status_bytes("VmHWM") - _status_bytes("RssFile") - _status_bytes("RssShmem")
    return max(peak, held_bytes()) + sum(workers.private.values()) + workers.in_flight + workers.held


def held_bytes() -> int:
    """Return the host memory of this process now in bytes, without shared memory and pages of files."""
    return _status_bytes("RssAnon") or int(psutil.Process().memory_info().rss)


def reset_peak() -> None:
    """Forget this process's peak, where the kernel allows it, so that the next one is its own."""
    with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")


def cpu_seconds(pid: int | None = None) -> float:
    """Return the CPU seconds used so far by a process, this one by default, its live workers and those that ended."""
    total = 0.0
    for process in process_tree(pid):
        with contextlib.suppress(psutil.Error):
            total += sum(process.cpu_times()[:4])  # its own, and those of its children that have ended
    return total


def process_tree(pid: int | None = None) -> Iterator[psutil.Process]:
    """Yield a process, this one by default, and everything it has started that still lives."""
    own = psutil.Process(pid)
    yield own
    yield from own.children(recursive=True)


def _private_and_shared(worker: psutil.Process) -> tuple[int, int]:
    """Return the bytes that only this worker holds, and its shared bytes, which a write would copy."""
    if not hasattr(worker, "memory_maps"):  # macOS
        return int(worker.memory_full_info().uss), 0
    maps = worker.memory_maps(grouped=False)
    private = sum(min(each.anonymous, each.private_clean + each.private_dirty) for each in maps)
    return private, sum(each.anonymous for each in maps) - private


def _status_bytes(name: str) -> int:
    """Return a size from this process's status; ``ru_maxrss`` would include the parent's at the time of exec."""
    size = read_fields(Path("/proc/self/status"), ":").get(name)
    return int(size.removesuffix("kB")) * 1024 if size else 0
