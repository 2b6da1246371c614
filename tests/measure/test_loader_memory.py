from __future__ import annotations

import gc
import itertools
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, TensorDataset, get_worker_info

from autotune.config import Config
from autotune.errors import UserCodeError
from autotune.measure.loader import BatchStream, CountingCollate, open_stream
from autotune.workload import Workload
from tests.datasets import CountingUp, Divided, OneShard, Shards, Squares, first_elements
from tests.measure.test_loader import WithoutEnd


def stream_of(dataset: Any, batch_size: int = 4, **options: Any) -> BatchStream:
    counter = CountingCollate(options.pop("collate_fn", None), options.get("num_workers", 0), compares_workers=True)
    return BatchStream(DataLoader(dataset, batch_size=batch_size, collate_fn=counter, **options), counter)


def take(stream: BatchStream, count: int) -> list[Any]:
    return [next(stream) for _ in range(count)]


def comes_true(claim: Callable[[], bool]) -> bool:
    end = time.monotonic() + 60.0
    while not claim():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


@pytest.mark.parametrize("num_workers", [0, 2])
def test_every_batch_that_is_built_is_counted_in_whichever_process(num_workers: int) -> None:
    counter = CountingCollate(None, num_workers)
    loader = DataLoader(Squares(10), 3, collate_fn=counter, num_workers=num_workers)
    assert sum(counter.built) == 0
    for epoch in (1, 2):
        assert [(len(x), built.samples) for (x, _), built in loader] == [(3, 3), (3, 3), (3, 3), (1, 1)]
        assert sum(counter.built) == 4 * epoch


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_users_collate_function_builds_the_batches(num_workers: int) -> None:
    stream = stream_of(Squares(4), num_workers=num_workers, collate_fn=first_elements)
    assert {key: value.tolist() for key, value in next(stream).items()} == {"x": [[0.0], [1.0], [2.0], [3.0]]}
    stream.close()


def test_batches_are_those_of_the_default_collate_function_and_one_whose_collation_fails_is_not_counted() -> None:
    batch, built = CountingCollate(None, 0)([Squares()[2], Squares()[3]])
    assert built.samples == 2
    assert [part.tolist() for part in batch] == [[[2.0], [3.0]], [[4.0], [9.0]]]
    assert CountingCollate(pad_sequence, 0)([torch.ones(5), torch.ones(3)])[1].samples == 2  # first is the length
    counter = CountingCollate(first_elements, 0)
    with pytest.raises(IndexError):
        counter([()])
    assert counter.built == [0]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_stream_goes_on_from_epoch_to_epoch_with_a_short_last_batch(num_workers: int) -> None:
    stream = stream_of(Squares(10), num_workers=num_workers)
    assert (stream.epochs, stream.epoch_batches, stream.steps_left, stream.epoch_samples) == (0, 3, 3, 10)
    seen = []
    for _ in range(7):
        x, _ = next(stream)
        seen.append((len(x), stream.epochs, stream.steps_left))
        assert num_workers or stream.ready == 0  # without workers nothing is built in advance
    assert seen == [(4, 1, 2), (4, 1, 1), (2, 1, 0), (4, 2, 2), (4, 2, 1), (2, 2, 0), (4, 3, 2)]
    assert stream.consumed == 7
    assert len(stream.start_seconds) == 3
    assert min(stream.start_seconds) > 0
    stream.close()


def test_the_length_of_an_iterable_epoch_is_learnt_at_its_end_and_is_what_all_workers_yield() -> None:
    stream = stream_of(CountingUp(10))
    assert [batch.numel() for batch in take(stream, 3)] == [4, 4, 2]
    assert (stream.epoch_batches, stream.steps_left, stream.epoch_samples) == (None, None, None)
    next(stream)
    assert (stream.epochs, stream.epoch_batches, stream.steps_left) == (2, 3, 2)
    take(stream := stream_of(CountingUp(8), num_workers=2), 5)
    assert (stream.epochs, stream.epoch_batches, stream.steps_left) == (2, 4, 3)
    stream.close()


@pytest.mark.parametrize(
    ("dataset", "options"),
    [(CountingUp(0), {}), (CountingUp(0), {"num_workers": 1}), (Squares(3), {"drop_last": True})],
    ids=["iterable", "iterable, in a worker", "everything dropped"],
)
def test_an_epoch_without_batches_is_the_users_error(dataset: Any, options: dict[str, Any]) -> None:
    stream = stream_of(dataset, **options)
    with pytest.raises(UserCodeError, match="yields no batch"):
        next(stream)
    stream.close()


def test_workers_fill_the_inventory_to_workers_times_prefetch_and_it_is_empty_at_the_end_of_an_epoch() -> None:
    stream = stream_of(Squares(400), num_workers=2, prefetch_factor=3)
    next(stream)
    assert comes_true(lambda: stream.ready >= 6)
    time.sleep(0.1)
    assert stream.ready == 6
    while stream.steps_left:
        next(stream)
    assert stream.ready == 0
    stream.close()


def test_a_sampler_without_end_has_no_epochs() -> None:
    stream = stream_of(Squares(80), sampler=WithoutEnd())
    assert [x.flatten().tolist() for x, _ in take(stream, 20)] == [[*range(at, at + 4)] for at in range(0, 80, 4)]
    assert (stream.epochs, stream.epoch_batches, stream.steps_left, stream.epoch_samples) == (1, None, None, None)


def test_an_epoch_has_the_batches_that_the_loader_says_and_the_samples_of_the_sampler() -> None:
    stream = stream_of(Squares(10), drop_last=True)
    assert [len(x) for x, _ in take(stream, 5)] == [4] * 5
    assert (stream.epochs, stream.epoch_batches) == (3, 2)
    sampler = RandomSampler(range(10), replacement=True, num_samples=33)
    assert stream_of(Squares(10), sampler=sampler).epoch_samples == 33


class Ones(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        return itertools.repeat(torch.ones(1), 400)


class Shuffled(IterableDataset[dict[str, Any]]):
    """Texts that each worker shuffles through a buffer by its own seed: all of them, or those that are its own."""

    def __init__(self, *, is_divided: bool) -> None:
        self.is_divided = is_divided

    def __iter__(self) -> Iterator[dict[str, Any]]:
        info, generator, kept = get_worker_info(), random.Random(torch.initial_seed()), list[int]()
        own = range(info.id, 4000, info.num_workers) if info and self.is_divided else range(4000)
        for number in own:
            kept.append(number)
            if len(kept) == 300:
                yield {"text": f"text {kept.pop(generator.randrange(300))}", "length": 1.0}


class Drawn(IterableDataset[torch.Tensor]):
    """Samples that each worker draws at random from a thousand, again and again."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        generator = random.Random(torch.initial_seed())
        while True:
            yield torch.tensor([float(generator.randrange(1000))])


@pytest.mark.parametrize(
    ("dataset", "num_workers", "share", "idle"),
    [
        (Shuffled(is_divided=False), 2, 0.5, 0),
        (Shuffled(is_divided=True), 2, 1.0, 0),
        (Shuffled(is_divided=False), 1, 1.0, 0),
        (Drawn(), 2, 1.0, 0),
        (CountingUp(400), 0, 1.0, 0),
        (CountingUp(400), 1, 1.0, 0),
        (CountingUp(400), 2, 0.5, 0),
        (CountingUp(4), 2, 0.5, 0),
        (Divided(400), 2, 1.0, 0),
        (OneShard(400), 2, 1.0, 1),
        (Ones(), 2, 1.0, 0),
        (TensorDataset(torch.arange(400) // 8 % 2), 0, 1.0, 0),
        (TensorDataset(torch.arange(400) // 8 % 2), 2, 1.0, 0),
    ],
    ids=[
        *("undivided and shuffled", "divided and shuffled", "shuffled alone", "drawn at random"),
        *("alone", "one worker", "undivided", "undivided and short", "divided", "one shard", "all samples equal"),
        *("indexed alone", "indexed"),
    ],
)
def test_only_workers_that_yield_what_another_did_share_their_credit_and_those_that_build_nothing_are_idle(
    dataset: Any, num_workers: int, share: float, idle: int
) -> None:
    opened = open_stream(Workload(nn.Linear(1, 1), dataset), Config(batch_size=4, num_workers=num_workers))
    for stream in (stream_of(dataset, num_workers=num_workers), opened):
        assert stream.idle_workers == 0
        take(stream, 80)  # each has had its turn
        assert (stream.unique_share, stream.idle_workers, stream.samples) == (share, idle, 4)
        stream.close()


class OneIsSlow(Shards):
    def __iter__(self) -> Iterator[torch.Tensor]:
        worker = get_worker_info()
        for sample in super().__iter__():
            time.sleep(0.02 * (worker.id if worker else 0))
            yield sample


@pytest.mark.parametrize(
    ("dataset", "num_workers", "batches", "is_uneven"),
    [
        (Shards(160, 40, 40), 0, 90, False),
        (Shards(160, 40, 40), 1, 90, False),
        (Shards(160, 40, 40), 3, 30, False),  # each goes on
        (Shards(160, 40, 40), 3, 35, True),
        (Shards(160, 40, 40), 3, 90, True),  # in the next epoch
        (Shards(160, 40, 40), 4, 9, True),
        (Shards(160, 160, 160), 3, 200, False),
        (Shards(160, 156), 2, 100, False),
        (Shards(160, 160, 160), 2, 100, True),
        (Divided(61), 2, 40, False),
        (CountingUp(61), 2, 60, False),
        (Squares(61), 2, 40, False),
    ],
)
@pytest.mark.parametrize("persistent", [False, True])
def test_amounts_differ_where_a_worker_has_nothing_left_while_others_go_on(
    dataset: Any, num_workers: int, batches: int, is_uneven: bool, persistent: bool
) -> None:
    stream = stream_of(dataset, num_workers=num_workers, persistent_workers=persistent and num_workers > 0)
    take(stream, batches)
    assert stream.is_uneven is is_uneven
    stream.close()


def test_a_slow_worker_that_takes_no_turns_is_neither_idle_nor_out_of_data() -> None:
    stream = stream_of(OneIsSlow(160, 160), num_workers=2, in_order=False)
    assert sum(float(batch[0]) >= 1000 for batch in take(stream, 20)) < 9  # the faster worker is ahead
    assert (stream.idle_workers, stream.is_uneven) == (0, False)
    stream.close()


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
    stream = stream_of(Squares(), num_workers=1, collate_fn=raise_in_worker)
    begin = time.monotonic()
    with pytest.raises(ValueError, match="cannot collate"):
        next(stream)
    stream.close()
    gc.collect()
    assert time.monotonic() - begin < 4  # waiting in vain for a worker takes five
