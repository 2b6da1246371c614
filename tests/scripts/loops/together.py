"""A step on two batches, of a loader with labels and of one without.

Fault: a measurement knows one loader only. Truth: it is refused, and both lines are named.
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
labelled = DataLoader(Samples(), batch_size=8, shuffle=True)
unlabelled = DataLoader(Samples(), batch_size=8, shuffle=True)
for _ in range(50):
    for (x, y), (more, _) in zip(labelled, unlabelled, strict=True):
        time.sleep(0.02)
        optimizer.zero_grad()
        (nn.functional.mse_loss(model(x), y) + model(more).square().mean()).backward()
        optimizer.step()
