"""A script with everything in ``main``, after step 1 of the README: JPEGs and a small convolutional network."""

from __future__ import annotations

import io
import sys
import time
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import Dataset

import autotune


class Photos(Dataset[tuple[torch.Tensor, int]]):
    def __init__(self, length: int = 2000) -> None:
        generator, self.length, self.files = np.random.default_rng(0), length, list[bytes]()
        for _ in range(50):
            file = io.BytesIO()
            Image.fromarray(generator.integers(0, 255, (160, 160, 3), dtype=np.uint8)).save(file, "JPEG")
            self.files.append(file.getvalue())

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image = Image.open(io.BytesIO(self.files[index % 50])).convert("RGB").resize((64, 64))
        return torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255, index % 10


def build() -> tuple[nn.Module, Any]:
    convolutions = [nn.Conv2d(3, 16, 3, 2), nn.ReLU(), nn.Conv2d(16, 32, 3, 2), nn.ReLU()]
    return nn.Sequential(*convolutions, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)), Photos()


def main() -> None:
    config = autotune.load_config(sys.argv[1])
    config.apply_threads()
    model, dataset = build()
    accumulator = config.accumulator(torch.optim.AdamW(model.parameters()), "cpu")
    loader = config.dataloader(dataset, shuffle=True)
    for _ in range(3):
        begin = time.perf_counter()
        for images, labels in loader:
            with config.autocast("cpu"):
                loss = nn.functional.cross_entropy(model(images), labels)
            accumulator.backward(loss, len(labels))
            accumulator.step()
        accumulator.flush()
        print(f"{len(dataset) / (time.perf_counter() - begin):.0f} samples/s")


if __name__ == "__main__":
    main()
