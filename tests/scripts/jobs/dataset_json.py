"""Rows of a JSON file, which Hugging Face Datasets turns into a cache of Arrow's and maps into memory.

Fault: Arrow did not find the cache that Python had written. Truth: it reads the cache, and the home stays as it was.
"""

import os

import torch
from datasets import load_dataset
from torch import nn
from torch.utils.data import DataLoader

rows = load_dataset("json", data_files="rows.jsonl", split="train")
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
