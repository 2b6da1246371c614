"""Datasets that loader workers import by name, under every start method."""

from __future__ import annotations

import itertools
import os
import time
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

if TYPE_CHECKING:
    from collections.abc import Iterator


class Squares(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    def __init__(self, length: int = 10) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.tensor([float(index)]), torch.tensor([float(index * index)])


class CountingUp(IterableDataset[torch.Tensor]):
    def __init__(self, length: int) -> None:
        self._length = length

    def __iter__(self) -> Iterator[torch.Tensor]:
        return (torch.tensor([float(index)]) for index in range(self._length))


class Divided(CountingUp):
    def __iter__(self) -> Iterator[torch.Tensor]:
        worker = get_worker_info()
        numbers = super().__iter__()
        return itertools.islice(numbers, worker.id, None, worker.num_workers) if worker else numbers


class OneShard(CountingUp):
    def __iter__(self) -> Iterator[torch.Tensor]:
        worker = get_worker_info()
        return iter(()) if worker and worker.id else super().__iter__()


class Shards(IterableDataset[torch.Tensor]):
    """Samples in shards, which workers take in turns and read whole."""

    def __init__(self, *sizes: int) -> None:
        self._sizes = sizes

    def __iter__(self) -> Iterator[torch.Tensor]:
        worker = get_worker_info()
        shards = range(worker.id if worker else 0, len(self._sizes), worker.num_workers if worker else 1)
        return (torch.tensor([1000.0 * shard + k]) for shard in shards for k in range(self._sizes[shard]))


class SlowToOpen(Squares):
    """Each process that reads it sleeps before its first item, as one that opens files or an archive."""

    def __init__(self, length: int, seconds: float) -> None:
        super().__init__(length)
        self._seconds = seconds
        self._opened_by: int | None = None

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if self._opened_by != os.getpid():
            time.sleep(self._seconds)
            self._opened_by = os.getpid()
        return super().__getitem__(index)


def first_elements(samples: list[Any]) -> dict[str, torch.Tensor]:
    return {"x": torch.stack([sample[0] for sample in samples])}
