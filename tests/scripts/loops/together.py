"""A step on two batches, of a loader with labels and of one without.

Fault: a measurement knew one loader only. Truth: without workers 2 samples of the first take 2 * 20 + 2 * 10 + 30 ms,
22/s. With two for each they take 30 ms.
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
labelled = DataLoader(Samples(0.02), batch_size=2, shuffle=True)
unlabelled = DataLoader(Samples(0.01), batch_size=2, shuffle=True)
for _ in range(50):
    for (x, y), (more, _) in zip(labelled, unlabelled, strict=True):
        time.sleep(0.03)
        optimizer.zero_grad()
        (nn.functional.mse_loss(model(x), y) + model(more).square().mean()).backward()
        optimizer.step()
