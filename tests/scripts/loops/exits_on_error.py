"""A script that turns errors of its training into an exit code.

Fault: want of memory arrived as an exit, so larger batches stayed open. Truth: 8 samples take 8 * 2 + 20 ms, 222/s;
with 64 the outcome or its message is that of the first error.
"""

import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Samples(Dataset):
    def __len__(self):
        return 4000

    def __getitem__(self, index):
        time.sleep(0.002)
        return torch.randn(8), torch.randn(1)


def train():
    for x, y in DataLoader(Samples(), batch_size=8, shuffle=True):
        if len(x) > 16:
            raise RuntimeError("CUDA out of memory")
        time.sleep(0.02)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()


model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
try:
    train()
except RuntimeError:
    sys.exit(1)
