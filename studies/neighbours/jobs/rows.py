"""Rows in memory that the dataset hands out a batch at a time: nothing is left for workers."""

from __future__ import annotations

import torch
from clock import Clock
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset[tuple[Tensor, Tensor]]):
    def __init__(self) -> None:
        self.rows = torch.randn(50_000, 128, generator=torch.Generator().manual_seed(0))
        self.labels = (self.rows.sum(1) > 0).long()

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.rows[index], self.labels[index]

    def __getitems__(self, indices: list[int]) -> tuple[Tensor, Tensor]:
        return self.rows[indices], self.labels[indices]


def whole(batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    return batch


def main() -> None:
    loader = DataLoader(Rows(), batch_size=256, shuffle=True, collate_fn=whole)
    model = nn.Sequential(nn.Linear(128, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 2))
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
