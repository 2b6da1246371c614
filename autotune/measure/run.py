"""One pass over a loader: let it settle, then fill a window, recording every step from the first.

The clock, the batches and the device come from outside, so that the same decisions run on simulated time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean, median
from typing import Any, Protocol

from autotune.config import Config
from autotune.measure.device import Device, Mark
from autotune.measure.step import StepMarks
from autotune.measure.window import (
    MIN_BLOCKS,
    MIN_STEPS,
    StepRow,
    block_steps,
    is_balanced,
    is_stationary,
    relative_half_width,
)
from autotune.records import Request

__all__ = ["Batches", "TimedRun", "Window"]

MIN_WINDOW_SECONDS = 1.0
MIN_WINDOW_STEPS = 60
"""Fewest steps of a window that ends early: of what slows 1 step in 20, the chance to see none is then 5 %."""
SHORT_EPOCH = 0.5
"""Epochs up to this share of the longest window are measured whole, restarts included."""
QUEUES = 2
"""Fewest queues of prefetched batches in it: the first was built before, and tells nothing of the workers now."""
STARVING_SHARE = 0.02
"""Share of a window spent waiting for data from which batches come in bursts that the window must not cut."""
EXTENSION = 1.5
"""How far a window may grow, in its own length, until as many batches are built as consumed."""


class Batches(Protocol):
    """Batches without end, epoch after epoch, with the count of those that are ready."""

    samples: int
    """Samples in the last batch."""
    epochs: int
    """Epochs begun so far."""
    epoch_batches: int | None
    """Batches in an epoch, where known."""

    def __next__(self) -> Any:
        """Return the next batch."""

    @property
    def steps_left(self) -> int | None:
        """Batches left in the current epoch, where known."""

    @property
    def ready(self) -> int:
        """Batches built and not yet handed out."""


@dataclass(slots=True)
class StepLog:
    """Every step since the loader started, as it happened."""

    begins: list[float] = field(default_factory=list)
    """Host clock when the loop asked for the batch."""
    waits: list[float] = field(default_factory=list)
    """Seconds until it came."""
    marks: list[StepMarks] = field(default_factory=list)
    """The device's marks between the phases."""
    ends: list[float] = field(default_factory=list)
    """When the step ended on the device, from the start of the run; only of the steps known to have ended."""
    samples: list[int] = field(default_factory=list)
    """Samples in each batch."""
    ready: list[int] = field(default_factory=list)
    """Inventory after each step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Where the window starts, and what it consists of."""

    first: int
    """Index of its first step."""
    ready: float
    """Inventory at its start."""
    epochs: int
    """Epochs begun before it."""
    block: int
    """Steps in a block, the unit of its statistics."""
    whole_epochs: bool
    """Whether it consists of whole epochs."""
    mark: Mark
    """The device's mark at its start, after synchronising."""
    clock: float
    """The host's clock there."""


class TimedRun:
    """Training steps on one loader, timed."""

    def __init__(
        self,
        config: Config,
        step: Callable[[Any], StepMarks],
        batches: Batches,
        device: Device,
        request: Request,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.config = config
        self._step = step
        self.batches = batches
        self.device = device
        self.request = request
        self._clock = clock
        self._block = MIN_STEPS
        self._origin = device.mark()
        self.log = StepLog()
        """Every step so far."""

    def advance(self, steps: int) -> None:
        """Train on the next ``steps`` batches."""
        log, batches, clock = self.log, self.batches, self._clock
        for _ in range(steps):
            begin = clock()
            batch = next(batches)
            log.waits.append(clock() - begin)
            log.begins.append(begin)
            log.marks.append(self._step(batch))
            log.samples.append(batches.samples)
            log.ready.append(batches.ready)
            self._note_ends(self.device.steps_ahead)

    def settle(self) -> None:
        """Run until the inventory of ready batches stands still, or every place in the queue was used twice."""
        limit = self._clock() + self.request.seconds
        turnover = 2 * (self.in_flight + self.config.num_workers)
        while not self._is_settled(turnover) and self._clock() <= limit:
            self.advance(1)
        self._note_ends(0)

    def fill(self) -> Window:
        """Open a window, of whole epochs where they are short, and run until its interval is narrow enough.

        The device is synchronised at both ends of the window and nowhere inside.
        """
        window = self._open_at_epoch() if self._has_short_epochs() else self._open(whole_epochs=False)
        while not self._may_end(window):
            if window.whole_epochs:
                self._finish_epoch()
                continue
            epochs = self.batches.epochs
            self.advance(1)
            if self.batches.epochs > epochs or self._has_too_few_steps_left(window):
                window = self._open_at_epoch()
        self._balance(window)
        self.device.synchronize()
        self._note_ends(0)
        return window

    def rows(self, window: Window) -> list[StepRow]:
        """Return the steps of a window on the device's time line; only after the device was synchronised."""
        log, seconds = self.log, self.device.seconds
        rows: list[StepRow] = []
        end = 0.0
        for index in range(window.first, len(log.marks)):
            there, moved, forwarded, differentiated, ended = (seconds(window.mark, m) for m in log.marks[index])
            begin = end if self.device.is_asynchronous else log.begins[index] - window.clock
            end = ended
            rows.append(
                StepRow(begin, there, moved, forwarded, differentiated, end, log.samples[index], log.ready[index])
            )
        return rows

    def _note_ends(self, ahead: int) -> None:
        """Note when steps ended, and wait for those that the host is further than ``ahead`` steps ahead of.

        Without a limit the host would ask an accelerator for many more seconds of work than the window is to last.
        """
        log, device = self.log, self.device
        for marks in log.marks[len(log.ends) : max(0, len(log.marks) - ahead)]:
            device.wait(marks[-1])
            log.ends.append(device.seconds(self._origin, marks[-1]))

    def _ends(self, window: Window) -> tuple[list[float], float]:
        """Return when the steps of a window ended, as far as they have, and when it began."""
        ends = self.log.ends[window.first :]
        return ends, self.device.seconds(self._origin, window.mark) if ends else 0.0

    def _may_end(self, window: Window) -> bool:
        steps = len(self.log.marks) - window.first
        ends, start = self._ends(window)
        if not ends:
            return False
        elapsed = ends[-1] - start
        if elapsed >= self.request.seconds:
            return window.whole_epochs or steps % self._stride(window) == 0
        if self._nears_epoch_end() and not window.whole_epochs:
            return True
        block = window.block
        if len(ends) < max(MIN_WINDOW_STEPS, MIN_BLOCKS * block, QUEUES * self.in_flight):
            return False
        if elapsed < min(MIN_WINDOW_SECONDS, self.request.seconds):
            return False
        if steps % block and not window.whole_epochs:
            return False
        return relative_half_width(ends, start, block, self.config.num_workers) <= self.request.target

    def _balance(self, window: Window) -> None:
        """Extend the window until as many batches were built in it as consumed, if that comes soon."""
        if window.whole_epochs or not self.config.num_workers:
            return
        begun = self._clock()
        limit = begun + (EXTENSION - 1) * (begun - window.clock)
        while not is_balanced(window.ready, self._ready, len(self.log.marks) - window.first):
            if self._clock() > limit or self._nears_epoch_end():
                return
            self.advance(self._stride(window))

    def _stride(self, window: Window) -> int:
        """Return the number of which the window's steps must be a multiple: bursts only come where data is awaited."""
        waited = sum(self.log.waits[window.first :])
        return self._burst if waited > STARVING_SHARE * (self._clock() - window.clock) else 1

    def _open(self, *, whole_epochs: bool) -> Window:
        self.device.synchronize()
        built_meanwhile = self.batches.ready - self.log.ready[-1]
        ready = self._ready + built_meanwhile
        mark = self.device.mark()
        return Window(
            first=len(self.log.marks),
            ready=ready,
            epochs=self.batches.epochs,
            block=self._block,
            whole_epochs=whole_epochs,
            mark=mark,
            clock=self._clock(),
        )

    def _open_at_epoch(self) -> Window:
        if self.batches.steps_left != 0:
            self._finish_epoch()
        return self._open(whole_epochs=True)

    def _finish_epoch(self) -> None:
        """Run to the end of the current epoch, or through the next where one has just ended."""
        self.advance(self.batches.steps_left or self.batches.epoch_batches or 1)

    def _is_settled(self, turnover: int) -> bool:
        steps = len(self.log.ready)
        self._block = block = block_steps(self.config.num_workers, self._step_seconds())
        if steps < max(block, MIN_STEPS):
            return False
        return steps >= turnover + block or is_stationary(self.log.ready, block, self.config.num_workers)

    def _has_short_epochs(self) -> bool:
        batches = self.batches.epoch_batches
        return batches is not None and batches * self._step_seconds() <= SHORT_EPOCH * self.request.seconds

    def _has_too_few_steps_left(self, window: Window) -> bool:
        return self._nears_epoch_end() and len(self.log.marks) - window.first < MIN_BLOCKS * window.block

    def _nears_epoch_end(self) -> bool:
        """Tell whether the workers are about to run out of work, which says nothing about their speed."""
        left = self.batches.steps_left
        return left is not None and left <= self.in_flight + self._block

    @property
    def _ready(self) -> float:
        """The inventory now, over the last burst: it jumps where the workers keep step."""
        return fmean(self.log.ready[-self._burst :])

    @property
    def _burst(self) -> int:
        return max(1, self.config.num_workers)

    @property
    def in_flight(self) -> int:
        """Batches that the loader has asked its workers for ahead of time, at most."""
        return self.config.num_workers * (self.config.prefetch_factor or 0)

    def _step_seconds(self) -> float:
        """Return the usual length of a step so far: the median over bursts, because a stall tells nothing."""
        ends, burst = self.log.ends, self._burst
        bursts = [later - earlier for earlier, later in pairwise(ends[::burst])]
        if bursts:
            return median(bursts) / burst
        return (ends[-1] - ends[0]) / (len(ends) - 1) if len(ends) > 1 else 0.0
