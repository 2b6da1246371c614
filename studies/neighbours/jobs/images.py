"""The images of autotune's demo, decoded by the training process as most people begin."""

from __future__ import annotations

import torch
from clock import Clock
from torch import nn
from torch.utils.data import DataLoader

from autotune.demo import CompressedImages, SmallConvNet


def main() -> None:
    images, model = CompressedImages(), SmallConvNet()
    loader = DataLoader(images, batch_size=32, shuffle=True)
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
