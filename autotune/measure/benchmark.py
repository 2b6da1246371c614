"""Time a configuration on a warm step: let the loader settle, measure a window, summarise it."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import fmean

from torch.utils.data import IterableDataset

from autotune.config import Config
from autotune.limits import percent
from autotune.machine.host import inspect_host
from autotune.measure.conditions import conditions_between, snapshot
from autotune.measure.device import Device
from autotune.measure.loader import BatchStream, begin_anywhere, open_stream
from autotune.measure.process_memory import (
    MemorySample,
    growth_between,
    least_growth,
    open_segments,
    peak_host_bytes,
    sample_memory,
)
from autotune.measure.rank_group import ALONE, RankGroup
from autotune.measure.step_probe import WarmStep
from autotune.measure.timed_run import TimedRun, Window
from autotune.measure.window import WindowSummary, pauses, summarise
from autotune.records import ONE_THREAD, Conditions, Measurement, Request, to_divide
from autotune.stats import around
from autotune.workload import Workload

RELEVANT_GROWTH = 0.02
"""Growth of the workers' memory over an epoch, as a share of the machine's, that matters."""
READING_SHARE = 0.5
"""Share of a window's length in which samples are read first, where the window is to be of later epochs."""
UNCREDITED = 0.05
"""Share of the batches, built before the window or in it without use, from which a note says so."""
FROM_STORAGE = 0.05
"""Share of the bytes read from storage from which a note says so."""


def measure(
    workload: Workload, config: Config, warm: WarmStep, device: Device, request: Request, group: RankGroup = ALONE
) -> Measurement:
    """Time real training steps of one configuration, loader included; of several ranks each measures itself."""
    seed = secrets.randbits(31) if request.seed is None else request.seed
    again_after = READING_SHARE * request.seconds if request.later_epochs and config.keeps_readers else None
    stream = open_stream(workload, config, begin_anywhere(group.tell(seed)), again_after=again_after)
    known = open_segments(os.getpid())
    warm.step.non_blocking, warm.step.stream = config.pin_memory, stream  # it may have been opened for another loader
    run = TimedRun(config, warm.step, stream, device, request, group=group)
    try:
        run.advance(1)
        memory, retries = sample_memory(stream.produced, known), device.allocator_retries
        before = snapshot(job=group.job, gpu=device.gpu)
        run.wait_for_steady_stock()
        window = run.fill()
        ended = snapshot(job=group.job, gpu=device.gpu)
        conditions = conditions_between(before, ended, run.gpu)
        conditions = replace(conditions, allocator_retries=device.allocator_retries - retries)
        after = sample_memory(stream.produced, known, stream.workers)
        everybody = group.gather(stream.digests)
        stream.digests_of_others = [
            digest for rank, digests in enumerate(everybody) if rank != group.rank for digest in digests
        ]
        measurement = _report(run, window, warm, conditions, after)
        return _with_growth(measurement, memory, after, run, window, group)
    finally:
        warm.step.stream = None
        stream.close()


def _report(run: TimedRun, window: Window, warm: WarmStep, conditions: Conditions, memory: MemorySample) -> Measurement:
    config, device, stream = run.config, run.device, run.batches
    rows, workers = run.rows(window), config.num_workers
    summary = summarise(rows, window.ready, workers, whole_epochs=window.whole_epochs)
    batches, samples = stream.epoch_batches, None if window.whole_epochs else stream.epoch_samples
    samples = None if batches is None else samples or round(summary.samples * batches / summary.steps)
    epoch = _epoch_cost(samples, run, window, summary)
    steady = epoch.rate if epoch else summary.samples_per_second
    rate = epoch.rate_over_epochs(keeps_workers=config.persistent_workers) if epoch else steady
    rate *= stream.unique_share
    width, paused = summary.relative_half_width, pauses(run.log.ends, run.log.epochs, max(1, workers))
    peaks, loss = device.peaks(), warm.step.loss
    queued = stream.batch_bytes * max(run.log.ready) if workers else 0
    in_flight = max(memory.in_flight, queued)  # the queue may have been longer before the end
    host_bytes = peak_host_bytes(memory) + device.pinned_bytes + in_flight - memory.in_flight
    is_partial = isinstance(stream.dataset, IterableDataset) and not window.whole_epochs
    beginning = round(summary.samples * stream.consumed / summary.steps) if is_partial else None
    return Measurement(
        samples_per_second=rate,
        ci95=around(rate, width),
        steady_samples_per_second=steady,
        ceiling_samples_per_second=max(warm.compute.samples_per_second, steady),
        settling_steps=window.first + summary.dropped_steps,
        steps=summary.steps,
        samples=summary.samples,
        seen_samples=sum(run.log.samples),
        pauses=len(paused),
        pause_seconds=sum(paused),
        apart_share=run.apart_share,
        seconds=summary.seconds,
        step_time=summary.step_time,
        device_idle_share=summary.waiting_share if device.is_asynchronous else None,
        first_batch_seconds=stream.start_seconds[0],
        restart_seconds=fmean(stream.start_seconds[1:]) if stream.epochs > 1 else None,
        order_seconds=fmean(stream.order_seconds) if stream.order_seconds else None,
        persistence_gain=epoch.persistence_gain if epoch and workers else None,
        epoch_samples=None if samples is None else round(samples * stream.unique_share),
        peak_memory_bytes=peaks[1] if peaks else host_bytes,
        memory="device" if peaks else "host",
        memory_limit_bytes=device.memory_limit,
        peak_allocated_bytes=peaks[0] if peaks else None,
        host_memory_bytes=host_bytes,
        shared_memory_bytes=in_flight,
        ready_batches=summary.ready,
        conditions=conditions,
        loss=None if loss is None else float(loss),
        later_epochs=run.request.later_epochs and config.keeps_readers,
        beginning_samples=beginning,
        idle_workers=stream.idle_workers,
        is_uneven=stream.is_uneven,
        batch_bytes=stream.batch_bytes,
        batch_tensors=stream.batch_tensors,
        unique_share=stream.unique_share,
        stopped_early=run.stopped_early,
        notes=(
            *window_notes(summary),
            *loader_notes(stream, run.config, run.in_flight),
            *machine_notes(conditions),
        ),
    )


def _with_growth(
    measurement: Measurement,
    before: MemorySample,
    after: MemorySample,
    run: TimedRun,
    window: Window,
    group: RankGroup,
) -> Measurement:
    """Add the growth of the workers' memory; a relevant growth counts only as far as a second sample confirms it.

    The first batches allocate memory that later ones reuse, and memory comes and goes: lasting growth shows each time.
    """
    stream, growth, limit = run.batches, growth_between(before, after), inspect_host().memory_bytes
    batches = stream.epoch_batches or 0
    relevant = RELEVANT_GROWTH * limit / group.size
    seems_to_matter = growth and max(growth.kept_after(batches), growth.copied_after(batches)) >= relevant
    if any(group.gather(bool(seems_to_matter))):
        run.advance(max(run.config.num_workers, (run.last - window.first) // 2))  # as many in each rank
        again = growth_between(after, sample_memory(stream.produced, (), stream.workers))
        growth = least_growth(growth, again) if growth and again else None
    kept = sum(group.gather(growth.kept_after(batches) if growth else 0))
    samples = sum(group.gather(measurement.epoch_samples or 0))
    if growth is None or not batches:
        return measurement
    per_sample = (growth.kept_per_batch + growth.copied_per_batch) * measurement.steps / measurement.samples
    return replace(
        measurement,
        worker_growth_bytes_per_sample=per_sample,
        epoch_host_memory_bytes=measurement.host_memory_bytes + growth.copied_after(batches),
        notes=(*measurement.notes, *growth_notes(kept, samples, limit)),
    )


def _epoch_cost(samples: int | None, run: TimedRun, window: Window, summary: WindowSummary) -> EpochCost | None:
    """Return the cost of an epoch and its start; ``None`` without a length, or where nothing starts.

    Without workers the sampler's order is all that an epoch begins with. A restart of persistent workers that was
    not seen costs this order and the first batch: one round of all workers at most.
    """
    config, orders = run.config, run.batches.order_seconds
    starts = run.batches.start_seconds if config.num_workers else orders
    if samples is None or not starts:
        return None
    order = fmean(orders) if orders else 0.0
    first, seen = starts[0], starts[window.epochs : run.log.epochs[run.last - 1]]
    inside = summary.seconds - sum(seen)
    start = restart = fmean(seen) if seen else first
    if config.persistent_workers:
        start = first
    if not seen or not config.persistent_workers:
        restart = min(start, order + config.num_workers * inside / summary.steps)
    rate = summary.samples_per_second * summary.seconds / inside
    return EpochCost(samples=samples, rate=rate, start=start, restart=restart)


def window_notes(summary: WindowSummary) -> Iterator[str]:
    """Yield the notes on the steps."""
    if summary.early_share > UNCREDITED:
        built = f"{percent(summary.early_share)} of the batches were built before the measured window"
        yield f"{built} and are not counted: the queue was still draining"
    if summary.early_share < -UNCREDITED:
        counted = f"{percent(-summary.early_share)} more batches are counted than training used"
        yield f"{counted}: workers built them while training waited for others"
    if not summary.is_steady:
        yield "step times never settled within the measured window"


def loader_notes(loader: BatchStream, config: Config, in_flight: int) -> Iterator[str]:
    """Yield the notes on a loader that prefetches ``in_flight`` batches."""
    if loader.epoch_batches is not None and loader.epoch_batches <= in_flight:
        yield (
            f"the data loader prefetches {in_flight} batches, but an epoch has only {loader.epoch_batches}: "
            "no steady state is reached"
        )
    if loader.misstated_batches is not None:
        yield (
            f"the data loader gives its length as {loader.misstated_batches:,} batches, but an epoch had "
            f"{loader.epoch_batches:,}: the measured number counts"
        )
    if loader.idle_workers:
        yield f"{loader.idle_workers} of {config.num_workers} loader workers got no data: fewer are as fast"
    elif loader.is_uneven:
        yield "a loader worker had no data left while others went on: they got different amounts"
    if loader.freezes_epoch:
        yield "the dataset's set_epoch does not reach persistent workers: each keeps its own copy of the dataset"
    if loader.unique_share < 1:
        ranks = "" if config.ranks == 1 else "ranks or "
        counted = f"only {percent(loader.unique_share)} of the samples are counted"
        yield f"{counted}: the {ranks}workers yield the same ones; {to_divide(config.ranks)}"


def growth_notes(kept: int, samples: int, limit: int) -> Iterator[str]:
    """Yield the notes on workers that would keep ``kept`` bytes of an epoch, of ``limit`` bytes."""
    if kept >= RELEVANT_GROWTH * limit:
        follows = "an unbounded cache or a leak ends training there" if kept >= limit else "check that it is bounded"
        yield (
            f"the loader workers' memory grew by {1000 * kept / samples / 2**20:.3g} MiB per 1,000 samples; if that "
            f"goes on, an epoch of {samples:,} needs {kept / 2**30:.1f} GiB more, of {limit / 2**30:.1f} GiB in all: "
            f"{follows}"
        )


def machine_notes(conditions: Conditions) -> Iterator[str]:
    """Yield the notes on the machine."""
    if conditions.is_throttled:
        stopped = f"the CPU quota stopped processes for {percent(conditions.throttled_share or 0.0)} of the time"
        yield f"{stopped}: fewer workers or threads may be faster"
    if (share := conditions.storage_share or 0.0) > FROM_STORAGE:
        yield f"{percent(share)} of the bytes read came from storage; later epochs may read it faster"
    if (conditions.worker_threads or 1) > 1:
        yield (
            f"each loader worker computes in {conditions.worker_threads} threads: {ONE_THREAD}, or more workers only "
            "slow each other down"
        )
    yield from conditions.disturbances


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochCost:
    """An epoch and the time to start one, in seconds."""

    samples: int
    rate: float
    """Samples per second inside an epoch."""
    start: float
    """From asking new workers for an epoch to its first batch."""
    restart: float
    """Seconds until the first batch of a later epoch with workers that are still alive; they have to build the first
    batch as well."""

    def rate_over_epochs(self, *, keeps_workers: bool) -> float:
        """Return the samples per second over epochs that start new workers, or keep them."""
        return self.samples / (self.samples / self.rate + (self.restart if keeps_workers else self.start))

    @property
    def persistence_gain(self) -> float:
        """Gain of persistent workers, as a share of the rate with new ones for each epoch."""
        return self.rate_over_epochs(keeps_workers=True) / self.rate_over_epochs(keeps_workers=False) - 1
