"""Three workloads on real data: handwritten digits, source text and photographs.

Each function returns an ``autotune.Workload``. All data comes with Python or scikit-learn; nothing is downloaded.
"""

from __future__ import annotations

import io
import os
import re
from collections import Counter
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_digits, load_sample_images
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, interpolate, mse_loss
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

import autotune

FILE_SIZE, DIGIT_SIZE = 96, 48
"""Height and width of a digit's JPEG image, and of what the model sees, in pixels."""
PASSAGE_LINES = 6
"""Lines of source text in an item."""
MODULES = "[a-h]*.py"
"""Files of the standard library that are read: an epoch takes some seconds."""
VOCABULARY = 1500
"""Words that are known; the rest are one word."""
LONGEST_PASSAGE = 64
"""Words of an item that are used."""
PADDING, UNKNOWN = 0, 1
CROP_SIZE, SMALLEST_CROP, LARGEST_CROP = 64, 96, 256
"""Height and width of a photograph's crop for the model, and as it is taken, in pixels."""
CROPS = 4096
"""Crops in an epoch; each is drawn anew."""
WORD = re.compile(r"\w+|[^\w\s]")


def digits() -> autotune.Workload:
    """Classify scikit-learn's 1797 handwritten digits: JPEG images, decoded and distorted with Pillow."""
    return autotune.Workload(_digit_net(), DigitImages(), training_step=classify)


def source_text() -> autotune.Workload:
    """Predict the next word of the standard library's source text: passages of different lengths, padded."""
    return autotune.Workload(NextWord(), Passages(), training_step=predict_words, collate_fn=pad_passages)


def photographs() -> autotune.Workload:
    """Remove noise from random crops of scikit-learn's two photographs."""
    return autotune.Workload(_denoiser(), PhotographCrops(), training_step=remove_noise)


class DigitImages(Dataset[tuple[Tensor, int]]):
    """Items are ``(image, label)``: float32 of shape (3, 48, 48) from 0 to 1, and the digit as an int."""

    def __init__(self) -> None:
        found = load_digits()
        self._files = [_as_jpeg(pixels) for pixels in found.images]
        self._labels = found.target.tolist()

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        with Image.open(io.BytesIO(self._files[index])) as file:
            image = file.convert("RGB")
        angle, brightness = torch.empty(2).uniform_(-1.0, 1.0).tolist()
        turned = image.rotate(15.0 * angle, Image.Resampling.BICUBIC).resize((DIGIT_SIZE, DIGIT_SIZE))
        return _as_tensor(np.array(turned)).mul_(1.0 + 0.2 * brightness), self._labels[index]


class Passages(Dataset[Tensor]):
    """Passages of the standard library's modules; an item is the int64 word numbers of one, of its own length."""

    def __init__(self) -> None:
        files = sorted(Path(os.__file__).parent.glob(MODULES))
        lines = [line for file in files for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
        starts = range(0, len(lines) - PASSAGE_LINES + 1, PASSAGE_LINES)
        self._passages = ["\n".join(lines[start : start + PASSAGE_LINES]) for start in starts]
        counts = Counter(word for line in lines for word in WORD.findall(line))
        self._numbers = {word: i for i, (word, _) in enumerate(counts.most_common(VOCABULARY), UNKNOWN + 1)}

    def __len__(self) -> int:
        return len(self._passages)

    def __getitem__(self, index: int) -> Tensor:
        words = WORD.findall(self._passages[index])[:LONGEST_PASSAGE]
        return torch.tensor([self._numbers.get(word, UNKNOWN) for word in words])


class PhotographCrops(Dataset[tuple[Tensor, Tensor]]):
    """Items are ``(noisy, clean)``: the same random crop of a photograph, float32 of shape (3, 64, 64) from 0 to 1."""

    def __init__(self) -> None:
        self._photographs = [_as_tensor(pixels) for pixels in load_sample_images().images]

    def __len__(self) -> int:
        return CROPS

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        crop = _random_crop(self._photographs[index % len(self._photographs)])
        clean = interpolate(crop[None], size=CROP_SIZE, mode="bilinear", antialias=True)[0]
        return clean + 0.1 * torch.randn_like(clean), clean


class NextWord(nn.Module):
    """A gated recurrent unit; maps word numbers (N, T) to scores (N, T, V) of the word that follows."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY + 2, 64, padding_idx=PADDING)
        self.recurrent = nn.GRU(64, 64, batch_first=True)
        self.head = nn.Linear(64, VOCABULARY + 2)

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.recurrent(self.embedding(words))[0])


def classify(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    images, labels = batch
    return cross_entropy(model(images), labels)


def pad_passages(passages: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Return words and the words that follow them, each of shape (N, T), padded to the longest passage."""
    words = pad_sequence(passages, batch_first=True, padding_value=PADDING)
    return words[:, :-1], words[:, 1:]


def predict_words(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    words, following = batch
    return cross_entropy(model(words).flatten(0, 1), following.flatten(), ignore_index=PADDING)


def remove_noise(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    noisy, clean = batch
    return mse_loss(model(noisy), clean)


def _digit_net() -> nn.Module:
    """Three strided convolutions; map (N, 3, 48, 48) to (N, 10) class scores."""
    blocks = [layer for size in ((3, 16), (16, 32), (32, 64)) for layer in _halving(*size)]
    return nn.Sequential(*blocks, nn.Flatten(), nn.Linear(64 * 6 * 6, 10))


def _denoiser() -> nn.Module:
    """An autoencoder without a bottleneck of features; maps (N, 3, 64, 64) to the same shape."""
    return nn.Sequential(
        *_halving(3, 24),
        nn.Conv2d(24, 24, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.ConvTranspose2d(24, 3, kernel_size=4, stride=2, padding=1),
    )


def _halving(channels_in: int, channels_out: int) -> tuple[nn.Module, ...]:
    convolution = nn.Conv2d(channels_in, channels_out, kernel_size=3, stride=2, padding=1)
    return convolution, nn.BatchNorm2d(channels_out), nn.ReLU()


def _as_jpeg(pixels: np.ndarray) -> bytes:
    """Return an image of 8 x 8 pixels from 0 to 16 as an enlarged JPEG file."""
    grey = Image.fromarray((pixels * (255 / 16)).astype(np.uint8))
    file = io.BytesIO()
    grey.resize((FILE_SIZE, FILE_SIZE), Image.Resampling.BICUBIC).convert("RGB").save(file, "JPEG", quality=90)
    return file.getvalue()


def _as_tensor(pixels: np.ndarray) -> Tensor:
    return torch.from_numpy(np.array(pixels)).permute(2, 0, 1).float().div_(255.0)


def _random_crop(image: Tensor) -> Tensor:
    side = int(torch.randint(SMALLEST_CROP, LARGEST_CROP + 1, ()))
    top, left = (int(torch.randint(0, size - side + 1, ())) for size in image.shape[1:])
    return image[:, top : top + side, left : left + side]
