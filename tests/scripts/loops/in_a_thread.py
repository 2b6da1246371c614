"""A loader that a thread iterates, which fills a queue for the loop.

Fault: the thread ended with an error, and the loop waited for a batch until the limit for loading. Truth: it is
refused within seconds, and the thread is named as the reason.
"""

import queue
import threading
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


def fill():
    for _ in range(50):
        for batch in DataLoader(Samples(), batch_size=8, shuffle=True):
            batches.put(batch)


batches = queue.Queue(2)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
threading.Thread(target=fill, daemon=True).start()
for _ in range(10_000):
    x, y = batches.get()
    time.sleep(0.02)
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
