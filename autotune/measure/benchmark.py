"""Time a configuration: warm the model, let the loader settle, measure a window, say what it means."""

from __future__ import annotations

import math
import os
import time
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from autotune.config import Config
from autotune.host import inspect_host
from autotune.measure.device import Device, Mark
from autotune.measure.epochs import EpochCost
from autotune.measure.inventory import BatchStream, CountingCollate
from autotune.measure.memory import (
    MemoryGrowth,
    MemorySample,
    growth_between,
    open_segments,
    peak_host_bytes,
    sample_memory,
)
from autotune.measure.monitor import conditions_between, snapshot
from autotune.measure.notes import loader_notes, machine_notes, window_notes
from autotune.measure.run import TimedRun, Window
from autotune.measure.step import TrainingStep, move
from autotune.measure.window import WindowSummary, summarise
from autotune.records import Conditions, Measurement, Request
from autotune.stats import mser_truncation
from autotune.workload import Workload

__all__ = ["Cell", "measure", "open_cell", "open_loader"]

WARM_SECONDS = 0.6
"""How long the model runs on a resident batch before the loader exists, once it has made ten steps."""
WARM_STEPS = 10
WARM_CAP_SECONDS = 4.0
"""The same where steps are slow; three steps are always made."""
RELEVANT_GROWTH = 0.02
"""Growth of the workers' memory over an epoch, as a share of the machine's, that is worth a longer look."""
LONGER_LOOKS = 2


@dataclass(frozen=True, slots=True)
class Cell:
    """A warm training step for one batch size, precision and number of threads; only the loader still varies."""

    step: TrainingStep
    """The step, compiled, tuned and with optimizer state."""
    ceiling: float
    """Samples per second on a batch that is already on the device."""
    disturbances: tuple[str, ...]
    """Why that ceiling is not to be trusted; empty where it is."""


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


def _counter(workload: Workload, num_workers: int) -> CountingCollate:
    is_iterable = isinstance(workload.dataset, IterableDataset)
    return CountingCollate(workload.collate_fn, num_workers, compares_workers=is_iterable and num_workers > 1)


def open_cell(workload: Workload, config: Config, device: Device) -> Cell:
    """Build the training step, warm it on one resident batch, and measure the ceiling there."""
    step = TrainingStep(workload, config, device)
    plain = Config(batch_size=config.batch_size)
    stream = BatchStream(open_loader(workload, plain, counter := _counter(workload, 0)), counter)
    batch = move(next(stream), device.torch_device, non_blocking=False)
    ends: list[Mark] = []
    device.synchronize()
    before, begin = snapshot(), time.perf_counter()
    while not _is_warm(len(ends), time.perf_counter() - begin):
        ends.append(step(batch)[-1])
        device.wait(ends[-1 - min(device.steps_ahead, len(ends) - 1)])
    device.synchronize()
    times = [device.seconds(a, b) for a, b in pairwise(ends)]
    settled = times[min(mser_truncation(times), len(times) // 2) :]
    disturbances = conditions_between(before, snapshot()).disturbances
    return Cell(step, stream.samples * len(settled) / sum(settled), disturbances)


def _is_warm(steps: int, seconds: float) -> bool:
    if steps < 3:
        return False
    return (steps >= WARM_STEPS and seconds >= WARM_SECONDS) or seconds >= WARM_CAP_SECONDS


def measure(workload: Workload, config: Config, cell: Cell, device: Device, request: Request) -> Measurement:
    """Time real training steps of one configuration, loader included."""
    counter = _counter(workload, config.num_workers)
    known = open_segments(os.getpid())
    stream = BatchStream(open_loader(workload, config, counter), counter)
    cell.step.non_blocking = config.pin_memory  # the cell may have been opened for another loader
    run = TimedRun(config, cell.step, stream, device, request)
    try:
        run.advance(1)
        memory, before, retries = sample_memory(stream.produced, known), snapshot(), device.allocator_retries
        run.settle()
        window = run.fill()
        gpu = device.gpu.read() if device.gpu else None  # at once: it tells of the last moments
        conditions = replace(
            conditions_between(before, snapshot(), gpu), allocator_retries=device.allocator_retries - retries
        )
        after = sample_memory(stream.produced, known, stream.workers)
        measurement = _report(run, stream, window, cell, conditions, after)
        return _with_growth(measurement, growth_between(memory, after), after, run, stream)
    finally:
        stream.close()


def _report(
    run: TimedRun, stream: BatchStream, window: Window, cell: Cell, conditions: Conditions, memory: MemorySample
) -> Measurement:
    config, device = run.config, run.device
    summary = summarise(
        run.rows(window), window.ready, window.block, run.config.num_workers, whole_epochs=window.whole_epochs
    )
    samples = _epoch_samples(stream, window, summary)
    epoch = _epoch_cost(samples, config, stream, window, summary)
    rate = epoch.rate_over_epochs(keeps_workers=config.persistent_workers) if epoch else summary.samples_per_second
    rate *= stream.unique_share
    width = summary.relative_half_width
    peaks, loss = device.peaks(), cell.step.loss
    queued = stream.batch_bytes * max(run.log.ready) if config.num_workers else 0
    in_flight = max(memory.in_flight, queued)  # the queue may have been longer before the end
    host_bytes = peak_host_bytes(memory) + in_flight - memory.in_flight
    return Measurement(
        samples_per_second=rate,
        ci95=(rate * (1 - width), rate * (1 + width)) if math.isfinite(width) else None,
        steady_samples_per_second=epoch.rate if epoch else summary.samples_per_second,
        ceiling_samples_per_second=cell.ceiling,
        settling_steps=window.first + summary.dropped_steps,
        steps=summary.steps,
        samples=summary.samples,
        seconds=summary.seconds,
        step_time=summary.step_time,
        device_idle_share=summary.waiting_share if device.is_asynchronous else None,
        first_batch_seconds=stream.start_seconds[0],
        restart_seconds=fmean(stream.start_seconds[1:]) if stream.epochs > 1 else None,
        persistence_gain=epoch.persistence_gain if epoch else None,
        epoch_samples=None if samples is None else round(samples * stream.unique_share),
        peak_memory_bytes=peaks[1] if peaks else host_bytes,
        memory="device" if peaks else "host",
        memory_limit_bytes=device.memory_limit,
        peak_allocated_bytes=peaks[0] if peaks else None,
        host_memory_bytes=host_bytes,
        shared_memory_bytes=in_flight,
        worker_growth_bytes_per_sample=None,
        epoch_host_memory_bytes=None,
        ready_batches=summary.ready,
        conditions=conditions,
        loss=None if loss is None else float(loss),
        notes=(*window_notes(summary), *loader_notes(stream, run.config, run.in_flight), *machine_notes(conditions)),
    )


def _with_growth(
    measurement: Measurement, growth: MemoryGrowth | None, memory: MemorySample, run: TimedRun, stream: BatchStream
) -> Measurement:
    """Add how the workers' memory grew; where that seems to matter, look again over steps beyond the window.

    The first batches allocate what later ones reuse, and memory comes and goes: what grows for good grows each time.
    """
    batches = stream.epoch_batches
    if growth is None or batches is None:
        return measurement
    for _ in range(LONGER_LOOKS):
        if growth.after(batches) < RELEVANT_GROWTH * inspect_host().memory_bytes:
            break
        run.advance_for(measurement.seconds / 2)
        before, memory = memory, sample_memory(stream.produced, (), stream.workers)
        growth = min(growth, growth_between(before, memory) or growth, key=lambda each: each.after(batches))
    at_epoch_end = measurement.host_memory_bytes + growth.after(batches)
    per_sample = growth.bytes_per_batch * measurement.steps / measurement.samples
    return replace(measurement, worker_growth_bytes_per_sample=per_sample, epoch_host_memory_bytes=at_epoch_end)


def _epoch_samples(stream: BatchStream, window: Window, summary: WindowSummary) -> int | None:
    """Return the samples of an epoch, ``None`` while the batches of one are not known."""
    batches = stream.epoch_batches
    if batches is None:
        return None
    known = None if window.whole_epochs else stream.epoch_samples
    return known or round(summary.samples * batches / summary.steps)


def _epoch_cost(
    samples: int | None, config: Config, stream: BatchStream, window: Window, summary: WindowSummary
) -> EpochCost | None:
    """Return what an epoch and its start cost; ``None`` without workers, which start nothing, or without a length.

    A restart that was not seen costs, with workers that are kept, building the first batch: one round of all
    workers at most.
    """
    if not config.num_workers or samples is None:
        return None
    first, seen = stream.start_seconds[0], stream.start_seconds[window.epochs :]
    inside = summary.seconds - sum(seen)
    start = restart = fmean(seen) if seen else first
    if config.persistent_workers:
        start = first
    if not seen or not config.persistent_workers:
        restart = min(start, config.num_workers * inside / summary.steps)
    rate = summary.samples_per_second * summary.seconds / inside
    return EpochCost(samples=samples, rate=rate, start=start, restart=restart)
