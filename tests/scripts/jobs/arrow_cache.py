"""A cache below the home folder, written by a temporary name and renamed, as Hugging Face Datasets does.

Fault: the name was held back but not the rename, the mode and the time. Truth: all of them are the script's alone.
"""

import os

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

folder = os.path.expanduser("~/.cache/rows")
os.makedirs(folder, exist_ok=True)
partial, final = os.path.join(folder, "tmp-rows"), os.path.join(folder, "rows.arrow")
with open(partial, "wb") as file:
    file.write(torch.randn(2000, 8).numpy().tobytes())
with open(partial, "rb") as file:
    rows = torch.frombuffer(bytearray(file.read()), dtype=torch.float32).view(2000, 8)
os.rename(partial, final)
os.chmod(final, 0o640)
os.utime(final, (1_500_000_000, 1_500_000_000))
assert os.path.getsize(final) == rows.numel() * 4
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(int(os.environ.get("EPOCHS", "50"))):
    for x, y in DataLoader(TensorDataset(rows, torch.randn(2000, 1)), batch_size=64, shuffle=True):
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
