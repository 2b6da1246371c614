"""Workloads for an accelerator: known waits, known proportions, known memory, or too much of it."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from autotune import Workload

PAUSE = 0.05
GIBIBYTE = 2**30
TEBIBYTE = 2**40
"""More than any accelerator has."""
LARGEST_THAT_FITS = 32
FAULT_VARIABLE = "AUTOTUNE_TEST_FAULT"
ROW = torch.zeros(1)


def spin(million_cycles: int) -> None:
    """Keep a CUDA device busy for so long, without waiting for it."""
    torch.cuda._sleep(million_cycles * 10**6)


class Rows(Dataset[torch.Tensor]):
    """Hands out a whole batch at once, after a pause for each; the samples cost next to nothing."""

    def __init__(self, pause: float = 0.0, length: int = 200_000) -> None:
        self._pause = pause
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> torch.Tensor:
        return ROW

    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        time.sleep(self._pause)
        return [ROW] * len(indices)


def mean_of(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    mean: torch.Tensor = model(batch).mean()
    return mean


class Products(nn.Module):
    """Multiplies square matrices, however small its batch is, and gives its own loss."""

    def __init__(self, size: int = 2048, depth: int = 8) -> None:
        super().__init__()
        self._depth = depth
        self.weight = nn.Parameter(torch.randn(size, size) / size**0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = self.weight + x.mean()
        for _ in range(self._depth):
            state = torch.tanh(state @ self.weight)
        return state.mean()


def heavy() -> Workload:
    """Some ten milliseconds of products on an H100 for a batch that is there at once."""
    return Workload(Products(), Rows())


def starving() -> Workload:
    """A step of next to nothing for a batch that takes 50 ms."""
    return Workload(nn.Linear(1, 1), Rows(PAUSE))


# --- known proportions ---


class Spin(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, million_cycles: int) -> torch.Tensor:
        ctx.million_cycles = million_cycles
        spin(million_cycles)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        spin(2 * ctx.million_cycles)
        return gradient, None


class SpinningSGD(torch.optim.SGD):
    def __init__(self, parameters: Any, million_cycles: int) -> None:
        super().__init__(parameters)
        self._million_cycles = million_cycles

    def step(self, closure: Any = None) -> Any:
        spin(self._million_cycles)
        return super().step(closure)


def spinning(million_cycles: int) -> Workload:
    """Forward, backward and optimizer take 1, 2 and 3 parts of the device's time and none of the host's."""

    def step(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = Spin.apply(model(batch).mean(), million_cycles)  # type: ignore[no-untyped-call]
        return loss

    model = nn.Linear(1, 1)
    optimizer = SpinningSGD(model.parameters(), 3 * million_cycles)
    return Workload(model, Rows(), optimizer=optimizer, training_step=step)


# --- imported by the measuring process ---


def classifier() -> Workload:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))
    return Workload(model, TensorDataset(torch.randn(4096, 16), torch.arange(4096) % 4))


def holding_a_gibibyte() -> Workload:
    def step(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        activation = torch.ones(GIBIBYTE, dtype=torch.uint8, device=batch.device)
        return mean_of(model, batch) + activation[0]

    return Workload(nn.Linear(1, 1), Rows(), training_step=step)


# --- too much memory ---


class Greedy(torch.optim.SGD):
    is_greedy = False

    def step(self, closure: Any = None) -> Any:
        if self.is_greedy:
            torch.empty(TEBIBYTE, dtype=torch.uint8, device=self.param_groups[0]["params"][0].device)
        return super().step(closure)


def failing_once() -> Workload:
    """Fails once in the phase that the file of ``AUTOTUNE_TEST_FAULT`` names, and leaves the process unusable."""
    model = nn.Linear(1, 1)
    optimizer = Greedy(model.parameters())
    kept: list[torch.Tensor] = []

    def step(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        fault = take_fault()
        while fault == "forward":
            kept.append(torch.empty(GIBIBYTE, dtype=torch.uint8, device=batch.device))
        optimizer.is_greedy = fault == "optimizer"
        weight: torch.Tensor = model.weight.view(1)  # type: ignore[operator]
        if fault == "backward":
            return weight.expand(TEBIBYTE // 4)[:1].sum()  # the gradient of a slice is as large as what it is cut from
        if fault == "assertion":
            return weight[torch.full((1,), 10, device=batch.device)].sum()
        return mean_of(model, batch)

    return Workload(model, Rows(), optimizer=optimizer, training_step=step)


def take_fault() -> str:
    path = Path(os.environ[FAULT_VARIABLE])
    if not path.exists():
        return ""
    fault = path.read_text(encoding="utf-8")
    path.unlink()
    return fault


def too_large_above_32() -> Workload:
    def step(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        if len(batch) > LARGEST_THAT_FITS:
            torch.empty(TEBIBYTE, dtype=torch.uint8, device=batch.device)
        return mean_of(model, batch)

    return Workload(nn.Linear(1, 1), Rows(length=2048), training_step=step)
