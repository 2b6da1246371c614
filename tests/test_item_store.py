"""Items of a dataset in files: the same as the dataset's, each read once, by several processes that may be killed."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import random
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset

import autotune
from autotune.errors import UsageError
from autotune.item_store import CHECKED, ItemStore, Stored, stored

FORK = multiprocessing.get_context("fork")


class Pair(NamedTuple):
    x: torch.Tensor
    y: int


@dataclass
class Sample:
    image: np.ndarray[Any, Any]
    name: str


class Items(Dataset[Any]):
    """Items by number, each read noted in a file."""

    def __init__(self, items: Any, log: Path | None = None, seconds: float = 0.0) -> None:
        self.items, self.log, self.seconds = items, log and str(log), seconds

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        if self.log:
            with open(self.log, "a") as log:
                log.write(f"{index}\n")
        time.sleep(self.seconds)
        return self.items[index]


def reads(log: Path) -> Counter[int]:
    return Counter(map(int, log.read_text().split())) if log.exists() else Counter()


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        one, other = (each.to_dense() if each.is_sparse else each for each in (one, other))
        return one.dtype == other.dtype and one.shape == other.shape and torch.equal(one.float(), other.float())
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and bool((one == other).all())
    if isinstance(one, Image.Image):
        return one.mode == other.mode and one.tobytes() == other.tobytes()
    if isinstance(one, dict):
        return type(one) is type(other) and one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    if isinstance(one, (list, tuple)):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return same(vars(one), vars(other)) if isinstance(one, Sample) else bool(one == other)


KINDS: dict[str, Any] = {
    "images and labels": (torch.arange(3 * 50 * 50, dtype=torch.uint8).view(3, 50, 50), 7),
    "half precision": (torch.randn(40, dtype=torch.bfloat16), torch.randn(40).half()),
    "a number alone": torch.tensor(3.5),
    "every second column": torch.arange(40_000).view(200, 200)[:, ::2],
    "a dictionary": {"ids": torch.arange(20), "text": "naïve", "nested": [1.5, None, (True,)]},
    "a named tuple": Pair(torch.ones(2000), 3),
    "a dataclass": Sample(np.arange(6000.0), "six"),
    "an empty array": np.zeros((0, 3), dtype=np.int16),
    "bytes": b"\0\xff" * 3000,
    "a picture": (Image.new("RGB", (40, 30), (1, 2, 3)), 4),
    "a sparse tensor": [torch.eye(4).to_sparse()],
}


@pytest.mark.parametrize("kind", KINDS)
def test_an_item_comes_back_as_it_was(kind: str, tmp_path: Path) -> None:
    items = stored(Items([KINDS[kind]] * 3), tmp_path / "cache")
    for each in (0, -1, 0):
        assert same(KINDS[kind], items[each])


@given(sizes=st.lists(st.integers(0, 3000), min_size=1, max_size=12), order=st.randoms())
def test_items_of_unequal_shapes_come_back_in_any_order(
    sizes: list[int], order: random.Random, tmp_path_factory: pytest.TempPathFactory
) -> None:
    known = [torch.arange(size, dtype=torch.int32) for size in sizes]
    items = stored(Items(known), tmp_path_factory.mktemp("cache"))
    for index in order.sample(range(len(sizes)), len(sizes)) * 2:
        assert same(known[index], items[index])
    assert items.store.stored == [*range(len(sizes))]
    with pytest.raises(IndexError):
        items[len(sizes)]


def test_what_is_read_back_may_be_changed_and_stays_in_the_store(tmp_path: Path) -> None:
    items = stored(Items([torch.zeros(500)] * 2), tmp_path / "cache")
    items[0].add_(1)
    assert items[0].sum() == 0


def test_each_item_is_read_once_and_a_later_run_reads_none(tmp_path: Path) -> None:
    log, known = tmp_path / "log", [torch.full((300,), index) for index in range(40)]
    items = autotune.stored(Items(known, log), tmp_path / "cache")
    for _ in range(2):
        seen = {int(batch[0, 0]) for batch in DataLoader(items, batch_size=1, num_workers=2, shuffle=True)}
        assert seen == {*range(40)}
    found = reads(log)
    assert found.total() <= 40 + 2 * 2 * CHECKED  # each worker has read a few of them three times
    assert found.keys() == {*range(40)}
    log.unlink()
    again = autotune.stored(Items(known, log), tmp_path / "cache")
    assert all(same(each, again[index]) for index, each in enumerate(known))
    assert not reads(log)


def test_attributes_are_those_of_the_dataset_and_a_spawned_worker_finds_the_store(tmp_path: Path) -> None:
    items = stored(Items([torch.zeros(2)] * 4), tmp_path / "cache")
    assert items.seconds == 0.0
    assert not hasattr(items, "__getitems__")
    assert not hasattr(items, "classes")
    items[1]
    sent = pickle.loads(pickle.dumps(items))
    assert sent.store.stored == [1]
    assert same(sent[1], torch.zeros(2))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_is_only_read_gives_what_is_there(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    stored(Items([torch.ones(2)] * 2), folder)[0]
    for path in (*folder.iterdir(), folder):
        path.chmod(0o555 if path.is_dir() else 0o444)
    assert same(stored(Items([torch.ones(2)] * 2), folder)[0], torch.ones(2))


# Processes that fill a store at once.


def fill(dataset: Items, folder: Path, seed: int) -> None:
    items, order = stored(dataset, folder), [*range(len(dataset))]
    random.Random(seed).shuffle(order)
    for index in order:
        items[index]


@pytest.mark.machine
def test_four_processes_that_are_killed_again_and_again_lose_double_and_tear_nothing(tmp_path: Path) -> None:
    log, folder, chance = tmp_path / "log", tmp_path / "cache", random.Random(0)
    known = [torch.randint(0, 255, (chance.randint(1, 60_000),), dtype=torch.uint8) for _ in range(400)]
    dataset, killed = Items(known, log, seconds=0.001), 0
    for number in range(11):
        fillers = [FORK.Process(target=fill, args=(dataset, folder, 4 * number + each)) for each in range(4)]
        for filler in fillers:
            filler.start()
        if number < 10:
            time.sleep(chance.uniform(0.02, 0.2))
            for filler in fillers:
                killed += filler.is_alive()
                filler.kill()
        for filler in fillers:
            filler.join(60)
        assert number < 10 or not any(filler.exitcode for filler in fillers)
    items = stored(dataset, folder)
    assert items.store.stored == [*range(400)]
    before = reads(log).total()
    assert all(same(each, items[index]) for index, each in enumerate(known))
    assert reads(log).total() == before <= 400 + killed + 44 * 2 * CHECKED
    assert killed >= 20
    spans = sorted((int(end - size), int(end)) for end, size in items.store._index)
    assert all(one[1] <= other[0] for one, other in pairwise(spans))


def test_two_processes_do_not_read_an_item_twice(tmp_path: Path) -> None:
    log = tmp_path / "log"
    dataset = Items([torch.zeros(10)] * 3, log, seconds=0.3)
    store = ItemStore(tmp_path / "cache", 3)
    both = [FORK.Process(target=lambda: store.write(1, lambda: Stored(dataset, store)._encoded(1))) for _ in range(2)]
    for each in both:
        each.start()
    for each in both:
        each.join(30)
    assert reads(log) == {1: 1}


# What cannot be stored, and the part before a transform.


class Pictures(Dataset[Any]):
    """Pictures with a transform, as torchvision's datasets have it."""

    def __init__(self, transform: Any, twice: bool = False) -> None:
        self.transform, self.twice = transform, twice

    def __len__(self) -> int:
        return 30

    def __getitem__(self, index: int) -> Any:
        picture = Image.new("L", (20, 20), index)
        views = [self.transform(picture) for _ in range(1 + self.twice)]
        return (*views, index)


def noisy(picture: Image.Image) -> torch.Tensor:
    return torch.from_numpy(np.array(picture)).float() + torch.rand(1)


def flipped(picture: Image.Image) -> torch.Tensor:
    flip = random.random() < 0.5
    return torch.tensor([float(flip), float(np.array(picture).mean())])


@pytest.mark.parametrize("transform", [noisy, flipped])
def test_items_that_vary_are_refused_and_what_comes_before_the_transform_is_stored(
    transform: Any, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=r"Pictures: items vary .* before='transform'"):
        [stored(Pictures(transform), tmp_path / "whole")[index] for index in range(30)]
    items = stored(Pictures(transform), tmp_path / "before", before="transform")
    draws = {tuple(items[7][0].flatten().tolist()) for _ in range(20)}
    assert len(draws) > 1
    assert items[7][1] == 7
    assert items[7][0].flatten()[-1] >= 7


def test_a_transform_that_is_called_twice_is_called_twice_at_each_draw(tmp_path: Path) -> None:
    items = stored(Pictures(noisy, twice=True), tmp_path / "cache", before="transform")
    for _ in range(2):
        one, other, index = items[3]
        assert not torch.equal(one, other)
        assert int(one.min()) == index == 3


def test_the_users_own_dataset_keeps_its_transform(tmp_path: Path) -> None:
    dataset = Pictures(noisy)
    stored(dataset, tmp_path / "cache", before="transform")[0]
    assert dataset.transform is noisy


class Scaled(Pictures):
    def __getitem__(self, index: int) -> Any:
        return np.asarray(self.transform(Image.new("L", (20, 20), index))) / 255


def test_an_attribute_whose_input_cannot_be_stored_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="items do not hold what transform returns"):
        stored(Scaled(noisy), tmp_path / "cache", before="transform")[0]


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(range(9))


def test_a_dataset_without_an_index_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no index"):
        stored(Stream(), tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


# Another dataset.


class Other(Items):
    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index) + 1


OTHERS: dict[str, tuple[Any, str]] = {
    "length": (Items([torch.zeros(2)] * 5), "length"),
    "content": (Items([torch.zeros(2)] * 3 + [torch.ones(2)]), "attribute items"),
    "setting": (Items([torch.zeros(2)] * 4, seconds=0.5), "attribute seconds"),
    "class": (Other([torch.zeros(2)] * 4), "class and source"),
    "wrapped": (Subset(Items([torch.zeros(2)] * 9), range(4)), "class and source"),
}


@pytest.mark.parametrize("other", OTHERS)
def test_the_store_of_another_dataset_is_refused(other: str, tmp_path: Path) -> None:
    stored(Items([torch.zeros(2)] * 4), tmp_path / "cache")[0]
    dataset, differs = OTHERS[other]
    with pytest.raises(UsageError, match=rf"cache: holds the items of another dataset: its .*{differs}.*differ"):
        stored(dataset, tmp_path / "cache")
    stored(Items([torch.zeros(2)] * 4), tmp_path / "cache")[1]


def test_large_data_of_a_dataset_are_neither_copied_nor_read_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autotune.item_store.EDGE", 4096)
    rows = np.memmap(tmp_path / "rows", np.uint8, "w+", shape=(3, 2**34))  # 48 GiB of which nothing is on the disk
    stored(Items(rows), tmp_path / "cache")
    rows[0, 0] = 1
    with pytest.raises(UsageError, match="attribute items differ"):
        stored(Items(rows), tmp_path / "cache")


def test_a_list_is_a_dataset_too(tmp_path: Path) -> None:
    assert same(stored([torch.ones(3)] * 2, tmp_path / "cache")[1], torch.ones(3))


def test_a_subset_of_other_samples_is_another_dataset(tmp_path: Path) -> None:
    whole = Items([torch.full((2,), index) for index in range(9)])
    stored(Subset(whole, [1, 2]), tmp_path / "cache")[0]
    with pytest.raises(UsageError, match="attribute indices"):
        stored(Subset(whole, [1, 3]), tmp_path / "cache")


SCRIPT = """
import sys, torch
from torch.utils.data import Dataset
import autotune

class Items(Dataset):
    def __init__(self):
        self.names, self.file, self.log = {"b", "a", "c"}, open(__file__), []
    def __len__(self):
        return 4
    def __getitem__(self, index):
        return torch.full((3,), CONTENT)

print(int(autotune.stored(Items(), sys.argv[1])[0].sum()))
"""


def test_the_same_script_finds_its_store_again_and_another_source_does_not(tmp_path: Path) -> None:
    def run(content: int, seed: str = "0") -> subprocess.CompletedProcess[str]:
        script = tmp_path / "train.py"
        script.write_text(SCRIPT.replace("CONTENT", str(content)))
        command = [sys.executable, str(script), str(tmp_path / "cache")]
        return subprocess.run(
            command, capture_output=True, text=True, check=False, env=os.environ | {"PYTHONHASHSEED": seed}
        )

    for seed in ("1", "2"):
        assert (done := run(5, seed)).stdout == "15\n", done.stderr
    done = run(6)
    assert done.returncode
    assert "its source differ" in done.stderr


def test_a_half_written_record_is_written_again(tmp_path: Path) -> None:
    items = stored(Items([torch.full((200,), index) for index in range(3)]), tmp_path / "cache")
    items[0]
    with (tmp_path / "cache" / "items").open("ab") as file:
        file.write(b"torn")
    assert same(items[1], torch.full((200,), 1))
    assert same(items[0], torch.full((200,), 0))
