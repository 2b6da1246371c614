"""A classifier of 6,000 JPEG files: decoded, resized and flipped by Pillow, in the training process."""

from __future__ import annotations

import argparse
import random
from functools import partial
from typing import Any

import numpy as np
import torch
from epochs import DEVICE, Progress, config_of, data_folder, train_as
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

SAMPLES, STORED, SHOWN, CLASSES = 6000, 160, 64, 10
"""Files; height and width of a file and of what the model sees, in pixels; classes."""


class Photos(Dataset):
    def __init__(self):
        self.folder = data_folder("jpeg")
        if not (self.folder / f"{SAMPLES - 1}.jpg").exists():
            rng = np.random.default_rng(0)
            for number in range(SAMPLES):
                coarse = Image.fromarray(rng.integers(0, 255, (20, 20, 3), dtype=np.uint8))
                image = coarse.resize((STORED, STORED), Image.Resampling.BICUBIC)
                image.save(self.folder / f"{number}.jpg", quality=90)

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        with Image.open(self.folder / f"{index}.jpg") as file:
            image = file.convert("RGB").resize((SHOWN, SHOWN), Image.Resampling.BILINEAR)
        if random.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255
        return pixels, index % CLASSES


def network():
    layers = []
    for inputs, outputs in ((3, 8), (8, 16), (16, 32)):
        layers += [nn.Conv2d(inputs, outputs, 3, stride=2, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, CLASSES))


def build() -> Any:
    import autotune

    return autotune.Workload(network(), Photos(), optimizer=partial(torch.optim.Adam, lr=1e-3))


def train(epochs: int) -> None:
    photos = Photos()
    loader = DataLoader(photos, batch_size=32, shuffle=True, num_workers=0)
    model = network().to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    progress = Progress(len(photos))
    for _ in range(epochs):
        for images, labels in loader:
            images, labels = images.to(DEVICE, non_blocking=True), labels.to(DEVICE, non_blocking=True)
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            progress.step(len(labels))
        progress.epoch()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=1000)
    parser.add_argument("--config", help="train as this file of autotune says")
    options = parser.parse_args()
    if options.config:
        train_as(config_of(options.config), build(), options.epochs)
    else:
        train(options.epochs)


if __name__ == "__main__":
    main()
