"""A script that makes a folder for its run, works there, and appends to a file above it.

Fault: relative paths were held by the first working folder. Truth: they are held wherever the script works.
"""

import os

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

os.makedirs("run1", exist_ok=True)
os.chdir("run1")
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(TensorDataset(torch.randn(2000, 8), torch.randn(2000, 1)), batch_size=64, shuffle=True)
for _ in range(int(os.environ.get("EPOCHS", "50"))):
    for step, (x, y) in enumerate(loader):
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            torch.save(model.state_dict(), "model.pt")
            with open("../history.txt", "a") as history:
                history.write(f"run1 {loss.item()}\n")
