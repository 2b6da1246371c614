"""Workloads whose loaders are predicted: sleeping, decoding JPEG files, tokenising text.

Each training step sleeps, so that its length is known and costs no CPU; what differs is the loader.
"""

from __future__ import annotations

import io
import os
import random
import re
import time
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

import autotune

STEP_VARIABLE = "LOADER_PREDICTION_STEP"
"""Names the seconds of a training step."""
SAMPLES = 100_000
SLEEP_SECONDS = 0.004
"""Mean time that a sleeping sample takes."""
SLEEP_SPREAD = 0.3
"""Standard deviation of its logarithm."""


class Sleeping(Dataset[Tensor]):
    """Every sample takes its own time, the same each time it is built.

    A batch sleeps once, for the sum of its samples' times: the operating system wakes a sleeper about 0.1 ms late, and
    less late the busier it is.
    """

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Tensor:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: list[int]) -> list[Tensor]:
        draws = np.array([random.Random(index).gauss(-(SLEEP_SPREAD**2) / 2, SLEEP_SPREAD) for index in indices])
        time.sleep(SLEEP_SECONDS * float(np.exp(draws).sum()))
        return [torch.zeros(16)] * len(indices)


class Jpegs(Dataset[Tensor]):
    """Decodes one of 64 JPEG images of 256 x 256 pixels, resizes it and turns it into a tensor."""

    def __init__(self) -> None:
        generator = np.random.default_rng(0)
        self._files = []
        for _ in range(64):
            coarse = generator.integers(0, 255, (16, 16, 3), dtype=np.uint8)
            buffer = io.BytesIO()
            Image.fromarray(coarse).resize((256, 256), Image.Resampling.BICUBIC).save(buffer, "JPEG", quality=90)
            self._files.append(buffer.getvalue())

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Tensor:
        with Image.open(io.BytesIO(self._files[index % len(self._files)])) as file:
            image = file.convert("RGB").resize((128, 128))
        return torch.from_numpy(np.array(image)).permute(2, 0, 1).float().div_(255)


class Texts(Dataset[list[int]]):
    """Splits texts of 20 to 800 words into words, and hashes each to a number."""

    def __init__(self) -> None:
        generator = random.Random(0)
        words = [
            "".join(generator.choices("abcdefghijklmnopqrstuvwxyz", k=generator.randint(2, 9))) for _ in range(2000)
        ]
        self._texts = [" ".join(generator.choices(words, k=generator.randint(20, 800))) + "." for _ in range(512)]

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> list[int]:
        text = self._texts[index % len(self._texts)].lower()
        return [zlib.crc32(token.encode()) % 30_000 for token in re.findall(r"\w+|[^\w\s]", text)]


def pad(texts: list[list[int]]) -> Tensor:
    return pad_sequence([torch.tensor(text) for text in texts], batch_first=True)


def step(model: nn.Module, batch: Any) -> Tensor:
    time.sleep(float(os.environ[STEP_VARIABLE]))
    loss: Tensor = model(torch.zeros(1, 1)).sum()
    return loss


def _workload(dataset: Dataset[Any], collate_fn: Callable[[list[Any]], Any] | None = None) -> autotune.Workload:
    return autotune.Workload(nn.Linear(1, 1), dataset, collate_fn=collate_fn, training_step=step)


def sleeping() -> autotune.Workload:
    return _workload(Sleeping())


def jpegs() -> autotune.Workload:
    return _workload(Jpegs())


def texts() -> autotune.Workload:
    return _workload(Texts(), pad)
