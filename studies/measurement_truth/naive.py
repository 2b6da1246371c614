"""How throughput is usually measured: three warm-up steps, twenty timed ones."""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from pipelines import BATCH_SIZE, Pipeline, SleepingDataset, SleepingSGD, SleepingStep
from torch import nn

from autotune.config import Config

WARM_UP, TIMED = 3, 20


@dataclass(frozen=True, slots=True)
class NaiveRates:
    """Samples per second."""

    mean: float
    """Samples of the timed steps divided by their time."""
    median: float
    """Batch size divided by the median step time."""
    batches: tuple[int, ...]
    """First index of each timed batch."""


def measure_naively(pipeline: Pipeline, config: Config) -> NaiveRates:
    """Train for some steps in a plain loop and report."""
    model, step = nn.Linear(1, 1), SleepingStep(pipeline)
    optimizer = SleepingSGD(model.parameters(), step)
    step.begin_loader()
    ends: list[float] = []
    for batch in config.dataloader(SleepingDataset(pipeline), shuffle=True):
        step(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
        ends.append(time.perf_counter())
        if len(ends) == WARM_UP + TIMED:
            break
    timed = ends[WARM_UP - 1 :]
    lengths = [later - earlier for earlier, later in pairwise(timed)]
    rate = BATCH_SIZE * TIMED / (timed[-1] - timed[0])
    return NaiveRates(rate, BATCH_SIZE / median(lengths), tuple(step.seen[WARM_UP:]))
