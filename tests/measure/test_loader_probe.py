"""The look at the loader, on real workers and datasets that take a known time by sleeping."""

from __future__ import annotations

import os
import time
from itertools import pairwise
from statistics import fmean, median
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import psutil
import pytest
import torch
from torch import nn
from torch.utils.data import BatchSampler, IterableDataset, SequentialSampler, default_collate, get_worker_info

from autotune.measure import loader_probe as looks
from autotune.measure.device import CpuDevice
from autotune.measure.loader_probe import look_at_loader
from autotune.workload import Workload
from tests.datasets import CountingUp, SlowToOpen, Squares
from tests.quiet import undisturbed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from autotune.probes import LoaderTrace

pytestmark = [pytest.mark.machine, pytest.mark.timed]

BATCH_SIZE = 4
SAMPLE_SECONDS = 0.01
BATCH_SECONDS = 0.03
SECONDS = 0.5
"""Length of a look."""
MANY = 100_000
"""More samples than any of these looks builds."""
SAMPLE_BYTES = 8
"""Of a sample of ``Squares``: two floats."""


class Sleeping(Squares):
    """Takes a known time for each sample, and next to no CPU."""

    def __init__(self, length: int = MANY, seconds: float = SAMPLE_SECONDS) -> None:
        super().__init__(length)
        self.seconds = seconds

    def __getitems__(self, indices: list[int]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        time.sleep(self.seconds * len(indices))  # once for a batch: a sleeper wakes up late
        return [self[index] for index in indices]


class SleepingTogether(Sleeping):
    """Takes a known time for each batch, and another for each sample in it."""

    def __getitems__(self, indices: list[int]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        time.sleep(BATCH_SECONDS)
        return super().__getitems__(indices)


class SleepingStream(IterableDataset[torch.Tensor]):
    """The same as a stream."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        for number in range(MANY):
            if number % BATCH_SIZE == 0:
                time.sleep(BATCH_SIZE * SAMPLE_SECONDS)
            yield torch.tensor([float(number)])


class Computing(Squares):
    """Takes a known CPU time for each sample."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        end = time.thread_time() + SAMPLE_SECONDS
        while time.thread_time() < end:
            pass
        return super().__getitem__(index)


def look(dataset: Any, batch_size: int = BATCH_SIZE, seconds: float = SECONDS, **options: Any) -> LoaderTrace:
    return look_at_loader(Workload(nn.Linear(1, 1), dataset, **options), batch_size, CpuDevice(), seconds)


def takes(trace: LoaderTrace, truth: float, rel: float = 0.08) -> bool:
    """Whether a batch takes so many seconds in a worker and without one."""
    found = fmean(trace.build_seconds), trace.inline_seconds
    return min(found) >= 0.98 * truth and max(found) <= (1 + rel) * truth


def look_that_takes(truth: float, dataset: Any, *arguments: Any, rel: float = 0.08, **options: Any) -> LoaderTrace:
    """Look at a loader whose batches take so long."""
    trace = undisturbed(lambda: look(dataset, *arguments, **options), lambda trace: takes(trace, truth, rel))
    assert takes(trace, truth, rel), (trace.build_seconds, trace.inline_seconds)
    return trace


@pytest.fixture(scope="module")
def sleeping() -> LoaderTrace:
    return undisturbed(lambda: look(Sleeping()), is_undisturbed)


def is_undisturbed(trace: LoaderTrace) -> bool:
    return takes(trace, BATCH_SIZE * SAMPLE_SECONDS) and trace.start_seconds < 0.4 and trace.receive_seconds < 0.005


# --- what building a batch takes ---


def test_a_worker_builds_a_batch_in_the_time_of_its_samples(sleeping: LoaderTrace) -> None:
    assert fmean(sleeping.build_seconds) == pytest.approx(BATCH_SIZE * SAMPLE_SECONDS, rel=0.08)
    assert median(sleeping.build_seconds) == pytest.approx(BATCH_SIZE * SAMPLE_SECONDS, rel=0.08)
    assert sleeping.batch_size == BATCH_SIZE


def test_without_workers_it_takes_as_long(sleeping: LoaderTrace) -> None:
    assert sleeping.inline_seconds == pytest.approx(BATCH_SIZE * SAMPLE_SECONDS, rel=0.08)


def test_batches_that_were_built_before_the_look_are_not_part_of_it(sleeping: LoaderTrace) -> None:
    assert min(sleeping.build_seconds[:2]) > 0.5 * BATCH_SIZE * SAMPLE_SECONDS


def test_a_look_lasts_about_as_long_as_was_asked_for(sleeping: LoaderTrace) -> None:
    assert SECONDS - 3 * BATCH_SIZE * SAMPLE_SECONDS < sum(sleeping.build_seconds) < 1.5 * SECONDS


@pytest.mark.parametrize("batch_size", [1, 8])
def test_two_looks_tell_what_a_batch_costs_beside_its_samples(batch_size: int) -> None:
    look_that_takes(BATCH_SECONDS + 0.004 * batch_size, SleepingTogether(seconds=0.004), batch_size)


def test_builds_of_a_different_length_are_told_one_by_one() -> None:
    class Uneven(Squares):
        def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
            time.sleep(0.08 if index % (2 * BATCH_SIZE) == 0 else 0.004)
            return super().__getitem__(index)

    dataset = Uneven(MANY)

    def alternates(trace: LoaderTrace) -> bool:
        slow = [seconds > 0.05 for seconds in trace.build_seconds]
        return len(slow) > 1 and all(earlier != later for earlier, later in pairwise(slow))

    trace = undisturbed(lambda: look(dataset, sampler=SequentialSampler(dataset)), alternates)
    assert alternates(trace), trace.build_seconds


def test_the_users_collate_function_is_part_of_building() -> None:
    def collate(samples: list[Any]) -> Any:
        time.sleep(BATCH_SECONDS)
        return default_collate(samples)

    look_that_takes(BATCH_SECONDS, Squares(MANY), seconds=0.3, collate_fn=collate, rel=0.15)


def test_batches_are_those_of_the_users_batch_sampler() -> None:
    def sampler(batch_size: int) -> BatchSampler:
        return BatchSampler(SequentialSampler(range(MANY)), 2 * batch_size, drop_last=False)

    trace = look_that_takes(2 * BATCH_SIZE * SAMPLE_SECONDS, Sleeping(), seconds=0.3, batch_sampler=sampler)
    assert trace.batch_bytes == 2 * BATCH_SIZE * SAMPLE_BYTES


def test_an_iterable_dataset_is_looked_at_like_any_other() -> None:
    trace = look_that_takes(BATCH_SIZE * SAMPLE_SECONDS, SleepingStream(), seconds=0.3)
    assert trace.batch_bytes == BATCH_SIZE * 4


def test_epochs_of_three_batches_are_looked_at_without_their_starts() -> None:
    class Opening(Sleeping):
        opened_by = 0

        def __getitems__(self, indices: list[int]) -> list[tuple[torch.Tensor, torch.Tensor]]:
            if self.opened_by != os.getpid():
                time.sleep(0.2)
                self.opened_by = os.getpid()
            return super().__getitems__(indices)

    look_that_takes(BATCH_SIZE * 0.02, Opening(3 * BATCH_SIZE, seconds=0.02), seconds=0.2, rel=0.15)


def test_an_iterable_dataset_may_end_within_the_look() -> None:
    trace = look(CountingUp(5 * BATCH_SIZE), seconds=0.1)
    assert min(trace.build_seconds) > 0
    assert trace.batch_bytes == BATCH_SIZE * 4


def test_batches_that_are_slower_than_the_look_take_a_bounded_time() -> None:
    built = torch.zeros(1, dtype=torch.int64).share_memory_()

    class Counting(Sleeping):
        def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
            built.add_(1)
            return super().__getitem__(index)

    trace = look(Counting(seconds=0.5), batch_size=1, seconds=0.3)
    assert built.item() <= 10
    assert trace.build_seconds
    assert takes(trace, 0.5)


# --- what else it takes ---


def test_taking_a_batch_that_is_ready_does_not_wait_for_one(sleeping: LoaderTrace) -> None:
    assert 0 < sleeping.receive_seconds < 0.2 * BATCH_SIZE * SAMPLE_SECONDS


def test_a_dataset_that_sleeps_takes_no_cpu(sleeping: LoaderTrace) -> None:
    assert 0 <= sleeping.cpu_seconds < 0.15 * BATCH_SIZE * SAMPLE_SECONDS


def test_a_dataset_that_computes_takes_the_cpu_for_as_long() -> None:
    assert 0.8 < look(Computing(MANY)).cpu_seconds / (BATCH_SIZE * SAMPLE_SECONDS) < 1.5


def test_a_batch_has_the_bytes_of_all_its_tensors() -> None:
    class Nested(Squares):
        def __getitem__(self, index: int) -> Any:
            x = torch.zeros(3, 5)
            return {"x": x, "y": (torch.tensor(index), index), "mask": torch.zeros(7, dtype=torch.bool), "name": "a"}

    assert look(Nested(MANY), seconds=0.1).batch_bytes == BATCH_SIZE * (3 * 5 * 4 + 8 + 8 + 7)


def test_starting_a_worker_includes_opening_the_dataset_and_not_the_first_batch(sleeping: LoaderTrace) -> None:
    def is_right(opened: LoaderTrace) -> bool:
        assert opened.start_seconds >= 0.4
        return opened.start_seconds < 1.2 and opened.inline_seconds < 0.1

    assert is_right(undisturbed(lambda: look(SlowToOpen(MANY, 0.4), seconds=0.2), is_right))
    assert 0 < sleeping.start_seconds < 0.4


def test_what_a_worker_holds_by_itself_is_told(sleeping: LoaderTrace) -> None:
    class Caching(Squares):
        kept = b""

        def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
            if get_worker_info() and not self.kept:
                self.kept = bytes([1]) * 2**26
            return super().__getitem__(index)

    grown = look(Caching(MANY), seconds=0.1).worker_memory_bytes - sleeping.worker_memory_bytes
    assert grown == pytest.approx(2**26, rel=0.3)
    assert sleeping.worker_memory_bytes > 0


def test_on_a_cpu_nothing_is_pinned_or_moved(sleeping: LoaderTrace) -> None:
    assert (sleeping.pin_seconds, sleeping.transfer_seconds) == (0, 0)


# --- how it ends ---


def test_no_worker_outlives_the_look() -> None:
    before = set(psutil.Process().children(recursive=True))
    look(Squares(MANY), seconds=0.1)
    assert set(psutil.Process().children(recursive=True)) <= before


class Broken(Squares):
    """Raises at a number of items read by one process, where it is to."""

    def __init__(self, is_to_raise: Callable[[], Any], after: int) -> None:
        super().__init__(MANY)
        self._is_to_raise, self._left = is_to_raise, after

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if self._is_to_raise():
            self._left -= 1
            if self._left < 0:
                raise ValueError("their item is broken")
        return super().__getitem__(index)


@pytest.mark.parametrize("after", [0, 50], ids=["at once", "later"])
@pytest.mark.parametrize("is_to_raise", [lambda: True, get_worker_info], ids=["anywhere", "in the worker"])
def test_what_the_dataset_raises_passes_through_and_leaves_no_worker(
    is_to_raise: Callable[[], Any], after: int
) -> None:
    before = set(psutil.Process().children(recursive=True))
    with pytest.raises(ValueError, match="their item is broken"):
        look(Broken(is_to_raise, after), seconds=0.2)
    assert set(psutil.Process().children(recursive=True)) <= before


@pytest.mark.parametrize(("free", "batches"), [(10**9, 4), (5_600, 4), (4_500, 3), (2_300, 1), (100, 1), (0, 1)])
def test_the_worker_is_asked_for_no_more_than_shared_memory_holds(
    monkeypatch: pytest.MonkeyPatch, free: int, batches: int
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=free))
    assert looks._prefetch(1000) == batches


def test_with_room_for_one_batch_ahead_the_look_is_told_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looks, "_prefetch", lambda batch_bytes: 1)
    trace = look_at_loader(Workload(nn.Linear(1, 1), Squares(10**6)), 4, CpuDevice(), 0.3)
    assert len(trace.build_seconds) >= looks.LEAST_BATCHES
    assert trace.receive_seconds == 0.0
