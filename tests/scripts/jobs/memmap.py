"""An array of features mapped into memory and changed in place, and a raw file written over.

Fault: a mapping reached the user's file past every held write. Truth: the script changes an array of its own.
"""

import os

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

features = np.lib.format.open_memmap("features.npy", mode="r+")
features += 1
features.flush()
features[:10].tofile("raw.bin")
assert np.array_equal(np.fromfile("raw.bin", features.dtype), features[:10].ravel())
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(TensorDataset(torch.randn(2000, 8), torch.randn(2000, 1)), batch_size=64, shuffle=True)
for _ in range(int(os.environ.get("EPOCHS", "50"))):
    for step, (x, y) in enumerate(loader):
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        features[step % len(features)] = loss.item()
    features.flush()
