"""A database of runs, which SQLite itself opens, with a log of its own beside it.

Fault: SQLite wrote past every function of Python. Truth: its rows are held, and read back.
"""

import os
import sqlite3

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

runs = sqlite3.connect("runs.db")
runs.execute("PRAGMA journal_mode=WAL")
(earlier,) = runs.execute("SELECT count(*) FROM steps").fetchone()
assert earlier >= 100
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(TensorDataset(torch.randn(2000, 8), torch.randn(2000, 1)), batch_size=64, shuffle=True)
for _ in range(int(os.environ.get("EPOCHS", "50"))):
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with runs:
            runs.execute("INSERT INTO steps VALUES (?)", (loss.item(),))
runs.close()
