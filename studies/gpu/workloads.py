"""Workloads of blocks 2 and 3; ``AUTOTUNE_STUDY_SIZE=small`` makes them small enough for a CPU."""

from __future__ import annotations

import io
import os
from functools import partial

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset, TensorDataset

from autotune import Workload

SIZE_VARIABLE = "AUTOTUNE_STUDY_SIZE"
IS_SMALL = os.environ.get(SIZE_VARIABLE) == "small"
PICTURES, SIDE, CROP = (8, 80, 64) if IS_SMALL else (512, 500, 224)
"""Different files, their pixels a side, and those of a sample."""
WIDTH, BLOCKS = (8, (1, 1, 1, 1)) if IS_SMALL else (64, (3, 4, 6, 3))
VOCABULARY, CONTEXT, CHANNELS, HEADS, LAYERS = (96, 16, 32, 2, 2) if IS_SMALL else (50_304, 1024, 768, 12, 12)


# --- ResNet-50 on JPEGs ---


class Bottleneck(nn.Module):
    """Three convolutions beside a short way."""

    def __init__(self, given: int, width: int, stride: int) -> None:
        super().__init__()
        self.ways = nn.Sequential(
            *(nn.Conv2d(given, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)),
            *(nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)),
            *(nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width)),
        )
        short = (nn.Conv2d(given, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width))
        self.short = nn.Sequential(*(short if stride > 1 or given != 4 * width else ()))

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.ways(x) + self.short(x))


def residual_network() -> nn.Sequential:
    """Return a ResNet-50."""
    layers: list[nn.Module] = [nn.Conv2d(3, WIDTH, 7, 2, 3, bias=False), nn.BatchNorm2d(WIDTH), nn.ReLU(inplace=True)]
    layers.append(nn.MaxPool2d(3, 2, 1))
    given = WIDTH
    for stage, count in enumerate(BLOCKS):
        for block in range(count):
            layers.append(Bottleneck(given, WIDTH << stage, 2 if stage and not block else 1))
            given = 4 * (WIDTH << stage)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(given, 1000))


class Jpegs(Dataset[tuple[Tensor, int]]):
    """Pictures that are decoded, cut out at random and perhaps mirrored."""

    def __init__(self) -> None:
        generator, self._files = np.random.default_rng(0), list[bytes]()
        for _ in range(PICTURES):
            coarse = Image.fromarray(generator.integers(0, 256, (SIDE // 8, SIDE // 8, 3), dtype=np.uint8))
            file = io.BytesIO()
            coarse.resize((SIDE, SIDE), Image.Resampling.BICUBIC).save(file, "JPEG", quality=90)
            self._files.append(file.getvalue())

    def __len__(self) -> int:
        return 50_000

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        with Image.open(io.BytesIO(self._files[index % PICTURES])) as file:
            left, top = torch.randint(SIDE - CROP, (2,)).tolist()
            image = np.array(file.convert("RGB").crop((left, top, left + CROP, top + CROP)))
        sample = torch.from_numpy(image).permute(2, 0, 1).float().div_(255)
        return sample.flip(2) if index % 2 else sample, index % 1000


def resnet() -> Workload:
    """Some 0.5 to 2 ms of a CPU and 12 GFLOP for a sample."""
    return Workload(residual_network(), Jpegs(), optimizer=partial(torch.optim.SGD, lr=0.02, momentum=0.9))


# --- a tiny model ---


def tiny() -> Workload:
    """A step of launches alone, up to batches of tens of thousands."""
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))
    samples = 2**10 if IS_SMALL else 2**18
    return Workload(model, TensorDataset(torch.randn(samples, 32), torch.randint(10, (samples,))))


# --- a GPT ---


class Transformer(nn.Module):
    """GPT-2's smallest: causal blocks, and tied weights of words."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(VOCABULARY, CHANNELS), nn.Embedding(CONTEXT, CHANNELS)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(CHANNELS, HEADS, 4 * CHANNELS, 0.0, "gelu", batch_first=True, norm_first=True)
            for _ in range(LAYERS)
        )
        self.norm = nn.LayerNorm(CHANNELS)
        for table in (self.words, self.places):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        x = self.words(tokens) + self.places(torch.arange(length, device=tokens.device))
        mask = nn.Transformer.generate_square_subsequent_mask(length, tokens.device, x.dtype)
        for block in self.blocks:
            x = block(x, src_mask=mask, is_causal=True)
        return functional.linear(self.norm(x), self.words.weight)


class Tokens(Dataset[Tensor]):
    """Texts of random words, one more than the context."""

    def __len__(self) -> int:
        return 20_000

    def __getitem__(self, index: int) -> Tensor:
        return torch.randint(VOCABULARY, (CONTEXT + 1,))


def next_word(model: nn.Module, tokens: Tensor) -> Tensor:
    """Return the loss of the next word at every place."""
    output = model(tokens[:, :-1])
    return functional.cross_entropy(output.flatten(0, 1), tokens[:, 1:].flatten())


def gpt() -> Workload:
    """Some 0.8 TFLOP for a sample, and memory that grows fast with the batch."""
    return Workload(Transformer(), Tokens(), training_step=next_word)
