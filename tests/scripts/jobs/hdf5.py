"""Losses appended to a file of HDF5's, which its library opens itself.

Fault: the library did not find the file, or was refused. Truth: it appends to a copy, and reads it back.
"""

import h5py
import torch
from torch.utils.data import TensorDataset

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
data = TensorDataset(rows, torch.randn(len(rows), 1))


def after(step, loss, model):
    losses["loss"][2] = loss.item()
