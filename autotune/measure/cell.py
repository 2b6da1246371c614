"""The step alone: warm it on a resident batch, and say what it costs there."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import Any

from torch.utils.data import IterableDataset, default_collate

from autotune.config import Config
from autotune.measure.device import Device, Mark
from autotune.measure.loading import open_stream
from autotune.measure.memory import MemorySample, open_segments, peak_host_bytes
from autotune.measure.monitor import conditions_between, snapshot
from autotune.measure.step import TrainingStep, move, tensor_bytes
from autotune.probes import ComputeProbe
from autotune.stats import mser_truncation
from autotune.workload import Workload

__all__ = ["Cell", "open_cell"]

WARM_SECONDS = 0.6
"""How long the model runs on a resident batch before the loader exists, once it has made ten steps."""
WARM_STEPS = 10
WARM_CAP_SECONDS = 4.0
"""The same where steps are slow; three steps are always made."""
LARGEST_STEPS = 2
"""Steps on a batch with the largest sample seen; the optimizer's state is allocated in the first step of all."""
LARGEST_SECONDS = 0.3
"""How long samples are drawn for the largest."""
EQUAL_SAMPLES, MOST_SAMPLES = 32, 1000
"""Samples of equal size after which no larger one is looked for, and most samples that are drawn."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A warm training step for one batch size, precision and number of threads; only the loader still varies."""

    step: TrainingStep
    """The step, compiled, tuned and with optimizer state."""
    compute: ComputeProbe
    """What it costs on a batch that is already on the device."""
    disturbances: tuple[str, ...]
    """Why that is not to be trusted; empty where it is."""

    @property
    def ceiling(self) -> float:
        """Samples per second on a resident batch."""
        return self.compute.samples_per_second


def open_cell(workload: Workload, config: Config, device: Device) -> Cell:
    """Build the training step, warm it on one resident batch, and measure the ceiling there."""
    step = TrainingStep(workload, config, device)
    stream = open_stream(workload, Config(batch_size=config.batch_size))
    batch = move(next(stream), device.torch_device, non_blocking=False)
    ends: list[Mark] = []
    device.synchronize()
    before, begin, host_seconds = snapshot(), time.perf_counter(), 0.0
    while not _is_warm(len(ends), time.perf_counter() - begin):
        called = time.perf_counter()
        ends.append(step(batch)[-1])
        host_seconds += time.perf_counter() - called
        device.wait(ends[-1 - min(device.steps_ahead, len(ends) - 1)])
    device.synchronize()
    conditions = conditions_between(before, after := snapshot())
    times = [device.seconds(a, b) for a, b in pairwise(ends)]
    settled = times[min(mser_truncation(times), len(times) // 2) :]
    _take_the_largest(workload, config, step, device)
    peaks, host = device.peaks(), _own_peak()
    compute = ComputeProbe(
        samples_per_second=stream.samples / fmean(settled),
        host_seconds=host_seconds / len(ends),
        cpu_seconds=(after.own - before.own) / len(ends),
        peak_memory_bytes=peaks[1] if peaks else host,
        memory="device" if peaks else "host",
        memory_limit_bytes=device.memory_limit,
        host_memory_bytes=host,
    )
    return Cell(step, compute, conditions.disturbances)


def _is_warm(steps: int, seconds: float) -> bool:
    if steps < 3:
        return False
    return (steps >= WARM_STEPS and seconds >= WARM_SECONDS) or seconds >= WARM_CAP_SECONDS


def _own_peak() -> int:
    """Return the peak host memory of this process, which has no workers now."""
    held = sum(open_segments(os.getpid()).values())
    return peak_host_bytes(MemorySample(batches=0, private={}, shared={}, in_flight=0, held=held))


def _take_the_largest(workload: Workload, config: Config, step: TrainingStep, device: Device) -> None:
    """Where samples differ in size, train on a batch with the largest of those seen: its peak is the one that counts.

    A batch sampler may put large samples together, so there the whole batch is made of it.
    """
    collate = workload.collate_fn or default_collate
    samples = _varied_samples(workload, collate)
    if not samples:
        return
    largest, others = samples[0], samples[1:]
    if workload.batch_sampler is not None:
        others = [largest]
    chosen = [largest, *(others[index % len(others)] for index in range(config.batch_size - 1))]
    batch = move(collate(chosen), device.torch_device, non_blocking=False)
    for _ in range(LARGEST_STEPS):
        step(batch)
    device.synchronize()


def _varied_samples(workload: Workload, collate: Callable[[list[Any]], Any]) -> list[Any]:
    """Return samples of a map-style dataset, the largest first; none where all have one size."""
    dataset: Any = workload.dataset
    if isinstance(dataset, IterableDataset) or workload.sampler is not None:
        return []
    stride = max(1, len(dataset) // EQUAL_SAMPLES)
    spread = itertools.chain.from_iterable(range(first, len(dataset), stride) for first in range(stride))
    found: list[tuple[int, Any]] = []
    limit = time.perf_counter() + LARGEST_SECONDS
    for index in itertools.islice(spread, MOST_SAMPLES):
        sample = dataset[index]
        found.append((tensor_bytes(collate([sample])), sample))
        are_equal = len({size for size, _ in found}) == 1
        if time.perf_counter() > limit or (len(found) >= EQUAL_SAMPLES and are_equal):
            break
    found.sort(key=lambda each: each[0], reverse=True)
    return [sample for _, sample in found] if found and found[0][0] > found[-1][0] else []
