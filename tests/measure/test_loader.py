from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import BatchSampler, Sampler, SequentialSampler

from autotune.config import Config
from autotune.errors import UserCodeError
from autotune.measure.batch import tensors_in
from autotune.measure.loader import CountingCollate, begin_anywhere, open_loader, open_stream
from autotune.workload import Workload
from tests.datasets import CountingUp, Divided, Squares


def drawn(dataset: Any, place: float | None = 0.0, epochs: int = 1, **options: Any) -> list[float]:
    """What the batches of the last of so many epochs hold, in their order."""
    workload = Workload(nn.Linear(1, 1), dataset, **options)
    loader = open_loader(workload, Config(batch_size=8), CountingCollate(None, 0), place)
    for _ in range(epochs):
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


def in_batches(size: int) -> BatchSampler:
    return BatchSampler(SequentialSampler(range(100)), size, drop_last=False)


@pytest.mark.parametrize(
    "options", [{"sampler": SequentialSampler(range(100))}, {"batch_sampler": in_batches}], ids=["sampler", "batches"]
)
def test_the_first_epoch_begins_at_its_place_or_everywhere_with_whole_batches_and_leaves_nothing_out(
    options: dict[str, Any],
) -> None:
    for place, first in ((0.0, 0), (0.3, 24), (0.99, 96)):
        assert drawn(Squares(100), place, **options) == [*range(first, 100), *range(first)]
        assert drawn(Squares(100), place, epochs=2, **options) == list(range(100))
    found = drawn(Squares(100), None, **options)  # each batch comes from another part of the order
    assert sorted(found) == list(range(100))
    assert drawn(Squares(100), None, epochs=2, **options) == list(range(100))
    starts = sorted(found[: 4 * 8 : 8])
    assert all(found[at : at + 8] == list(range(int(found[at]), int(found[at]) + 8)) for at in (0, 8, 16))
    assert max(later - earlier for earlier, later in itertools.pairwise([*starts, 100])) <= 40


class WithoutEnd(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        return itertools.count()


def test_of_a_sampler_without_length_nothing_is_passed_over() -> None:
    loader = open_loader(
        Workload(nn.Linear(1, 1), Squares(100), sampler=WithoutEnd()),
        Config(batch_size=8),
        CountingCollate(None, 0),
        0.5,
    )
    batch, _ = next(iter(loader))
    assert next(tensors_in(batch)).flatten().tolist() == list(range(8))


@pytest.mark.parametrize("batch_size", [1, 8])
def test_a_sampler_that_yields_lists_is_refused_with_the_way_out(batch_size: int) -> None:
    workload = Workload(nn.Linear(1, 1), Squares(100), sampler=BatchSampler(range(100), 4, drop_last=False))
    with pytest.raises(UserCodeError, match="yields lists of indices, as a BatchSampler does: pass batch_sampler="):
        next(open_stream(workload, Config(batch_size=batch_size)))


class Shuffled(Sampler[int]):
    """Orders by Python's own generator, as many samplers do."""

    def __len__(self) -> int:
        return 100

    def __iter__(self) -> Iterator[int]:
        return iter(random.sample(range(100), 100))


@pytest.mark.parametrize("options", [{}, {"sampler": Shuffled()}], ids=["shuffled", "by a sampler"])
def test_the_same_seed_gives_the_same_order_from_the_same_place_and_another_one_another(
    options: dict[str, Any],
) -> None:
    same, again, other = (drawn(Squares(100), begin_anywhere(seed), **options) for seed in (7, 7, 8))
    assert same == again != other


@pytest.mark.parametrize("seed", [0, 5, 2**31])
def test_the_places_of_some_seeds_in_a_row_are_spread_over_the_order(seed: int) -> None:
    places = sorted(begin_anywhere(number) for number in range(seed, seed + 8))
    gaps = [later - earlier for earlier, later in itertools.pairwise([*places, places[0] + 1])]
    assert max(gaps) < 2 / 8


# --- epochs that end before the loader does ---


@pytest.mark.parametrize("keeps", [False, True], ids=["workers", "kept workers"])
@pytest.mark.parametrize(
    ("dataset", "limit"),
    [(Squares(800), 10), (Squares(800), 0.1), (Divided(800), 10)],
    ids=["count", "share", "stream"],
)
def test_an_epoch_ends_where_training_ends_it_and_begins_anew(dataset: Any, limit: float, keeps: bool) -> None:
    config = Config(batch_size=8, num_workers=2, prefetch_factor=2, persistent_workers=keeps)
    stream = open_stream(Workload(nn.Linear(1, 1), dataset, epoch_batches=limit), config)
    try:
        for number in range(35):
            next(stream)
            assert stream.epochs == 1 + number // 10
            assert 0 <= stream.ready <= 7  # four are asked for ahead, and some of the epoch before may be left
        assert (stream.epoch_batches, stream.steps_left) == (10, 5)
        assert stream.epoch_samples == (80 if isinstance(dataset, Squares) else None)
        assert len(set(stream.workers)) == 2
    finally:
        stream.close()


class Misstated(Divided):
    def __len__(self) -> int:
        return 40


def test_a_limit_beyond_the_loader_changes_nothing_and_a_length_that_is_wrong_is_noticed() -> None:
    stream = open_stream(Workload(nn.Linear(1, 1), Squares(80), epoch_batches=100), Config(batch_size=8))
    for _ in range(25):
        next(stream)
    assert (stream.epochs, stream.epoch_batches, stream.epoch_samples) == (3, 10, 80)
    stream = open_stream(Workload(nn.Linear(1, 1), Misstated(80)), Config(batch_size=8))
    for _ in range(11):
        next(stream)
    assert (stream.misstated_batches, stream.epoch_batches) == (5, 10)


class Recorder(Squares):
    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.asked: list[int] = []

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        self.asked.append(index)
        return super().__getitem__(index)


@pytest.mark.parametrize(
    "options", [{"sampler": SequentialSampler(range(100))}, {"batch_sampler": in_batches}], ids=["sampler", "batches"]
)
@pytest.mark.parametrize(("seconds", "first"), [(0.49, 24), (10.0, 100)], ids=["a part", "a whole epoch"])
def test_samples_of_the_first_seconds_come_again_in_other_orders_and_epochs_stay_as_long(
    options: dict[str, Any], seconds: float, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = Recorder(100)
    monkeypatch.setattr("time.perf_counter", lambda: len(dataset.asked) / 48)  # a batch takes a sixth of a second
    workload = Workload(nn.Linear(1, 1), dataset, **options)
    stream = open_stream(workload, Config(batch_size=8), again_after=seconds)
    came = list[bool]()
    for _ in range(26):
        next(stream)
        came.append(stream.comes_again)
    assert (stream.epochs, stream.steps_left, stream.epoch_samples) == (2, 0, 100 if "sampler" in options else None)
    units = -(-first // 8)
    assert (any(came[: units - 1]), all(came[units:])) == (False, True)
    assert dataset.asked[:first] == list(range(first))
    assert set(dataset.asked) == set(range(first))
    if first < 100:
        assert len({tuple(dataset.asked[at : at + first]) for at in (0, first, 2 * first)}) > 1
