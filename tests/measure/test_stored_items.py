"""Remedies as datasets: some items stand for all, each read from the store, from memory or from the device."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, IterableDataset

from autotune.config import Config
from autotune.errors import UsageError
from autotune.item_store import CHECKED
from autotune.measure.loader import open_stream
from autotune.measure.remedies import store_items, with_remedy
from autotune.records import RemedyName, Request
from autotune.workload import Beside, Workload

CPU = torch.device("cpu")


class Numbers(Dataset[Any]):
    """Items that are full of their number; how often each was read."""

    def __init__(self, length: int = 50, transform: Any = None) -> None:
        self.length, self.reads = length, dict[int, int]()
        if transform:
            self.transform = transform

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        self.reads[index] = self.reads.get(index, 0) + 1
        image = np.full((4, 5), index)
        return torch.from_numpy(self.transform(image) if hasattr(self, "transform") else image), index


def noisy(image: Any) -> Any:
    return image


class Noisy(Numbers):
    def __getitem__(self, index: int) -> Any:
        return self.transform(np.full((4, 5), float(index))), index


def workload(dataset: Any, **options: Any) -> Workload:
    return Workload(nn.Linear(1, 1), dataset, **options)


def seen(given: Workload, folder: Path, remedy: RemedyName, before: str | None = None) -> list[Any]:
    """Return batches of two epochs with a remedy."""
    request = Request(seconds=0.0, store=str(folder), remedy=remedy, before=before)
    stream = open_stream(with_remedy(given, request, CPU), Config(batch_size=10))
    return [next(stream) for _ in range(2 * len(given.dataset) // 10)]  # type: ignore[arg-type]


@pytest.mark.parametrize("remedy", ["stored", "in-memory", "on-device"])
def test_a_remedy_gives_whole_epochs_of_stored_items_and_reads_no_other(remedy: RemedyName, tmp_path: Path) -> None:
    given = workload(Numbers())
    found = store_items(given, str(tmp_path / "items"), 10.0)
    assert found.samples == len(given.dataset.reads) == 50  # type: ignore[attr-defined]
    assert 4 * 5 * 8 < found.item_bytes < 4 * 5 * 8 + 400
    before = dict(given.dataset.reads)  # type: ignore[attr-defined]
    batches = seen(given, tmp_path / "items", remedy)
    assert given.dataset.reads == before  # type: ignore[attr-defined]
    for epoch in (batches[:5], batches[5:]):
        assert sorted(int(label) for _, labels in epoch for label in labels) == [*range(50)]
    for images, labels in batches:
        assert images.shape == (10, 4, 5)
        assert torch.equal(images, labels[:, None, None].expand(10, 4, 5))


def test_a_few_items_stand_for_all_where_time_is_short(tmp_path: Path) -> None:
    given = workload(Numbers(1000))
    found = store_items(given, str(tmp_path / "items"), 0.0)
    assert found.samples == 1
    labels = torch.cat([labels for _, labels in seen(given, tmp_path / "items", "in-memory")])
    assert (len(labels), len(labels.unique())) == (2000, 1)


def test_items_are_from_all_over_the_dataset(tmp_path: Path) -> None:
    dataset = Numbers(10_000)
    store_items(workload(dataset), str(tmp_path / "items"), 0.05)
    read = sorted(dataset.reads)
    assert len(read) > 3 * CHECKED
    assert max(b - a for a, b in zip([0, *read], [*read, 10_000], strict=True)) < 5 * 10_000 / len(read)


def test_what_comes_before_a_random_transform_is_stored(tmp_path: Path) -> None:
    given = workload(Noisy(transform=lambda image: torch.from_numpy(image) + random.random() / 2))
    assert store_items(given, str(tmp_path / "items"), 10.0).before == "transform"
    for remedy in ("stored", "in-memory"):
        for images, labels in seen(given, tmp_path / "items", remedy, "transform"):
            assert torch.equal(images.long(), labels[:, None, None].expand(10, 4, 5))
            assert len({float(image[0, 0]) % 1 for image in images}) > 5
    with pytest.raises(UsageError, match="transform is called with each sample"):
        seen(given, tmp_path / "items", "on-device", "transform")


class Random(Numbers):
    def __getitem__(self, index: int) -> Any:
        return torch.rand(3), index


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(range(9))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (workload(Random()), "items vary from draw to draw"),
        (workload(Random(transform=noisy)), "do not hold what transform returns"),
        (workload(Stream()), "items have no index"),
        (workload(Numbers(), own_batches="dataset"), "items have no index"),
        (
            workload(Numbers(), beside=(Beside(data=workload(Numbers()), batch_size=2, batches=1),)),
            "several DataLoaders",
        ),
    ],
)
def test_what_cannot_be_stored_is_said(given: Workload, said: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=said):
        store_items(given, str(tmp_path / "items"), 1.0)


class Texts(Numbers):
    def __getitem__(self, index: int) -> Any:
        return {"text": "a" * index, "label": index}


def test_batches_that_are_no_tensors_are_not_kept_on_the_device(tmp_path: Path) -> None:
    given = workload(Texts())
    store_items(given, str(tmp_path / "items"), 10.0)
    assert len(seen(given, tmp_path / "items", "stored")[0]["text"]) == 10
    with pytest.raises(UsageError, match="are not tensors"):
        seen(given, tmp_path / "items", "on-device")
