"""What measuring itself costs a step: autotune's timed loop beside a plain one, on the same loader and the same step.

    python studies/measurement_truth/cost.py > studies/measurement_truth/recorded/cost.csv

The step is as short as torch allows, so that the difference shows. The loops take turns, in blocks of 200 steps.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from itertools import islice
from statistics import median
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import autotune
from autotune.config import Config
from autotune.measure.benchmark import open_loader
from autotune.measure.device import CpuDevice
from autotune.measure.inventory import BatchStream, CountingCollate
from autotune.measure.run import TimedRun
from autotune.measure.step import TrainingStep
from autotune.records import Request

Loop = Callable[[int], None]
BLOCKS, STEPS = 40, 200
CONFIG = Config(batch_size=8)
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
    samples = 8 * STEPS * (blocks + 1)
    dataset = TensorDataset(torch.rand(samples, 1), torch.rand(samples, 1))
    loops = plain_loop(dataset), our_loop(dataset)
    for loop in loops:
        loop(STEPS)
    for _ in range(blocks):
        plain, ours = (timed(loop) / STEPS for loop in loops)
        yield plain, ours


def timed(loop: Loop) -> float:
    begin = time.perf_counter()
    loop(STEPS)
    return time.perf_counter() - begin


def plain_loop(dataset: Dataset[Any]) -> Loop:
    """Train as a script does."""
    model = nn.Linear(1, 1)
    optimizer = torch.optim.AdamW(model.parameters())
    batches = iter(DataLoader(dataset, batch_size=8, shuffle=True))

    def loop(steps: int) -> None:
        for inputs, targets in islice(batches, steps):
            nn.functional.mse_loss(model(inputs), targets).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    return loop


def our_loop(dataset: Dataset[Any]) -> Loop:
    """Train as a trial does."""
    device = CpuDevice()
    workload = autotune.Workload(nn.Linear(1, 1), dataset)
    counter = CountingCollate(None, 0)
    batches = BatchStream(open_loader(workload, CONFIG, counter), counter)
    return TimedRun(CONFIG, TrainingStep(workload, CONFIG, device), batches, device, Request(seconds=1)).advance


if __name__ == "__main__":
    main()
