"""Every sample belongs to one rank."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import BatchSampler, DistributedSampler, SequentialSampler, TensorDataset

from autotune import Workload
from autotune.config import Config
from autotune.measure.loader import CountingCollate, open_loader, open_stream
from autotune.measure.rank_group import ALONE, Board, RankGroup, share_of
from tests.ranks.workloads import Uneven


def group(rank: int, size: int) -> RankGroup:
    found = RankGroup(rank, 1, Board(size))
    found.size = size
    return found


def numbers(length: int) -> TensorDataset:
    return TensorDataset(torch.arange(length).float().unsqueeze(1))


def shares(workload: Workload, ranks: int, batch_size: int = 4) -> list[list[int]]:
    """The samples that each rank's loader gives."""
    found = []
    for rank in range(ranks):
        loader = open_loader(
            share_of(workload, group(rank, ranks)), Config(batch_size=batch_size, ranks=ranks), CountingCollate(None, 0)
        )
        found.append([int(number) for (batch,), _ in loader for number in batch.flatten()])
    return found


@given(st.integers(4, 40), st.integers(2, 4))
def test_without_a_sampler_the_samples_are_shuffled_and_divided(length: int, ranks: int) -> None:
    found = shares(Workload(nn.Linear(1, 1), numbers(length)), ranks)
    assert len({len(share) for share in found}) == 1
    assert {number for share in found for number in share} == set(range(length))
    assert sum(map(len, found)) < length + ranks  # the last are filled up


@given(st.integers(8, 40), st.integers(2, 4))
def test_of_a_sampler_each_rank_takes_every_so_many_th_index(length: int, ranks: int) -> None:
    dataset = numbers(length)
    workload = Workload(nn.Linear(1, 1), dataset, sampler=SequentialSampler(dataset))
    least = length // ranks
    assert shares(workload, ranks) == [list(range(rank, ranks * least, ranks)) for rank in range(ranks)]


def test_of_a_batch_sampler_each_rank_takes_every_so_many_th_batch() -> None:
    dataset = numbers(22)
    workload = Workload(
        nn.Linear(1, 1), dataset, batch_sampler=lambda size: BatchSampler(SequentialSampler(dataset), size, False)
    )
    assert shares(workload, 2) == [[*range(4), *range(8, 12), *range(16, 20)], [*range(4, 8), *range(12, 16), 20, 21]]


def test_a_distributed_sampler_is_made_anew_for_the_ranks_there_are() -> None:
    dataset = numbers(8)
    given = DistributedSampler(dataset, num_replicas=4, rank=3, shuffle=False)
    assert shares(Workload(nn.Linear(1, 1), dataset, sampler=given), 2) == [[0, 2, 4, 6], [1, 3, 5, 7]]


class Divided(SequentialSampler):
    """Gives a share already."""

    num_replicas = 2


def test_what_is_divided_already_is_not_divided_again() -> None:
    dataset = numbers(8)
    assert shares(Workload(nn.Linear(1, 1), dataset, sampler=Divided(dataset)), 2) == [list(range(8))] * 2


@pytest.mark.parametrize("ranks", [1, 2])
def test_each_epoch_has_an_order_of_its_own(ranks: int) -> None:
    dataset = numbers(64)
    workload = share_of(Workload(nn.Linear(1, 1), dataset), group(0, ranks))
    stream = open_stream(workload, Config(batch_size=64 // ranks))
    assert next(stream)[0].tolist() != next(stream)[0].tolist()
    assert stream.epochs == 2


def test_one_process_and_iterable_datasets_are_left_as_they_are() -> None:
    workload, iterable = Workload(nn.Linear(1, 1), numbers(4)), Workload(nn.Linear(1, 1), Uneven())
    assert share_of(workload, ALONE) is workload
    assert share_of(iterable, group(1, 2)) is iterable


def test_a_configuration_gives_the_sampler_of_one_process_too() -> None:
    sampler: Any = Config(batch_size=2).distributed_sampler(numbers(6), shuffle=False)
    assert list(sampler) == list(range(6))
    sampler = Config(batch_size=2).distributed_sampler(numbers(6), num_replicas=2, rank=1, shuffle=False)
    assert list(sampler) == [1, 3, 5]
