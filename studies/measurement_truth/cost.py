"""What measuring itself costs a step: autotune's timed loop beside a plain one, on the same loader and the same step.

    python studies/measurement_truth/cost.py > studies/measurement_truth/recorded/cost.csv

The step is as short as torch allows, so that the difference shows. The loops take turns; autotune's fills a window of a
second and a half with a target that it cannot reach, so that every look at the interval is part of the cost.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from statistics import median
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import autotune
from autotune.config import Config
from autotune.measure.device import CpuDevice
from autotune.measure.loader import BatchStream, CountingCollate, open_loader
from autotune.measure.step import TrainingStep
from autotune.measure.timed_run import TimedRun
from autotune.records import Request

BLOCKS = 20
BLOCK_SECONDS = 1.5
CONFIG = Config(batch_size=8)
SAMPLES = 400_000
STEP_SECONDS = 0.010
"""The step that the cost is compared with."""


def main() -> None:
    torch.set_num_threads(1)
    print("plain_seconds,autotune_seconds")
    differences = []
    for plain, ours in step_seconds(BLOCKS):
        differences.append(ours - plain)
        print(f"{plain:.7f},{ours:.7f}")
    cost = median(differences)
    print(f"{cost * 1e6:.0f} us a step, {cost / STEP_SECONDS:.2%} of 10 ms", file=sys.stderr)


def step_seconds(blocks: int) -> Iterator[tuple[float, float]]:
    """Yield the seconds of a step in a plain loop and in autotune's, side by side."""
    dataset = TensorDataset(torch.rand(SAMPLES, 1), torch.rand(SAMPLES, 1))
    plain_loop(dataset)
    for _ in range(blocks):
        yield plain_loop(dataset), our_loop(dataset)


def plain_loop(dataset: Dataset[Any]) -> float:
    """Train as a script does."""
    model = nn.Linear(1, 1)
    optimizer = torch.optim.AdamW(model.parameters())
    batches = iter(DataLoader(dataset, batch_size=8, shuffle=True))
    next(batches)
    steps, begin = 0, time.perf_counter()
    while time.perf_counter() < begin + BLOCK_SECONDS:
        inputs, targets = next(batches)
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        steps += 1
    return (time.perf_counter() - begin) / steps


def our_loop(dataset: Dataset[Any]) -> float:
    """Train as a trial does."""
    device, request = CpuDevice(), Request(seconds=BLOCK_SECONDS, target=0.0)
    workload = autotune.Workload(nn.Linear(1, 1), dataset)
    counter = CountingCollate(None, 0)
    batches = BatchStream(open_loader(workload, CONFIG, counter), counter)
    run = TimedRun(CONFIG, TrainingStep(workload, CONFIG, device), batches, device, request)
    run.wait_for_steady_stock()
    rows = run.rows(run.fill())
    return rows[-1].end / len(rows)


if __name__ == "__main__":
    main()
