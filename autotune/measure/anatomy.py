"""A look inside the user's code: what a diagnosis names when it says what is slow and why."""

from __future__ import annotations

import multiprocessing
import time
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from autotune.config import Config
from autotune.measure.building import Building
from autotune.measure.device import Device
from autotune.measure.holdings import count_objects, pickled_bytes
from autotune.measure.step import TrainingStep, move, tensors_in
from autotune.measure.synchronisations import watch_synchronisations
from autotune.probes import Anatomy, Synchronisation
from autotune.workload import Workload

__all__ = ["look_inside"]

TIMING_SHARE, PROFILE_SHARE, STEP_SHARE = 0.2, 0.3, 0.3
"""Shares of a look that go to timing batches, to profiling how they are built, and to watching steps."""
MOST_STEPS = 10


def look_inside(workload: Workload, config: Config, device: Device, seconds: float) -> Anatomy:
    """Build batches and train for about so many seconds, with profilers on that are off again at the end.

    At least two batches are built and three steps made, however long they take. The model trains; each batch is a
    step of the optimizer. What the user's code raises passes through.
    """
    begin = time.perf_counter()
    building = Building(workload, config.batch_size)
    times = building.measure(TIMING_SHARE * seconds)
    code = building.profile(PROFILE_SHARE * seconds)
    seen = _watch_steps(workload, config, device, building, STEP_SHARE * seconds)
    return Anatomy(
        sample_seconds=times.sample,
        collate_seconds=times.collate,
        code=code,
        batch_tensors=sum(1 for _ in tensors_in(building.batch)),
        numpy_arrays=building.numpy_arrays,
        has_getitems=bool(getattr(workload.dataset, "__getitems__", None)),
        is_custom_collate=workload.collate_fn is not None,
        dataset_bytes=pickled_bytes(workload.dataset),
        python_objects=count_objects(workload.dataset),
        start_method=_start_method(),
        operators_per_step=seen.operators,
        synchronisations=seen.synchronisations,
        has_cuda_build=_is_built_for_accelerator(),
        seconds=time.perf_counter() - begin,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Steps:
    """What steps on one batch showed."""

    operators: int
    """ATen operators that the host called in one."""
    synchronisations: tuple[Synchronisation, ...]
    """Where it waited for the device."""


def _watch_steps(workload: Workload, config: Config, device: Device, building: Building, seconds: float) -> _Steps:
    """Train on the last batch: once to warm up, once to count operators, then to watch what waits for the device."""
    step = TrainingStep(workload, replace(config, accumulation_steps=1), device)
    batch = move(building.batch, device.torch_device, non_blocking=False)
    limit = time.perf_counter() + seconds
    step(batch, building.samples)
    operators = _count_operators(step, batch, building.samples)
    steps = 0
    with watch_synchronisations(device.torch_device) as log:
        while steps == 0 or (steps < MOST_STEPS and time.perf_counter() < limit):
            step(batch, building.samples)
            steps += 1
    device.synchronize()
    return _Steps(operators=operators, synchronisations=log.per_step(steps))


def _count_operators(step: TrainingStep, batch: Any, samples: int) -> int:
    """Count the ATen operators of one step that no other ATen operator calls, in autograd's threads too.

    The profiler leaves compiled regions as they are: what they have fused is no operator any more.
    """
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        step(batch, samples)
    return sum(_is_operator(event) and not _is_part_of_operator(event) for event in profiler.events() or ())


def _is_operator(event: Any) -> bool:
    return str(event.name).startswith("aten::")


def _is_part_of_operator(event: Any) -> bool:
    parent = event.cpu_parent
    while parent is not None:
        if _is_operator(parent):
            return True
        parent = parent.cpu_parent
    return False


def _start_method() -> str:
    """Return how worker processes start, without fixing it as a question without ``allow_none`` would."""
    return multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]


def _is_built_for_accelerator() -> bool:
    is_cuda = torch.version.cuda is not None or torch.version.hip is not None
    return is_cuda or torch.accelerator.current_accelerator() is not None
