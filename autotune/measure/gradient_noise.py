"""The noise of gradients, in a short training with the baseline's batch.

Each step of the optimizer takes the baseline's samples in sixteen small batches, which gives the gradients of both
sizes at once. What a model keeps outside parameters, buffers and the workload's optimizer goes on from there.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace

import torch

from autotune.config import Config
from autotune.measure.device import Device
from autotune.measure.loader import open_reader
from autotune.measure.step import TrainingStep
from autotune.measure.training_state import TrainingState
from autotune.probes import GradientNoise
from autotune.workload import Workload

PARTS = 16
WARM_UP = 0.25
"""Share of the time before the first step that counts: the noise is near zero at initialisation."""
POINTS = 3


def measure_noise(workload: Workload, config: Config, device: Device, seconds: float) -> GradientNoise:
    """Train for so many seconds on the samples of the workload's own loader, and note the gradients' squared norms.

    Weights, buffers and the state of the optimizer are there again at the end. In fp16 it trains in fp32, since the
    scaled gradients of small batches overflow at other scales than those of large ones.
    """
    small = max(1, config.batch_size * config.accumulation_steps // PARTS)
    amp = "off" if config.amp == "fp16" else config.amp
    # one batch more than there are, so that the gradients can be seen before they are clipped and used
    parts = replace(config, batch_size=small, accumulation_steps=PARTS + 1, amp=amp)
    workload.model.to(device.torch_device)
    state = TrainingState(workload)
    try:
        step = TrainingStep(workload, parts, device)
        with closing(open_reader(workload, parts)) as stream:
            norms, steps = list[tuple[float, float]](), 0
            begin = device.clock()
            while (spent := device.clock() - begin) < seconds:
                counts = spent >= WARM_UP * seconds
                found = _train(step, [next(stream) for _ in range(PARTS)], is_wanted=counts)
                norms += [found] if counts else []
                steps += 1
    finally:
        state.restore()
    third = -(-len(norms) // POINTS)
    points = (norms[place * third : (place + 1) * third] for place in range(POINTS))
    return GradientNoise(
        batch_size=small,
        parts=PARTS,
        points=tuple(map(tuple, points)),
        trained_samples=steps * PARTS * small,
    )


def _train(step: TrainingStep, batches: Sequence[object], *, is_wanted: bool) -> tuple[float, float]:
    """Step the optimizer with small batches; return the mean of their gradients' squared norms, and that of them all.

    Gradients add up, so that of one batch is the difference that it makes.
    """
    parameters = [each for group in step.accumulator.optimizer.param_groups for each in group["params"]]
    before, small = dict[int, torch.Tensor](), list[torch.Tensor]()
    for batch in batches:
        step(batch)
        if not is_wanted:
            continue
        now = {place: each.grad.to_dense() for place, each in enumerate(parameters) if each.grad is not None}
        added = [now[place] - before[place] if place in before else now[place] for place in now]
        small.append(_squared_norm(added))
        before = {place: gradient.clone() for place, gradient in now.items()}
    whole = _squared_norm(list(before.values())) if is_wanted else torch.zeros(())
    step.flush()
    count = len(batches)
    return count * float(sum(small)), float(whole) if is_wanted else 0.0


def _squared_norm(gradients: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack(torch._foreach_norm(gradients)).square().sum()
