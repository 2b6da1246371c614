"""The cost of unmeasured training steps: seconds and memory over batch size, precision, threads and options. Pure."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from statistics import fmean
from typing import NamedTuple

import numpy as np

Group = tuple[str, int, tuple[str, ...]]
"""Precision, threads and options."""

MEASURED = 0.03
"""Standard deviation of the logarithm of a measured step time, from one process to another."""
BETWEEN = 0.02
"""Most that each doubling between two measured batch sizes adds to it."""
BEYOND = 0.06
"""Addition to it for each doubling beyond the measured batch sizes."""
BORROWED = 0.06
"""Addition to it for a curve taken from another group."""
COMPOSED = 0.12
"""Addition to it for a group composed from measurements of its precision, threads and options elsewhere."""
LARGER = math.log(2) / 2
"""Addition to it for each doubling beyond a single measured batch size. A larger batch takes no less time, so two such
errors reach the highest rate that is possible."""
UNKNOWN = 0.35
"""Addition to it for a precision, a number of threads or options that were never measured."""
LARGEST_STEP = 4
"""Ratio to the largest measured batch up to which memory is predicted: it is not always a line."""


class StepPoint(NamedTuple):
    """The time of a step on a resident batch."""

    batch_size: int
    amp: str
    threads: int
    seconds: float
    spread: float = 0.0
    """Standard error of its logarithm because batches differ."""
    options: tuple[str, ...] = ()


class Estimate(NamedTuple):
    """An expected time, and the standard deviation of its logarithm."""

    seconds: float
    error: float


class ComputeModel:
    """Step times for every batch size and group, from those that were measured.

    Between measured batch sizes of one group the time of a step is taken as linear. A group with fewer measurements has
    the best known curve, moved to its own points. A group without any has it moved by the effects of its precision,
    threads and options elsewhere.
    """

    def __init__(self, points: Iterable[StepPoint]) -> None:
        self._curves = _curves(points)
        if not self._curves:
            raise ValueError("no step was measured")
        self._reference = max(self._curves, key=lambda group: len(self._curves[group]))

    def estimate(self, batch_size: int, amp: str, threads: int, options: tuple[str, ...] = ()) -> Estimate:
        """Return the expected seconds of a step."""
        group = (amp, threads, options)
        own = self._curves.get(group, {})
        if batch_size in own or len(own) >= 2:
            return _along(own, batch_size)
        shape = _along(self._curves[self._reference], batch_size)
        if own:
            offset, error = self._measured_offset(group), BORROWED
        else:
            offset = sum(self._effects.get(part, 0.0) for part in group)
            error = COMPOSED if {part for known in self._curves for part in known} >= {*group} else UNKNOWN
        return Estimate(shape.seconds * math.exp(offset), math.hypot(shape.error, error))

    @cached_property
    def _effects(self) -> dict[str | int | tuple[str, ...], float]:
        """The effect of each precision, number of threads and set of options, in logarithms: the best sum for all."""
        parts = sorted({part for group in self._curves for part in group} - set(self._reference), key=str)
        rows = [[float(part in group) for part in parts] for group in self._curves]
        offsets = [self._measured_offset(group) for group in self._curves]
        fitted = np.linalg.lstsq(np.array(rows), np.array(offsets), rcond=None)[0] if parts else []
        return dict(zip(parts, map(float, fitted), strict=True))

    def _measured_offset(self, group: Group) -> float:
        """Return by how much a group's curve lies above the reference, in logarithms."""
        reference = self._curves[self._reference]
        points = self._curves[group].items()
        return fmean(math.log(known.seconds / _along(reference, batch).seconds) for batch, known in points)


def _curves(points: Iterable[StepPoint]) -> dict[Group, dict[int, Estimate]]:
    """Return geometric means by group and batch size, with the largest spread: in fixed order batches come again."""
    found: dict[Group, dict[int, list[StepPoint]]] = defaultdict(lambda: defaultdict(list))
    for point in points:
        found[point.amp, point.threads, point.options][point.batch_size].append(point)
    return {group: {batch: _mean(alike) for batch, alike in sorted(curve.items())} for group, curve in found.items()}


def _mean(alike: Sequence[StepPoint]) -> Estimate:
    seconds = math.exp(fmean(math.log(point.seconds) for point in alike))
    return Estimate(seconds, math.hypot(MEASURED, max(point.spread for point in alike)))


def _along(curve: Mapping[int, Estimate], batch_size: int) -> Estimate:
    """Read a curve at a batch size: on a line through two neighbours, or beyond its ends through the last two."""
    if batch_size in curve:
        return curve[batch_size]
    batches = list(curve)
    if len(batches) == 1:
        ratio, only = batch_size / batches[0], curve[batches[0]]
        doubling = LARGER if ratio > 1 else 2 * BEYOND
        return Estimate(only.seconds * ratio, only.error + doubling * abs(math.log2(ratio)))
    index = min(max(bisect_left(batches, batch_size), 1), len(batches) - 1)
    low, high = batches[index - 1], batches[index]
    fast, slow = curve[low].seconds, curve[high].seconds
    slope = max(0.0, (slow - fast) / (high - low))
    nearest = min((low, high), key=lambda batch: abs(math.log(batch / batch_size)))
    error = (BETWEEN if low < batch_size < high else BEYOND) * abs(math.log2(batch_size / nearest))
    seconds = slow + slope * (batch_size - high) if batch_size > high else fast + slope * (batch_size - low)
    if batch_size < low:  # never below a step in proportion to the samples
        seconds = max(seconds, fast * batch_size / low)
    return Estimate(seconds, curve[nearest].error + error)


@dataclass(frozen=True, slots=True)
class MemoryModel:
    """Peak memory over batch size: a line through neighbours, flat below the smallest."""

    peaks: Mapping[int, int]
    """Measured peak in bytes by batch size, in order; at least one."""

    @property
    def slope(self) -> float | None:
        """Bytes per sample beyond the largest measured batch; ``None`` while only one was measured.

        The median of the last three slopes, because kernels take their workspace in jumps; of two the larger.
        """
        slopes = sorted((self.peaks[b] - self.peaks[a]) / (b - a) for a, b in pairwise(list(self.peaks)[-4:]))
        return max(0.0, slopes[len(slopes) // 2]) if slopes else None

    def at(self, batch_size: int) -> float:
        """Return the expected peak in bytes; beyond a single measurement the most it can be, in proportion."""
        known = list(self.peaks)
        last, slope = known[-1], self.slope
        if slope is None and batch_size > last:
            return self.peaks[last] * batch_size / last
        beyond = (slope or 0.0) * max(0, batch_size - last)
        return float(np.interp(batch_size, known, list(self.peaks.values()))) + beyond

    def moved(self, plain: MemoryModel, *, never_more: bool = False) -> MemoryModel:
        """Return the model of a step from that of another precision, or without its options, moved to its own peaks.

        Bytes that it adds are taken to grow with the batch, and bytes that it saves not to. ``never_more`` says that it
        takes no more than the other.
        """
        peaks = dict(self.peaks)
        for batch, peak in plain.peaks.items():
            near = min(self.peaks, key=lambda known: abs(math.log(known / batch)))
            change = min(self.peaks[near] - plain.at(near), 0.0 if never_more else math.inf)
            share = max(1.0, batch / near) if change > 0 else min(1.0, batch / near)
            peaks.setdefault(batch, round(peak + change * share))
        return MemoryModel(dict(sorted(peaks.items())))
