"""A loop that draws its batches from an array, as nanoGPT does, in two micro steps for each step of its optimizer.

Truth: a step takes as long as its argument says, and every fifth one 25 ms of evaluation more. Batches of a DataLoader,
where there is one, only evaluate. ``CLOCK`` names a file for the time at the end of each step.
"""

import os
import sys
import time
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

seconds, steps, source = float(sys.argv[1]) / 1000, int(sys.argv[2]), sys.argv[3]
data = np.random.default_rng(0).standard_normal((4000, 9), dtype=np.float32)
torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10**6)
loader = [(torch.from_numpy(data[:8]),)]
if source == "loader":
    loader = DataLoader(TensorDataset(torch.from_numpy(data)), batch_size=8)
clock = Path(os.environ["CLOCK"]).open("w", buffering=1)  # noqa: SIM115
places = np.random.default_rng(0)


def get_batch():
    rows = torch.from_numpy(data[places.integers(len(data), size=8)])
    return rows[:, :8], rows[:, 8:]


@torch.no_grad()
def evaluate():
    for (rows,) in islice(loader, 1):
        time.sleep(0.025)
        nn.functional.mse_loss(model(rows[:, :8]), rows[:, 8:])


for step in range(steps):
    if step % 5 == 0:
        evaluate()
    for _ in range(2):
        x, y = get_batch()
        time.sleep(seconds / 2)
        (nn.functional.mse_loss(model(x), y) / 2).backward()
    optimizer.step()
    schedule.step()
    optimizer.zero_grad(set_to_none=True)
    print(time.perf_counter(), file=clock)
