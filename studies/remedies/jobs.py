"""Four jobs: two whose data are worth storing, and two that gain nothing by it.

``JOBS`` are functions that return a workload. The pictures are made anew in a temporary folder, the same each time.
"""

from __future__ import annotations

import functools
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import Dataset, TensorDataset, default_collate

from autotune.config import Config
from autotune.workload import Workload

PICTURES, SIZE, CLASSES = 3000, 128, 10
CONFIG = Config(batch_size=32, num_workers=2, prefetch_factor=2, persistent_workers=True, intra_op_threads=1)
COLLATE_SECONDS = 0.001
"""Seconds that the slow collate function computes for each sample."""


@functools.cache
def folder() -> Path:
    """Return the folder of pictures in PNG, which is made where it is not there."""
    found = Path(tempfile.gettempdir(), "autotune-study-pictures")
    for number in range(PICTURES):
        path = found / f"{number:05}.png"
        if not path.exists():
            found.mkdir(exist_ok=True)
            generator = np.random.default_rng(number)
            coarse = generator.integers(0, 256, (SIZE // 4, SIZE // 4, 3), dtype=np.uint8)
            fine = np.asarray(Image.fromarray(coarse).resize((SIZE, SIZE)))
            Image.fromarray(fine ^ generator.integers(0, 8, fine.shape, dtype=np.uint8)).save(path)
    return found


def as_tensor(picture: Image.Image) -> torch.Tensor:
    return torch.from_numpy(np.array(picture)).permute(2, 0, 1).float() / 255


def random_part(picture: Image.Image) -> torch.Tensor:
    """Return a random part of a picture, by chance mirrored."""
    left, top = torch.randint(0, 16, (2,)).tolist()
    part = picture.crop((left, top, left + SIZE - 16, top + SIZE - 16))
    return as_tensor(part.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if torch.rand(()) < 0.5 else part)


class Pictures(Dataset[Any]):
    def __init__(self, transform: Any) -> None:
        self.root, self.transform = str(folder()), transform

    def __len__(self) -> int:
        return PICTURES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        with Image.open(f"{self.root}/{index:05}.png") as file:
            picture = file.convert("RGB")
        return self.transform(picture), index % CLASSES


def model(size: int) -> nn.Module:
    return nn.Sequential(nn.AvgPool2d(8), nn.Flatten(), nn.Linear(3 * (size // 8) ** 2, CLASSES))


def slow_collate(samples: list[Any]) -> Any:
    end = time.thread_time() + COLLATE_SECONDS * len(samples)
    while time.thread_time() < end:
        pass
    return default_collate(samples)


def in_memory() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (PICTURES, 3, 32, 32), dtype=torch.uint8, generator=generator)
    return TensorDataset(images.float() / 255, torch.arange(PICTURES) % CLASSES)


def waiting_step(net: nn.Module, batch: Any) -> torch.Tensor:
    """Take 10 ms, as on an accelerator."""
    time.sleep(0.01)
    return nn.functional.cross_entropy(net(batch[0]), batch[1])


JOBS = {
    "png": lambda: Workload(model(SIZE), Pictures(as_tensor)),
    "augmented": lambda: Workload(model(SIZE - 16), Pictures(random_part)),
    "collate": lambda: Workload(model(32), in_memory(), collate_fn=slow_collate),
    "memory": lambda: Workload(model(32), in_memory(), training_step=waiting_step),
}
"""Each job by its name."""
STORED = {"png": None, "augmented": "transform"}
"""The jobs that are worth storing, and the attribute whose input is stored."""
for name, make in JOBS.items():
    globals()[name] = make
