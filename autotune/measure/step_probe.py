"""The step alone: warm it on resident batches, and time it there."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean, median, variance
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_map
from torch.utils.data import DistributedSampler, IterableDataset

from autotune.config import Config
from autotune.measure.batch import move, tensor_bytes
from autotune.measure.conditions import conditions_between, snapshot
from autotune.measure.device import Device, Mark
from autotune.measure.loader import open_reader, take_batch
from autotune.measure.process_memory import MemorySample, open_segments, peak_host_bytes
from autotune.measure.rank_group import ALONE, RankGroup
from autotune.measure.step import Step, TrainingStep
from autotune.measure.timed_run import steps_ahead
from autotune.measure.workload_facts import has_batch_norm
from autotune.probes import ComputeProbe
from autotune.stats import mser_truncation, student_quantile
from autotune.workload import Workload

RESIDENT = 8
"""Batches that are kept on the device at most: where batches differ, one alone says little of the others."""
READ_SECONDS = 0.3
"""Seconds for reading them; the first is always read."""
PIECE, LEAST_PIECES = 16, 2
"""Samples of a small batch, and fewest of them that a large one is joined from where reading it takes longer."""
RESIDENT_SHARE = 1 / 256
"""Share of the memory that they may take, unless a single one takes more: training itself holds one."""
ROUND_SECONDS = 0.5
"""How long each of them is trained on once before steps count; those whose turn has not come by then are dropped."""
WARM_SECONDS = 0.6
"""How long the model runs on resident batches before the loader exists, once it has made ten steps."""
WARM_STEPS = 10
BRIEF_SECONDS, MANY_STEPS = 0.3, 100
"""How long it runs on a CPU where steps are so short that it makes many of them."""
WARM_CAP_SECONDS, LEAST_STEPS = 4.0, 2
"""How long it runs at most, where steps are slow, and the steps after the first that are always made."""
MOST_SKIPPED = 17
"""Most first steps in fp16: its scale of the loss is halved from 65,536 until no gradient overflows."""
LEAST_REST = 2
"""Samples of a short batch that is timed: of a single one, batch normalisation has no statistics."""


@dataclass(frozen=True, slots=True)
class WarmStep:
    """A warm training step for one batch size, precision and number of threads; only the loader still varies."""

    step: Step
    """The step, compiled, tuned and with optimizer state."""
    compute: ComputeProbe
    """Its cost on batches already on the device."""
    disturbances: tuple[str, ...]
    """Reasons not to trust this cost; empty without any."""


class _Resident(NamedTuple):
    batch: Any
    samples: int


def open_step(
    workload: Workload,
    config: Config,
    device: Device,
    group: RankGroup = ALONE,
    step: Step | None = None,
    needs_ceiling: bool = True,
) -> WarmStep:
    """Warm a step on resident batches, and measure the ceiling there, all ranks together; by default the workload's.

    Another step, that of a script, moves its batches itself: they lie where its loader puts them.
    """
    place = torch.device("cpu") if step else device.torch_device
    step = step or TrainingStep(workload, config, device, group)
    found = _resident_batches(workload, config, device, place)
    end, first_step_seconds = _take_first_step(step, *found[0], device, group)

    def now() -> float:
        return device.clock() + device.passed  # a script that evaluates meanwhile is to take no longer

    count, clock, begin = min(group.gather(len(found))), device.clock, now()
    launches, steps, least = list[float](), list[float](), 2 if device.is_asynchronous else 0
    for _ in group.together(lambda made: made >= max(least, count - 1) or now() - begin > ROUND_SECONDS):
        called = clock()
        end = step(*found[(len(steps) + 1) % count])[-1]
        # no step is on its way, for which the host would wait; the first takes memory anew
        launches.append(clock() - called)
        device.synchronize()
        steps.append(clock() - called)
    found, ends = found[: min(count, len(steps) + 1)], [end]
    ahead = steps_ahead(device, min(steps, default=0.0))
    before, begin = snapshot(job=group.job, gpu=device.gpu), now()
    is_brief = not (needs_ceiling or device.is_asynchronous)
    for _ in group.together(
        lambda made: made >= LEAST_STEPS if is_brief else _is_warm(1 + made, now() - begin, device)
    ):
        ends.append(step(*found[(len(ends) - 1) % len(found)])[-1])
        device.wait(ends[-1 - min(ahead, len(ends) - 1)])
    gpu = device.gpu.read() if device.gpu else None  # while it works
    device.synchronize()
    conditions = conditions_between(before, after := snapshot(job=group.job, gpu=device.gpu), gpu)
    times = [device.seconds(a, b) for a, b in pairwise(ends)]
    rate, spread = ceiling(times, [each.samples for each in found])
    _take_the_last(workload, config, step, device, place)
    peaks, held = device.peaks(), sum(open_segments(os.getpid()).values())  # there are no workers now
    host = peak_host_bytes(MemorySample(batches=0, private={}, shared={}, in_flight=0, held=held)) + device.pinned_bytes
    compute = ComputeProbe(
        samples_per_second=rate,
        first_step_seconds=first_step_seconds,
        host_seconds=median(launches[1:] or launches) if device.is_asynchronous else fmean(times),
        cpu_seconds=(after.own - before.own) / (len(ends) - 1) / group.size,
        peak_memory_bytes=peaks[1] if peaks else host,
        memory="device" if peaks else "host",
        memory_limit_bytes=device.memory_limit,
        host_memory_bytes=host,
        taken_share=conditions.taken_share,
        spread=spread,
    )
    return WarmStep(step, compute, conditions.disturbances)


def _resident_batches(workload: Workload, config: Config, device: Device, place: torch.device) -> list[_Resident]:
    """Return batches from all over an epoch, moved to their place: one, and as many as are read in a moment."""
    if found := _joined_batches(workload, config, device) if place == device.torch_device else []:
        return found
    begin, size, most = device.clock(), 0, RESIDENT_SHARE * device.memory_limit
    with closing(open_reader(workload, config, place=None)) as stream:
        while not found or (len(found) < RESIDENT and device.clock() - begin < READ_SECONDS):
            batch = take_batch(stream)
            size += tensor_bytes(batch)
            if found and (size > most or stream.samples < LEAST_REST <= config.batch_size):
                break
            found.append(_Resident(move(batch, place, non_blocking=False), stream.samples))
    return found


def _joined_batches(workload: Workload, config: Config, device: Device) -> list[_Resident]:
    """Return batches on an accelerator that are joined from small ones, which come again where few were read.

    Reading a large one takes longer than all steps on it where a dataset is slow. Empty where small ones differ in more
    than their values.
    """
    size, is_fixed = config.batch_size, workload.batch_sampler is not None or workload.own_batches is not None
    if not device.is_asynchronous or size <= LEAST_PIECES * PIECE or is_fixed:
        return []
    try:
        return list(_joined(_pieces(workload, config, device), size, device))
    except Exception:  # they differ, or hold more than tensors, or the user's code wants whole batches: read these
        return []


def _pieces(workload: Workload, config: Config, device: Device) -> list[Any]:
    """Return small batches, as many as are read in a moment. Raises ``ValueError`` where one has another size."""
    found = list[Any]()
    with closing(open_reader(workload, replace(config, batch_size=PIECE), place=None)) as stream:
        found.append(take_batch(stream))
        begin, most = device.clock(), RESIDENT_SHARE * device.memory_limit / max(1, tensor_bytes(found[0]))
        most = min(RESIDENT * config.batch_size / PIECE, most)
        while len(found) < LEAST_PIECES or (len(found) < most and device.clock() - begin < READ_SECONDS):
            found.append(take_batch(stream))
            if stream.samples != PIECE:
                raise ValueError("too few samples")
    return found


def _joined(pieces: Sequence[Any], size: int, device: Device) -> Iterator[_Resident]:
    """Yield batches of ``size`` samples joined from small ones. Raises any error where these cannot be joined."""
    samples = PIECE * len(pieces)
    for number in range(max(1, samples // size)):
        places = torch.arange(number * size, (number + 1) * size) % samples

        def join(*parts: torch.Tensor, places: torch.Tensor = places) -> torch.Tensor:
            rows = torch.cat(parts)
            if len(rows) != samples:
                raise ValueError("no row for each sample")
            return rows[places]

        yield _Resident(move(tree_map(join, *pieces), device.torch_device, non_blocking=False), size)


def ceiling(times: Sequence[float], samples: Sequence[int]) -> tuple[float, float]:
    """Return samples per second over batches that take turns, and the standard error of its logarithm between them.

    ``times`` are the seconds of steps, ``samples`` those in each batch, in turn from the first. Steps count once they
    have settled, in whole rounds where there is one. The error is that of a ratio of sums (Cochran, Sampling
    Techniques, 1977, 6.4), less what the steps of one batch differ by. It is widened as Student's t is, so that two of
    it are a 95 % interval however few the batches.
    """
    count = len(samples)
    least = [min(times[turn::count], default=0.0) for turn in range(count)]
    unsettled = mser_truncation([seconds / least[step % count] for step, seconds in enumerate(times)])
    settled = len(times) - min(unsettled, len(times) // 2)
    first = len(times) - (settled - settled % count or settled)
    turns = [range(first + (turn - first) % count, len(times), count) for turn in range(count)]
    made = {turn: [times[step] for step in steps] for turn, steps in enumerate(turns) if steps}
    seconds = sum(map(sum, made.values()))
    rate = sum(samples[turn] * len(taken) for turn, taken in made.items()) / seconds
    if len(made) < 2:
        return rate, 0.0
    over = [fmean(taken) - samples[turn] / rate for turn, taken in made.items()]
    noise = fmean(variance(taken) / len(taken) if len(taken) > 1 else 0.0 for taken in made.values())
    between = max(0.0, sum(each**2 for each in over) / (len(made) - 1) - noise)
    mean = fmean(map(fmean, made.values()))
    return rate, student_quantile(0.975, len(made) - 1) / 2 * math.sqrt(between / len(made)) / mean


def _take_first_step(step: Step, batch: Any, samples: int, device: Device, group: RankGroup) -> tuple[Mark, float]:
    """Make the first step, whatever it compiles and allocates; return the mark at its end and the seconds it took.

    The optimizer's state takes memory, however many batches make a step, so steps that fp16 skips are made again. Peaks
    begin after it: libraries that search for their fastest kernels take gigabytes for that, once.
    """
    device.synchronize()
    seconds = list[float]()
    while True:
        begin, scale = device.clock(), step.scale
        end = step(batch, samples)[-1]
        step.flush()
        device.synchronize()
        seconds.append(device.clock() - begin)
        if len(seconds) > MOST_SKIPPED or not any(group.gather(step.scale < scale)):
            break
    if device.is_asynchronous:
        device.forget_peaks()
    return end, seconds[0]


def _is_warm(steps: int, seconds: float, device: Device) -> bool:
    least = WARM_SECONDS if steps >= WARM_STEPS else WARM_CAP_SECONDS
    if steps >= MANY_STEPS and not device.is_asynchronous:
        least = BRIEF_SECONDS
    return steps > LEAST_STEPS and seconds >= least


def _take_the_last(workload: Workload, config: Config, step: Step, device: Device, place: torch.device) -> None:
    """Train on a batch as short as an epoch's last, where that is another matter.

    A compiled model compiles once more for it, and not in a window. Batch normalisation may fail on a single sample:
    training would, at the end of its first epoch.
    """
    dataset: Any = workload.dataset
    share = workload.sampler if isinstance(workload.sampler, DistributedSampler) else None
    is_chosen = workload.sampler is not share or workload.batch_sampler is not None
    is_chosen |= bool(workload.beside)  # their batches would have to be as short
    is_chosen |= workload.own_batches is not None
    if isinstance(dataset, IterableDataset) or is_chosen or (workload.loader_options or {}).get("drop_last"):
        return
    samples = len(dataset) if share is None else len(share)
    rest = samples % config.batch_size
    matters = "compile" in config.options if rest >= LEAST_REST else rest and has_batch_norm(workload.model)
    if samples < config.batch_size or not matters:
        return
    with closing(open_reader(workload, replace(config, batch_size=rest))) as stream:
        step(move(next(stream), place, non_blocking=False), rest)
    device.synchronize()
