"""Two tasks that train by turns, on loaders that one line makes.

Fault: the loaders have one line, one class and one length, so one loader's batches were handed out for both. Truth:
2 samples of the first take 2 * 20 + 30 ms, and a step on the other's 2 * 10 + 30 ms, 17/s.
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
tasks = [iter(DataLoader(Samples(seconds), batch_size=2, shuffle=True)) for seconds in (0.02, 0.01)]
for step in range(1000):
    x, y = next(tasks[step % 2])
    time.sleep(0.03)
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
