"""When a window may start and end, and what its steps say: pure decisions over a log of steps.

Throughput is samples delivered divided by time. A median, a mean of rates or a trimmed mean is never used: with
eight loader workers batches come in bursts, and the median reads 2.7 times too fast.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

from autotune.records import StepTime
from autotune.stats import half_width, mser_truncation

__all__ = ["StepRow", "WindowSummary", "block_steps", "is_stationary", "relative_half_width", "summarise"]

MIN_BLOCKS = 5
"""Fewest blocks that may decide; t-intervals on 5 to 10 block means cover 92 to 95 % (autocorrelation up to 0.8)."""
MAX_BLOCKS = 10
MIN_STEPS = 5
"""Fewest steps in a block."""
SLOW_STEP_SECONDS = 0.2
"""Steps longer than this make a block of their own, so that a window of few steps still has blocks."""


@dataclass(frozen=True, slots=True)
class StepRow:
    """One step on the device's time line, in seconds from the start of the window."""

    begin: float
    """The loop asks for the next batch; on an accelerator the end of the step before."""
    there: float
    """The batch has come."""
    moved: float
    """It is on the device."""
    forwarded: float
    """Model and loss are done."""
    differentiated: float
    """Gradients are done."""
    end: float
    """The optimizer is done."""
    samples: int
    """Samples in the batch."""
    ready: int
    """Batches built and not yet consumed, at the end of the step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowSummary:
    """What a window of steps says."""

    samples_per_second: float
    """Rate, corrected for batches that were built before the window."""
    relative_half_width: float
    """Half-width of the 95 % interval of that rate, as a share of it; infinite with fewer than two blocks."""
    steps: int
    """Steps counted."""
    samples: int
    """Samples counted, before the correction."""
    seconds: float
    """Length."""
    step_time: StepTime
    """Average split."""
    waiting_share: float
    """Share of the window before batches came."""
    ready: float
    """Mean inventory."""
    dropped_blocks: int
    """Blocks dropped at the start because the steps had not settled."""
    is_steady: bool
    """Whether a steady state was reached within the first half."""


def block_steps(num_workers: int, step_seconds: float) -> int:
    """Return the steps in a block: a multiple of the workers, because batches come in bursts of that many."""
    burst = max(1, num_workers)
    if step_seconds > SLOW_STEP_SECONDS:
        return burst
    return burst * -(-MIN_STEPS // burst)


def is_stationary(ready: Sequence[int], block: int, num_workers: int) -> bool:
    """Tell whether the inventory of ready batches stood still over the last two blocks.

    ``ready`` is the inventory after each step. Still means a change of at most a quarter of the workers, at
    least one batch.
    """
    if num_workers == 0:
        return len(ready) >= block
    if len(ready) < 2 * block + 1:
        return False
    tolerance = max(1.0, num_workers / 4)
    now, before, earlier = ready[-1], ready[-1 - block], ready[-1 - 2 * block]
    return abs(now - before) <= tolerance and abs(before - earlier) <= tolerance


def relative_half_width(ends: Sequence[float], start: float, block: int) -> float:
    """Return the relative half-width of the 95 % interval of the mean time per block.

    ``ends`` are the times at which the steps of the window ended; blocks are merged to at most ten.
    """
    times = _block_seconds(ends, start, block)
    return half_width(times) / fmean(times) if len(times) > 1 else float("inf")


def summarise(rows: Sequence[StepRow], ready_before: int, block: int, *, whole_epochs: bool) -> WindowSummary:
    """Summarise a window that starts at time 0 with ``ready_before`` batches in the inventory.

    Over whole epochs the inventory is empty at both ends and nothing is dropped. Otherwise leading blocks are
    dropped until the steps are steady, and batches that were built before the window are not credited: the
    rate is that of ``steps - max(0, inventory at the start - at the end)`` batches.
    """
    ends = [row.end for row in rows]
    size = _merged(len(ends), block)
    dropped, is_steady = (0, True) if whole_epochs else _settling_blocks(_block_seconds(ends, 0.0, block))
    first = dropped * size
    start, ready_start = (rows[first - 1].end, rows[first - 1].ready) if first else (0.0, ready_before)
    kept = rows[first:]
    seconds, samples = kept[-1].end - start, sum(row.samples for row in kept)
    early = 0 if whole_epochs else max(0, ready_start - kept[-1].ready)
    credited = samples * max(0.0, 1 - early / len(kept))
    return WindowSummary(
        samples_per_second=credited / seconds,
        relative_half_width=relative_half_width(ends[first:], start, block),
        steps=len(kept),
        samples=samples,
        seconds=seconds,
        step_time=_split(kept, start),
        waiting_share=sum(row.there - row.begin for row in kept) / seconds,
        ready=fmean(row.ready for row in kept),
        dropped_blocks=dropped,
        is_steady=is_steady,
    )


def _split(rows: Sequence[StepRow], start: float) -> StepTime:
    previous = [start, *(row.end for row in rows[:-1])]
    return StepTime(
        data_wait=fmean(row.there - row.begin for row in rows),
        host_to_device=fmean(row.moved - row.there for row in rows),
        forward=fmean(row.forwarded - row.moved for row in rows),
        backward=fmean(row.differentiated - row.forwarded for row in rows),
        optimizer=fmean(row.end - row.differentiated for row in rows),
        other=fmean(row.begin - end for row, end in zip(rows, previous, strict=True)),
    )


def _merged(steps: int, block: int) -> int:
    """Return the steps of a merged block: a multiple of ``block`` that gives at most ``MAX_BLOCKS`` blocks."""
    return block * max(1, -(-(steps // block) // MAX_BLOCKS))


def _block_seconds(ends: Sequence[float], start: float, block: int) -> list[float]:
    size = _merged(len(ends), block)
    edges = [start, *ends[size - 1 :: size]]
    return [later - earlier for earlier, later in pairwise(edges)]


def _settling_blocks(times: Sequence[float]) -> tuple[int, bool]:
    if len(times) < 2 * MIN_BLOCKS - 2:
        return 0, True
    dropped = mser_truncation(times)
    return (dropped, True) if dropped <= len(times) // 2 else (0, False)
