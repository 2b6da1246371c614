"""Rows in memory, three layers: reading a row and collating a batch is most of the time."""

from __future__ import annotations

import torch
from clock import Clock
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(100_000, 32, generator=generator)
    table = TensorDataset(rows, (rows.sum(1) > 0).long())
    loader = DataLoader(table, batch_size=128, shuffle=True)
    model = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 2))
    optimizer = torch.optim.Adam(model.parameters())
    clock = Clock()
    for _ in range(1000):
        for batch, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(batch), labels).backward()
            optimizer.step()
            clock.step(len(labels))


if __name__ == "__main__":
    main()
