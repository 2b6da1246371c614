"""Train with the baseline's batch and two larger ones, and note the held-out loss.

    python -m studies.batch.curves [demo] [digits] [characters]

Three seeds; the learning rate goes with the square root of the batch. Writes ``recorded/curves-NAME.csv``: samples
trained on, and the loss. It is no matter who uses the machine meanwhile: no time is measured.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from studies.batch import workloads
from studies.batch.workloads import FACTORS, TASKS, held_out, parse

RECORDED = Path(__file__).with_name("recorded")
SEEDS = (0, 1, 2)
PAST = 0.9
"""Share of the lower target down to which a training goes on, so that a lucky look does not end it."""


def main() -> None:
    """Train, and write the curves."""
    for name in parse(__doc__ or "").workloads:
        with (RECORDED / f"curves-{name}.csv").open("w", newline="", encoding="utf-8") as file:
            table = csv.writer(file)
            table.writerow(("batch_size", "seed", "samples", "loss"))
            for factor in (1, *FACTORS):
                for seed in SEEDS:
                    batch_size = factor * TASKS[name].batch_size
                    table.writerows((batch_size, seed, *point) for point in curve(name, batch_size, seed))
                    file.flush()


def curve(name: str, batch_size: int, seed: int) -> Iterator[tuple[int, float]]:
    """Yield samples trained on and held-out loss, up to the lower target or the limit."""
    task, samples, next_look = TASKS[name], 0, 0
    torch.manual_seed(seed)
    workload = getattr(workloads, f"build_{name}")()
    model, held = workload.model, held_out(name)
    rate = task.learning_rate * math.sqrt(batch_size / task.batch_size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    while samples < task.most:
        for inputs, targets in DataLoader(workload.dataset, batch_size=batch_size, shuffle=True, drop_last=True):
            model.train()
            optimizer.zero_grad()
            workloads.token_loss(model(inputs), targets).backward()
            optimizer.step()
            samples += batch_size
            if samples < next_look:
                continue
            next_look = samples + task.every
            yield samples, round(found := loss_of(model, held), 5)
            if found < PAST * task.targets[1]:
                return
            if samples >= task.most:
                return


@torch.no_grad()
def loss_of(model: nn.Module, held: TensorDataset) -> float:
    """Return the loss of a model on the samples that are held out."""
    model.eval()
    inputs, targets = held.tensors
    return float(workloads.token_loss(model(inputs), targets))


if __name__ == "__main__":
    main()
