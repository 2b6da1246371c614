"""The memory of forked workers, by what they are known to hold.

``test_process_memory`` runs these tests in a process of their own, whose forks share little else.
"""

from __future__ import annotations

import gc
import mmap
import os
import tempfile
import time
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager

import numpy as np
import psutil
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from autotune.measure.loader import BatchStream, CountingCollate
from autotune.measure.process_memory import (
    MemoryGrowth,
    MemorySample,
    growth_between,
    held_bytes,
    open_segments,
    peak_host_bytes,
    reset_peak,
    sample_memory,
)

MIB = 1 << 20
WORKERS = 2
PREFETCH = 4


class Images(Dataset[torch.Tensor]):
    item_bytes = 4 * MIB

    def __len__(self) -> int:
        return 10_000

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.02)
        return torch.ones(self.item_bytes // 4)


class Keeping(Images):
    """Every item leaves 1 MiB behind, on pages of its own: the heap may hold free ones that are shared."""

    def __init__(self, data: torch.Tensor | None = None) -> None:
        self._data = data
        self._kept: list[mmap.mmap] = []

    def __getitem__(self, index: int) -> torch.Tensor:
        pages = mmap.mmap(-1, MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        pages.write(b"x" * MIB)
        self._kept.append(pages)
        return torch.zeros(1) if self._data is None else self._data.sum().reshape(1)


class Named(Images):
    """Every item looks at the names of a thousand others, which changes their reference counts."""

    def __init__(self) -> None:
        self.names = [f"{index:040}.jpg" for index in range(300_000)]

    def __getitem__(self, index: int) -> torch.Tensor:
        chosen = torch.randint(len(self.names), (1000,), generator=torch.Generator().manual_seed(index))
        return torch.tensor([len(self.names[number]) for number in chosen.tolist()]).sum()


class InMemory(Images):
    def __init__(self, data: torch.Tensor | np.ndarray) -> None:
        self._data = data

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(float(self._data[::64].sum()))


class Mapped(Keeping):
    """Every item reads 8 MiB of a file, and leaves 1 MiB behind."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._parts = np.memmap(path, dtype=np.uint8, mode="r").reshape(-1, 8 * MIB)

    def __getitem__(self, index: int) -> torch.Tensor:
        return super().__getitem__(index) + int(self._parts[index % len(self._parts)][::4096].sum())


@contextmanager
def workers_on(dataset: Images) -> Iterator[tuple[BatchStream, Callable[[], MemorySample]]]:
    """Two forked workers after their first batch, and how to look at them once the queue is full.

    What this process has imported is frozen: collecting garbage among it would copy its pages.
    """
    gc.collect()
    gc.freeze()
    known, counter = open_segments(os.getpid()), CountingCollate(None, WORKERS)
    loader = DataLoader(
        dataset, 1, num_workers=WORKERS, prefetch_factor=PREFETCH, multiprocessing_context="fork", collate_fn=counter
    )
    stream = BatchStream(loader, counter)
    try:
        next(stream)
        yield stream, lambda: sample_full(stream, known)
    finally:
        stream.close()
        gc.unfreeze()


def sample_full(stream: BatchStream, known: Container[int]) -> MemorySample:
    """Look at the workers when all are idle."""
    deadline = time.monotonic() + 60
    while stream.ready < WORKERS * PREFETCH:
        assert time.monotonic() < deadline, "the queue never filled"
        time.sleep(0.01)
    time.sleep(0.2)  # the last batch is on its way
    return sample_memory(stream.produced, known)


def growth_over(dataset: Images, batches: int) -> tuple[MemorySample, MemoryGrowth]:
    with workers_on(dataset) as (stream, look):
        begin = look()
        for _ in range(batches):
            next(stream)
        growth = growth_between(begin, look())
    assert growth is not None
    return begin, growth


def test_a_full_queue_is_in_flight() -> None:
    with workers_on(Images()) as (_, look):
        in_flight = look().in_flight
    queue = WORKERS * PREFETCH
    assert (queue - 1) * Images.item_bytes <= in_flight <= (queue + 0.1) * Images.item_bytes


def test_what_a_worker_keeps_of_every_batch_is_its_growth() -> None:
    _, growth = growth_over(Keeping(), 40)
    assert 0.9 * MIB <= growth.kept_per_batch <= 1.25 * MIB
    assert growth.copied_per_batch < 0.1 * MIB
    _, growth = growth_over(Keeping(torch.ones(100 * MIB // 4).share_memory_()), 40)  # they map shared memory, too
    assert 0.9 * MIB <= growth.kept_per_batch <= 1.25 * MIB


def test_pages_of_a_file_that_a_worker_reads_are_no_memory() -> None:
    reset_peak()
    with tempfile.NamedTemporaryFile() as file:
        file.truncate(4096 * MIB)
        dataset = Mapped(file.name)
        begin, growth = growth_over(dataset, 40)
        assert 0.9 * MIB <= growth.kept_per_batch <= 1.25 * MIB
        before, read = peak_host_bytes(begin), [dataset[index] for index in range(40)]
        assert psutil.Process().memory_info().rss > before + 200 * MIB
        assert peak_host_bytes(begin) < before + 40 * MIB + 20 * MIB  # what the items leave behind
    assert not any(read)


def test_looking_at_objects_copies_their_pages_into_each_worker() -> None:
    dataset = Named()
    begin, growth = growth_over(dataset, 40)
    copied = 40 * growth.copied_per_batch
    assert copied > 5 * MIB
    assert copied <= sum(begin.shared.values())
    assert growth.copied_per_batch > 4 * growth.kept_per_batch
    assert growth.copied_after(10**6) <= growth.copyable


@pytest.mark.parametrize("kind", ["private", "shared"])
def test_data_in_the_memory_of_all_is_counted_once(kind: str) -> None:
    reset_peak()
    size = 100 * MIB
    without = held_bytes()
    data = np.ones(size // 8) if kind == "private" else torch.empty(size // 4).share_memory_().fill_(1.0)
    with workers_on(InMemory(data)) as (_, look):
        peak = peak_host_bytes(look())
        plain_sum = sum(int(process.memory_info().rss) for process in [psutil.Process(), *psutil.Process().children()])
    assert plain_sum > without + 3 * size
    assert size * 0.9 <= peak - without <= size * 1.8
