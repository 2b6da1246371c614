"""A wide model on rows that are collated at once: the step is all of the time."""

from __future__ import annotations

import torch
from clock import Clock
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    images = torch.randn(4000, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    loader = DataLoader(TensorDataset(images, torch.arange(4000) % 10), batch_size=32, shuffle=True)
    layers = [nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(4)]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    clock = Clock()
    for _ in range(1000):
        for batch, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(batch), labels).backward()
            optimizer.step()
            clock.step(len(labels))


if __name__ == "__main__":
    main()
