from __future__ import annotations

import math
import random
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.measure.window import (
    StepRow,
    WindowSummary,
    block_steps,
    is_stationary,
    relative_half_width,
    summarise,
)

BATCH = 16
HAND_OVER = 1e-4
"""Seconds in which a ready batch is handed over."""


@dataclass(frozen=True)
class Pipeline:
    """A DataLoader with workers, and the training step that it feeds; times in seconds."""

    num_workers: int
    prefetch_factor: int
    build: float
    """What a worker needs for a batch."""
    compute: float
    """What a step needs once it has its batch."""
    spread: float = 0.0
    """Standard deviation of the build time, relative to it."""
    pause: float = 0.0
    """How long the loader runs before the first batch is asked for."""

    def follow(self, steps: int) -> tuple[list[float], list[float], list[float]]:
        """Follow the recursion of a DataLoader, in which K = workers * prefetch batches are in flight at most.

        Batch k is built at f[k] = max(y[k-K], f[k-W]) + S and handed over at y[k] = max(f[k], y[k-1] + c) + h.
        Returns when each was built, handed over, and asked for; the step ends when the next one is asked for.
        """
        generator = random.Random(1)
        workers, in_flight = self.num_workers, self.num_workers * self.prefetch_factor
        f: list[float] = []
        y: list[float] = []
        asked = [self.pause]
        for k in range(steps):
            wanted = y[k - in_flight] if workers and k >= in_flight else 0.0
            free = f[k - workers] if workers and k >= workers else 0.0
            begin = max(wanted, free) if workers else asked[-1]
            f.append(begin + self.build * max(0.1, generator.gauss(1, self.spread)))
            y.append(max(f[k], asked[-1]) + HAND_OVER)
            asked.append(y[k] + self.compute)
        return f, y, asked

    def run(self, steps: int) -> list[StepRow]:
        """Return the first steps, with the inventory after each."""
        in_flight = self.num_workers * self.prefetch_factor
        f, y, asked = self.follow(steps + in_flight)
        return [
            row(
                asked[k],
                y[k],
                asked[k + 1],
                ready=sum(t <= asked[k + 1] for t in f[k + 1 : k + 1 + in_flight]),
            )
            for k in range(steps)
        ]

    @property
    def true_rate(self) -> float:
        """Samples per second in the long run."""
        _, _, asked = self.follow(6000)
        return BATCH * 4000 / (asked[6000] - asked[2000])

    @property
    def block(self) -> int:
        return block_steps(self.num_workers, max(self.compute, self.build / max(1, self.num_workers)))


def row(begin: float, there: float, end: float, *, samples: int = BATCH, ready: int = 0) -> StepRow:
    """A step that spends a third of its compute in forward, the rest in backward."""
    forwarded = there + (end - there) / 3
    return StepRow(begin, there, there, forwarded, end, end, samples, ready)


def settled(rows: list[StepRow], pipeline: Pipeline) -> int:
    """The number of steps after which the benchmark opens its window."""
    step = max(1, pipeline.num_workers)
    while not is_stationary([r.ready for r in rows[:step]], pipeline.block, pipeline.num_workers):
        step += pipeline.block
    return step


def from_step(rows: list[StepRow], first: int) -> list[StepRow]:
    """The rows from one on, their clock set to 0 at the end of the step before."""
    zero = rows[first - 1].end
    return [
        StepRow(
            *(t - zero for t in (r.begin, r.there, r.moved, r.forwarded, r.differentiated, r.end)),
            r.samples,
            r.ready,
        )
        for r in rows[first:]
    ]


def window(pipeline: Pipeline, blocks: int = 20) -> WindowSummary:
    """Settle, then measure, as the benchmark does."""
    rows = pipeline.run(1500)
    first = settled(rows, pipeline)
    kept = from_step(rows, first)[: blocks * pipeline.block]
    return summarise(kept, rows[first - 1].ready, pipeline.block, whole_epochs=False)


def even_rows(seconds: list[float]) -> list[StepRow]:
    """Steps of these lengths, without waiting."""
    ends = [sum(seconds[: index + 1]) for index in range(len(seconds))]
    return [row(end - length, end - length, end) for end, length in zip(ends, seconds, strict=True)]


@given(st.integers(0, 64), st.floats(1e-5, 0.2))
def test_a_block_is_a_multiple_of_the_workers_and_at_least_five_steps(workers: int, seconds: float) -> None:
    block = block_steps(workers, seconds)
    assert block % max(1, workers) == 0
    assert 5 <= block < 5 + max(1, workers)


@given(st.integers(0, 64), st.floats(0.2, 100, exclude_min=True))
def test_a_block_of_slow_steps_is_one_burst(workers: int, seconds: float) -> None:
    assert block_steps(workers, seconds) == max(1, workers)


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


def test_many_workers_are_allowed_a_quarter_of_them_as_change() -> None:
    ready = [20 - 4 * (index // 16) for index in range(33)]
    assert is_stationary(ready, 16, 16)
    assert not is_stationary([20 - 5 * (index // 16) for index in range(33)], 16, 16)


def test_equal_blocks_have_no_width() -> None:
    assert relative_half_width([0.5 * index for index in range(1, 41)], 0.0, 5) == pytest.approx(0, abs=1e-9)


def test_one_block_has_an_infinite_width() -> None:
    assert relative_half_width([1.0, 2.0, 3.0, 4.0, 5.0], 0.0, 5) == math.inf


@given(st.lists(st.floats(0.01, 1), min_size=10, max_size=100), st.floats(0.1, 10), st.floats(0, 100))
def test_the_relative_width_knows_neither_unit_nor_start(seconds: list[float], factor: float, start: float) -> None:
    ends = [r.end for r in even_rows(seconds)]
    shifted = [start + end * factor for end in ends]
    assert relative_half_width(shifted, start, 5) == pytest.approx(
        relative_half_width(ends, 0.0, 5), rel=1e-3, abs=1e-6
    )


def test_many_blocks_are_merged_to_ten_at_most() -> None:
    uneven = [0.1 if index // 5 % 2 else 0.3 for index in range(200)]  # neighbouring blocks differ, merged ones do not
    assert relative_half_width([r.end for r in even_rows(uneven)], 0.0, 5) < 0.01
    assert relative_half_width([r.end for r in even_rows(uneven[:50])], 0.0, 5) > 0.2


LOADERS = [(0, 1)] + [(workers, prefetch) for workers in (1, 2, 4, 8) for prefetch in (1, 2, 8, 32)]
BALANCES = {
    "loader-bound": 0.25,
    "compute-bound": 3.0,
    "balanced": 1.0,
    "draining slowly": 0.9,
    "just keeping up": 1.03,
}
"""Seconds of a step per second that the workers need for a batch together."""


def pipeline(balance: str, workers: int, prefetch: int, **options: float) -> Pipeline:
    return Pipeline(workers, prefetch, build=0.01 * max(1, workers), compute=0.01 * BALANCES[balance], **options)


@pytest.mark.parametrize("balance", BALANCES)
@pytest.mark.parametrize(("workers", "prefetch"), LOADERS)
def test_the_rate_is_the_long_run_rate_from_a_cold_start(balance: str, workers: int, prefetch: int) -> None:
    machine = pipeline(balance, workers, prefetch)
    assert window(machine).samples_per_second == pytest.approx(machine.true_rate, rel=0.03)


@pytest.mark.parametrize("balance", BALANCES)
@pytest.mark.parametrize(("workers", "prefetch"), LOADERS[1:])
def test_batches_built_before_the_window_are_not_credited(balance: str, workers: int, prefetch: int) -> None:
    machine = pipeline(balance, workers, prefetch, pause=60.0)
    assert machine.run(1)[0].ready >= workers * prefetch - 1  # the queue was full
    assert window(machine).samples_per_second == pytest.approx(machine.true_rate, rel=0.03)


@pytest.mark.parametrize("balance", BALANCES)
@pytest.mark.parametrize(("workers", "prefetch"), LOADERS)
def test_the_rate_holds_when_build_times_vary(balance: str, workers: int, prefetch: int) -> None:
    machine = pipeline(balance, workers, prefetch, spread=0.1, pause=5.0)
    assert window(machine, blocks=40).samples_per_second == pytest.approx(machine.true_rate, rel=0.03)


def test_a_window_over_the_draining_queue_alone_is_still_right() -> None:
    machine = pipeline("loader-bound", 4, 32, pause=60.0)
    rows = machine.run(100)
    assert rows[80].ready > 0
    naive = BATCH * 80 / (rows[80].end - rows[0].end)
    summary = summarise(from_step(rows, 1)[:80], rows[0].ready, machine.block, whole_epochs=False)
    assert naive > 3 * machine.true_rate
    assert summary.samples_per_second == pytest.approx(machine.true_rate, rel=0.06)


def test_bursts_are_not_read_as_the_median() -> None:
    machine = pipeline("loader-bound", 8, 2)
    rows = machine.run(400)
    typical = median(later.end - earlier.end for earlier, later in pairwise(rows[100:]))
    assert BATCH / typical > 2 * machine.true_rate
    assert window(machine).samples_per_second == pytest.approx(machine.true_rate, rel=0.01)


def test_steps_that_have_not_settled_are_dropped_at_the_front() -> None:
    generator = random.Random(1)
    rows = even_rows([0.05] * 10 + [generator.gauss(0.01, 1e-4) for _ in range(90)])
    summary = summarise(rows, 0, 5, whole_epochs=False)
    assert summary.is_steady
    assert 50 <= summary.steps <= 90
    assert summary.samples_per_second == pytest.approx(BATCH / 0.01, rel=0.01)


def test_steps_that_never_settle_are_told() -> None:
    rows = even_rows([2.0**-index for index in range(10)])
    assert not summarise(rows, 0, 1, whole_epochs=False).is_steady


def test_whole_epochs_are_neither_trimmed_nor_corrected() -> None:
    rows = even_rows([0.05] * 10 + [0.01] * 90)
    summary = summarise(rows, 50, 5, whole_epochs=True)
    assert summary.steps == 100
    assert summary.samples_per_second == pytest.approx(BATCH * 100 / 1.4)


def test_a_short_last_batch_counts_what_it_holds() -> None:
    rows = [row(0, 0, 1, samples=16), row(1, 1, 2, samples=16), row(2, 2, 3, samples=7)]
    summary = summarise(rows, 0, 1, whole_epochs=True)
    assert summary.samples == 39
    assert summary.samples_per_second == pytest.approx(13.0)


def test_waiting_is_told_apart_from_computing() -> None:
    summary = window(pipeline("loader-bound", 2, 2))
    assert summary.waiting_share == pytest.approx(0.75, abs=0.03)
    assert summary.step_time.data_wait == pytest.approx(0.75 * summary.step_time.total, rel=0.05)
    assert summary.ready <= 1


PHASES = st.lists(st.floats(0, 1), min_size=6, max_size=6)


@given(st.lists(PHASES, min_size=1, max_size=60), st.integers(0, 40), st.booleans())
def test_the_shares_of_a_step_add_up_to_it(phases: list[list[float]], ready: int, whole_epochs: bool) -> None:
    rows, clock = [], 0.0
    for lengths in phases:
        marks = []
        for length in lengths:
            clock += length + 1e-3
            marks.append(clock)
        rows.append(StepRow(*marks, BATCH, 0))
    summary = summarise(rows, ready, 5, whole_epochs=whole_epochs)
    assert summary.step_time.total == pytest.approx(summary.seconds / summary.steps, rel=1e-9)
    assert 0 <= summary.waiting_share <= 1
    assert 0 <= summary.samples_per_second <= summary.samples / summary.seconds * (1 + 1e-12)
