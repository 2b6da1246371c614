"""A training script: the loop of docs/ranks.md with a model, a dataset and a log, as torchrun starts it.

``train.py curve`` writes the loss of every batch and the weights at the end, ``train.py rate`` the samples per second
of all ranks once they have settled.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from tests.ranks import workloads

HERE = Path(__file__).parent
SAMPLES, EPOCHS = 56, 4
"""Seven batches of four for each of two ranks: with accumulation over two, one is left at the end of an epoch."""


def curve() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
    inputs = torch.randn(SAMPLES, 3)
    dataset = TensorDataset(inputs, inputs.sum(dim=1, keepdim=True))
    losses: list[tuple[float, int]] = []

    def training_step(model: nn.Module, batch: Any) -> torch.Tensor:
        loss = functional.mse_loss(model(batch[0]), batch[1])
        losses.append((float(loss.detach()), len(batch[0])))
        return loss

    run(model, dataset, training_step, EPOCHS)
    everybody: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everybody, losses)
    if dist.get_rank() == 0:
        weights = [parameter.tolist() for parameter in model.parameters()]
        Path("curve.json").write_text(json.dumps({"losses": everybody, "weights": weights}), encoding="utf-8")


def rate() -> None:
    workload = workloads.equal()
    times: list[float] = []
    samples: list[int] = []

    def training_step(model: nn.Module, batch: Any) -> torch.Tensor:
        times.append(time.perf_counter())
        samples.append(len(batch[0]))
        return functional.mse_loss(model(batch[0]), batch[1])

    dataset: Any = workload.dataset
    dataset.length = 512
    run(workload.model, dataset, training_step, 1)
    skipped = len(times) // 4
    seconds = times[-1] - times[skipped]
    if dist.get_rank() == 0:
        found = dist.get_world_size() * sum(samples[skipped:-1]) / seconds
        Path("rate.json").write_text(json.dumps(found), encoding="utf-8")


def run(model: nn.Module, dataset: Any, training_step: Any, epochs: int) -> None:
    given = {"dataset": dataset, "model": model, "device": "cpu", "epochs": epochs, "training_step": training_step}
    given["optimizer"] = torch.optim.SGD(model.parameters(), lr=0.05)
    runpy.run_path(str(HERE / "training_loop.py"), init_globals=given)


if __name__ == "__main__":
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    {"curve": curve, "rate": rate}[sys.argv[1]]()
    dist.destroy_process_group()
