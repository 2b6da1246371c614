"""Pipelines whose true rate is known: building a batch and training on it are sleeps of known length."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import autotune

BATCH_SIZE = 8
LENGTH = 200_000
"""Samples in an epoch: no run reaches its end."""
SLOW_SHARE, SLOW_FACTOR = 0.05, 20.0
"""Random delays: this share of the batches takes so many times as long to build."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """One pipeline; all times in seconds."""

    name: str
    build: float
    """Building one batch in one worker."""
    step: float
    """Training on one batch."""
    delay: str = "none"
    """What disturbs it: one of ``DELAYS``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delay:
    """Additional seconds of training steps, and whether some batches are slow to build."""

    first_steps: tuple[float, ...] = ()
    """Added to the very first steps that the model ever makes."""
    third_step_on_loader: float = 0.0
    """Added to the third step on batches from the loader, however warm the model is."""
    random_builds: bool = False


DELAYS = {
    "none": Delay(),
    "first step 3 s": Delay(first_steps=(3.0,)),
    "five slow steps": Delay(first_steps=(0.2,) * 5),
    "stall of 2 s": Delay(third_step_on_loader=2.0),
    "random builds": Delay(random_builds=True),
    "random builds, 5 s": Delay(random_builds=True),
}
PIPELINES = (
    Pipeline(name="loader-bound", build=0.12, step=0.01),
    Pipeline(name="compute-bound", build=0.02, step=0.06),
    Pipeline(name="balanced", build=0.24, step=0.06),
)
"""Balanced is meant at 4 workers; with fewer the loader is the limit, with more the step."""
FASTER_WITH_RANDOM_BUILDS = {"loader-bound": 3, "compute-bound": 1, "balanced": 2}
"""So that a window holds enough slow batches where they are the limit."""


def scenarios() -> list[Pipeline]:
    """Return every pipeline with every delay."""
    found = []
    for pipeline in PIPELINES:
        for delay in DELAYS:
            faster = FASTER_WITH_RANDOM_BUILDS[pipeline.name] if DELAYS[delay].random_builds else 1
            found.append(replace(pipeline, delay=delay, build=pipeline.build / faster, step=pipeline.step / faster))
    return found


class SleepingDataset(Dataset[Tensor]):
    """Builds a whole batch in one sleep; whether it is slow depends on its first index alone."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> Tensor:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: list[int]) -> list[Tensor]:
        begin = time.perf_counter()
        samples = [torch.tensor([float(index)]) for index in indices]
        sleep_until(begin + build_seconds(self.pipeline, indices[0]))
        return samples


class SleepingStep:
    """A training step whose optimizer sleeps until the step is as long as it should be.

    Notes the first index of every batch; ``begin_loader`` is called once the model has been warmed up on others.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self.calls = 0
        self.seen: list[int] = []
        self._stalls_at: int | None = None
        self._end = 0.0

    def begin_loader(self) -> None:
        """Forget the batches so far."""
        self.seen.clear()
        self._stalls_at = 3

    def __call__(self, model: nn.Module, batch: Tensor) -> Tensor:
        begin = time.perf_counter()
        self.seen.append(int(batch[0, 0]))
        self._end = begin + self.pipeline.step + self._extra()
        loss: Tensor = model(batch).mean()
        return loss

    def finish(self) -> None:
        sleep_until(self._end)

    def _extra(self) -> float:
        delay = DELAYS[self.pipeline.delay]
        extra = delay.first_steps[self.calls] if self.calls < len(delay.first_steps) else 0.0
        self.calls += 1
        return extra + (delay.third_step_on_loader if len(self.seen) == self._stalls_at else 0.0)


class SleepingSGD(torch.optim.SGD):
    """Ends the step that it is part of."""

    def __init__(self, parameters: Iterable[Tensor], sleeping: SleepingStep) -> None:
        super().__init__(parameters)
        self.sleeping = sleeping

    def step(self, closure: Any = None) -> None:
        super().step(closure)
        self.sleeping.finish()


def workload(pipeline: Pipeline, step: SleepingStep) -> autotune.Workload:
    """Return the workload of a scenario."""
    optimizer = partial(SleepingSGD, sleeping=step)
    return autotune.Workload(nn.Linear(1, 1), SleepingDataset(pipeline), training_step=step, optimizer=optimizer)


def build_seconds(pipeline: Pipeline, index: int) -> float:
    """Return how long the batch that begins with this index takes to build."""
    if not DELAYS[pipeline.delay].random_builds:
        return pipeline.build
    return pipeline.build * (SLOW_FACTOR if random.Random(index).random() < SLOW_SHARE else 1.0)


def true_rate(pipeline: Pipeline, num_workers: int, prefetch_factor: int, builds: Sequence[float]) -> float:
    """Return the samples per second in the long run, where batches take ``builds`` seconds over and over.

    With workers, batch k is built at ``f[k] = max(y[k-K], f[k-W]) + S[k]`` and handed over at ``y[k] = max(f[k],
    y[k-1] + c)``: W workers take turns, and K = W * prefetch batches are under way at most.
    """
    if not num_workers:
        return BATCH_SIZE / (sum(builds) / len(builds) + pipeline.step)
    ahead = num_workers * prefetch_factor
    rounds = max(2, -(-4 * ahead // len(builds)))  # the first is for settling, the last counts
    built: list[float] = []
    given: list[float] = []
    for number in range((rounds + 1) * len(builds)):
        asked = given[number - ahead] if number >= ahead else 0.0
        free = built[number - num_workers] if number >= num_workers else 0.0
        built.append(max(asked, free) + builds[number % len(builds)])
        given.append(max(built[number], given[-1] + pipeline.step if given else 0.0))
    return BATCH_SIZE * len(builds) / (given[-1] - given[-1 - len(builds)])


def sleep_until(end: float) -> None:
    """Sleep, the last moment actively, because ``time.sleep`` overshoots."""
    left = end - time.perf_counter()
    if left > 0.001:
        time.sleep(left - 0.001)
    while time.perf_counter() < end:
        time.sleep(0)
