"""The same batches in plain fp32 and as configured, from the same weights: the effect of precision and options.

What a model or a ``training_step`` keeps outside parameters, buffers and the workload's optimizer (counters, optimizers
of its own) goes on from run to run.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from autotune.config import Config
from autotune.measure.batch import tensor_bytes
from autotune.measure.device import Device
from autotune.measure.loader import begin_anywhere, open_reader, take_batch
from autotune.measure.step import TrainingStep
from autotune.measure.training_state import TrainingState
from autotune.probes import NumericsCheck
from autotune.workload import Workload

STEPS = 20
"""Steps of each run, as far as there is time."""
LEAST_STEPS = 4
LEAST_BATCHES = 2
MOST_BYTES = 2**29
"""Of all batches together, as long as there are two."""
BACK_OFFS = 24
"""How often a run may end at a step that overflows and begin again with half the scale: fp16 starts at 65,536."""
SEED, OTHER_SEED = 0, 1


def check_numerics(workload: Workload, config: Config, device: Device, seconds: float) -> NumericsCheck:
    """Train in plain fp32, in another order, and with the configuration's precision and options, for so many seconds.

    Each run starts from the weights, the buffers and the state of the optimizer that are there now; they are there
    again at the end. The options come last: they stay on the model.
    """
    batches = _take_batches(workload, config, device, seconds / 4)
    workload.model.to(device.torch_device)  # before its tensors are noted: moving it replaces buffers
    trials = _Trials(workload, device, TrainingState(workload))
    full = replace(config, amp="off", accumulation_steps=1, options=())
    configured = replace(full, amp=config.amp, options=config.options)
    try:
        trials.run(full, batches, 1)  # kernels are chosen, libraries loaded
        begin = device.clock()
        reference = trials.run(full, batches, STEPS, seconds / 4)
        steps = len(reference.losses)
        other = trials.run(full, _in_another_order(batches), steps, seed=OTHER_SEED)
        found, back_offs, scale = _Run(), 0, math.nan
        while back_offs <= BACK_OFFS and not found.is_complete:
            found = trials.run(configured, batches, steps, scale=scale)
            scale, back_offs = found.scale, back_offs + 1
    finally:
        trials.state.restore()
    return NumericsCheck(
        reference_losses=tuple(reference.losses),
        other_losses=tuple(other.losses),
        losses=tuple(found.losses),
        overflows=tuple(step for step in found.overflows if step not in reference.overflows),
        settles=found.is_complete,
        seconds=device.clock() - begin,
    )


@dataclass(slots=True)
class _Run:
    losses: list[float] = field(default_factory=list)
    overflows: list[int] = field(default_factory=list)
    """Steps whose gradients were not finite."""
    scale: float = math.nan
    """The loss scale at the end."""
    is_complete: bool = False
    """Whether it went on to its end: one with a scaler begins again where a step is skipped."""


@dataclass(slots=True)
class _Trials:
    """Runs that all begin with the same state."""

    workload: Workload
    device: Device
    state: TrainingState

    def run(
        self,
        config: Config,
        batches: Sequence[Any],
        steps: int,
        seconds: float = math.inf,
        *,
        scale: float = math.nan,
        seed: int = SEED,
    ) -> _Run:
        """Train for so many steps over the batches, again and again; fewer, but some, where time runs out."""
        self.state.restore()
        begin_anywhere(seed)
        step = TrainingStep(self.workload, config, self.device)
        scaler, found = step.accumulator.scaler, _Run()
        if scaler.is_enabled() and math.isfinite(scale):
            scaler.load_state_dict(scaler.state_dict() | {"scale": scale})
        limit = self.device.clock() + seconds
        watch, optimizer = _Watch(), step.accumulator.optimizer  # wrappers of others may take no hooks
        hooked = hasattr(optimizer, "register_step_pre_hook")
        with optimizer.register_step_pre_hook(watch.look) if hooked else nullcontext():
            for number in range(steps):
                before = scaler.get_scale()
                step(copy.deepcopy(batches[number % len(batches)]))
                assert step.loss is not None
                found.losses.append(float(step.loss))
                found.scale = scaler.get_scale()
                is_skipped = found.scale < before
                if is_skipped or not watch.is_finite:
                    found.overflows.append(number)
                if is_skipped and math.isfinite(found.losses[-1]):
                    return found
                if number + 1 >= LEAST_STEPS and self.device.clock() > limit:
                    break
        found.is_complete = True
        return found


class _Watch:
    """Looks at the gradients that an optimizer is about to use."""

    is_finite = True

    def look(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        self.is_finite = all(bool(_values(gradient).isfinite().all()) for gradient in gradients)


def _values(gradient: torch.Tensor) -> torch.Tensor:
    return gradient.coalesce().values() if gradient.is_sparse else gradient


def _take_batches(workload: Workload, config: Config, device: Device, seconds: float) -> list[Any]:
    limit = device.clock() + seconds
    with closing(open_reader(workload, config)) as stream:
        batches = [take_batch(stream)]
        most = min(STEPS, MOST_BYTES // max(1, tensor_bytes(batches[0])))
        while len(batches) < LEAST_BATCHES or (len(batches) < most and device.clock() < limit):
            batches.append(take_batch(stream))
    return batches


def _in_another_order(batches: Sequence[Any]) -> list[Any]:
    return [*batches[1::2], *batches[::2]]
