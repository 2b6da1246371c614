"""A dataset whose items are batches, each a tuple of NumPy arrays: ``DataLoader(batch_size=None, shuffle=True)``.

Fault: the script was refused although its workers, pinning and threads could vary. Truth: 16 samples take 30 + 20 ms,
320/s.
"""

import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Batches(Dataset):
    def __len__(self):
        return 100

    def __getitem__(self, index):
        time.sleep(0.03)
        return np.full((16, 8), index / 100, np.float32), np.ones((16, 1), np.float32)


model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(50):
    for x, y in DataLoader(Batches(), batch_size=None, shuffle=True):
        time.sleep(0.02)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
