"""A loop that also trains on a batch of a second loader, every twentieth step.

Truth: no rate of one loader is that of training, so it is refused, and the second one's line is named.
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


def train(x, y):
    time.sleep(0.01)
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()


model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
unlabelled = iter(DataLoader(Samples(), batch_size=4))
for _ in range(50):
    for step, (x, y) in enumerate(DataLoader(Samples(), batch_size=8, shuffle=True), 1):
        train(x, y)
        if step % 20 == 0:
            train(*next(unlabelled))
