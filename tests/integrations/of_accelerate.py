"""A script with ``Accelerator.prepare``: ``tune`` just before it, or ``train`` with what came out of it."""

from __future__ import annotations

import sys
import time
from typing import Any

import torch
from accelerate import Accelerator
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader

import autotune
from tests.integrations.data import BATCH, KNOBS, SAMPLES, Slow, digest, say, unchanged


def training_step(model: Any, batch: Any) -> torch.Tensor:
    inputs, targets = batch
    return functional.cross_entropy(model(inputs), targets)


def tune() -> None:
    accelerator, model = Accelerator(cpu=True), nn.Linear(8, 3)
    for _ in Accelerator(cpu=True).prepare(DataLoader(Slow(), batch_size=BATCH)):
        break  # earlier training, which breaks an epoch off
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(Slow(), batch_size=BATCH, shuffle=True)

    def step(model: nn.Module, batch: Any) -> torch.Tensor:
        assert accelerator.sync_gradients
        return training_step(model, batch)

    def look() -> str:
        prepared = (len(accelerator._models), len(accelerator._optimizers), len(accelerator._dataloaders))
        return digest(model, prepared, optimizer.state_dict(), sorted(vars(loader)), loader._iterator)

    def act() -> Any:
        return autotune.accelerate.tune(
            accelerator, model, optimizer, loader, training_step=step, max_grad_norm=1.0, **KNOBS
        )

    same, result = unchanged(look, act)
    result.config.save("autotune.yaml")
    say(same=same, workers=result.config.num_workers)


def train() -> None:
    config = autotune.load_config("autotune.yaml")
    arguments = autotune.export(config, "accelerate").values
    accelerator, model = Accelerator(cpu=True, **arguments["Accelerator"]), nn.Linear(8, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(Slow(), shuffle=True, **arguments["DataLoader"])
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    begin, steps = time.perf_counter(), 0
    for batch in loader:
        with accelerator.accumulate(model), accelerator.autocast():
            loss = training_step(model, batch)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        steps += 1
    rate = SAMPLES / (time.perf_counter() - begin)
    say(rate=rate, steps=steps, promised=(config.measured or {})["samples_per_second"])


if __name__ == "__main__":
    {"tune": tune, "train": train}[sys.argv[1]]()
