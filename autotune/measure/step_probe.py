"""The step alone: warm it on a resident batch, and say what it costs there."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from itertools import chain, islice, pairwise
from statistics import fmean
from typing import Any

from torch.utils.data import DistributedSampler, IterableDataset, default_collate

from autotune.config import Config
from autotune.measure.conditions import conditions_between, snapshot
from autotune.measure.device import Device, Mark
from autotune.measure.loader import open_stream
from autotune.measure.process_memory import MemorySample, open_segments, peak_host_bytes
from autotune.measure.rank_group import ALONE, RankGroup
from autotune.measure.step import TrainingStep, move, tensor_bytes
from autotune.probes import ComputeProbe
from autotune.stats import mser_truncation
from autotune.workload import Workload

WARM_SECONDS = 0.6
"""How long the model runs on a resident batch before the loader exists, once it has made ten steps."""
WARM_STEPS = 10
WARM_CAP_SECONDS = 4.0
"""How long it runs at most, where steps are slow; three steps are always made."""
LARGEST_STEPS = 2
"""Steps on a batch with the largest sample seen; the optimizer's state is allocated in the first step of all."""
LARGEST_SECONDS = 0.3
"""How long samples are drawn for the largest."""
LEAST_REST = 2
"""Samples of a last batch that is trained on: of a single one, batch normalisation has no statistics."""
MOST_INDICES = 100_000
"""Indices that are drawn from a sampler, among which samples are looked at."""
EQUAL_SAMPLES = 32
"""Samples of equal size after which no larger one is looked for."""


@dataclass(frozen=True, slots=True)
class WarmStep:
    """A warm training step for one batch size, precision and number of threads; only the loader still varies."""

    step: TrainingStep
    """The step, compiled, tuned and with optimizer state."""
    compute: ComputeProbe
    """What it costs on a batch that is already on the device."""
    disturbances: tuple[str, ...]
    """Why that is not to be trusted; empty where it is."""


def open_step(workload: Workload, config: Config, device: Device, group: RankGroup = ALONE) -> WarmStep:
    """Build the training step, warm it on one resident batch, and measure the ceiling there, all ranks together."""
    step = TrainingStep(workload, config, device, group)
    stream = open_stream(workload, Config(batch_size=config.batch_size))
    batch = move(next(stream), device.torch_device, non_blocking=False)
    first_end, first_step_seconds = _take_first_step(step, batch, stream.samples, device)
    ends: list[Mark] = [first_end]
    before, begin, host_seconds = snapshot(job=group.job), time.perf_counter(), 0.0
    for _ in group.together(lambda: _is_warm(len(ends), time.perf_counter() - begin)):
        called = time.perf_counter()
        ends.append(step(batch, stream.samples)[-1])
        host_seconds += time.perf_counter() - called
        device.wait(ends[-1 - min(device.steps_ahead, len(ends) - 1)])
    device.synchronize()
    conditions = conditions_between(before, after := snapshot(job=group.job))
    times = [device.seconds(a, b) for a, b in pairwise(ends)]
    settled = times[min(mser_truncation(times), len(times) // 2) :]
    _take_the_largest(workload, config, step, device, batch, group)
    if "compile" in config.options:
        _take_the_last(workload, config, step, device)
    peaks, held = device.peaks(), sum(open_segments(os.getpid()).values())  # there are no workers now
    host = peak_host_bytes(MemorySample(batches=0, private={}, shared={}, in_flight=0, held=held))
    compute = ComputeProbe(
        samples_per_second=stream.samples / fmean(settled),
        first_step_seconds=first_step_seconds,
        host_seconds=host_seconds / (len(ends) - 1),
        cpu_seconds=(after.own - before.own) / (len(ends) - 1) / group.size,
        peak_memory_bytes=peaks[1] if peaks else host,
        memory="device" if peaks else "host",
        memory_limit_bytes=device.memory_limit,
        host_memory_bytes=host,
    )
    return WarmStep(step, compute, conditions.disturbances)


def _take_first_step(step: TrainingStep, batch: Any, samples: int, device: Device) -> tuple[Mark, float]:
    """Make the first step, whatever it compiles and allocates; return the mark at its end and the seconds it took."""
    device.synchronize()
    begin = time.perf_counter()
    end = step(batch, samples)[-1]
    step.accumulator.flush(step.max_grad_norm)  # the optimizer's state takes memory, however many batches make a step
    device.synchronize()
    return end, time.perf_counter() - begin


def _is_warm(steps: int, seconds: float) -> bool:
    least = WARM_SECONDS if steps >= WARM_STEPS else WARM_CAP_SECONDS
    return steps >= 3 and seconds >= least


def _take_the_largest(
    workload: Workload, config: Config, step: TrainingStep, device: Device, batch: Any, group: RankGroup
) -> None:
    """Where samples differ in size, train on a batch with the largest of those seen: that peak counts.

    Ranks look at samples of their own; one that has found none takes the resident ``batch`` meanwhile.
    """
    largest = _largest_batch(workload, config.batch_size)
    if not any(group.gather(largest is not None)):
        return
    if largest is not None:
        batch = move(largest, device.torch_device, non_blocking=False)
    for _ in range(LARGEST_STEPS):
        step(batch)
    device.synchronize()


def _take_the_last(workload: Workload, config: Config, step: TrainingStep, device: Device) -> None:
    """Train on a batch as short as an epoch's last: a compiled model compiles once more for it, and not in a window."""
    dataset: Any = workload.dataset
    share = workload.sampler if isinstance(workload.sampler, DistributedSampler) else None
    is_chosen = workload.sampler is not share or workload.batch_sampler is not None
    if isinstance(dataset, IterableDataset) or is_chosen:
        return
    samples = len(dataset) if share is None else len(share)
    rest = samples % config.batch_size
    if samples < config.batch_size or rest < LEAST_REST:
        return
    collate = workload.collate_fn or default_collate
    step(move(collate([dataset[index] for index in range(rest)]), device.torch_device, non_blocking=False), rest)
    device.synchronize()


def _largest_batch(workload: Workload, batch_size: int) -> Any:
    """Return the largest batch that a short look found, or ``None`` where all have one size or none can be chosen."""
    dataset: Any = workload.dataset
    if workload.batch_sampler is not None:
        return _largest_of_sampler(workload, batch_size)
    if isinstance(dataset, IterableDataset):
        return None
    collate = workload.collate_fn or default_collate
    indices = range(len(dataset)) if workload.sampler is None else list(islice(workload.sampler, MOST_INDICES))
    stride = max(1, len(indices) // EQUAL_SAMPLES)
    spread = chain.from_iterable(indices[first::stride] for first in range(stride))
    largest, most, sizes = None, -1, set()
    others: list[Any] = []
    limit = time.perf_counter() + LARGEST_SECONDS
    for count, index in enumerate(spread, start=1):
        sample = dataset[index]
        sizes.add(size := tensor_bytes(collate([sample])))
        if size > most:
            largest, most, sample = sample, size, largest
        if sample is not None and len(others) < batch_size - 1:
            others.append(sample)
        if time.perf_counter() > limit or (count >= EQUAL_SAMPLES and len(sizes) == 1):
            break
    return collate([largest, *others]) if len(sizes) > 1 else None


def _largest_of_sampler(workload: Workload, batch_size: int) -> Any:
    """Return the largest of the batches that a batch sampler made in a short time."""
    stream = open_stream(workload, Config(batch_size=batch_size))
    limit = time.perf_counter() + LARGEST_SECONDS
    largest = next(stream)
    while time.perf_counter() < limit:
        largest = max(largest, next(stream), key=tensor_bytes)
    return largest
