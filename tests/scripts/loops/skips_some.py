"""A loop that leaves out every third batch, the first one among them.

Fault: a batch without a step may be taken for a failure. Truth: skipping is the script's own way from its first batch
on. Three batches take 3 * 8 * 2 + 2 * 20 ms, 273 samples/s.
"""

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


model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(50):
    for number, (x, y) in enumerate(DataLoader(Samples(), batch_size=8, shuffle=True)):
        if number % 3 == 0:
            continue
        time.sleep(0.02)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
