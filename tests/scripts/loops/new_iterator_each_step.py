"""A loop that takes the first batch of a new iterator in each step.

Fault: no iterator gave two batches, so the script trained on until the limit for loading. Truth: it is refused, since
no loader's settings pay where its workers end with each batch.
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
loader = DataLoader(Samples(), batch_size=8, shuffle=True)
for _ in range(10**6):
    x, y = next(iter(loader))
    time.sleep(0.02)
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
