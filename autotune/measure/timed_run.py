"""One pass over a loader: let it settle, then fill a window, recording every step from the first.

The clock, the batches and the device come from outside, so that the same decisions run on simulated time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean, median
from typing import Any

from autotune.config import Config
from autotune.machine.nvml import GpuReading
from autotune.measure.device import Device, Mark
from autotune.measure.loader import BatchStream
from autotune.measure.rank_group import ALONE, RankGroup
from autotune.measure.step import StepMarks
from autotune.measure.window import (
    LEAST_BURSTS,
    STALL,
    STARVING_SHARE,
    StepRow,
    cycles,
    is_balanced,
    is_stationary,
    lengths,
    relative_half_width,
    stalls,
)
from autotune.records import Request

MIN_STEPS = 5
"""Fewest steps over which a loader is seen to have settled."""
MIN_WINDOW_SECONDS = 1.0
MIN_WINDOW_STEPS = 60
"""Fewest steps of a window that ends early: it misses a slowdown of 1 step in 20 with a chance of 5 %."""
QUEUES = 2
"""Fewest queues of prefetched batches in it: the first was built before, and tells nothing of the workers now."""
LONGEST = 3.0
"""How many times the length that was asked for a window may last, for bursts or stalls enough to tell the rate."""
NEARLY = 0.8
"""Share of the length that was asked for at which a window of whole epochs may end, where one more would end beyond."""
LEAST_PARTS = 3
"""Bursts of which even that window is made however long they take, and steps where no data is awaited."""
EXTENSION = 1.5
"""How far a window may grow, in its own length, until as many batches are built as consumed."""
CHECK_GROWTH = 1.1
"""How far a window grows from one look at its interval to the next; each look costs a millisecond."""
AHEAD_SECONDS, LEAST_AHEAD = 0.05, 2
"""Seconds of work, and fewest steps, by which the host runs ahead of an accelerator: its pauses leave the device busy,
and a window ends in time."""
MOST_AHEAD = 500
"""Steps by which it runs ahead at most; a device takes about a thousand launches before it makes the host wait."""


@dataclass(slots=True)
class StepLog:
    """Every step since the loader started, as it happened."""

    begins: list[float] = field(default_factory=list)
    """Host clock when the loop asked for the batch."""
    marks: list[StepMarks] = field(default_factory=list)
    """The device's marks between the phases."""
    ends: list[float] = field(default_factory=list)
    """When the step ended on the device, from the start of the run; only of the steps known to have ended."""
    samples: list[int] = field(default_factory=list)
    ready: list[int] = field(default_factory=list)
    """Inventory after each step."""
    epochs: list[int] = field(default_factory=list)
    """Epochs begun, at each step."""
    built_apart: list[int] = field(default_factory=list)
    """Batches built by each step while the clock stood still."""
    passed: list[float] = field(default_factory=list)
    """Seconds by each step for which the clock stood still."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The start of the window, and its parts."""

    first: int
    """Index of its first step."""
    ready: float
    """Inventory at its start."""
    epochs: int
    """Epochs begun before it."""
    whole_epochs: bool
    """Whether it consists of whole epochs."""
    mark: Mark
    """The device's mark at its start, after synchronising."""
    clock: float
    """The host's clock there."""
    waited: float
    """Seconds that the loop had waited for data until then."""


class TimedRun:
    """Training steps on one loader, timed."""

    def __init__(
        self,
        config: Config,
        step: Callable[[Any, int], StepMarks],
        batches: BatchStream,
        device: Device,
        request: Request,
        group: RankGroup = ALONE,
    ) -> None:
        self.config = config
        self._group = group
        self._step = step
        self.batches = batches
        self.device = device
        self.request = request
        self._clock = device.clock
        self._most_seconds = (1 + LONGEST) * request.seconds  # an epoch that holds no window is measured whole
        self._waited = 0.0
        self._next_look = self._next_hopeless_look = self._stall = 0.0
        self._extended_until: float | None = None
        self.stopped_early = False
        """Whether the window ended because its rate was sure to lie below ``request.least_rate``."""
        self._origin = device.mark()
        self._began, self._passed = device.clock(), device.passed
        self.log = StepLog()
        self.last = 0
        """Steps by the end of the window."""
        self.gpu: GpuReading | None = None
        """The state of the GPU there, while steps are still on their way."""

    def advance(self, steps: int) -> None:
        """Train on the next ``steps`` batches."""
        log, batches, clock = self.log, self.batches, self._clock
        for _ in range(steps):
            begin = clock()
            batch = next(batches)
            self._waited += clock() - begin
            log.begins.append(begin)
            log.marks.append(self._step(batch, batches.samples))
            log.samples.append(batches.samples)
            log.ready.append(batches.ready)
            log.epochs.append(batches.epochs)
            log.built_apart.append(batches.built_apart)
            log.passed.append(self.device.passed)
            self._note_ends(self._ahead)

    def wait_for_steady_stock(self) -> None:
        """Run until the inventory of ready batches stands still, or every place in the queue was used twice.

        Where batches are to come again, they do so after that.
        """
        first, begin, group = len(self.log.marks), self._clock(), self._group
        while True:
            seconds = self._clock() - begin
            is_late = seconds > self.request.seconds and self.batches.comes_again
            steps = 0 if is_late else group.steps_at_once(len(self.log.marks) - first, seconds)
            ranks = group.gather((self._is_settled(), steps))
            if not ranks[0][1] or all(is_settled for is_settled, _ in ranks):
                break
            self.advance(ranks[0][1])
        self._note_ends(0)

    def fill(self) -> Window:
        """Open a window, of whole epochs where they are short, and run until its interval is narrow enough.

        The device is synchronised at both ends of the window and nowhere inside.
        """
        window = self._open(self.request.seconds)
        while (steps := self._group.decide(self._next_steps, window)) is not None:
            self.advance(steps)
            if not steps:
                if not self._group.decide(self._epoch_lasts, self._most_seconds):
                    self.wait_for_steady_stock()
                window = self._open(self._most_seconds)
        self.last = len(self.log.marks)
        self.gpu = self.device.gpu.read() if self.device.gpu else None
        self.device.synchronize()
        self._note_ends(0)
        return window

    def rows(self, window: Window) -> list[StepRow]:
        """Return the steps of a window on the device's time line; only after the device was synchronised.

        A step in which one of several ranks did something beside training is left out of all: the others waited for it.
        """
        log, seconds = self.log, self.device.seconds
        left = self.batches.steps_left
        drains = left is not None and left < self.in_flight  # nothing is left to ask the workers for
        rows: list[StepRow] = []
        end, usually_apart, left_out = 0.0, self._usually_apart, 0.0
        paused = self._paused_steps(window.first)
        for index in range(window.first, self.last):
            there, moved, forwarded, own, synchronised, ended = (
                seconds(window.mark, m) - left_out for m in log.marks[index]
            )
            begin = end if self.device.is_asynchronous else log.begins[index] - window.clock - left_out
            if index in paused:
                left_out += ended - end
                continue
            end = ended
            ready = round(window.ready) if drains and not window.whole_epochs else log.ready[index]
            apart = log.built_apart[index] - (log.built_apart[index - 1] if index else 0) - usually_apart
            times = begin, there, moved, forwarded, own, synchronised, end
            rows.append(StepRow(*times, log.samples[index], ready, apart))
        return rows

    @property
    def apart_share(self) -> float:
        """Share of the time so far that the device's clock has passed over."""
        passed = self.device.passed - self._passed
        return passed / (passed + self._clock() - self._began)

    def _paused_steps(self, first: int) -> set[int]:
        """Return the steps of a window in which any of several ranks did something beside training, if half did not."""
        passed = list(enumerate(pairwise([self._passed, *self.log.passed])))[first : self.last]
        own = {step for step, (before, after) in passed if after > before}
        found = set[int]().union(*self._group.gather(own)) if self._group.size > 1 else set[int]()
        return found if 2 * len(found) <= len(passed) else set()

    @property
    def _usually_apart(self) -> float:
        """Batches built while the clock stood still, for each step between the first and the last time that it did."""
        built = self.log.built_apart
        pauses = [index for index, (before, after) in enumerate(pairwise([0, *built])) if after > before]
        return (built[pauses[-1]] - built[pauses[0]]) / (pauses[-1] - pauses[0]) if len(pauses) > 1 else 0.0

    def _next_steps(self, window: Window) -> int | None:
        """Return the steps until the next look at a window: 0 where an epoch cuts it, ``None`` once it is over."""
        if self._is_over(window):
            return None
        if window.whole_epochs:
            return self._steps_of_epoch()
        if self._is_cut(window):
            return 0
        made = len(self.log.marks) - window.first
        steps = self._group.steps_at_once(made, self._clock() - window.clock)
        steps -= (made + steps) % self._burst(window)
        return int(max(1, min(steps, self._until_epoch_end(window))))

    def _note_ends(self, ahead: int) -> None:
        """Note when steps ended, and wait for those that the host is further than ``ahead`` steps ahead of.

        Without a limit the host would ask an accelerator for many more seconds of work than the window is to last.
        """
        log, device = self.log, self.device
        while len(log.ends) < len(log.marks):
            end = log.marks[len(log.ends)][-1]
            if len(log.marks) - len(log.ends) > ahead:
                device.wait(end)
            elif not device.has_come_to(end):
                return
            log.ends.append(device.seconds(self._origin, end))

    def _is_over(self, window: Window) -> bool:
        """Return whether the window is long enough, and as many batches were built in it as consumed or nearly so."""
        if self._is_hopeless(window):
            self.stopped_early = True
            return True
        steps = len(self.log.marks) - window.first
        if not window.whole_epochs and (steps % self._burst(window) or self._ends_short_epoch(window)):
            return False
        if self._extended_until is None:
            if not self._is_long_enough(window):
                return False
            if window.whole_epochs or not self.config.num_workers:
                return True
            now = self._clock()
            self._extended_until = now + (EXTENSION - 1) * (now - window.clock)
        is_late = self._clock() > self._extended_until or self._until_epoch_end(window) <= 0
        return is_late or is_balanced(window.ready, self._ready, steps)

    def _is_hopeless(self, window: Window) -> bool:
        """Return whether the rate is sure to lie below ``request.least_rate``.

        Batches from before the window can only make it look faster.
        """
        least, log, first = self.request.least_rate, self.log, window.first
        ended, burst = len(log.ends) - first, self._workers
        is_due = ended >= max(LEAST_BURSTS * max(burst, MIN_STEPS), self._next_hopeless_look) and ended % burst == 0
        if least is None or not is_due:
            return False
        self._next_hopeless_look = CHECK_GROWTH * ended
        ends, start, samples = self._ended(window)
        rate = self._group.size * sum(samples) / (ends[-1] - start)
        return rate * (1 + relative_half_width(ends, start, samples, burst)) < least

    def _is_long_enough(self, window: Window) -> bool:
        ends, ended = self.log.ends, len(self.log.ends) - window.first
        if ended < 1:
            return False
        steps, burst = len(self.log.marks) - window.first, self._burst(window)
        elapsed = ends[-1] - self.device.seconds(self._origin, window.mark)
        epoch = elapsed / max(1, self.batches.epochs - window.epochs) if window.whole_epochs else 0.0
        is_nearly_over = epoch > (1 - NEARLY) * self.request.seconds and elapsed >= NEARLY * self.request.seconds
        if (
            elapsed >= self.request.seconds
            or is_nearly_over
            or (not window.whole_epochs and self._until_epoch_end(window) <= 0)
        ):
            return window.whole_epochs or self._has_whole_cycles(window, elapsed)
        if elapsed < MIN_WINDOW_SECONDS or steps < self._next_look:
            return False
        if ended < max(MIN_WINDOW_STEPS, LEAST_BURSTS * burst, QUEUES * self.in_flight):
            return False
        self._next_look = CHECK_GROWTH * steps
        return relative_half_width(*self._ended(window), burst) <= self.request.target

    def _has_whole_cycles(self, window: Window, elapsed: float) -> bool:
        """Return whether the rate does not depend on where the window ends, or more time would hardly help.

        It takes several bursts and, where stalls matter, several of these, the last of them just over.
        """
        burst, all_ends = self._burst(window), self.log.ends
        bursts = (len(all_ends) - window.first) // burst
        least = LEAST_BURSTS if self._is_starved(window) else LEAST_PARTS
        if elapsed >= LONGEST * self.request.seconds:
            return bursts >= LEAST_PARTS
        if bursts < least or self._until_epoch_end(window) <= 0:
            return bursts >= least
        is_stall = all_ends[-1] - all_ends[-1 - burst] > self._stall
        if not is_stall and burst * bursts < self._next_look:
            return False
        ends, start, _ = self._ended(window)
        found = stalls(of_bursts := lengths(ends, start, burst))
        self._stall, self._next_look = STALL * median(of_bursts), CHECK_GROWTH * burst * bursts
        return not found or (found[-1] == bursts - 1 and cycles(ends, start, burst).of_stalls)

    def _ended(self, window: Window) -> tuple[list[float], float, list[int]]:
        ends = self.log.ends[window.first :]
        start = self.device.seconds(self._origin, window.mark)
        return ends, start, self.log.samples[window.first : window.first + len(ends)]

    def _burst(self, window: Window) -> int:
        """Return the steps of a burst: batches come in bursts only where data is awaited."""
        return self._workers if self._is_starved(window) else 1

    def _is_starved(self, window: Window) -> bool:
        return self._waited - window.waited > STARVING_SHARE * (self._clock() - window.clock)

    def _open(self, longest_epoch: float) -> Window:
        """Open a window, of whole epochs where they are known to last so long at most.

        Every rank is there, and its device has nothing left to do.
        """
        if whole_epochs := self._group.decide(self._epoch_lasts, longest_epoch):
            if self._group.size == 1:
                self.batches.cut_epoch(self.in_flight)
            self.advance(self._group.decide(lambda: 0 if self.batches.steps_left == 0 else self._steps_of_epoch()))
        self._next_look = self._next_hopeless_look = self._stall = 0.0
        self._extended_until = None
        self.device.synchronize()
        self._group.barrier()
        built_meanwhile = self.batches.ready - self.log.ready[-1]
        return Window(
            first=len(self.log.marks),
            ready=self._ready + built_meanwhile,
            epochs=self.batches.epochs,
            whole_epochs=whole_epochs,
            mark=self.device.mark(),
            clock=self._clock(),
            waited=self._waited,
        )

    def _is_cut(self, window: Window) -> bool:
        has_ended = self.batches.epochs > window.epochs or self.batches.steps_left == 0
        return has_ended or self._ends_short_epoch(window)

    def _ends_short_epoch(self, window: Window) -> bool:
        """Return whether an epoch is about to end that is measured whole: its last batches were built before."""
        return self._until_epoch_end(window) <= 0 and self._epoch_lasts(self._most_seconds)

    def _steps_of_epoch(self) -> int:
        """Return the steps to the end of the current epoch, or of the next where that has just ended."""
        left = max(0, self.batches.steps_left or 0)  # an epoch can be longer than the one before
        return left or self.batches.epoch_batches or 1

    def _is_settled(self) -> bool:
        ready, turnover = self.log.ready, 2 * (self.in_flight + self.config.num_workers)
        block = self._workers * -(-MIN_STEPS // self._workers)
        if len(ready) < block or not self.batches.comes_again:
            return False
        return len(ready) >= turnover + block or is_stationary(ready, block, self.config.num_workers)

    def _epoch_lasts(self, seconds: float) -> bool:
        """Return whether an epoch is known to last so long at most, by the mean of all steps but the first."""
        batches, ends = self.batches.epoch_batches, self.log.ends
        if batches is None or len(ends) < 2:
            return False
        return batches * (ends[-1] - ends[0]) / (len(ends) - 1) <= seconds

    def _until_epoch_end(self, window: Window) -> float:
        """Return the steps until an epoch ends, or its workers run out of work, which says nothing of their speed."""
        left = self.batches.steps_left
        return math.inf if left is None else left - (self.in_flight + self._workers if self._is_starved(window) else 0)

    @property
    def _ready(self) -> float:
        """The inventory now, over the last burst: it jumps where the workers keep step."""
        return fmean(self.log.ready[-self._workers :])

    @property
    def _workers(self) -> int:
        return max(1, self.config.num_workers)

    @property
    def _ahead(self) -> int:
        ends = self.log.ends
        return steps_ahead(self.device, ends[-1] - ends[-2]) if len(ends) > 1 else LEAST_AHEAD

    @property
    def in_flight(self) -> int:
        """Batches that the loader has asked its workers for ahead of time, at most."""
        return self.config.num_workers * (self.config.prefetch_factor or 0)


def steps_ahead(device: Device, seconds: float) -> int:
    """Return the steps of so many seconds by which the host may be ahead of a device; none of a CPU."""
    if not device.is_asynchronous:
        return 0
    return max(LEAST_AHEAD, math.ceil(AHEAD_SECONDS / max(seconds, AHEAD_SECONDS / MOST_AHEAD)))
