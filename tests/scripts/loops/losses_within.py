"""A look at some batches of the training loader within its own loop, where gradients are wanted.

Fault: these batches, which make no step, were taken for training that fails. Truth: 2 samples take 2 * 20 + 40 ms.
"""

import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Samples(Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, index):
        time.sleep(0.02)
        return torch.randn(8), torch.randn(1)


training = DataLoader(Samples(), batch_size=2, shuffle=True)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(50):
    for step, (x, y) in enumerate(training):
        time.sleep(0.04)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        if step % 7 == 6:
            losses = []
            for batch, (x, y) in enumerate(training):
                losses.append(nn.functional.mse_loss(model(x), y).item())
                if batch == 2:
                    break
