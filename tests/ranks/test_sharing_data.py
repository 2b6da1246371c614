"""Every sample belongs to one rank."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import BatchSampler, Dataset, DistributedSampler, SequentialSampler, TensorDataset

from autotune import Workload
from autotune.config import Config
from autotune.measure.loader import CountingCollate, open_loader, open_stream
from autotune.measure.rank_group import ALONE, RankGroup, share_of
from tests.ranks.workloads import Uneven


def group(rank: int, size: int) -> RankGroup:
    found = RankGroup(rank, 1)
    found.size = size
    return found


def numbers(length: int) -> TensorDataset:
    return TensorDataset(torch.arange(length).float().unsqueeze(1))


def workload_of(dataset: Dataset[Any], **options: Any) -> Workload:
    return Workload(nn.Linear(1, 1), dataset, **options)


def shares(workload: Workload, ranks: int) -> list[list[int]]:
    given = [share_of(workload, group(rank, ranks)) for rank in range(ranks)]
    loaders = [open_loader(each, Config(batch_size=4, ranks=ranks), CountingCollate(None, 0)) for each in given]
    return [[int(number) for (batch,), _ in loader for number in batch.flatten()] for loader in loaders]


@given(st.integers(4, 40), st.integers(2, 4))
def test_without_a_sampler_the_samples_are_shuffled_and_divided(length: int, ranks: int) -> None:
    found = shares(workload_of(numbers(length)), ranks)
    assert len({len(share) for share in found}) == 1
    assert {number for share in found for number in share} == set(range(length))
    assert sum(map(len, found)) < length + ranks  # the last are filled up


@given(st.integers(8, 40), st.integers(2, 4))
def test_of_a_sampler_each_rank_takes_every_so_many_th_index(length: int, ranks: int) -> None:
    found = shares(workload_of(numbers(length), sampler=SequentialSampler(range(length))), ranks)
    assert found == [list(range(rank, ranks * (length // ranks), ranks)) for rank in range(ranks)]


def test_of_a_batch_sampler_each_rank_takes_every_so_many_th_batch() -> None:
    sampler = functools.partial(BatchSampler, SequentialSampler(range(22)), drop_last=False)
    found = shares(workload_of(numbers(22), batch_sampler=sampler), 2)
    assert found == [[*range(4), *range(8, 12), *range(16, 20)], [*range(4, 8), *range(12, 16), 20, 21]]


def test_a_distributed_sampler_is_made_anew_for_the_ranks_there_are() -> None:
    given = DistributedSampler(dataset := numbers(8), num_replicas=4, rank=3, shuffle=False)
    assert shares(workload_of(dataset, sampler=given), 2) == [[0, 2, 4, 6], [1, 3, 5, 7]]


class Divided(SequentialSampler):
    num_replicas = 2


def test_what_is_divided_already_is_not_divided_again() -> None:
    assert shares(workload_of(numbers(8), sampler=Divided(range(8))), 2) == [list(range(8))] * 2


@pytest.mark.parametrize("ranks", [1, 2])
def test_each_epoch_has_an_order_of_its_own(ranks: int) -> None:
    stream = open_stream(share_of(workload_of(numbers(64)), group(0, ranks)), Config(batch_size=64 // ranks))
    assert next(stream)[0].tolist() != next(stream)[0].tolist()
    assert stream.epochs == 2


def test_one_process_and_iterable_datasets_are_left_as_they_are() -> None:
    workload, iterable = workload_of(numbers(4)), workload_of(Uneven())
    assert share_of(workload, ALONE) is workload
    assert share_of(iterable, group(1, 2)) is iterable


@pytest.mark.parametrize(("options", "expected"), [({}, range(6)), ({"num_replicas": 2, "rank": 1}, (1, 3, 5))])
def test_a_configuration_gives_the_sampler_of_one_process_too(options: dict[str, Any], expected: Any) -> None:
    sampler: Any = Config(batch_size=2).distributed_sampler(numbers(6), shuffle=False, **options)
    assert list(sampler) == list(expected)
