"""Rows that the script writes, and a child process that reads them.

Fault: the child did not find them, and nothing said why. Truth: it reads them, or the refusal names file and flag.
"""

import os
import subprocess

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

with open("rows.txt", "w") as file:
    file.write("1.5 " * 2000)
read = subprocess.run(["cat", "rows.txt"], check=True, capture_output=True, text=True).stdout
rows = torch.tensor([float(each) for each in read.split()])[:, None]
model = nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(int(os.environ.get("EPOCHS", "50"))):
    for x, y in DataLoader(TensorDataset(rows, torch.randn(2000, 1)), batch_size=64, shuffle=True):
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
