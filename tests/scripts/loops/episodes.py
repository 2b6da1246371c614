"""Few-shot training: a sampler of the script's own draws the lists of each episode, and has no ``batch_size``.

Fault: the script was refused although its workers, pinning and threads could vary. Truth: 10 samples of 2 ms and a step
of 20 ms, 250/s.
"""

import random
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Samples(Dataset):
    def __len__(self):
        return 400

    def __getitem__(self, index):
        time.sleep(0.002)
        return torch.randn(8), torch.randn(1)


class Episodes:
    def __len__(self):
        return 50

    def __iter__(self):
        for _ in range(50):
            yield random.sample(range(400), 10)


model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(Samples(), batch_sampler=Episodes())
for _ in range(50):
    for x, y in loader:
        time.sleep(0.02)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
