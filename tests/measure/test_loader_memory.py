from __future__ import annotations

import gc
import time
from typing import TYPE_CHECKING, Any

import psutil
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, Sampler, TensorDataset

from autotune.errors import UserCodeError
from autotune.measure.loader import BatchStream, CountingCollate
from tests.datasets import CountingUp, Divided, OneShard, Squares, first_elements

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PATIENCE = 60.0
"""Seconds after which something that must happen has not happened."""


def stream_of(dataset: Any, batch_size: int = 4, **options: Any) -> BatchStream:
    counter = CountingCollate(options.pop("collate_fn", None), options.get("num_workers", 0), compares_workers=True)
    return BatchStream(DataLoader(dataset, batch_size=batch_size, collate_fn=counter, **options), counter)


def comes_true(claim: Callable[[], bool]) -> bool:
    end = time.monotonic() + PATIENCE
    while not claim():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


@pytest.mark.parametrize(
    ("num_workers", "start"), [(0, None), (2, "fork"), pytest.param(2, "spawn", marks=pytest.mark.machine)]
)
def test_every_batch_that_is_built_is_counted_in_whichever_process(num_workers: int, start: str | None) -> None:
    counter = CountingCollate(None, num_workers)
    loader = DataLoader(
        Squares(10), batch_size=3, num_workers=num_workers, collate_fn=counter, multiprocessing_context=start
    )
    assert counter.produced == 0
    assert [(len(x), count) for (x, _), count in loader] == [(3, 3), (3, 3), (3, 3), (1, 1)]
    assert counter.produced == 4
    assert sum(1 for _ in loader) == 4
    assert counter.produced == 8


def test_batches_are_those_of_the_default_collate_function() -> None:
    batch, samples = CountingCollate(None, 0)([Squares()[2], Squares()[3]])
    assert samples == 2
    assert [part.tolist() for part in batch] == [[[2.0], [3.0]], [[4.0], [9.0]]]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_users_collate_function_builds_the_batches(num_workers: int) -> None:
    stream = stream_of(Squares(4), num_workers=num_workers, collate_fn=first_elements)
    assert {key: value.tolist() for key, value in next(stream).items()} == {"x": [[0.0], [1.0], [2.0], [3.0]]}
    stream.close()


def test_a_batch_whose_collation_fails_is_not_counted() -> None:
    counter = CountingCollate(first_elements, 0)
    with pytest.raises(IndexError):
        counter([()])
    assert counter.produced == 0


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_stream_goes_on_from_epoch_to_epoch_with_a_short_last_batch(num_workers: int) -> None:
    stream = stream_of(Squares(10), num_workers=num_workers)
    assert (stream.epochs, stream.epoch_batches, stream.steps_left, stream.epoch_samples) == (0, 3, 3, 10)
    seen = []
    for _ in range(7):
        x, _ = next(stream)
        seen.append((len(x), stream.epochs, stream.steps_left))
    assert seen == [(4, 1, 2), (4, 1, 1), (2, 1, 0), (4, 2, 2), (4, 2, 1), (2, 2, 0), (4, 3, 2)]
    assert stream.consumed == 7
    assert len(stream.start_seconds) == 3
    assert min(stream.start_seconds) > 0
    stream.close()


def test_an_epoch_of_dropped_remainders_is_as_long_as_the_loader_says() -> None:
    stream = stream_of(Squares(10), drop_last=True)
    assert [len(next(stream)[0]) for _ in range(5)] == [4] * 5
    assert (stream.epochs, stream.epoch_batches) == (3, 2)


def test_the_length_of_an_iterable_epoch_is_learnt_at_its_end() -> None:
    stream = stream_of(CountingUp(10))
    assert [next(stream).numel() for _ in range(3)] == [4, 4, 2]
    assert (stream.epoch_batches, stream.steps_left, stream.epoch_samples) == (None, None, None)
    next(stream)
    assert (stream.epochs, stream.epoch_batches, stream.steps_left) == (2, 3, 2)


def test_an_iterable_epoch_is_what_all_workers_yield() -> None:
    stream = stream_of(CountingUp(8), num_workers=2)
    for _ in range(5):
        next(stream)
    assert (stream.epochs, stream.epoch_batches, stream.steps_left) == (2, 4, 3)
    stream.close()


@pytest.mark.parametrize(
    "stream",
    [
        pytest.param(lambda: stream_of(CountingUp(0)), id="iterable"),
        pytest.param(lambda: stream_of(CountingUp(0), num_workers=1), id="iterable, in a worker"),
        pytest.param(lambda: stream_of(Squares(3), drop_last=True), id="everything dropped"),
    ],
)
def test_an_epoch_without_batches_is_the_users_error(stream: Callable[[], BatchStream]) -> None:
    opened = stream()
    with pytest.raises(UserCodeError, match="yields no batch"):
        next(opened)
    opened.close()


def test_without_workers_nothing_is_ready_in_advance() -> None:
    stream = stream_of(Squares(10))
    assert [(next(stream), stream.ready)[1] for _ in range(7)] == [0] * 7


def test_workers_fill_the_inventory_to_workers_times_prefetch() -> None:
    stream = stream_of(Squares(400), num_workers=2, prefetch_factor=3)
    next(stream)
    assert comes_true(lambda: stream.ready >= 6)
    time.sleep(0.1)
    assert stream.ready == 6
    stream.close()


def test_the_inventory_is_empty_when_an_epoch_has_been_consumed() -> None:
    stream = stream_of(Squares(40), num_workers=2)
    while stream.steps_left:
        next(stream)
    assert stream.ready == 0
    stream.close()


class Endless(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        while True:
            yield 1


def test_a_sampler_without_end_has_no_epochs() -> None:
    stream = stream_of(Squares(10), sampler=Endless())
    assert [next(stream)[0].flatten().tolist() for _ in range(20)] == [[1.0] * 4] * 20
    assert (stream.epochs, stream.epoch_batches, stream.steps_left, stream.epoch_samples) == (1, None, None, None)


def test_the_samples_of_an_epoch_are_those_of_the_sampler() -> None:
    assert (
        stream_of(Squares(10), sampler=RandomSampler(range(10), replacement=True, num_samples=33)).epoch_samples == 33
    )


class Ones(IterableDataset[torch.Tensor]):
    """Every sample is the same, in one worker as in all."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(torch.ones(1) for _ in range(400))


@pytest.mark.parametrize(
    ("dataset", "num_workers", "share"),
    [
        (CountingUp(400), 0, 1.0),
        (CountingUp(400), 1, 1.0),
        (CountingUp(400), 2, 0.5),
        (CountingUp(4), 2, 0.5),
        (Divided(400), 2, 1.0),
        (OneShard(400), 2, 1.0),
        (Ones(), 2, 1.0),
        (TensorDataset(torch.arange(400) // 8 % 2), 2, 1.0),
    ],
    ids=[
        "alone",
        "one worker",
        "undivided",
        "undivided and short",
        "divided",
        "one shard",
        "all samples equal",
        "indexed",
    ],
)
def test_only_workers_that_yield_what_another_did_share_their_credit(
    dataset: Any, num_workers: int, share: float
) -> None:
    stream = stream_of(dataset, num_workers=num_workers)
    for _ in range(20):
        next(stream)
    assert stream.unique_share == share
    stream.close()


@pytest.mark.parametrize(("dataset", "idle"), [(OneShard(400), 1), (CountingUp(400), 0), (Squares(400), 0)])
def test_a_worker_that_builds_nothing_is_idle_once_it_had_its_turn(dataset: Any, idle: int) -> None:
    stream = stream_of(dataset, num_workers=2)
    assert stream.idle_workers == 0
    for _ in range(20):
        next(stream)
    assert stream.idle_workers == idle
    stream.close()


def test_without_workers_none_is_idle() -> None:
    stream = stream_of(Squares(400))
    for _ in range(20):
        next(stream)
    assert stream.idle_workers == 0


@pytest.mark.parametrize("persistent", [False, True])
def test_closing_leaves_no_worker_processes(persistent: bool) -> None:
    before = set(psutil.Process().children(recursive=True))
    stream = stream_of(TensorDataset(torch.zeros(4000, 1)), num_workers=2, persistent_workers=persistent)
    next(stream)
    workers = set(psutil.Process().children(recursive=True)) - before
    assert len(workers) == 2
    stream.close()
    assert comes_true(lambda: not any(worker.is_running() for worker in workers))


def raise_in_worker(samples: list[Any]) -> Any:
    raise ValueError("cannot collate")


def test_closing_after_an_error_in_a_worker_takes_no_time() -> None:
    gc.collect()
    gc.freeze()  # what earlier tests have left is not looked at again
    stream = stream_of(Squares(), num_workers=1, collate_fn=raise_in_worker)
    begin = time.monotonic()
    with pytest.raises(ValueError, match="cannot collate"):
        next(stream)
    stream.close()
    gc.collect()
    gc.unfreeze()
    assert time.monotonic() - begin < 4  # waiting in vain for a worker takes five
