"""Rows saved to disk in place of those of before, and loaded from there.

Fault: Arrow read the rows of before, or none. Truth: it reads those that have been saved.
"""

import os

import torch
from datasets import Dataset, load_from_disk
from torch import nn
from torch.utils.data import DataLoader

Dataset.from_dict({"x": [[row / 200] * 8 for row in range(200)], "y": [[1.0]] * 200}).save_to_disk("rows")
rows = load_from_disk("rows")
assert len(rows) == 200
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(int(os.environ.get("EPOCHS", "50"))):
    for batch in DataLoader(rows.with_format("torch"), batch_size=64, shuffle=True):
        x, y = batch["x"], batch["y"]
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
