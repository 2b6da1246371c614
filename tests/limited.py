"""Workloads that are limited by one thing each, or have one habit, for diagnoses of real runs."""

from __future__ import annotations

import os
import time
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset

from autotune.workload import Workload

STEP_SECONDS = 0.02
"""What a step takes that only sleeps, so that it needs no CPU."""
CPUS = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
"""Decoding takes more where there are more of them, so that all of them together are too slow."""


class Items(Dataset[Any]):
    def __init__(self, length: int = 100_000) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        return torch.zeros(64)


def sleeping_step(model: nn.Module, batch: Any) -> torch.Tensor:
    time.sleep(STEP_SECONDS)
    loss: torch.Tensor = model(torch.zeros(1, 1)).sum()
    return loss


def trained_by_sleep(dataset: Any, **options: Any) -> Workload:
    return Workload(nn.Linear(1, 1), dataset, training_step=sleeping_step, **options)


def compute(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        sum(range(100))


# --- one limit each ---


class Decoded(Items):
    def __getitem__(self, index: int) -> Any:
        compute(0.002 * CPUS)
        return torch.zeros(64)


by_compute = partial(trained_by_sleep, Items())
by_decoding = partial(trained_by_sleep, Decoded())


# --- habits, none of which limits anything ---


class ManyTensors(Items):
    def __init__(self, count: int) -> None:
        super().__init__()
        self._count = count

    def __getitem__(self, index: int) -> Any:
        return {f"part{number}": torch.zeros(2) for number in range(self._count)}


class Habitual(ManyTensors):
    def __init__(self) -> None:
        super().__init__(40)
        self.names = [f"sample {number}" for number in range(150_000)]

    def __getitem__(self, index: int) -> Any:
        return {name: part.numpy() for name, part in super().__getitem__(index).items()}


def with_habits() -> Workload:
    def step(model: nn.Module, batch: Any) -> torch.Tensor:
        loss = sleeping_step(model, batch)
        assert loss.item() == loss.item()
        return loss

    return Workload(nn.Linear(1, 1), Habitual(), training_step=step)


# --- remedies ---


class Waiting(Items):
    def __init__(self) -> None:
        super().__init__(1000)

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.02)
        return torch.full((64,), float(index))


def leave_one_cpu(worker: int) -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


with_masked_workers = partial(trained_by_sleep, Items(), loader_options={"worker_init_fn": leave_one_cpu})
by_waiting_for_items = partial(trained_by_sleep, Waiting())
