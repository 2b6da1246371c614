"""When a window may start and end, and what its steps say: pure decisions over a log of steps.

Throughput is samples delivered divided by time. A median, a mean of rates or a trimmed mean is never used: with
eight loader workers batches come in bursts, and the median reads 2.7 times too fast.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

from autotune.records import StepTime
from autotune.stats import autocorrelated_half_width, half_width, mser_truncation, trend

MIN_BLOCKS = 5
"""Fewest blocks that may decide; t-intervals on 5 to 10 block means cover 92 to 95 % (autocorrelation up to 0.8)."""
MAX_BLOCKS = 10
MIN_STEPS = 5
"""Fewest steps in a block."""
SLOW_STEP_SECONDS = 0.2
"""Steps longer than this make a block of their own, so that a window of few steps still has blocks."""
UNSETTLED = 0.02
"""Blocks that are faster or slower than others by less than this share have settled."""
CERTAIN_TREND = 2.3
"""Standard deviations of a trend beyond which chance explains it in 2 of 100 windows."""
COUNTING_NOISE = 1
"""Batches by which the inventory at two like moments differs although nothing drains."""
IMBALANCE = 0.005
"""Difference between batches built and consumed in a window, as a share of its steps, that does not matter."""


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
    """This process's own gradients are done."""
    synchronised: float
    """Those of all ranks are."""
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
    """Rate, corrected for batches that were built before the window, or built in it and not used."""
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
    early_share: float
    """Share of the steps whose batches were built before the window; negative where more were built in it than
    consumed, and the loop waited for data at other times."""
    dropped_steps: int
    """Steps dropped at the start because they had not settled."""
    is_steady: bool
    """Whether the steps that were counted neither rise nor fall."""


def block_steps(num_workers: int, step_seconds: float) -> int:
    """Return the steps in a block: a multiple of the workers, because batches come in bursts of that many."""
    burst = max(1, num_workers)
    if step_seconds > SLOW_STEP_SECONDS:
        return burst
    return burst * -(-MIN_STEPS // burst)


def is_stationary(ready: Sequence[int], block: int, num_workers: int) -> bool:
    """Return whether the inventory of ready batches stood still over the last two blocks.

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


def is_balanced(ready_before: float, ready_after: float, steps: int) -> bool:
    """Return whether a window of so many steps built as many batches as it consumed."""
    return abs(ready_after - ready_before) <= max(COUNTING_NOISE / 2, IMBALANCE * steps)


def relative_half_width(ends: Sequence[float], start: float, block: int, num_workers: int) -> float:
    """Return the relative half-width of the 95 % interval of the mean step time: the wider of two estimates.

    ``ends`` are the times at which the steps of the window ended. One estimate takes at most ten blocks for
    independent, the other lets each burst of steps resemble the one before it.
    """
    blocks = _lengths(ends, start, _merged(len(ends), block))
    if len(blocks) < 2:
        return math.inf
    bursts = _lengths(ends, start, max(1, num_workers))
    of_bursts = autocorrelated_half_width(bursts) / fmean(bursts) if len(bursts) >= MIN_BLOCKS else 0.0
    return max(half_width(blocks) / fmean(blocks), of_bursts)


def summarise(
    rows: Sequence[StepRow], ready_before: float, block: int, num_workers: int, *, whole_epochs: bool
) -> WindowSummary:
    """Summarise a window that starts at time 0 with ``ready_before`` batches in the inventory.

    Over whole epochs the inventory is empty at both ends and nothing is dropped. Otherwise leading blocks are
    dropped until the steps are steady, and what counts is what was built in the window, see ``_early_share``.
    """
    ends = [row.end for row in rows]
    size = _merged(len(ends), block)
    dropped, is_steady = (0, True) if whole_epochs else _settling_blocks(_lengths(ends, 0.0, size))
    first = dropped * size
    burst = max(1, num_workers)
    start = rows[first - 1].end if first else 0.0
    ready_start = fmean(row.ready for row in rows[max(0, first - burst) : first]) if first else ready_before
    kept = rows[first:]
    seconds, samples = kept[-1].end - start, sum(row.samples for row in kept)
    waiting = sum(row.there - row.begin for row in kept) / seconds
    ready_end = fmean(row.ready for row in kept[-burst:])
    early_share = 0.0 if whole_epochs else _early_share(ready_start - ready_end, len(kept), waiting)
    return WindowSummary(
        samples_per_second=samples * (1 - early_share) / seconds,
        relative_half_width=relative_half_width(ends[first:], start, block, num_workers),
        steps=len(kept),
        samples=samples,
        seconds=seconds,
        step_time=_split(kept, start),
        waiting_share=waiting,
        ready=fmean(row.ready for row in kept),
        early_share=early_share,
        dropped_steps=first,
        is_steady=is_steady,
    )


def _early_share(early: float, steps: int, waiting: float) -> float:
    """Return the share of a window's steps whose batches were built before it, at most 1.

    Where the inventory grew instead, and the loop waited for data at other times, the share is negative: the loop
    would have used those batches too, but no more than fit into the share of the window that it was ``waiting``.
    """
    if abs(early) <= COUNTING_NOISE or waiting >= 1:
        return 0.0
    return min(1.0, max(early / steps, -waiting / (1 - waiting)))


def _split(rows: Sequence[StepRow], start: float) -> StepTime:
    previous = [start, *(row.end for row in rows[:-1])]
    return StepTime(
        data_wait=fmean(row.there - row.begin for row in rows),
        host_to_device=fmean(row.moved - row.there for row in rows),
        forward=fmean(row.forwarded - row.moved for row in rows),
        backward=fmean(row.differentiated - row.forwarded for row in rows),
        communication=fmean(row.synchronised - row.differentiated for row in rows),
        optimizer=fmean(row.end - row.synchronised for row in rows),
        other=fmean(row.begin - end for row, end in zip(rows, previous, strict=True)),
    )


def _merged(steps: int, block: int) -> int:
    """Return the steps of a merged block: a multiple of ``block`` that gives at most ``MAX_BLOCKS`` blocks."""
    return block * max(1, -(-(steps // block) // MAX_BLOCKS))


def _lengths(ends: Sequence[float], start: float, steps: int) -> list[float]:
    """Return the seconds of each so many steps; what is left at the end belongs to none."""
    edges = [start, *ends[steps - 1 :: steps]]
    return [later - earlier for earlier, later in pairwise(edges)]


def _settling_blocks(times: Sequence[float]) -> tuple[int, bool]:
    """Return how many leading blocks had not settled, and whether the rest had.

    MSER alone also drops blocks that were slow by chance, and with them a part of the truth: what is dropped
    must differ from the rest by more than the rest differs within itself. The rest is unsteady where it rises or
    falls from block to block.
    """
    if len(times) < MIN_BLOCKS:
        return 0, True
    dropped = mser_truncation(times, len(times) // 2)
    kept = times[dropped:]
    difference = abs(fmean(times[:dropped]) - fmean(kept)) if dropped else 0.0
    if difference <= max(max(kept) - min(kept), UNSETTLED * fmean(kept)):
        dropped = 0
    rest = times[dropped:] if len(times) - dropped >= MIN_BLOCKS else times
    half = len(rest) // 2
    change = abs(fmean(rest[:half]) / fmean(rest[-half:]) - 1)
    return dropped, not (abs(trend(rest)) > CERTAIN_TREND and change > UNSETTLED)
