"""The loader's rate at every batch size and number of workers, from one or two traces of it. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from statistics import fmean, stdev

import numpy as np
from numpy.typing import NDArray

from autotune.config import Config
from autotune.probes import LoaderTrace
from autotune.records import Measurement

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

SEQUENCE = 512
"""Builds in a sequence that the recursion meets: a short trace, cycled, would deal each worker the same builds."""
OWN_FILES = 64
"""Files that a training process has open without a loader: libraries, devices and the dataset's own."""
FILES_PER_WORKER = 4
"""Ends of pipes that the training process holds for each worker; counted in torch 2.13."""
SETTLING = 128
"""Batches before the rate is taken; a queue that fills or drains for longer changes it little."""
LEAST_WINDOW = 256
LEAST_BURSTS = 8
"""Batches over which the rate is taken, and bursts of the most workers."""
NOTHING = 1e-9
"""Seconds that stand for none where a time is divided by."""
MISSED = 1.5
"""Ratio of training's wait for a batch to a probe's time, from which the probe has missed stalls."""
LEAST_DEVIATION = 0.2
"""A batch is not built faster than this share of the mean, however the spread is scaled."""


class LoaderModel:
    """Build times for every batch size, and the rates that follow."""

    def __init__(self, traces: Sequence[LoaderTrace], host_seconds: Mapping[int, float] | None) -> None:
        """Take traces, and the host's seconds to launch a step on an accelerator by batch size.

        ``None`` where the host trains; the seconds may grow with the batch where a step waits for the device.
        """
        self._traces = sorted(traces, key=lambda trace: trace.batch_size)
        self._host_seconds = host_seconds
        self._at: dict[int, LoaderTrace] = {}

    def trace(self, batch_size: int) -> LoaderTrace:
        """Return the trace as it would be at a batch size."""
        if batch_size not in self._at:
            self._at[batch_size] = _trace_at(self._traces, batch_size)
        return self._at[batch_size]

    def rates(self, configs: Sequence[Config], steps: Floats) -> Floats:
        """Return batches per second with steps of so many seconds on a batch that is there.

        On a CPU the loop receives a batch, then trains; without workers it builds it first. An accelerator trains
        while the host receives or builds and asks for the next step. A copy takes its time too; from memory that is not
        pinned it makes the host wait.
        """
        rows = [
            (c.batch_size, c.num_workers, c.prefetch_factor or 0, c.pin_memory, step)
            for c, step in zip(configs, steps.tolist(), strict=True)
        ]
        settings, position = np.unique(np.array(rows, dtype=np.float64), axis=0, return_inverse=True)
        batches, row = np.unique(settings[:, 0], return_inverse=True)
        traces = [self.trace(int(batch)) for batch in batches]
        workers, prefetch, steps = *settings[:, 1:3].astype(np.int64).T, settings[:, 4]
        builds, copies, pinned_copies, pins, receives, launches = np.array(
            [
                (
                    fmean(t.build_seconds) if t.inline_seconds is None else t.inline_seconds,
                    t.transfer_seconds,
                    t.pinned_transfer_seconds,
                    t.inline_pin_seconds,
                    t.receive_seconds,
                    self.launch_seconds(t.batch_size) or 0.0,
                )
                for t in traces
            ]
        )[row].T
        is_fed, is_pinned = workers > 0, settings[:, 3] > 0
        if self._host_seconds is None:
            periods = builds + steps
        else:
            copies, steps = np.where(is_pinned, 0.0, copies), steps + np.where(is_pinned, pinned_copies, 0.0)
            periods = np.maximum(builds + np.where(is_pinned, pins, 0.0) + launches, steps) + copies
            steps, receives = np.maximum(steps, launches + receives) + copies, np.zeros_like(receives)
        rates: Floats = 1 / np.maximum(periods, NOTHING)
        if is_fed.any():
            sequences, fed = np.array([_sequence(trace.build_seconds) for trace in traces]), np.flatnonzero(is_fed)
            rates[fed] = pipeline_rates(sequences, row[fed], workers[fed], prefetch[fed], steps[fed], receives[fed])
        return rates[position.ravel()]

    def launch_seconds(self, batch_size: int) -> float | None:
        """Return the host's seconds to launch a step, by the nearest batch size; ``None`` where the host trains."""
        if self._host_seconds is None:
            return None
        near = min(self._host_seconds, key=lambda known: abs(math.log(known / batch_size)), default=0)
        return self._host_seconds.get(near, 0.0)

    def pin_rate(self, config: Config) -> float:
        """Return the most batches per second that the pinning thread copies."""
        seconds = self.trace(config.batch_size).pin_seconds if config.pin_memory and config.num_workers else 0.0
        return 1 / max(seconds, NOTHING)

    def shared_memory(self, config: Config) -> int:
        """Return the most bytes of batches in flight."""
        return _in_flight(config) * self.trace(config.batch_size).batch_bytes

    def memory(self, config: Config) -> int:
        """Return the bytes of host memory that workers and batches in flight take."""
        return self.shared_memory(config) + config.num_workers * self.trace(config.batch_size).worker_memory_bytes

    def open_files(self, config: Config) -> int:
        """Return the files that the training process has open at most: all batches in flight may wait for one worker.

        Every tensor on its way is one where torch shares memory by file descriptor, as it does on Linux.
        """
        tensors = _in_flight(config) * self.trace(config.batch_size).batch_tensors
        return OWN_FILES + FILES_PER_WORKER * config.num_workers + tensors

    def start_seconds(self, configs: Sequence[Config]) -> Floats:
        """Return the seconds to start an epoch: its order, the first batch, and workers that are not persistent."""
        batches = {config.batch_size for config in configs}
        builds = {batch: fmean(self.trace(batch).build_seconds) for batch in batches}
        found = []
        for config in configs:
            trace, starts = self.trace(config.batch_size), 0 if config.persistent_workers else config.num_workers
            first = builds[config.batch_size] if config.num_workers else 0.0
            found.append(trace.order_seconds + first + starts * trace.start_seconds)
        return np.array(found)


def _in_flight(config: Config) -> int:
    return config.num_workers * (config.prefetch_factor or 0) + 1 if config.num_workers else 0


def trace_from_baseline(config: Config, measured: Measurement) -> LoaderTrace:
    """Return a trace of the loader from the baseline's own measurement, where no probe gave one."""
    split, workers = measured.step_time, config.num_workers
    build = workers * split.total if workers else split.data_wait
    return LoaderTrace(
        batch_size=config.batch_size,
        build_seconds=(build,),
        receive_seconds=0.0,
        pin_seconds=0.0,
        transfer_seconds=split.host_to_device,
        cpu_seconds=build,
        batch_bytes=measured.batch_bytes,
        batch_tensors=measured.batch_tensors,
        start_seconds=0.05,
        order_seconds=measured.order_seconds or 0.0,
        worker_memory_bytes=0,
        storage_share=None,
    )


def with_inline(traces: Sequence[LoaderTrace], batch_size: int, waited: float) -> tuple[LoaderTrace, ...]:
    """Return traces that know how long training without workers ``waited`` for a batch of one size.

    Where that is much longer than a worker took, the probe has missed stalls: then a worker takes as long.
    """
    ratio = waited / max(fmean(_trace_at(traces, batch_size).build_seconds), NOTHING)
    missed = ratio if ratio >= MISSED else 1.0
    return tuple(
        replace(
            trace,
            inline_seconds=ratio * fmean(trace.build_seconds),
            build_seconds=tuple(missed * build for build in trace.build_seconds),
        )
        for trace in traces
    )


@lru_cache(maxsize=256)
def _sequence(builds: tuple[float, ...]) -> Floats:
    """Return the builds of a trace over and over, each time in another order, with the same mean; not to be changed."""
    generator = np.random.default_rng(0)
    sequence = np.concatenate([generator.permutation(builds) for _ in range(-(-SEQUENCE // len(builds)))])[:SEQUENCE]
    return np.asarray(sequence * (fmean(builds) / max(sequence.mean(), NOTHING)))


def _trace_at(traces: Sequence[LoaderTrace], batch_size: int) -> LoaderTrace:
    near = min(traces, key=lambda trace: abs(math.log(trace.batch_size / batch_size)))
    if near.batch_size == batch_size:
        return near
    samples = batch_size / near.batch_size
    factor = _build_at(traces, near, batch_size) / max(fmean(near.build_seconds), NOTHING)
    tensors = near.batch_tensors
    if tensors >= near.batch_size > 1:  # a tensor for each sample or more, else as many always
        tensors = math.ceil(tensors * batch_size / near.batch_size)
    builds = scaled_builds(np.array(near.build_seconds), fmean(near.build_seconds) * factor, samples)
    return replace(
        near,
        batch_size=batch_size,
        build_seconds=tuple(builds.tolist()),
        inline_seconds=None if near.inline_seconds is None else near.inline_seconds * factor,
        cpu_seconds=near.cpu_seconds * factor,
        pin_seconds=near.pin_seconds * samples,
        inline_pin_seconds=near.inline_pin_seconds * samples,
        transfer_seconds=near.transfer_seconds * samples,
        pinned_transfer_seconds=near.pinned_transfer_seconds * samples,
        batch_bytes=round(near.batch_bytes * samples),
        batch_tensors=tensors,
    )


def _build_at(traces: Sequence[LoaderTrace], near: LoaderTrace, batch_size: int) -> float:
    """Return the mean build time at a batch size: between two traces on a line, else from the nearest one.

    The part that does not grow with the batch follows from the two; one standard error, perhaps chance, is left out.
    """
    low, high = traces[0], traces[-1]
    at_low, at_high = fmean(low.build_seconds), fmean(high.build_seconds)
    distance = high.batch_size - low.batch_size
    if low.batch_size < batch_size < high.batch_size:
        return at_low + (at_high - at_low) * (batch_size - low.batch_size) / distance
    build, fixed = fmean(near.build_seconds), 0.0
    if distance:
        line = (at_low * high.batch_size - at_high * low.batch_size) / distance
        error = math.hypot(_error(low) * high.batch_size, _error(high) * low.batch_size) / distance
        fixed = min(build, max(0.0, line - error))
    return fixed + (build - fixed) * batch_size / near.batch_size


def _error(trace: LoaderTrace) -> float:
    builds = trace.build_seconds
    return stdev(builds) / math.sqrt(len(builds)) if len(builds) > 1 else builds[0]


def pipeline_rates(
    builds: Floats, row: Ints, workers: Ints, prefetch: Ints, step_seconds: Floats, receive_seconds: Floats
) -> Floats:
    """Return batches per second for many configurations with workers at once.

    ``builds`` holds sequences of build times in seconds, one a row; ``row`` says which one each configuration meets,
    over and over. The other arrays have one entry per configuration.
    """
    in_flight, columns, wide = workers * prefetch, np.arange(len(workers)), len(workers)
    window = max(LEAST_WINDOW, LEAST_BURSTS * int(workers.max()))
    before = int(in_flight.max())  # rows of zeros: every worker and every place is free at the start
    built = np.zeros((before + SETTLING + window, len(workers)))
    taken = np.zeros_like(built)
    sequence = np.ascontiguousarray(np.maximum(builds, NOTHING).T)
    place, worker = columns - in_flight * wide, columns - workers * wide  # where y[k - K] and f[k - W] lie, less k rows
    for k in range(before, len(built)):
        free = np.maximum(taken.take(place + k * wide), built.take(worker + k * wide))
        built[k] = free + sequence[(k - before) % len(sequence)].take(row)
        taken[k] = np.maximum(built[k], taken[k - 1] + step_seconds) + receive_seconds
    first = before + SETTLING - 1
    batches = window // workers * workers  # batches come in bursts of all workers
    rates: Floats = batches / (taken[first + batches, columns] - taken[first])
    return rates


def scaled_builds(builds: Floats, mean: float, share: float) -> Floats:
    """Return build times with another mean, for batches of ``share`` times as many samples.

    Their spread is that of a sum of so many samples, each on its own: relative to the mean it shrinks with the root.
    """
    deviation = (builds / max(builds.mean(), NOTHING) - 1) / np.sqrt(share)
    factors = np.maximum(1 + deviation, LEAST_DEVIATION)
    scaled: Floats = mean * factors / factors.mean()
    return scaled
