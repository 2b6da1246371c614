"""A training up to step 100 that goes on from its own checkpoint.

Fault: its second start found the checkpoint of its first, and had nothing left to train. Truth: each start goes on
from step 40, as the user's checkpoint says.
"""

import os

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

with open("last.txt") as file:
    step = int(file.read())
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(TensorDataset(torch.randn(6400, 8), torch.randn(6400, 1)), batch_size=64, shuffle=True)
while step < 100:
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        with open("new.txt", "w") as file:
            file.write(str(step))
        os.replace("new.txt", "last.txt")
        if step == 100:
            break
