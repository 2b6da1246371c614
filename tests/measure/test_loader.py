from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import BatchSampler, SequentialSampler

from autotune.config import Config
from autotune.measure.loader import CountingCollate, open_loader, open_stream
from autotune.workload import Workload
from tests.datasets import CountingUp, Divided, Squares, first_elements


def workload(dataset: Any, **options: Any) -> Workload:
    return Workload(nn.Linear(1, 1), dataset, **options)


def first_epoch(given: Workload, config: Config) -> list[tuple[Any, int]]:
    return list(open_loader(given, config, CountingCollate(given.collate_fn, config.num_workers)))


def numbers(batches: list[tuple[Any, int]]) -> list[float]:
    values: list[float] = torch.cat([x for (x, _), _ in batches]).flatten().tolist()
    return values


def test_a_map_style_dataset_is_shuffled_and_no_sample_is_left_out() -> None:
    drawn = numbers(first_epoch(workload(Squares(100)), Config(batch_size=8)))
    assert drawn != sorted(drawn)
    assert sorted(drawn) == list(range(100))


def test_every_batch_comes_with_the_number_of_its_samples() -> None:
    assert [count for _, count in first_epoch(workload(Squares(20)), Config(batch_size=8))] == [8, 8, 4]


def test_the_users_sampler_takes_the_place_of_shuffling() -> None:
    batches = first_epoch(workload(Squares(100), sampler=SequentialSampler(range(20))), Config(batch_size=8))
    assert numbers(batches) == list(range(20))


def test_the_users_batch_sampler_is_asked_for_the_configurations_batch_size() -> None:
    def sampler(batch_size: int) -> BatchSampler:
        return BatchSampler(SequentialSampler(range(20)), batch_size, drop_last=True)

    batches = first_epoch(workload(Squares(100), batch_sampler=sampler), Config(batch_size=8))
    assert numbers(batches) == list(range(16))


def test_the_users_collate_function_is_used() -> None:
    batches = first_epoch(workload(Squares(8), collate_fn=first_elements), Config(batch_size=8))
    assert [list(batch) for batch, _ in batches] == [["x"]]


def test_an_iterable_dataset_comes_in_its_own_order() -> None:
    batches = first_epoch(workload(CountingUp(20)), Config(batch_size=8))
    assert torch.cat([x for x, _ in batches]).flatten().tolist() == list(range(20))


def test_a_loader_has_all_that_the_configuration_says() -> None:
    config = Config(batch_size=8, num_workers=2, prefetch_factor=3, persistent_workers=True)
    loader = open_loader(workload(Squares(20)), config, CountingCollate(None, 2))
    found = (loader.batch_size, loader.num_workers, loader.prefetch_factor, loader.persistent_workers)
    assert found == (8, 2, 3, True)


@pytest.mark.parametrize(
    ("dataset", "num_workers", "share"),
    [
        (CountingUp(1000), 2, 0.5),
        (Divided(1000), 2, 1.0),
        (CountingUp(1000), 1, 1.0),
        (CountingUp(1000), 0, 1.0),
        (Squares(1000), 2, 1.0),
    ],
    ids=["the same in both", "divided", "one worker", "alone", "indexed"],
)
def test_samples_that_several_workers_yield_are_told(dataset: Any, num_workers: int, share: float) -> None:
    stream = open_stream(workload(dataset), Config(batch_size=8, num_workers=num_workers))
    try:
        for _ in range(8):
            next(stream)
        assert stream.samples == 8
        assert stream.unique_share == share
    finally:
        stream.close()
