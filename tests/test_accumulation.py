"""Gradients of accumulated batches are those of the whole batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from autotune.accumulation import Reduction
from autotune.config import Config
from autotune.errors import UsageError
from autotune.measure.device import CpuDevice
from autotune.measure.step import TrainingStep
from autotune.settings import Amp
from autotune.workload import Workload

INPUTS, TARGETS = torch.randn(64, 5, generator=torch.Generator().manual_seed(1)), torch.arange(64.0)[:, None]
LOSSES: dict[Reduction, Callable[[Tensor, Tensor], Tensor]] = {"mean": nn.MSELoss(), "sum": nn.MSELoss(reduction="sum")}


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 1))


class Recording(torch.optim.SGD):
    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, lr=0.0)
        self.steps: list[list[Tensor]] = []

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.steps.append([p.grad.clone() for group in self.param_groups for p in group["params"]])


def recorded() -> tuple[nn.Sequential, Recording]:
    model = net()
    return model, Recording(model.parameters())


def gradients(
    sizes: Sequence[int], reduction: Reduction, batch_size: int, steps: int, amp: Amp = "off"
) -> list[Tensor]:
    model, optimizer = recorded()
    config = Config(batch_size=batch_size, accumulation_steps=steps, amp=amp)
    accumulator = config.accumulator(optimizer, "cpu", reduction=reduction)
    first = 0
    for size in sizes:
        batch, target = INPUTS[first : first + size], TARGETS[first : first + size]
        accumulator.backward(LOSSES[reduction](model(batch), target), size)
        stepped = accumulator.step()
        first += size
    assert stepped or accumulator.flush()
    assert len(optimizer.steps) == 1
    assert all(parameter.grad is None for parameter in model.parameters())
    return optimizer.steps[0]


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("sizes", [(16, 16, 16, 16), (16, 16, 16, 3), (16, 16), (7,), (16, 1)])
@pytest.mark.parametrize("amp", ["off", "fp16"])
def test_gradients_are_those_of_the_whole_batch(sizes: Sequence[int], reduction: Reduction, amp: Amp) -> None:
    whole = gradients([sum(sizes)], reduction, batch_size=sum(sizes), steps=1)
    split = gradients(sizes, reduction, batch_size=16, steps=4, amp=amp)
    torch.testing.assert_close(split, whole)


def test_the_optimizer_steps_after_every_so_many_batches_and_at_a_flush() -> None:
    model, optimizer = recorded()
    accumulator = Config(batch_size=4, accumulation_steps=3).accumulator(optimizer, "cpu")
    stepped = []
    for _ in range(8):
        accumulator.backward(model(INPUTS[:4]).mean())
        stepped.append(accumulator.step())
    assert stepped == [False, False, True, False, False, True, False, False]
    assert accumulator.flush()
    assert not accumulator.flush()
    assert len(optimizer.steps) == 3
    torch.testing.assert_close(optimizer.steps[2], optimizer.steps[0])  # of two batches, as of three


def test_a_step_that_overflows_in_fp16_is_skipped_and_the_next_begins_anew() -> None:
    model, optimizer = recorded()
    accumulator = Config(batch_size=4, accumulation_steps=2, amp="fp16").accumulator(optimizer, "cpu")
    for factor in (1.0, float("inf"), 1.0, 1.0):
        accumulator.backward(model(INPUTS[:4]).mean() * factor)
        accumulator.step()
    assert len(optimizer.steps) == 1
    assert accumulator.scaler.get_scale() == 32768.0


def test_an_unknown_reduction_is_refused() -> None:
    unknown: Any = "none"
    with pytest.raises(UsageError, match="mean, sum"):
        Config().accumulator(Recording(net().parameters()), "cpu", reduction=unknown)


@pytest.mark.parametrize(
    ("options", "reduction"),
    [
        ({}, "mean"),
        ({"loss": nn.MSELoss()}, "mean"),
        ({"loss": nn.MSELoss(reduction="sum")}, "sum"),
        ({"loss": LOSSES["sum"], "loss_reduction": "mean"}, "mean"),
        ({"training_step": lambda model, batch: model(batch[0]).sum(), "loss_reduction": "sum"}, "sum"),
    ],
)
def test_the_timed_step_accumulates_as_the_loss_is_reduced(options: dict[str, Any], reduction: Reduction) -> None:
    model = net()
    made: list[Recording] = []

    def optimizer(parameters: Any) -> Recording:
        made.append(Recording(parameters))
        return made[0]

    workload = Workload(model, torch.utils.data.TensorDataset(INPUTS, TARGETS), optimizer=optimizer, **options)
    step = TrainingStep(workload, Config(batch_size=16, accumulation_steps=2), CpuDevice())
    step((INPUTS[:16], TARGETS[:16]), 16)
    step((INPUTS[16:20], TARGETS[16:20]), 4)
    whole = net()
    if "training_step" in options:
        options["training_step"](whole, (INPUTS[:20], TARGETS[:20])).backward()
    elif "loss" in options:
        loss = options["loss"](whole(INPUTS[:16]), TARGETS[:16])
        short = options["loss"](whole(INPUTS[16:20]), TARGETS[16:20])
        ((16 * loss + 4 * short) / 20 if reduction == "mean" else loss + short).backward()
    else:
        nn.functional.mse_loss(whole(INPUTS[:20]), TARGETS[:20]).backward()
    torch.testing.assert_close(made[0].steps[0], [parameter.grad for parameter in whole.parameters()])


@pytest.mark.parametrize("amp", ["off", "fp16"])
@pytest.mark.parametrize("sizes", [(16, 16), (16, 5), (16,)])
def test_clipping_sees_the_gradients_of_the_whole_and_not_scaled_ones(amp: Amp, sizes: Sequence[int]) -> None:
    model, optimizer = recorded()
    accumulator = Config(batch_size=16, accumulation_steps=2, amp=amp).accumulator(optimizer, "cpu")
    first = 0
    for size in sizes:
        part = slice(first, first + size)
        accumulator.backward(LOSSES["mean"](model(INPUTS[part]), TARGETS[part]), size)
        first += size
    assert accumulator.flush(max_norm=0.5)
    whole = gradients([sum(sizes)], "mean", batch_size=sum(sizes), steps=1)
    norm = torch.linalg.vector_norm(torch.cat([each.flatten() for each in whole]))
    assert norm > 0.5
    torch.testing.assert_close(optimizer.steps[0], [each * (0.5 / norm) for each in whole], rtol=1e-4, atol=1e-6)
