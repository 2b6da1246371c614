"""A loop that accumulates gradients over four batches.

Fault: three of four batches end without a step, which may be taken for a failure. Truth: four batches take
4 * 8 * 2 + 4 * 10 + 10 ms, 281 samples/s.
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
    for number, (x, y) in enumerate(DataLoader(Samples(), batch_size=8, shuffle=True), 1):
        time.sleep(0.01)
        (nn.functional.mse_loss(model(x), y) / 4).backward()
        if number % 4 == 0:
            time.sleep(0.01)
            optimizer.step()
            optimizer.zero_grad()
