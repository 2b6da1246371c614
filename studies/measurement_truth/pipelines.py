"""Pipelines whose true rate is known: building a batch and training on it are sleeps of known length."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import autotune

BATCH_SIZE = 8
LENGTH = 1_000_000
"""Samples in an epoch: no run reaches its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """One scenario; all times in seconds."""

    name: str
    build: float
    """Building one batch in one worker."""
    step: float
    """Training on one batch."""
    slow_build_share: float = 0.0
    """Share of batches that take ``slow_build_factor`` times as long to build."""
    slow_build_factor: float = 20.0
    first_step: float = 0.0
    """Additional time of the very first training step."""
    slow_steps: int = 0
    """Number of further first steps that take ``slow_step`` seconds more."""
    slow_step: float = 0.2


class SleepingDataset(Dataset[tuple[Tensor, Tensor]]):
    """Builds a whole batch in one sleep; which batches are slow depends on their index alone."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: list[int]) -> list[tuple[Tensor, Tensor]]:
        sleep_exactly(build_seconds(self.pipeline, indices[0]) * len(indices) / BATCH_SIZE)
        return [(torch.zeros(4), torch.zeros(1)) for _ in indices]


class SleepingStep:
    """A training step that sleeps, with slow first ones where the pipeline has them."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self.calls = 0

    def __call__(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        pipeline = self.pipeline
        extra = pipeline.first_step if self.calls == 0 else 0.0
        if self.calls < pipeline.slow_steps:
            extra += pipeline.slow_step
        self.calls += 1
        begin = time.perf_counter()
        loss = model(batch[0]).mean()
        sleep_exactly(pipeline.step + extra - (time.perf_counter() - begin))
        return loss


def workload(pipeline: Pipeline) -> autotune.Workload:
    """Return the workload of a scenario."""
    step = SleepingStep(pipeline)
    return autotune.Workload(nn.Linear(4, 1), SleepingDataset(pipeline), training_step=step, optimizer=torch.optim.SGD)


def build_seconds(pipeline: Pipeline, index: int) -> float:
    """Return how long the batch that begins with this index takes to build."""
    is_slow = random.Random(index).random() < pipeline.slow_build_share
    return pipeline.build * (pipeline.slow_build_factor if is_slow else 1.0)


def sleep_exactly(seconds: float) -> None:
    """Sleep, and wait the last moment actively, because ``time.sleep`` overshoots."""
    end = time.perf_counter() + seconds
    if seconds > 0.001:
        time.sleep(seconds - 0.001)
    while time.perf_counter() < end:
        time.sleep(0)
