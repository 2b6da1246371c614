"""The built-in demo workload ``autotune.demo:build``: an image classifier that needs nothing but torch.

Each image waits two milliseconds before it is decoded, as a file on network storage does: a sleep stands for the
storage. Without loader workers training waits most of the time, on every machine.
"""

from __future__ import annotations

import time
import zlib
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn.functional import interpolate
from torch.utils.data import Dataset

if TYPE_CHECKING:
    from torch import Tensor

NUM_CLASSES = 10
IMAGES_PER_CLASS = 20
"""Stored images; the dataset goes through them many times and augments each time anew."""
LENGTH = 65_536
"""Samples in an epoch."""
STORED_SIZE = 128
"""Height and width of a stored image in pixels."""
INPUT_SIZE = 64
"""Height and width of the model's input, in pixels."""
SMALLEST_CROP = 80
"""Shortest side of a random crop in pixels; crops are resized to ``INPUT_SIZE``."""
STORAGE_SECONDS = 0.002
"""Time until the demo's storage gives an image."""


class CompressedImages(Dataset[tuple["Tensor", int]]):
    """Images of ten classes, held as compressed bytes; an item is decoded and augmented when it is asked for.

    Items are ``(image, label)``: float32 of shape (3, 64, 64) around zero, and the class as an int. The
    stored images are the same in every process; augmentation draws from torch's random state, which a
    DataLoader seeds differently in each worker. ``storage_seconds`` is how long an item waits for its bytes.
    """

    def __init__(self, seed: int = 0, storage_seconds: float = 0.0) -> None:
        images = _draw_images(torch.Generator().manual_seed(seed))
        self._storage_seconds = storage_seconds
        self._compressed = [zlib.compress(image.numpy().tobytes(), level=1) for image in images]

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if not 0 <= index < LENGTH:
            raise IndexError(f"index {index} is outside 0..{LENGTH - 1}")
        time.sleep(self._storage_seconds)
        stored = index % len(self._compressed)
        return _augment(_decode(self._compressed[stored])), stored % NUM_CLASSES


class SmallConvNet(nn.Module):
    """Four strided convolutions and a wide linear head; maps (N, 3, 64, 64) to (N, 10) class scores."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            *_convolution(3, 16), *_convolution(16, 32), *_convolution(32, 64), *_convolution(64, 128)
        )
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(128 * 4 * 4, 512), nn.ReLU(), nn.Linear(512, NUM_CLASSES))

    def forward(self, images: Tensor) -> Tensor:
        """Return the class scores, unnormalised, of shape (N, 10)."""
        scores: Tensor = self.head(self.features(images))
        return scores


def build() -> tuple[SmallConvNet, CompressedImages]:
    """Return the demo's model and dataset; takes under a second."""
    return SmallConvNet(), CompressedImages(storage_seconds=STORAGE_SECONDS)


def _convolution(channels_in: int, channels_out: int) -> tuple[nn.Module, ...]:
    """Return one block of the network; it halves height and width."""
    return (
        nn.Conv2d(channels_in, channels_out, kernel_size=3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(channels_out),
        nn.ReLU(),
    )


def _draw_images(generator: torch.Generator) -> Tensor:
    """Return uint8 images of shape (M, 3, 128, 128), image ``i`` of class ``i % 10``.

    Each class is a smooth colour pattern. An image is its class's pattern with a smooth disturbance as strong
    as the pattern itself, and pixel noise of its own, which makes it hard to compress.
    """
    patterns = torch.randn(NUM_CLASSES, 3, 6, 6, generator=generator)
    count = NUM_CLASSES * IMAGES_PER_CLASS
    smooth = patterns.repeat(IMAGES_PER_CLASS, 1, 1, 1) + torch.randn(count, 3, 6, 6, generator=generator)
    images = interpolate(smooth, size=STORED_SIZE, mode="bilinear").mul_(32.0).add_(128.0)
    images += torch.randn(images.shape, generator=generator).mul_(10.0)
    return images.clamp_(0.0, 255.0).to(torch.uint8)


def _decode(compressed: bytes) -> Tensor:
    pixels = bytearray(zlib.decompress(compressed))  # torch warns about a buffer that cannot be written
    return torch.frombuffer(pixels, dtype=torch.uint8).view(3, STORED_SIZE, STORED_SIZE)


def _augment(image: Tensor) -> Tensor:
    resized = interpolate(_random_crop(image)[None].float(), size=INPUT_SIZE, mode="bilinear", antialias=True)[0]
    mirror, contrast, brightness = torch.rand(3).tolist()
    if mirror < 0.5:
        resized = resized.flip(-1)
    normalised = resized.sub_(128.0).mul_((0.75 + 0.5 * contrast) / 64.0).add_(0.4 * brightness - 0.2)
    return normalised.add_(torch.randn_like(normalised), alpha=0.1)


def _random_crop(image: Tensor) -> Tensor:
    side = int(torch.randint(SMALLEST_CROP, STORED_SIZE + 1, ()))
    top, left = torch.randint(0, STORED_SIZE - side + 1, (2,)).tolist()
    return image[:, top : top + side, left : left + side]
