from __future__ import annotations

import pytest

from autotune.measure.benchmark import growth_notes
from autotune.measure.process_memory import MemoryGrowth, MemorySample, growth_between, least_growth
from tests.alone import assert_passes

GIB = 2**30
pytestmark = pytest.mark.machine


def sample(batches: int, private: dict[int, int], shared: dict[int, int], in_flight: int = 0) -> MemorySample:
    return MemorySample(batches=batches, private=private, shared=shared, in_flight=in_flight, held=0)


def growth(kept: float, copied: float, copyable: int) -> MemoryGrowth:
    return MemoryGrowth(kept_per_batch=kept, copied_per_batch=copied, copyable=copyable)


@pytest.mark.parametrize(
    ("begin", "end", "expected"),
    [
        (sample(10, {1: 100, 2: 100}, {1: 50, 2: 50}), sample(30, {1: 300, 2: 200}, {1: 40, 2: 30}), (13.5, 1.5, 70)),
        (sample(0, {1: 100}, {1: 50}), sample(10, {1: 90}, {1: 60}), (0.0, 0.0, 60)),
        (sample(0, {1: 100}, {1: 900}), sample(10, {1: 150}, {1: 100}), (0.0, 5.0, 100)),
    ],
    ids=["of all workers for each batch of any", "nothing that grew is none", "no more was copied than grew"],
)
def test_growth_is_that_of_all_workers(
    begin: MemorySample, end: MemorySample, expected: tuple[float, float, int]
) -> None:
    assert growth_between(begin, end) == growth(*expected)


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


def test_copying_ends_with_what_can_be_copied_and_nobody_knows_where_keeping_does() -> None:
    seen = growth(kept=6.0, copied=4.0, copyable=100)
    assert [seen.copied_after(batches) for batches in (0, 25, 26, 1000)] == [0, 100, 100, 100]
    assert [seen.kept_after(batches) for batches in (0, 25, 1000)] == [0, 150, 6000]


def test_of_two_looks_that_counts_in_which_they_agree() -> None:
    assert least_growth(growth(6.0, 4.0, 100), growth(2.0, 5.0, 90)) == growth(3.0, 4.0, 90)
    given_back = growth(1.0, 1.0, 100)  # shared pages, not copied, while the worker keeps two bytes a batch
    assert least_growth(given_back, growth(2.5, 0.0, 90)) == growth(2.0, 0.0, 90)


@pytest.mark.parametrize(
    ("kept", "grew", "follows"),
    [
        (10.3, "211 MiB", "needs 10.3 GiB more, of 24.0 GiB in all: check that it is bounded"),
        (24.5, "502 MiB", "needs 24.5 GiB more, of 24.0 GiB in all: an unbounded cache or a leak ends training"),
    ],
)
def test_what_workers_keep_is_told_where_an_epoch_of_it_matters(kept: float, grew: str, follows: str) -> None:
    (note,) = growth_notes(int(kept * GIB), 50_000, 24 * GIB)
    assert note.startswith(
        f"the loader workers' memory grew by {grew} per 1,000 samples; if that goes on, an epoch of "
    )
    assert f"an epoch of 50,000 {follows}" in note
    assert not list(growth_notes(int(0.47 * GIB), 50_000, 24 * GIB))


def test_the_memory_of_workers_is_told_apart() -> None:
    """In a process of its own: what other tests have left in this one, its forks would copy."""
    assert_passes("tests/measure/worker_memory.py")
