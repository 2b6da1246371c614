"""Data made once and read from a cache file ever after, as PyTorch Geometric keeps its own.

Fault: the write led nowhere, so the script could not read its cache. Truth: the script reads what it has written.
"""

import io
import os

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

CACHE = "processed/data.pt"
if not os.path.exists(CACHE):
    os.makedirs(os.path.dirname(CACHE), exist_ok=True)
    content = io.BytesIO()
    torch.save((torch.randn(2000, 8), torch.randn(2000, 1)), content)
    with open(CACHE, "wb") as file:
        file.write(content.getvalue())
data = TensorDataset(*torch.load(CACHE))
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(int(os.environ.get("EPOCHS", "50"))):
    for x, y in DataLoader(data, batch_size=64, shuffle=True):
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
