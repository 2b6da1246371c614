"""The look at the loader, on real workers and datasets that take a known time by sleeping."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from statistics import fmean, median
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
from torch import nn
from torch.utils.data import BatchSampler, SequentialSampler, get_worker_info

from autotune.config import Config
from autotune.measure import loader_probe as looks
from autotune.measure.device import CpuDevice
from autotune.measure.loader import BatchStream
from autotune.measure.loader_probe import look_at_loader
from autotune.probes import LoaderTrace
from autotune.workload import Workload
from tests.datasets import CountingUp, SlowToOpen, Squares
from tests.measure.doing import MANY, Doing, spin

pytestmark = pytest.mark.machine

BATCH_SIZE = 4
SAMPLE_SECONDS = 0.01
SECONDS = 0.5  # length of a look
WITHOUT_ITS_LATENESS = 0.7  # share of a build that is left where the batch before it arrived late


class Sleeping(Squares):
    """Takes a known time for each sample, another for each batch, and next to no CPU."""

    def __init__(self, length: int = MANY, seconds: float = SAMPLE_SECONDS, batch_seconds: float = 0.0) -> None:
        super().__init__(length)
        self.seconds, self.batch_seconds = seconds, batch_seconds
        self.begun = torch.zeros(MANY, dtype=torch.float64).share_memory_()
        """When a worker began each batch by its own clock, in seconds: a sleeper wakes up late."""

    def __getitems__(self, indices: list[int]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        self.begun[self.begun.count_nonzero()] = time.perf_counter()
        time.sleep(self.batch_seconds + self.seconds * len(indices))
        return [self[index] for index in indices]


def look(dataset: Any, batch_size: int = BATCH_SIZE, seconds: float = SECONDS, **options: Any) -> LoaderTrace:
    workload, config = Workload(nn.Linear(1, 1), dataset, **options), Config(batch_size=batch_size)
    return look_at_loader(workload, config, CpuDevice(), seconds)


@pytest.fixture(scope="module")
def sleeping() -> LoaderTrace:
    return look(Sleeping())


# --- what building a batch takes ---


@pytest.mark.timed
def test_a_batch_takes_the_time_of_its_samples_in_a_worker() -> None:
    dataset, seconds = Sleeping(), 3 * SECONDS
    trace = look(dataset, seconds=seconds)
    own = dataset.begun[dataset.begun > 0].diff().tolist()[-len(trace.build_seconds) :]
    assert fmean(trace.build_seconds) == pytest.approx(fmean(own), rel=0.08)
    assert median(trace.build_seconds) == pytest.approx(median(own), rel=0.08)
    truth = BATCH_SIZE * SAMPLE_SECONDS
    assert trace.batch_size == BATCH_SIZE
    assert min(trace.build_seconds[:2]) > 0.5 * truth  # what was built before is left out
    assert seconds - 3 * truth < sum(trace.build_seconds) < 1.5 * seconds


def of_twice_as_many(batch_size: int) -> BatchSampler:
    return BatchSampler(SequentialSampler(range(MANY)), 2 * batch_size, drop_last=False)


def test_batches_are_those_of_the_users_batch_sampler() -> None:
    trace = look(Sleeping(), seconds=0.3, batch_sampler=of_twice_as_many)
    assert trace.batch_bytes == 2 * BATCH_SIZE * 8
    assert fmean(trace.build_seconds) > WITHOUT_ITS_LATENESS * 2 * BATCH_SIZE * SAMPLE_SECONDS


def test_epochs_of_three_batches_are_looked_at_without_their_starts() -> None:
    opened_by: list[int] = []

    def open_and_sleep(index: int) -> None:
        if os.getpid() not in opened_by:
            time.sleep(0.5)
            opened_by.append(os.getpid())
        time.sleep(0.02)

    trace = look(Doing(open_and_sleep, 3 * BATCH_SIZE), seconds=0.2)
    assert WITHOUT_ITS_LATENESS * BATCH_SIZE * 0.02 < fmean(trace.build_seconds) < 0.3


def test_an_iterable_dataset_may_end_within_the_look_and_nothing_of_it_comes_twice() -> None:
    trace = look(CountingUp(5 * BATCH_SIZE), seconds=0.1)
    assert min(trace.build_seconds) > 0
    assert trace.batch_bytes == BATCH_SIZE * 4
    assert look(CountingUp(MANY), seconds=0.1).again_seconds is None


def test_batches_that_are_slower_than_the_look_take_a_bounded_time() -> None:
    built = torch.zeros(1, dtype=torch.int64).share_memory_()

    def build(index: int) -> None:
        time.sleep(0.5)
        built.add_(1)

    trace = look(Doing(build), batch_size=1, seconds=0.3)
    assert built.item() <= 10
    assert min(trace.build_seconds) >= 0.4  # what is ready arrives late at times


# --- what else it takes ---


def test_taking_a_batch_that_is_ready_does_not_wait_for_one_and_nothing_is_pinned_or_moved_on_a_cpu(
    sleeping: LoaderTrace,
) -> None:
    assert 0 < sleeping.receive_seconds < 0.5 * BATCH_SIZE * SAMPLE_SECONDS
    assert (sleeping.pin_seconds, sleeping.transfer_seconds) == (0, 0)


def test_a_dataset_takes_the_cpu_where_it_computes_and_not_where_it_sleeps(sleeping: LoaderTrace) -> None:
    computing = look(Doing(lambda index: spin(SAMPLE_SECONDS)))
    assert computing.cpu_seconds > 0.8 * BATCH_SIZE * SAMPLE_SECONDS
    assert 0 <= sleeping.cpu_seconds < 0.4 * BATCH_SIZE * SAMPLE_SECONDS


def test_starting_a_worker_includes_opening_the_dataset_and_not_the_first_batch() -> None:
    opened = look(SlowToOpen(MANY, 0.4), seconds=0.2)
    assert opened.start_seconds + median(opened.build_seconds) >= 0.4 > fmean(opened.build_seconds)


class Sorting(SequentialSampler):
    def __iter__(self) -> Iterator[int]:
        time.sleep(0.4)
        return super().__iter__()


def test_ordering_an_epoch_is_told_from_starting_a_worker() -> None:
    found = look(Squares(MANY), seconds=0.1, sampler=Sorting(range(MANY)))
    assert found.order_seconds >= 0.4 > max(found.start_seconds, *found.build_seconds)


def test_what_a_worker_holds_by_itself_is_told(sleeping: LoaderTrace) -> None:
    kept: list[bytes] = []

    def keep_once(index: int) -> None:
        if get_worker_info() and not kept:
            kept.append(bytes([1]) * 2**26)

    grown = look(Doing(keep_once), seconds=0.1).worker_memory_bytes - sleeping.worker_memory_bytes
    assert grown == pytest.approx(2**26, rel=0.3)
    assert sleeping.worker_memory_bytes > 0


# --- how it ends ---


@pytest.mark.parametrize("after", [None, 50], ids=["never", "later"])
@pytest.mark.parametrize("is_to_raise", [lambda: True, get_worker_info], ids=["anywhere", "in the worker"])
def test_what_the_dataset_raises_passes_through_and_no_worker_outlives_the_look(
    is_to_raise: Callable[[], Any], after: int | None
) -> None:
    read = 0

    def raise_later(index: int) -> None:
        nonlocal read
        read += bool(is_to_raise())
        if after is not None and read > after:
            raise ValueError("their item is broken")

    before = set(psutil.Process().children(recursive=True))
    with nullcontext() if after is None else pytest.raises(ValueError, match="their item is broken"):
        look(Doing(raise_later), seconds=0.2)
    assert set(psutil.Process().children(recursive=True)) <= before


@pytest.mark.parametrize("asked", [1, 2, 9])
def test_the_worker_is_asked_for_as_many_batches_as_the_configuration_asks_for_and_four_at_most(asked: int) -> None:
    counts: list[int] = []

    def count(index: int) -> None:
        built.add_(1)

    built = torch.zeros(1, dtype=torch.int64).share_memory_()
    config = Config(batch_size=1, num_workers=1, prefetch_factor=asked)
    real = looks._receives

    def receives(stream: Any, prefetch: int, seconds: float) -> list[float]:
        counts.append(prefetch)
        return real(stream, prefetch, seconds)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(looks, "_receives", receives)
        trace = look_at_loader(Workload(nn.Linear(1, 1), Doing(count)), config, CpuDevice(), 0.2)
    assert counts == [min(asked, looks.PREFETCH)]
    assert len(trace.build_seconds) >= looks.LEAST_BATCHES
    assert trace.receive_seconds > 0
    assert built.item() >= looks.LEAST_BATCHES


# --- what the dataset keeps ---


def test_building_a_batch_takes_what_reading_new_samples_does_where_they_are_kept_and_either_else() -> None:
    first, kept, read = [0.04, 0.042], [0.001, 0.002], [0.041, 0.039]
    assert looks._Builds(first, kept).counted == first
    assert looks._Builds(first, kept).again_seconds == 0.0015
    assert looks._Builds(first, read).counted == [*first, *read]
    assert looks._Builds(first, []).counted == first
    assert looks._Builds(first[:1], kept).again_seconds is None


class Keeping(Squares):
    """Takes a known time for each sample of which it keeps nothing, by the clock of the process that reads it."""

    def __init__(self, *, keeps: bool = True, is_shared: bool = False) -> None:
        super().__init__(MANY)
        self.clock, self.keeps, self.read = torch.zeros(1, dtype=torch.float64), keeps, torch.zeros(MANY)
        if is_shared:
            self.read.share_memory_()

    def __getitem__(self, index: int) -> torch.Tensor:
        self.clock += SAMPLE_SECONDS / (50 if self.read[index] else 1)
        self.read[index] = self.keeps
        return self.clock.clone()


@pytest.fixture
def by_arrival(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time is that at which the batch that came last was ready: load does not change it."""
    now, real = [0.0], BatchStream.__next__

    def arriving(stream: BatchStream) -> Any:
        batch = real(stream)
        now[0] = batch.max().item()
        return batch

    monkeypatch.setattr(BatchStream, "__next__", arriving)
    clock = SimpleNamespace(perf_counter=lambda: now[0], process_time=time.process_time, sleep=time.sleep)
    monkeypatch.setattr(looks, "time", clock)


@pytest.mark.usefixtures("by_arrival")
@pytest.mark.parametrize("of_batches", [False, True])
@pytest.mark.parametrize("is_shared", [False, True])
def test_a_cache_of_the_dataset_is_told_from_one_that_all_processes_share(is_shared: bool, of_batches: bool) -> None:
    options = {"batch_sampler": of_twice_as_many} if of_batches else {}
    trace = look(Keeping(is_shared=is_shared), **options)
    assert trace.keeps_samples
    assert trace.is_own_cache == (not is_shared)
    assert trace.elsewhere_seconds is not None
    assert (trace.elsewhere_seconds < fmean(trace.build_seconds) / 2) == is_shared


@pytest.mark.usefixtures("by_arrival")
def test_a_loader_without_a_cache_is_asked_in_one_worker_alone() -> None:
    trace = look(Keeping(keeps=False), seconds=0.2)
    assert (trace.keeps_samples, trace.is_own_cache, trace.elsewhere_seconds) == (False, False, None)
