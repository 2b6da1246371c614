"""A step on two batches, the second one of a new iterator each time.

Truth: it is refused, and the line of that loader is named.
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
    for x, y in labelled:
        more, _ = next(iter(unlabelled))
        time.sleep(0.03)
        optimizer.zero_grad()
        (nn.functional.mse_loss(model(x), y) + model(more).square().mean()).backward()
        optimizer.step()
