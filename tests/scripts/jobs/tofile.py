"""Weights written by NumPy, and a shell that appends, removes and makes a folder.

Fault: a child process wrote where its parent was held. Truth: the shell's changes stay out of the user's folder.
"""

import os
import subprocess

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

subprocess.run(["sh", "-c", "echo x >> log.txt; rm -f old.txt; mkdir made"], check=False)
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
            model.weight.detach().numpy().tofile("weights.bin")
