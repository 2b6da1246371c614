"""The look inside the user's code, on datasets and steps whose parts are known."""

from __future__ import annotations

import functools
import multiprocessing
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import BatchSampler, Dataset, IterableDataset, SequentialSampler

from autotune.config import Config
from autotune.errors import UserCodeError
from autotune.measure.code_probe import look_inside
from autotune.measure.device import CpuDevice
from autotune.probes import Anatomy
from autotune.workload import Workload
from tests.accelerator import Card, FakeAccelerator
from tests.datasets import CountingUp, Squares, first_elements
from tests.measure.doing import MANY, Doing

BATCH_SIZE = 4


class Mean(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, *inputs: Any, **named: Any) -> torch.Tensor:
        return self.weight.sum()


def look(dataset: Any, model: nn.Module | None = None, seconds: float = 0.5, **options: Any) -> Anatomy:
    workload = Workload(model or Mean(), dataset, **options)
    return look_inside(workload, Config(batch_size=BATCH_SIZE), CpuDevice(), seconds)


# --- what building a batch takes, and where ---


@pytest.fixture(scope="module")
def plain() -> Anatomy:
    return look(Squares(MANY))


def test_neither_autotune_nor_torchs_loader_is_in_the_list_and_the_start_method_is_told(plain: Anatomy) -> None:
    names = [each.where for each in plain.code]
    assert names
    assert not [name for name in names if "autotune/" in name or "torch/utils" in name or "_utils/" in name]
    assert plain.start_method in multiprocessing.get_all_start_methods()
    assert (plain.is_custom_collate, plain.has_getitems) == (False, False)
    assert plain.python_objects < 100


@pytest.mark.parametrize("name", ["cuda", "accelerator"])
def test_freeing_the_cache_in_each_step_is_counted_with_its_seconds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, freed = getattr(torch, name), list[int]()

    def free() -> None:
        freed.append(1)
        time.sleep(0.002)

    monkeypatch.setattr(module, "empty_cache", free, raising=False)

    def step(model: nn.Module, batch: Any) -> torch.Tensor:
        getattr(torch, name).empty_cache()
        loss: torch.Tensor = model(batch).sum()
        return loss

    found = look(Squares(MANY), training_step=step)
    assert found.cache_frees == 1.0
    assert 0.002 <= found.cache_seconds < 0.02
    assert module.empty_cache is free
    assert freed
    assert look(Squares(MANY), seconds=0.1).cache_frees == 0


def test_on_an_accelerator_the_time_is_that_of_its_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    card = Card()

    def free() -> None:
        card.empty_cache()
        card.sleep(0.25)

    def step(model: nn.Module, batch: Any) -> torch.Tensor:
        torch.cuda.empty_cache()
        torch.cuda.empty_cache()
        card.sleep(0.5)
        loss: torch.Tensor = model(batch).sum()
        return loss

    monkeypatch.setattr(torch.cuda, "empty_cache", free)
    workload = Workload(Mean(), Squares(MANY), training_step=step)
    found = look_inside(workload, Config(batch_size=BATCH_SIZE), FakeAccelerator(card), 20.0)
    assert (found.cache_frees, found.cache_seconds) == (2.0, 0.5)


def test_the_profiler_is_off_afterwards_also_after_an_error() -> None:
    def raise_if_profiled(index: int) -> None:
        if sys.getprofile() is not None:
            raise ValueError("their item is broken")

    look(Squares(MANY), seconds=0.1)
    assert sys.getprofile() is None
    with pytest.raises(ValueError, match="their item is broken"):
        look(Doing(raise_if_profiled), seconds=0.1)
    assert sys.getprofile() is None


# --- what samples and batches consist of ---


class Nested(Dataset[Any]):
    def __len__(self) -> int:
        return MANY

    def __getitem__(self, index: int) -> dict[str, Any]:
        arrays = {"image": np.zeros((3, 4)), "mask": [np.ones(2), torch.zeros(2)]}
        return {**arrays, **{f"number {number}": float(number) for number in range(5)}}


def test_arrays_are_counted_in_a_sample_and_tensors_in_a_batch() -> None:
    found = look(Nested(), training_step=lambda model, batch: model())
    assert (found.numpy_arrays, found.batch_tensors) == (2, 8)


def test_a_batch_that_a_dataset_makes_itself_is_no_list_of_samples() -> None:
    class Columns(Squares):
        def __getitems__(self, indices: list[int]) -> dict[str, torch.Tensor]:
            return dict.fromkeys("xy", torch.tensor(indices))

    found = look(Columns(MANY), seconds=0.1, collate_fn=lambda columns: columns)
    assert (found.batch_tensors, found.numpy_arrays) == (2, 0)


def test_a_dataset_that_reads_whole_batches_is_read_so() -> None:
    class Together(Squares):
        def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
            raise AssertionError("not asked for")

        def __getitems__(self, indices: list[int]) -> list[tuple[torch.Tensor, torch.Tensor]]:
            time.sleep(0.02)
            return [super(Together, self).__getitem__(index) for index in indices]

    found = look(Together(MANY))
    assert found.has_getitems
    assert found.sample_seconds >= 0.02 / BATCH_SIZE


class Stream(IterableDataset[np.ndarray[Any, Any]]):
    def __iter__(self) -> Iterator[np.ndarray[Any, Any]]:
        for _ in range(3 * BATCH_SIZE):
            time.sleep(0.005)
            yield np.zeros(1)


def test_an_iterable_dataset_is_looked_at_like_any_other() -> None:
    found = look(Stream(), training_step=lambda model, batch: model())
    assert found.sample_seconds >= 0.005
    assert (found.numpy_arrays, found.batch_tensors) == (1, 1)
    with pytest.raises(UserCodeError, match="yields no batch"):
        look(CountingUp(0))


def test_batches_are_those_of_the_users_sampler() -> None:
    def sampler(batch_size: int) -> BatchSampler:
        return BatchSampler(SequentialSampler(range(8)), 2 * batch_size, drop_last=False)

    def collate(samples: list[Any]) -> Any:
        assert len(samples) == 2 * BATCH_SIZE
        return first_elements(samples)

    look(Squares(8), seconds=0.1, batch_sampler=sampler, collate_fn=collate)
    read: list[int] = []
    look(Doing(read.append), seconds=0.1, sampler=range(10, 14))
    assert set(read) == {10, 11, 12, 13}


def test_slow_batches_take_a_bounded_time() -> None:
    found = look(Doing(lambda index: time.sleep(0.1)), seconds=0.2)
    assert found.sample_seconds >= 0.1
    assert found.seconds > 0.8


# --- what the dataset holds, and where it is ---


def test_what_the_dataset_holds_is_counted_and_pickled() -> None:
    dataset: Any = Squares(MANY)
    dataset.names = [f"image {number}.png" for number in range(200_000)]
    found = look(dataset, seconds=0.1)
    assert 200_000 <= found.python_objects < 200_100
    assert found.dataset_bytes is not None
    assert 2e6 < found.dataset_bytes < 6e6


# --- what a step does ---


sgd = functools.partial(torch.optim.SGD, lr=1e-3, foreach=False)


def operators(count: int, accumulation_steps: int = 1) -> int:
    workload = Workload(nn.Sequential(*(nn.Linear(1, 1) for _ in range(count))), Squares(MANY), optimizer=sgd)
    config = Config(batch_size=BATCH_SIZE, accumulation_steps=accumulation_steps)
    return look_inside(workload, config, CpuDevice(), 0.1).operators_per_step


def test_operators_of_a_step_grow_with_the_layers_of_a_model_and_not_with_accumulation() -> None:
    few, some, many = map(operators, (1, 2, 5))
    assert 4 <= some - few <= 20  # forward, backward and two parameters to change
    assert many - some == 3 * (some - few)
    assert operators(2, accumulation_steps=4) == some
