"""Time a configuration on a warm step: let the loader settle, measure a window, say what it means."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from statistics import fmean

from autotune.config import Config
from autotune.host import inspect_host
from autotune.measure.cell import Cell
from autotune.measure.device import Device
from autotune.measure.epochs import EpochCost
from autotune.measure.following import FollowingRun
from autotune.measure.inventory import BatchStream
from autotune.measure.loading import open_stream
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
from autotune.measure.team import ALONE, Team
from autotune.measure.window import WindowSummary, summarise
from autotune.records import Conditions, Measurement, Request
from autotune.workload import Workload

__all__ = ["measure"]

RELEVANT_GROWTH = 0.02
"""Growth of the workers' memory over an epoch, as a share of the machine's, that is worth a longer look."""
LONGER_LOOKS = 2


def measure(
    workload: Workload, config: Config, cell: Cell, device: Device, request: Request, team: Team = ALONE
) -> Measurement:
    """Time real training steps of one configuration, loader included; of several ranks each measures itself."""
    stream = open_stream(workload, config)
    known = open_segments(os.getpid())
    cell.step.non_blocking = config.pin_memory  # the cell may have been opened for another loader
    run = (TimedRun if team.leads else FollowingRun)(config, cell.step, stream, device, request, team=team)
    try:
        run.advance(1)
        memory, retries = sample_memory(stream.produced, known), device.allocator_retries
        before = snapshot(job=team.job)
        run.settle()
        window = run.fill()
        gpu = device.gpu.read() if device.gpu else None  # at once: it tells of the last moments
        conditions = replace(
            conditions_between(before, snapshot(job=team.job), gpu),
            allocator_retries=device.allocator_retries - retries,
        )
        after = sample_memory(stream.produced, known, stream.workers)
        everybody = team.gather(stream.digests)
        stream.digests_of_others = [
            digest for rank, digests in enumerate(everybody) if rank != team.rank for digest in digests
        ]
        measurement = _report(run, stream, window, cell, conditions, after)
        return _with_growth(measurement, growth_between(memory, after), after, run, stream, team)
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
    epoch = _epoch_cost(samples, run, stream, window, summary)
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
        unique_share=stream.unique_share,
        stopped_early=run.stopped_early,
        notes=(*window_notes(summary), *loader_notes(stream, run.config, run.in_flight), *machine_notes(conditions)),
    )


def _with_growth(
    measurement: Measurement,
    growth: MemoryGrowth | None,
    memory: MemorySample,
    run: TimedRun,
    stream: BatchStream,
    team: Team,
) -> Measurement:
    """Add how the workers' memory grew; where that seems to matter, look again over steps beyond the window.

    The first batches allocate what later ones reuse, and memory comes and goes: what grows for good grows each time.
    """
    batches = stream.epoch_batches
    if not all(team.gather(growth is not None and batches is not None)):
        return measurement
    assert growth is not None
    assert batches is not None
    relevant = RELEVANT_GROWTH * inspect_host().memory_bytes / team.size
    for _ in range(LONGER_LOOKS):
        if not any(team.gather(growth.after(batches) >= relevant)):
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
    samples: int | None, run: TimedRun, stream: BatchStream, window: Window, summary: WindowSummary
) -> EpochCost | None:
    """Return what an epoch and its start cost; ``None`` without workers, which start nothing, or without a length.

    A restart that was not seen costs, with workers that are kept, building the first batch: one round of all
    workers at most.
    """
    config = run.config
    if not config.num_workers or samples is None:
        return None
    first, seen = stream.start_seconds[0], stream.start_seconds[window.epochs : run.epochs_at_end]
    inside = summary.seconds - sum(seen)
    start = restart = fmean(seen) if seen else first
    if config.persistent_workers:
        start = first
    if not seen or not config.persistent_workers:
        restart = min(start, config.num_workers * inside / summary.steps)
    rate = summary.samples_per_second * summary.seconds / inside
    return EpochCost(samples=samples, rate=rate, start=start, restart=restart)
