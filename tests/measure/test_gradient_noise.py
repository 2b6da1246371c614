"""The noise of gradients: of problems whose noise scale is known, and what the look leaves behind."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from autotune.batch_cost import noise_scale
from autotune.config import Config
from autotune.measure.device import CpuDevice
from autotune.measure.gradient_noise import POINTS, measure_noise
from autotune.probes import GradientNoise
from autotune.workload import Workload

NUMBERS = 40
"""Parameters of a quadratic problem."""


class Counted(CpuDevice):
    """A device whose clock goes on by a second whenever it is read, and by nothing at marks."""

    def __init__(self) -> None:
        self.now = 0.0

    def clock(self) -> float:
        self.now += 1.0
        return self.now

    def mark(self) -> float:
        return self.now


class Quadratic(nn.Module):
    """Its loss is half the squared distance from a sample, so that its gradient is the distance from their mean."""

    def __init__(self, distance: float) -> None:
        super().__init__()
        self.place = nn.Parameter(torch.full((NUMBERS,), distance / NUMBERS**0.5))

    def forward(self, samples: Tensor) -> Tensor:
        return 0.5 * ((self.place - samples) ** 2).sum(1).mean()


def quadratic(distance: float, **given: Any) -> Workload:
    """Normal samples around zero, and a place so far from it; its noise scale is ``NUMBERS / distance ** 2``."""
    samples = torch.randn(40_000, NUMBERS, generator=torch.Generator().manual_seed(1))
    step = partial(torch.optim.SGD, lr=1e-9)
    arguments: dict[str, Any] = {"optimizer": step, "training_step": lambda model, batch: model(batch[0])} | given
    return Workload(Quadratic(distance), TensorDataset(samples), **arguments)


def looked(workload: Workload, batch_size: int = 64, seconds: float = 80.0) -> GradientNoise:
    torch.manual_seed(0)
    return measure_noise(workload, Config(batch_size=batch_size), Counted(), seconds)


@pytest.mark.parametrize("noise", [10, 60, 300])
def test_a_look_finds_the_noise_scale_of_a_quadratic_problem(noise: int) -> None:
    found = noise_scale(looked(quadratic((NUMBERS / noise) ** 0.5)))
    assert not isinstance(found, str)
    assert 0.8 * noise < found.samples < 1.2 * noise
    assert found.interval[0] < noise < found.interval[1]


def test_what_was_trained_on_before_the_first_point_counts_as_samples_but_not_as_probes() -> None:
    seen = looked(quadratic(1.0), batch_size=32, seconds=40.0)
    probes = sum(map(len, seen.points))
    assert (seen.batch_size, seen.parts, len(seen.points)) == (2, 16, POINTS)
    assert 0.7 < 32 * probes / seen.trained_samples < 0.8


def test_the_gradients_are_those_before_they_are_clipped() -> None:
    free, clipped = (looked(quadratic(1.0, max_grad_norm=most)) for most in (None, 1e-3))
    assert clipped.points == free.points


def test_a_batch_of_fewer_samples_than_parts_gives_batches_of_one() -> None:
    assert looked(quadratic(1.0), batch_size=4, seconds=10.0).batch_size == 1


def test_a_look_leaves_weights_buffers_and_optimizer_as_they_were() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.randn(8, 4)).sum().backward()
    optimizer.step()
    before = copy.deepcopy((model.state_dict(), optimizer.state_dict()["state"]))
    samples = TensorDataset(torch.randn(512, 4), torch.randn(512, 1))
    looked(Workload(model, samples, loss=nn.functional.mse_loss, optimizer=optimizer), 64, 10.0)
    after = model.state_dict(), optimizer.state_dict()["state"]
    torch.testing.assert_close(after, before, rtol=0, atol=0)
    assert all(parameter.grad is None for parameter in model.parameters())
