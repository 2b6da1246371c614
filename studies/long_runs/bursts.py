"""Rates of large batches from two workers in short epochs, which come in bursts, beside arithmetic and a plain loop.

    python studies/long_runs/bursts.py sleep 10      # workers that sleep: arithmetic says 1,000 samples/s; 5 minutes
    python studies/long_runs/bursts.py compute 3     # workers that compute: a plain loop says the rate; 3 minutes

Batches of 512, epochs of twelve; windows are those of a budget of 60 s and of three minutes, readings take turns.
"""

from __future__ import annotations

import sys
import time
from functools import partial

import torch
from torch import nn
from torch.utils.data import Dataset

import autotune
from autotune.config import Config
from autotune.measure.benchmark import measure
from autotune.measure.device import CpuDevice
from autotune.measure.step_probe import open_step
from autotune.records import Request

BATCH, BATCHES, SECONDS = 512, 12, 0.002
"""Samples in a batch, batches in an epoch, and seconds that a worker takes for a sample."""
CONFIG = Config(batch_size=BATCH, num_workers=2, prefetch_factor=2, persistent_workers=True)


class Samples(Dataset[torch.Tensor]):
    """Samples that take a worker a while, asleep or computing."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def __len__(self) -> int:
        return BATCH * BATCHES

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        if self._kind == "sleep":
            time.sleep(SECONDS * len(indices))
        else:
            end = time.thread_time() + SECONDS * len(indices)
            while time.thread_time() < end:
                sum(range(1000))
        return [torch.rand(8) for _ in indices]


def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = model(batch).mean()
    return found


def plain_rate(dataset: Dataset[torch.Tensor], epochs: int = 2) -> float:
    """Return the samples per second of a plain loop, after a first epoch."""
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = CONFIG.dataloader(dataset, shuffle=True)
    begin = 0.0
    for epoch in range(1 + epochs):
        if epoch == 1:
            begin = time.perf_counter()
        for batch in loader:
            loss(model, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
    return epochs * BATCH * BATCHES / (time.perf_counter() - begin)


def main() -> None:
    kind, readings = sys.argv[1], int(sys.argv[2])
    torch.set_num_threads(1)
    dataset, device = Samples(kind), CpuDevice()
    optimizer = partial(torch.optim.SGD, lr=0.01)
    workload = autotune.Workload(nn.Linear(8, 1), dataset, training_step=loss, optimizer=optimizer)
    step = open_step(workload, CONFIG, device)
    print("window_seconds,samples_per_second,low,high,truth,steps,seconds")
    for _ in range(readings):
        for seconds in (1.5, 3.0):
            truth = 1 / SECONDS * CONFIG.num_workers if kind == "sleep" else plain_rate(dataset)
            found = measure(workload, CONFIG, step, device, Request(seconds=seconds))
            low, high = found.ci95 or (0.0, 0.0)
            numbers = (
                f"{found.samples_per_second:.0f},{low:.0f},{high:.0f},{truth:.0f},{found.steps},{found.seconds:.1f}"
            )
            print(f"{seconds},{numbers}", flush=True)


if __name__ == "__main__":
    main()
