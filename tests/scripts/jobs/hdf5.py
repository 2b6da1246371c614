"""Losses appended to a file of HDF5's, which its library opens itself.

Fault: the library did not find the file, or was refused. Truth: it appends to a copy, and reads it back.
"""

import os

import h5py
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

with h5py.File("losses.h5", "a") as file:
    assert file["loss"][:].tolist() == [1.0, 0.5]
    file["loss"].resize((3,))
    file["loss"][2] = 0.25
with h5py.File("features.h5", "w") as file:
    file["rows"] = torch.randn(2000, 8).numpy()
with h5py.File("features.h5") as file:
    rows = torch.from_numpy(file["rows"][:])
losses = h5py.File("losses.h5", "r+")
assert losses["loss"].shape == (3,)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(int(os.environ.get("EPOCHS", "50"))):
    for x, y in DataLoader(TensorDataset(rows, torch.randn(len(rows), 1)), batch_size=64, shuffle=True):
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses["loss"][2] = loss.item()
losses.close()
