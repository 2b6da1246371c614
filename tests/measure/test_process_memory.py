from __future__ import annotations

import pytest

from autotune.measure.process_memory import MemoryGrowth, MemorySample, growth_between
from tests.alone import assert_passes

pytestmark = pytest.mark.machine


def sample(batches: int, private: dict[int, int], shared: dict[int, int], in_flight: int = 0) -> MemorySample:
    return MemorySample(batches=batches, private=private, shared=shared, in_flight=in_flight, held=0)


@pytest.mark.parametrize(
    ("begin", "end", "expected"),
    [
        (sample(10, {1: 100, 2: 100}, {1: 50, 2: 50}), sample(30, {1: 300, 2: 200}, {1: 40, 2: 30}), (15.0, 1.5, 70)),
        (sample(0, {1: 100}, {1: 50}), sample(10, {1: 90}, {1: 60}), (0.0, 0.0, 60)),
        (sample(0, {1: 100}, {1: 900}), sample(10, {1: 150}, {1: 100}), (5.0, 5.0, 100)),
    ],
    ids=["of all workers for each batch of any", "nothing that grew is none", "no more was copied than grew"],
)
def test_growth_is_that_of_all_workers(
    begin: MemorySample, end: MemorySample, expected: tuple[float, float, int]
) -> None:
    grown, copied, copyable = expected
    growth = MemoryGrowth(bytes_per_batch=grown, copied_per_batch=copied, copyable=copyable)
    assert growth_between(begin, end) == growth


@pytest.mark.parametrize(
    ("begin", "end"),
    [
        (sample(0, {}, {}), sample(10, {}, {})),  # no workers
        (sample(0, {1: 5}, {1: 5}), sample(10, {2: 9}, {2: 5})),  # others
        (sample(0, {1: 5}, {1: 5}), sample(10, {1: 9, 2: 5}, {1: 5, 2: 5})),  # one more
        (sample(10, {1: 5}, {1: 5}), sample(10, {1: 9}, {1: 5})),  # no batch
    ],
)
def test_growth_needs_workers_that_lived_through_it_and_batches(begin: MemorySample, end: MemorySample) -> None:
    assert growth_between(begin, end) is None


def test_copying_ends_with_what_can_be_copied_and_own_growth_does_not() -> None:
    growth = MemoryGrowth(bytes_per_batch=10.0, copied_per_batch=4.0, copyable=100)
    assert [growth.after(batches) for batches in (0, 25, 26, 1000)] == [0, 250, 256, 6 * 1000 + 100]


def test_the_memory_of_workers_is_told_apart() -> None:
    """In a process of its own: what other tests have left in this one, its forks would copy."""
    assert_passes("tests/measure/worker_memory.py")
