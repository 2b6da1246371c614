"""Handwritten digits as JPEG files: real data, decoded and augmented with Pillow, and a small classifier.

scikit-learn's 1797 digits of 8x8 pixels are enlarged and written once as colour JPEG files, so that loading
does what image training does everywhere: read a file, decode it, augment it, turn it into a tensor. The files
lie in the folder that AUTOTUNE_DIGITS_CACHE names, or else in the user's cache folder.
"""

from __future__ import annotations

import math
import os
import random
import tempfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import Dataset

CACHE_VARIABLE = "AUTOTUNE_DIGITS_CACHE"
NUM_IMAGES = 1797
NUM_CLASSES = 10
FILE_SIZE = 128
"""Height and width of an image file in pixels."""
INPUT_SIZE = 64
"""Height and width of what the model sees, in pixels."""
JPEG_QUALITY = 90
MEAN, STANDARD_DEVIATION = 0.305, 0.376
"""Of all pixels of the 1797 digits, on a scale from 0 to 1."""
SPLIT_SEED = 0
HELD_OUT_EVERY = 5
"""Every fifth image of each class is held out: 360 for validation, 1437 for training."""


class DigitFiles(Dataset[tuple[Tensor, int]]):
    """Items are ``(image, label)``: float32 of shape (3, 64, 64), normalised, and the digit as an int.

    Augmentation draws from torch's random state, which a DataLoader seeds differently in each worker.
    """

    def __init__(self, paths: list[Path], *, augment: bool) -> None:
        self._paths = [str(path) for path in paths]
        self._labels = [_label(path) for path in paths]
        self._augment = augment

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        with Image.open(self._paths[index]) as file:
            image = file.convert("RGB")
        image = _distort(image) if self._augment else image.resize((INPUT_SIZE, INPUT_SIZE))
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).float()
        return pixels.div_(255.0).sub_(MEAN).div_(STANDARD_DEVIATION), self._labels[index]


class DigitNet(nn.Module):
    """Four strided convolutions and a linear head; maps (N, 3, 64, 64) to (N, 10) class scores."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            *_convolution(3, 16), *_convolution(16, 32), *_convolution(32, 64), *_convolution(64, 128)
        )
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(128 * 4 * 4, NUM_CLASSES))

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.features(images))


def build() -> tuple[DigitNet, DigitFiles]:
    """Return the model and the augmented training split of 1437 images."""
    training, _ = _split(image_files())
    return DigitNet(), DigitFiles(training, augment=True)


def validation() -> DigitFiles:
    """Return the held-out 360 images as they are, without augmentation."""
    _, held_out = _split(image_files())
    return DigitFiles(held_out, augment=False)


def image_files() -> list[Path]:
    """Return the 1797 image files, written first where they are missing.

    Several processes may do so at once: each file is complete from the moment it has its name, and all would
    write the same.
    """
    folder = _cache_folder() / f"digits-{FILE_SIZE}px-q{JPEG_QUALITY}"
    if len(list(folder.glob("*.jpg"))) < NUM_IMAGES:
        _write_images(folder)
    return sorted(folder.glob("*.jpg"))


def _convolution(channels_in: int, channels_out: int) -> tuple[nn.Module, ...]:
    return (
        nn.Conv2d(channels_in, channels_out, kernel_size=3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(channels_out),
        nn.ReLU(),
    )


def _cache_folder() -> Path:
    if CACHE_VARIABLE in os.environ:
        return Path(os.environ[CACHE_VARIABLE])
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "torch-autotune"


def _write_images(folder: Path) -> None:
    from sklearn.datasets import load_digits  # takes a second, and is needed only the first time

    folder.mkdir(parents=True, exist_ok=True)
    digits = load_digits()
    with tempfile.TemporaryDirectory(dir=folder, prefix=".partial-") as partial:
        for index, (pixels, label) in enumerate(zip(digits.images, digits.target, strict=True)):
            file = Path(partial) / f"{index:04d}_{label}.jpg"
            grey = Image.fromarray((pixels * (255 / 16)).astype(np.uint8))
            enlarged = grey.resize((FILE_SIZE, FILE_SIZE), Image.Resampling.BICUBIC)
            enlarged.convert("RGB").save(file, quality=JPEG_QUALITY)
            file.replace(folder / file.name)


def _label(path: Path) -> int:
    return int(path.stem.rpartition("_")[2])


def _split(paths: list[Path]) -> tuple[list[Path], list[Path]]:
    """Return training and held-out files; the same every time, with each digit's share in both."""
    shuffled = random.Random(SPLIT_SEED).sample(paths, len(paths))
    by_label = sorted(shuffled, key=_label)
    held_out = by_label[::HELD_OUT_EVERY]
    return sorted(set(by_label) - set(held_out)), held_out


def _distort(image: Image.Image) -> Image.Image:
    """Return the image turned by up to 15 degrees, scaled and moved by up to a tenth, at the model's size."""
    turn, scale, across, down = torch.empty(4).uniform_(-1.0, 1.0).tolist()
    angle, factor = math.radians(15.0 * turn), (1.0 + 0.1 * scale) * FILE_SIZE / INPUT_SIZE
    cosine, sine = factor * math.cos(angle), factor * math.sin(angle)
    # Pillow maps each pixel of the result back to one of the source: here centre to centre, then moved.
    centre = INPUT_SIZE / 2
    x = FILE_SIZE * (0.5 + 0.1 * across) - cosine * centre - sine * centre
    y = FILE_SIZE * (0.5 + 0.1 * down) + sine * centre - cosine * centre
    affine = (cosine, sine, x, -sine, cosine, y)
    return image.transform((INPUT_SIZE, INPUT_SIZE), Image.Transform.AFFINE, affine, Image.Resampling.BICUBIC)
