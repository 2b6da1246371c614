"""Remedies for training that waits for data: datasets in the place of the user's, in which some items stand for all."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from statistics import fmean
from typing import Any

import torch
from torch.utils.data import IterableDataset

from autotune.errors import UsageError
from autotune.item_store import CHECKED, InPlaceOf, ItemStore, Stored
from autotune.machine.host import MemoryMeter
from autotune.measure.batch import leaves_in, move, with_tensors
from autotune.measure.loader import GOLDEN, collate_of
from autotune.probes import StoredItems
from autotune.records import Request
from autotune.workload import Workload

ROOM = 0.1
"""Share of what is free on the disk and in memory that the stored items may take."""
TRANSFORM = "transform"
"""Attribute of a dataset that often holds the random part."""


def store_items(workload: Workload, folder: str, seconds: float) -> StoredItems:
    """Store items from all over a dataset in a folder, for so many seconds; where they vary, the transform's input.

    Raises ``UsageError`` where nothing can be stored. Exceptions of the user's code pass through.
    """
    dataset: Any = workload.dataset
    if isinstance(dataset, IterableDataset) or workload.own_batches == "dataset":
        raise UsageError("items have no index: only those of a map-style dataset can be stored")
    if workload.beside:
        raise UsageError("several DataLoaders feed the steps")
    try:
        return _stored(Stored(dataset, ItemStore(folder, len(dataset))), seconds)
    except UsageError:
        if not hasattr(dataset, TRANSFORM):
            raise
    shutil.rmtree(folder)
    return replace(_stored(Stored(dataset, ItemStore(folder, len(dataset)), TRANSFORM), seconds), before=TRANSFORM)


def _stored(items: Stored, seconds: float) -> StoredItems:
    room = ROOM * min(MemoryMeter().available(), shutil.disk_usage(items.store.folder).free)
    sizes, times, begin = list[int](), list[float](), time.perf_counter()
    stride = next(each for each in count(round(GOLDEN * len(items))) if math.gcd(each, len(items)) == 1)
    for place in range(len(items)):
        number, asked = place * stride % len(items), time.perf_counter()
        items[number]
        times.append(time.perf_counter() - asked)
        sizes.append(len(items.store.read(number) or b""))
        if time.perf_counter() - begin > seconds or sum(sizes) > room:
            break
    counted = times[CHECKED:] or [each / 2 for each in times]  # the first ones are read twice
    folder = str(items.store.folder)
    return StoredItems(folder=folder, samples=len(sizes), item_bytes=fmean(sizes), item_seconds=fmean(counted))


def with_remedy(workload: Workload, request: Request, device: torch.device) -> Workload:
    """Return a workload with the remedy of a request: its items are those of the store, over and over.

    Raises ``UsageError`` where the remedy does not go with them.
    """
    assert request.store is not None
    dataset: Any = workload.dataset
    found = Stored(dataset, ItemStore(request.store, len(dataset)), request.before)
    numbers = found.store.stored
    if request.remedy == "stored" or (request.remedy == "in-memory" and request.before):  # which lie in memory now
        return replace(workload, dataset=_Some(found, numbers, dataset))
    items = [found[number] for number in numbers]
    if request.remedy == "in-memory":
        return replace(workload, dataset=_Some(items, range(len(items)), dataset))
    if request.before:
        raise UsageError(f"{request.before} is called with each sample on the CPU")
    batch = move(collate_of(workload)(items), device, non_blocking=False)
    if any(not isinstance(leaf, torch.Tensor) or len(leaf) != len(items) for leaf in leaves_in(batch)):
        raise UsageError("batches are not tensors with a row for each sample")
    return replace(workload, dataset=_OnDevice(batch, range(len(items)), dataset), collate_fn=_as_it_is)


class _Some(InPlaceOf):
    """Some items of a dataset in the place of all."""

    def __init__(self, items: Any, numbers: Sequence[int], dataset: Any) -> None:
        self._items, self._numbers, self._dataset = items, numbers, dataset

    def __getitem__(self, index: int) -> Any:
        return self._items[self._numbers[index % len(self._numbers)]]


class _OnDevice(_Some):
    """Some items as one batch on the device, whose rows make each batch."""

    def __getitems__(self, indices: Sequence[int]) -> Any:
        rows = torch.tensor([index % len(self._numbers) for index in indices])
        return with_tensors(self._items, lambda tensor: tensor[rows.to(tensor.device)])


def _as_it_is(batch: Any) -> Any:
    return batch
