from __future__ import annotations

import itertools
import math
import random
from dataclasses import replace
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.measure.window import (
    StepRow,
    WindowSummary,
    cycles,
    is_balanced,
    is_stationary,
    relative_half_width,
    stalls,
    summarise,
)
from tests.pipeline import BATCH_SIZE


def row(begin: float, there: float, end: float, *, samples: int = BATCH_SIZE, ready: int = 0) -> StepRow:
    forwarded = there + (end - there) / 3
    return StepRow(begin, there, there, forwarded, end, end, end, samples, ready)


def even_rows(seconds: list[float], *, ready: int = 0) -> list[StepRow]:
    ends = [sum(seconds[: index + 1]) for index in range(len(seconds))]
    return [row(end - length, end - length, end, ready=ready) for end, length in zip(ends, seconds, strict=True)]


def summed(rows: list[StepRow], ready: int, workers: int = 0, *, whole_epochs: bool = False) -> WindowSummary:
    return summarise(rows, ready, workers, whole_epochs=whole_epochs)


@pytest.mark.parametrize(
    ("ready", "workers", "expected"),
    [
        ([0] * 4, 0, False),
        ([0] * 5, 0, True),
        ([3] * 10, 1, False),  # two blocks and the step before them are needed
        ([3] * 11, 1, True),
        (list(range(11)), 1, False),
        (list(range(20, 9, -1)), 1, False),
        ([9, 8, 7, 6, 5, 5, 5, 5, 5, 5, 5], 1, False),  # still in one of the two blocks only
        ([4, 4, 4, 4, 4, 5, 5, 5, 5, 5, 6], 1, True),  # a batch a block is counting noise
        ([0, 9, 3, 7, 1, 1, 8, 2, 6, 4, 0], 1, True),  # what it does inside a block does not matter
    ],
)
def test_the_inventory_is_stationary_when_it_stands_still_over_two_blocks(
    ready: list[int], workers: int, expected: bool
) -> None:
    assert is_stationary(ready, 5, workers) is expected


def ends_of(seconds: list[float]) -> list[float]:
    return [r.end for r in even_rows(seconds)]


def width(seconds: list[float], burst: int = 1, samples: list[int] | None = None) -> float:
    return relative_half_width(ends_of(seconds), 0.0, samples or [BATCH_SIZE] * len(seconds), burst)


@pytest.mark.parametrize("seconds", [0.5, 0.1])  # one that a float holds, and one that it rounds
def test_equal_bursts_have_no_width_and_one_alone_an_infinite_one(seconds: float) -> None:
    assert width([seconds] * 40, 5) == pytest.approx(0, abs=1e-9)
    assert width([seconds] * 9, 5) == math.inf


@given(
    st.lists(st.integers(1, 64), min_size=10, max_size=100), st.integers(-6, 6), st.integers(0, 100), st.integers(1, 8)
)
def test_the_relative_width_knows_neither_unit_nor_start(
    lengths: list[int], power: int, start: int, burst: int
) -> None:
    ends, samples = ends_of([float(length) for length in lengths]), [1] * len(lengths)
    shifted = [(start + end) * 2.0**power for end in ends]  # exactly: a rounded autocorrelation may round the width
    again = relative_half_width(shifted, start * 2.0**power, samples, burst)
    assert again == pytest.approx(relative_half_width(ends, 0.0, samples, burst), rel=1e-9, abs=1e-12)


@given(st.lists(st.integers(1, 64), min_size=10, max_size=80), st.floats(1e-4, 1e-2))
def test_batches_that_take_as_long_as_they_have_samples_have_no_width(samples: list[int], seconds: float) -> None:
    assert width([seconds * count for count in samples], samples=samples) == pytest.approx(0, abs=1e-6)


def test_many_bursts_are_merged_to_forty_at_most_so_that_slow_changes_show() -> None:
    found = cycles(ends_of([0.01] * 1000), 0.0, 1)
    assert len(found.edges) == 41
    assert len(cycles(ends_of([0.01] * 1030), 0.0, 1).edges) <= 41
    assert not found.of_stalls
    slow = [0.010 + 0.002 * math.sin(index / 50) for index in range(1000)]
    shuffled = random.Random(0).sample(slow, len(slow))
    assert width(slow) > 2 * width(shuffled)


# --- stalls ---

CYCLE = [1.0, *[0.02] * 5]


@pytest.mark.parametrize("before", range(6))
@pytest.mark.parametrize("after", range(6))
def test_a_window_is_cut_to_whole_cycles_from_stall_to_stall(before: int, after: int) -> None:
    summary = summed(even_rows([0.02] * before + CYCLE * 5 + CYCLE[: 1 + after]), 0)
    assert (summary.dropped_steps, summary.steps) == (before + 1, 30)
    assert summary.samples_per_second == pytest.approx(6 * BATCH_SIZE / 1.1)
    assert summary.relative_half_width == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("cycles", [2, 3])
def test_few_stalls_make_no_cycles_and_a_wide_interval(cycles: int) -> None:
    summary = summed(even_rows(CYCLE * cycles), 0)
    assert summary.steps == 6 * cycles
    assert summary.relative_half_width > 0.5


@pytest.mark.parametrize("seed", range(5))
def test_the_interval_over_cycles_holds_where_stalls_come_at_random(seed: int) -> None:
    generator = random.Random(seed)
    held = 0
    for _ in range(200):
        lengths = [1.0 if generator.random() < 0.1 else 0.02 for _ in range(200)]
        found = summed(even_rows(lengths), 0)
        truth = BATCH_SIZE / (0.1 * 1.0 + 0.9 * 0.02)
        held += abs(found.samples_per_second / truth - 1) <= found.relative_half_width
    assert held >= 0.88 * 200


@given(st.lists(st.floats(0.01, 0.1), max_size=50))
def test_stalls_are_the_bursts_far_longer_than_most_where_one_alone_matters(lengths: list[float]) -> None:
    usual = median(lengths) if lengths else 0.0
    for place in stalls(lengths):
        assert lengths[place] > 3 * usual
    if len(lengths) > 40:
        assert not stalls([*lengths, 3.1 * usual]) or max(lengths) - usual > 0.05 * sum(lengths)


@pytest.mark.parametrize(("ready_before", "ready_after", "share"), [(3, 3, 0), (3, 4, 0), (4, 3, 0), (5, 3, 0.04)])
def test_a_difference_of_one_batch_is_counting_noise_and_not_corrected(
    ready_before: int, ready_after: int, share: float
) -> None:
    summary = summed(even_rows([0.01] * 50, ready=ready_after), ready_before, 1)
    assert summary.early_share == pytest.approx(share)
    assert summary.samples_per_second == pytest.approx(BATCH_SIZE * 100 * (1 - share))


@pytest.mark.parametrize(
    ("before", "after", "steps", "expected"),
    [
        *((0, 0, 1, True), (0, 1, 199, False), (0, 1, 200, True), (1, 0, 200, True)),
        *((9, 4, 999, False), (9, 4, 1000, True), (4, 9, 1000, True)),
    ],
)
def test_a_window_is_balanced_up_to_half_a_percent_of_its_steps(
    before: int, after: int, steps: int, expected: bool
) -> None:
    assert is_balanced(before, after, steps) is expected


def test_steps_that_have_not_settled_are_dropped_at_the_front() -> None:
    generator = random.Random(1)
    summary = summed(even_rows([0.05] * 10 + [generator.gauss(0.01, 1e-4) for _ in range(90)]), 0)
    assert summary.is_steady
    assert summary.dropped_steps + summary.steps == 100
    assert 50 <= summary.steps <= 90
    assert summary.samples_per_second == pytest.approx(BATCH_SIZE / 0.01, rel=0.01)


@pytest.mark.parametrize(
    ("seconds", "dropped"),
    [
        ([0.0159, 0.0159, *[0.010, 0.014] * 4], 0),
        ([0.0165, 0.0165, *[0.010, 0.014] * 4], 2),
        *(([1.00005 * (1 + excess)] * 2 + [1.0, 1.0001] * 4, 0) for excess in (0.019, -0.019)),
        *(([1.00005 * (1 + excess)] * 2 + [1.0, 1.0001] * 4, 2) for excess in (0.021, -0.021)),
        ([1.0, 0.1, 0.1001, 0.1], 0),
        ([1.0, 0.1, 0.1001, 0.1, 0.1001], 1),
    ],
    ids=[
        *("as the rest within itself", "more than the rest within itself", "1.9 % more", "1.9 % less", "2.1 % more"),
        *("2.1 % less", "four blocks", "five blocks"),
    ],
)
def test_steps_at_the_front_are_dropped_where_they_differ_enough_and_blocks_are_left(
    seconds: list[float], dropped: int
) -> None:
    assert summed(even_rows(seconds), 0).dropped_steps == dropped


@pytest.mark.parametrize("blocks", [5, 6, 7, 10])
def test_steps_that_never_settle_are_told(blocks: int) -> None:
    assert not summed(even_rows([2.0**-index for index in range(blocks)]), 0).is_steady


@pytest.mark.parametrize(
    ("waiting", "grown", "factor"),
    [
        (0.5, 10, 1.25),  # the loop would have used them: built is what counts
        (0.1, 10, 1 / 0.9),  # it had time for no more than this
        (0.0, 10, 1.0),  # it was never short of batches: the queue fills, and that earns nothing
        (0.5, 1, 1.0),  # counting noise
    ],
)
def test_batches_built_and_not_yet_used_count_where_the_loop_was_starved(
    waiting: float, grown: int, factor: float
) -> None:
    rows = [row(k, k + waiting, k + 1, ready=round(grown * (k + 1) / 40)) for k in range(40)]
    summary = summarise(rows, 0, 0, whole_epochs=False)
    assert summary.samples_per_second == pytest.approx(factor * BATCH_SIZE)


def test_whole_epochs_are_neither_trimmed_nor_corrected_and_a_short_last_batch_counts_what_it_holds() -> None:
    summary = summed(even_rows([0.05] * 10 + [0.01] * 90), 50, whole_epochs=True)
    assert summary.steps == 100
    assert summary.samples_per_second == pytest.approx(BATCH_SIZE * 100 / 1.4)
    rows = [row(begin, begin, begin + 1, samples=samples) for begin, samples in enumerate((16, 16, 7))]
    summary = summed(rows, 0, whole_epochs=True)
    assert summary.samples == 39
    assert summary.samples_per_second == pytest.approx(13.0)


PHASES = st.lists(st.floats(0, 1), min_size=7, max_size=7)


@given(st.lists(PHASES, min_size=1, max_size=60), st.integers(0, 40), st.booleans())
def test_the_shares_of_a_step_add_up_to_it(phases: list[list[float]], ready: int, whole_epochs: bool) -> None:
    clock = itertools.accumulate(length + 1e-3 for lengths in phases for length in lengths)
    rows = [StepRow(*itertools.islice(clock, 7), BATCH_SIZE, 0) for _ in phases]
    summary = summed(rows, ready, whole_epochs=whole_epochs)
    assert summary.step_time.total == pytest.approx(summary.seconds / summary.steps, rel=1e-9)
    assert 0 <= summary.waiting_share <= 1
    assert 0 <= summary.samples_per_second <= summary.samples / summary.seconds * (1 + 1e-12)


@pytest.mark.parametrize(("wait", "rate"), [(0.5, 0.9), (0.0, 1.0)])
def test_batches_built_while_the_clock_stood_still_do_not_count_where_data_is_awaited(wait: float, rate: float) -> None:
    rows = [
        replace(row(second, second + wait, second + 1.0), built_apart=2 if second % 20 == 9 else 0)
        for second in range(100)
    ]
    assert summed(rows, 0).samples_per_second == pytest.approx(rate * BATCH_SIZE)
