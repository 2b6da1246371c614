"""Batches from a loader without end, and the count of those built but not yet consumed.

Without that count a measurement rewards a large ``num_workers * prefetch_factor`` for batches that were built
before the clock started.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, default_collate, get_worker_info

from autotune.errors import UserCodeError

__all__ = ["BatchStream", "CountingCollate"]


class CountingCollate:
    """A collate function that also counts the batches each worker builds, in memory shared with the parent."""

    def __init__(self, collate_fn: Callable[[list[Any]], Any] | None, num_workers: int) -> None:
        self._collate = collate_fn or default_collate
        self._slots = torch.zeros(max(1, num_workers), dtype=torch.int64).share_memory_()

    def __call__(self, samples: list[Any]) -> Any:
        """Collate, then count: a batch is ready only when it is built."""
        batch = self._collate(samples)
        worker = get_worker_info()
        self._slots[worker.id if worker else 0] += 1
        return batch

    @property
    def produced(self) -> int:
        """Batches built so far by all workers together."""
        return int(self._slots.sum())


class BatchStream:
    """Iterate a loader epoch after epoch, counting what is consumed and timing each start.

    Raises ``UserCodeError`` when an epoch yields no batch.
    """

    def __init__(self, loader: DataLoader[Any], counter: CountingCollate) -> None:
        self._loader = loader
        self._counter = counter
        self._iterator: Iterator[Any] | None = None
        self._position = 0
        self.consumed = 0
        """Batches handed out so far."""
        self.epochs = 0
        """Epochs begun so far."""
        self.epoch_batches: int | None = None
        """Batches in an epoch: known for a map-style dataset, learnt at the first epoch's end for an iterable one."""
        self.start_seconds: list[float] = []
        """Seconds from asking for an iterator to its first batch, for each epoch."""
        if not isinstance(loader.dataset, IterableDataset):
            self.epoch_batches = len(loader)

    def __next__(self) -> Any:
        """Return the next batch, of the next epoch where this one has ended."""
        if self._iterator is not None:
            try:
                return self._count(next(self._iterator))
            except StopIteration:
                self._iterator = None
                self.epoch_batches = self._position
        return self._start_epoch()

    def _start_epoch(self) -> Any:
        begin = time.perf_counter()
        self._iterator = iter(self._loader)
        try:
            batch = next(self._iterator)
        except StopIteration:
            raise UserCodeError("the dataset yields no batch: an epoch ended before its first one") from None
        self.start_seconds.append(time.perf_counter() - begin)
        self.epochs += 1
        self._position = 0
        return self._count(batch)

    def _count(self, batch: Any) -> Any:
        self.consumed += 1
        self._position += 1
        return batch

    @property
    def steps_left(self) -> int | None:
        """Batches left in the current epoch, ``None`` while the length of an epoch is not known."""
        return None if self.epoch_batches is None else self.epoch_batches - self._position

    @property
    def epoch_samples(self) -> int | None:
        """Samples in an epoch of a map-style dataset."""
        if isinstance(self._loader.dataset, IterableDataset):
            return None
        return len(self._loader.sampler)  # type: ignore[arg-type]  # every sampler of a map-style loader is sized

    @property
    def ready(self) -> int:
        """Batches built and not yet handed out."""
        return self._counter.produced - self.consumed

    def close(self) -> None:
        """Let the workers go.

        Left to the garbage collector after an exception, whose traceback holds the iterator in a cycle, this takes
        torch's limit of five seconds, and a dead worker is reported once more, from wherever the collector runs.
        """
        iterator = self._iterator or self._loader._iterator  # a persistent one keeps its workers after an epoch
        self._iterator = self._loader._iterator = None
        shut_down: Callable[[], None] | None = getattr(iterator, "_shutdown_workers", None)
        if shut_down:
            shut_down()
