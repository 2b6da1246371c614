"""A dataset that returns a whole batch for a list of indices.

Fault: the parts of the batch, its inputs and its targets, were counted as two samples. Truth: 32 samples take 32 + 20
ms, 615/s.
"""

import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Samples(Dataset):
    def __len__(self):
        return 4000

    def __getitem__(self, index):
        return self.__getitems__([index])

    def __getitems__(self, indices):
        time.sleep(0.001 * len(indices))
        return torch.randn(len(indices), 8), torch.randn(len(indices), 1)


model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(50):
    for x, y in DataLoader(Samples(), batch_size=32, shuffle=True, collate_fn=lambda batch: batch):
        time.sleep(0.02)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
