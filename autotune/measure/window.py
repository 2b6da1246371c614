"""The start, the end and the summary of a window: pure decisions over a log of steps.

Throughput is samples delivered divided by time. A median, a mean of rates or a trimmed mean is never used: with
eight loader workers batches come in bursts, and the median reads 2.7 times too fast.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median
from typing import NamedTuple

from autotune.records import StepTime
from autotune.stats import autocorrelated_half_width, half_width, mser_truncation, trend

LEAST_BURSTS, LEAST_SERIES = 5, 10
"""Fewest bursts of steps of which the rate of a window is made, and from which their resemblance is estimated."""
LEAST_CYCLES = 3
"""Fewest cycles from stall to stall of which it is made where stalls matter."""
MOST_PARTS = 40
"""Most parts into which a window is divided for its interval: slow variation shows in longer parts."""
MAX_BLOCKS = 10
"""Most blocks into which it is divided to see whether it had settled."""
STALL, STALL_SHARE = 3.0, 0.05
"""A burst is a stall when it takes so many times the median. Stalls matter where one takes this share of a window: that
much depends on whether the window ends before it or after it."""
LEAST_PAUSE = 0.05
"""Seconds from which a stall is a pause, however long the loader ran."""
UNSETTLED = 0.02
"""Blocks that are faster or slower than others by less than this share have settled."""
CERTAIN_TREND = 2.3
"""Standard deviations of a trend beyond which chance explains it in 2 of 100 windows."""
STARVING_SHARE = 0.02
"""Share of a window spent waiting for data from which batches come in bursts of the workers' number."""
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
    ready: int
    """Batches built and not yet consumed, at the end of the step."""
    built_apart: float = 0
    """Batches built in the step while the clock stood still, beyond those that usually are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowSummary:
    """The summary of a window of steps."""

    samples_per_second: float
    """Rate, corrected for batches that were built before the window, or built in it and not used."""
    relative_half_width: float
    """Half-width of the 95 % interval of that rate, as a share of it; infinite with fewer than two blocks."""
    steps: int
    samples: int
    """Samples counted, before the correction."""
    seconds: float
    step_time: StepTime
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


class Cycles(NamedTuple):
    """A window's cycles: bursts of steps, or from the end of one stall to that of another."""

    edges: Sequence[int]
    """Steps by the start of each, and by the end of the last."""
    of_stalls: bool
    """Whether they last from stall to stall; then steps outside of them do not count."""


def cycles(ends: Sequence[float], start: float, burst: int) -> Cycles:
    """Return the cycles of a window whose steps ended at ``ends`` and the first of which began at ``start``.

    Batches come in bursts of so many steps. From stall to stall ``LEAST_CYCLES`` are needed.
    """
    stalled = stalls(lengths(ends, start, burst))
    if len(stalled) > LEAST_CYCLES:
        return Cycles([burst * (place + 1) for place in stalled], of_stalls=True)
    return Cycles(range(0, len(ends) + 1, _merged(len(ends), burst, MOST_PARTS)), of_stalls=False)


def stalls(lengths: Sequence[float]) -> list[int]:
    """Return the places of bursts that take far longer than most, where a single one of these matters."""
    if not lengths:
        return []
    usual = median(lengths)
    is_large = max(lengths) - usual > STALL_SHARE * sum(lengths)
    return [place for place, length in enumerate(lengths) if length > STALL * usual] if is_large else []


def pauses(ends: Sequence[float], epochs: Sequence[int], burst: int) -> list[float]:
    """Return the seconds that bursts which stalled took beyond the usual one, over all steps but the first burst.

    ``epochs`` are those begun at each step: the start of an epoch is no pause.
    """
    found, begun = lengths(ends[burst:], ends[min(burst, len(ends)) - 1], burst), epochs[burst - 1 :: burst]
    usual = median(found) if found else 0.0
    least = max(STALL * usual, usual + min(LEAST_PAUSE, STALL_SHARE * sum(found)))
    same = (before == after for before, after in pairwise(begun))
    return [length - usual for length, is_inside in zip(found, same, strict=False) if length > least and is_inside]


def relative_half_width(ends: Sequence[float], start: float, samples: Sequence[int], burst: int) -> float:
    """Return the half-width of the 95 % interval of the seconds per sample, as a share; infinite below two cycles.

    Bursts may resemble the one before, and tell no less together than their range; cycles from stall to stall are
    independent. Larger cycles may last longer: deviations are from the ratio of the sums (Cochran, Sampling Techniques,
    6.3).
    """
    edges, of_stalls = cycles(ends, start, burst)
    if len(edges) < 3:
        return math.inf
    times = [ends[edge - 1] if edge else start for edge in edges]
    seconds = [later - earlier for earlier, later in pairwise(times)]
    counts = [sum(samples[earlier:later]) for earlier, later in pairwise(edges)]
    mean, per_sample = fmean(seconds), sum(seconds) / sum(counts)
    values = [mean + length - count * per_sample for length, count in zip(seconds, counts, strict=True)]
    resembles = not of_stalls and len(values) >= LEAST_SERIES
    width = autocorrelated_half_width(values) if resembles else half_width(values)
    return min(width, max(half_width(values), max(values) - min(values))) / mean


def summarise(rows: Sequence[StepRow], ready_before: float, num_workers: int, *, whole_epochs: bool) -> WindowSummary:
    """Summarise a window that starts at time 0 with ``ready_before`` batches in the inventory.

    Over whole epochs the inventory is empty at both ends and nothing is dropped. Otherwise a window with stalls is cut
    to whole cycles; without stalls, leading blocks are dropped until the steps are steady. Batches built in the window
    count, see ``_early_share``; those built while the clock stood still do as often as it does.
    """
    workers, ends = max(1, num_workers), [row.end for row in rows]
    burst = workers if sum(row.there - row.begin for row in rows) > STARVING_SHARE * ends[-1] else 1
    found, first, last, is_steady = cycles(ends, 0.0, burst), 0, len(rows), True
    if found.of_stalls and not whole_epochs:
        first, last = found.edges[0], found.edges[-1]
    elif not whole_epochs:
        size = _merged(len(ends), burst, MAX_BLOCKS)
        dropped, is_steady = _settling_blocks(lengths(ends, 0.0, size))
        first = dropped * size
    start = ends[first - 1] if first else 0.0
    ready_start = fmean(row.ready for row in rows[max(0, first - workers) : first]) if first else ready_before
    kept, seen = rows[first:last], 0 if found.of_stalls else first  # a stall at the front ends before the first cycle
    seconds, samples = kept[-1].end - start, sum(row.samples for row in kept)
    waiting = sum(row.there - row.begin for row in kept) / seconds
    ready_end = fmean(row.ready for row in kept[-workers:])
    early = 0.0 if whole_epochs else ready_start - ready_end
    if waiting > STARVING_SHARE:  # else training would have used none of them sooner
        early += sum(row.built_apart for row in kept)
    early_share = _early_share(early, len(kept), waiting)
    width = relative_half_width(ends[seen:], start if seen else 0.0, [row.samples for row in rows[seen:]], burst)
    return WindowSummary(
        samples_per_second=samples * (1 - early_share) / seconds,
        relative_half_width=width,
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
    """Return the share of a window's steps whose batches were built before it; of one step at least they were not.

    The share is negative where the inventory grew and the loop waited for data at other times. The loop would have used
    those batches too, but no more than fit into the share of the window that it was ``waiting``.
    """
    if abs(early) <= COUNTING_NOISE or waiting >= 1:
        return 0.0
    return min(1 - 1 / steps, max(early / steps, -waiting / (1 - waiting)))


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


def _merged(steps: int, burst: int, most: int) -> int:
    """Return the steps of a part: a multiple of the burst that gives so many parts at most."""
    return burst * max(1, -(-(steps // burst) // most))


def lengths(ends: Sequence[float], start: float, steps: int) -> list[float]:
    """Return the seconds of each group of ``steps`` steps, without the rest at the end."""
    edges = [start, *ends[steps - 1 :: steps]]
    return [later - earlier for earlier, later in pairwise(edges)]


def _settling_blocks(times: Sequence[float]) -> tuple[int, bool]:
    """Return how many leading blocks had not settled, and whether the rest had.

    MSER alone also drops blocks that were slow by chance, and a part of the truth with them. So dropped blocks must
    differ from the rest by more than the rest differs within itself. The rest is unsteady where it rises or falls from
    block to block.
    """
    if len(times) < LEAST_BURSTS:
        return 0, True
    dropped = mser_truncation(times, len(times) // 2)
    kept = times[dropped:]
    difference = abs(fmean(times[:dropped]) - fmean(kept)) if dropped else 0.0
    if difference <= max(max(kept) - min(kept), UNSETTLED * fmean(kept)):
        dropped = 0
    rest = times[dropped:] if len(times) - dropped >= LEAST_BURSTS else times
    half = len(rest) // 2
    change = abs(fmean(rest[:half]) / fmean(rest[-half:]) - 1)
    return dropped, not (abs(trend(rest)) > CERTAIN_TREND and change > UNSETTLED)
