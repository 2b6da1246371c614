"""Two tasks that train by turns, each on a loader of its own.

Fault: one loader's batches were handed out for both. Truth: 2 samples of the first take 2 * 20 + 30 ms, and a step on
the other's 2 * 10 + 30 ms, 17/s.
"""

import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Samples(Dataset):
    def __init__(self, seconds):
        self.seconds = seconds

    def __len__(self):
        return 4000

    def __getitem__(self, index):
        time.sleep(self.seconds)
        return torch.randn(8), torch.randn(1)


model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
slow = DataLoader(Samples(0.02), batch_size=2, shuffle=True)
fast = DataLoader(Samples(0.01), batch_size=2, shuffle=True)
a, b = iter(slow), iter(fast)
for step in range(1000):
    x, y = next(b if step % 2 else a)
    time.sleep(0.03)
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
