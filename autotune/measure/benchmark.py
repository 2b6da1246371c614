"""Time a configuration: warm the model, let the loader settle, measure a window, say what it means."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from autotune.config import Config
from autotune.measure.device import Device, Mark
from autotune.measure.gpu import GpuReading
from autotune.measure.inventory import BatchStream, CountingCollate
from autotune.measure.memory import peak_host_bytes
from autotune.measure.monitor import Snapshot, conditions_between, snapshot
from autotune.measure.step import StepMarks, TrainingStep, move, sample_count
from autotune.measure.window import (
    MIN_BLOCKS,
    StepRow,
    WindowSummary,
    block_steps,
    is_stationary,
    relative_half_width,
    summarise,
)
from autotune.records import Conditions, Measurement, Request
from autotune.stats import mser_truncation
from autotune.workload import Workload

__all__ = ["Cell", "measure", "open_cell", "open_loader"]

WARM_SECONDS = 0.6
"""How long the model runs on a resident batch before the loader exists, once it has made ten steps."""
WARM_STEPS = 10
WARM_CAP_SECONDS = 4.0
"""The same where steps are slow; three steps are always made."""
MIN_WINDOW_SECONDS = 1.0
SHORT_EPOCH = 0.5
"""Epochs up to this share of the longest window are measured whole, restarts included."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A warm training step for one batch size, precision and number of threads; only the loader still varies."""

    step: TrainingStep
    """The step, compiled, tuned and with optimizer state."""
    ceiling: float
    """Samples per second on a batch that is already on the device."""


@dataclass(slots=True)
class StepLog:
    """Every step since the loader started, as it happened."""

    begins: list[float] = field(default_factory=list)
    """Host clock when the loop asked for the batch."""
    marks: list[StepMarks] = field(default_factory=list)
    """The device's marks between the phases."""
    ends: list[float] = field(default_factory=list)
    """Host clock at the end of the step."""
    samples: list[int] = field(default_factory=list)
    """Samples in each batch."""
    ready: list[int] = field(default_factory=list)
    """Inventory after each step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Where the window starts, and how it may end."""

    first: int
    """Index of its first step."""
    ready: int
    """Inventory at its start."""
    counters: Snapshot
    """The machine's CPU counters there."""
    whole_epochs: bool
    """Whether it consists of whole epochs."""
    mark: Mark
    """The device's mark at its start, after synchronising."""
    start: float
    """The host's clock there."""


def open_loader(workload: Workload, config: Config, counter: CountingCollate) -> DataLoader[Any]:
    """Build the loader exactly as a training script would, with counting around its collate function."""
    arguments: dict[str, Any] = {"collate_fn": counter}
    if workload.batch_sampler is not None:
        arguments["batch_sampler"] = workload.batch_sampler(config.batch_size)
    elif workload.sampler is not None:
        arguments["sampler"] = workload.sampler
    elif not isinstance(workload.dataset, IterableDataset):
        arguments["shuffle"] = True
    return config.dataloader(workload.dataset, **arguments)


def open_cell(workload: Workload, config: Config, device: Device) -> Cell:
    """Build the training step, warm it on one resident batch, and measure the ceiling there."""
    step = TrainingStep(workload, config, device)
    plain = Config(batch_size=config.batch_size)
    stream = BatchStream(open_loader(workload, plain, counter := CountingCollate(workload.collate_fn, 0)), counter)
    batch = move(next(stream), device.torch_device, non_blocking=False)
    ends: list[Mark] = []
    begin = time.perf_counter()
    device.synchronize()
    while not _is_warm(len(ends), time.perf_counter() - begin):
        ends.append(step(batch)[-1])
    device.synchronize()
    times = [device.seconds(a, b) for a, b in pairwise(ends)]
    settled = times[min(mser_truncation(times), len(times) // 2) :]
    return Cell(step, sample_count(batch, config.batch_size) * len(settled) / sum(settled))


def _is_warm(steps: int, seconds: float) -> bool:
    if steps < 3:
        return False
    return (steps >= WARM_STEPS and seconds >= WARM_SECONDS) or seconds >= WARM_CAP_SECONDS


def measure(workload: Workload, config: Config, cell: Cell, device: Device, request: Request) -> Measurement:
    """Time real training steps of one configuration, loader included."""
    counter = CountingCollate(workload.collate_fn, config.num_workers)
    stream = BatchStream(open_loader(workload, config, counter), counter)
    try:
        run = _Run(config, cell, stream, device, request)
        run.settle()
        window = run.fill()
        return _report(run, window, cell)
    finally:
        stream.close()


class _Run:
    """One pass over the loader: settle, then fill a window."""

    def __init__(self, config: Config, cell: Cell, stream: BatchStream, device: Device, request: Request) -> None:
        self.config, self.step, self.stream = config, cell.step, stream
        self.device, self.request = device, request
        self.log = StepLog()
        self.has_settled = True
        self.gpu: GpuReading | None = None
        self.advance(max(1, config.num_workers))
        step_seconds = max(self._step_seconds(), config.batch_size / cell.ceiling)
        self.block = block_steps(config.num_workers, step_seconds)

    def advance(self, steps: int) -> None:
        """Train on the next ``steps`` batches."""
        log, stream, clock = self.log, self.stream, time.perf_counter
        for _ in range(steps):
            log.begins.append(clock())
            batch = next(stream)
            log.marks.append(self.step(batch))
            log.samples.append(sample_count(batch, self.config.batch_size))
            log.ready.append(stream.ready)
            log.ends.append(clock())

    def settle(self) -> None:
        """Run until the inventory of ready batches stands still, or every place in the queue was used twice."""
        begin = time.perf_counter()
        turnover = 2 * (self._in_flight + self.config.num_workers)
        while not is_stationary(self.log.ready, self.block, self.config.num_workers):
            if len(self.log.ends) >= turnover:
                return
            if time.perf_counter() - begin > self.request.seconds:
                self.has_settled = False
                return
            self.advance(self.block)

    def fill(self) -> Window:
        """Open a window, of whole epochs where they are short, and run until its interval is narrow enough."""
        window = self._open_at_epoch() if self._has_short_epochs() else self._open(whole_epochs=False)
        while not self._is_full(window):
            if window.whole_epochs:
                self._finish_epoch()
                continue
            epochs = self.stream.epochs
            self.advance(self.block)
            if self.stream.epochs > epochs or self._has_too_few_steps_left(window):
                window = self._open_at_epoch()
        self.gpu = self.device.gpu.read() if self.device.gpu else None  # while it still works
        self.device.synchronize()
        return window

    def _is_full(self, window: Window) -> bool:
        ends = self.log.ends[window.first :]
        if not ends:
            return False
        elapsed = ends[-1] - window.start
        if elapsed >= self.request.seconds or (not window.whole_epochs and self._nears_epoch_end()):
            return True
        if len(ends) < MIN_BLOCKS * self.block or elapsed < min(MIN_WINDOW_SECONDS, self.request.seconds):
            return False
        return relative_half_width(ends, window.start, self.block) <= self.request.target

    def _open(self, *, whole_epochs: bool) -> Window:
        self.device.synchronize()
        counters, ready = snapshot(), self.stream.ready
        return Window(
            first=len(self.log.ends),
            ready=ready,
            counters=counters,
            whole_epochs=whole_epochs,
            mark=self.device.mark(),
            start=time.perf_counter(),
        )

    def _open_at_epoch(self) -> Window:
        if self.stream.steps_left != 0:
            self._finish_epoch()
        return self._open(whole_epochs=True)

    def _finish_epoch(self) -> None:
        """Run to the end of the current epoch, or through the next where one has just ended."""
        self.advance(self.stream.steps_left or self.stream.epoch_batches or 1)

    def _has_short_epochs(self) -> bool:
        batches = self.stream.epoch_batches
        return batches is not None and batches * self._step_seconds() <= SHORT_EPOCH * self.request.seconds

    def _has_too_few_steps_left(self, window: Window) -> bool:
        return self._nears_epoch_end() and len(self.log.ends) - window.first < MIN_BLOCKS * self.block

    def _nears_epoch_end(self) -> bool:
        """Tell whether the workers are about to run out of work, which says nothing about their speed."""
        left = self.stream.steps_left
        return left is not None and left <= self._in_flight + self.block

    @property
    def _in_flight(self) -> int:
        """Batches that the loader has asked its workers for ahead of time, at most."""
        return self.config.num_workers * (self.config.prefetch_factor or 0)

    def _step_seconds(self) -> float:
        ends = self.log.ends
        return (ends[-1] - ends[0]) / (len(ends) - 1) if len(ends) > 1 else ends[0] - self.log.begins[0]


def _rows(run: _Run, window: Window) -> list[StepRow]:
    log, seconds = run.log, run.device.seconds
    rows: list[StepRow] = []
    end = 0.0
    for index in range(window.first, len(log.ends)):
        there, moved, forwarded, differentiated, ended = (seconds(window.mark, m) for m in log.marks[index])
        begin = end if run.device.is_asynchronous else seconds(window.mark, log.begins[index])
        end = ended
        rows.append(StepRow(begin, there, moved, forwarded, differentiated, end, log.samples[index], log.ready[index]))
    return rows


def _report(run: _Run, window: Window, cell: Cell) -> Measurement:
    conditions = conditions_between(window.counters, snapshot(), run.gpu)
    summary = summarise(_rows(run, window), window.ready, run.block, whole_epochs=window.whole_epochs)
    rate, epoch_samples = _rate_over_epochs(run, window, summary)
    rate *= run.stream.unique_share
    width = summary.relative_half_width
    peaks, loss = run.device.peaks(), run.step.loss
    host_bytes = peak_host_bytes()
    return Measurement(
        samples_per_second=rate,
        ci95=(rate * (1 - width), rate * (1 + width)) if math.isfinite(width) else None,
        steady_samples_per_second=summary.samples_per_second,
        ceiling_samples_per_second=cell.ceiling,
        steps=summary.steps,
        samples=summary.samples,
        seconds=summary.seconds,
        step_time=summary.step_time,
        device_idle_share=summary.waiting_share if run.device.is_asynchronous else None,
        first_batch_seconds=run.stream.start_seconds[0],
        restart_seconds=fmean(run.stream.start_seconds[1:]) if run.stream.epochs > 1 else None,
        epoch_samples=epoch_samples,
        peak_memory_bytes=peaks[1] if peaks else host_bytes,
        memory="device" if peaks else "host",
        memory_limit_bytes=run.device.memory_limit,
        peak_allocated_bytes=peaks[0] if peaks else None,
        host_memory_bytes=host_bytes,
        ready_batches=max(0.0, summary.ready) if run.config.num_workers else 0.0,
        conditions=conditions,
        loss=None if loss is None else float(loss),
        notes=_notes(run, summary, conditions),
    )


def _rate_over_epochs(run: _Run, window: Window, summary: WindowSummary) -> tuple[float, int | None]:
    """Return the rate with epoch restarts, and the samples of an epoch where they are known.

    Whole epochs contain their restarts. Inside a long epoch the restart is added: the loader's start where the
    workers die with the epoch, the first batch's own time where they live on.
    """
    batches, steady = run.stream.epoch_batches, summary.samples_per_second
    if batches is None:
        return steady, None
    if window.whole_epochs:
        return steady, round(summary.samples * batches / summary.steps)
    samples = run.stream.epoch_samples or batches * run.config.batch_size
    restart = run.stream.start_seconds[0] if run.config.num_workers else 0.0
    if run.config.persistent_workers:
        restart = min(restart, run.config.num_workers * summary.seconds / summary.steps)
    return samples / (samples / steady + restart), samples


def _notes(run: _Run, summary: WindowSummary, conditions: Conditions) -> tuple[str, ...]:
    notes = []
    if not run.has_settled:
        notes.append("the queue of prefetched batches was still filling or draining when the window began")
    if not summary.is_steady:
        notes.append("step times never settled within the window")
    if run.stream.unique_share < 1:
        notes.append(
            f"only {run.stream.unique_share:.0%} of the samples are counted: the workers yield the same ones; "
            "divide the dataset among them with torch.utils.data.get_worker_info()"
        )
    return (*notes, *conditions.disturbances)
