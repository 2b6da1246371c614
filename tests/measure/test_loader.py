from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import BatchSampler, SequentialSampler

from autotune.config import Config
from autotune.measure.loader import CountingCollate, open_loader
from autotune.measure.step import tensors_in
from autotune.workload import Workload
from tests.datasets import CountingUp, Squares


def drawn(dataset: Any, **options: Any) -> list[float]:
    """What the batches of the first epoch hold, in their order."""
    loader = open_loader(Workload(nn.Linear(1, 1), dataset, **options), Config(batch_size=8), CountingCollate(None, 0))
    values: list[float] = torch.cat([next(tensors_in(batch)) for batch, _ in loader]).flatten().tolist()
    return values


def test_a_map_style_dataset_is_shuffled_and_no_sample_is_left_out() -> None:
    numbers = drawn(Squares(100))
    assert numbers != sorted(numbers)
    assert sorted(numbers) == list(range(100))


@pytest.mark.parametrize(
    ("dataset", "options", "expected"),
    [
        (Squares(100), {"sampler": SequentialSampler(range(20))}, 20),
        (Squares(100), {"batch_sampler": lambda size: BatchSampler(SequentialSampler(range(20)), size, True)}, 16),
        (CountingUp(20), {}, 20),
    ],
    ids=["sampler", "batch sampler of the configuration's batch size", "iterable"],
)
def test_the_order_is_the_users_samplers_or_the_streams_own(
    dataset: Any, options: dict[str, Any], expected: int
) -> None:
    assert drawn(dataset, **options) == list(range(expected))


def test_a_loader_has_all_that_the_configuration_says() -> None:
    config = Config(batch_size=8, num_workers=2, prefetch_factor=3, persistent_workers=True)
    loader = open_loader(Workload(nn.Linear(1, 1), Squares(20)), config, CountingCollate(None, 2))
    found = (loader.batch_size, loader.num_workers, loader.prefetch_factor, loader.persistent_workers)
    assert found == (8, 2, 3, True)
