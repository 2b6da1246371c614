"""Three workloads on prepared tensors, each with samples that are held out.

Demo: augmented images of ``autotune.demo``. Digits: the 8 x 8 scans of scikit-learn. Characters: a small transformer
that predicts the next character of modules of Python's standard library.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import inspect
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import autotune
from autotune.demo import CompressedImages, SmallConvNet

CONTEXT = 64
"""Characters that a sample shows; each is predicted from those before it."""
TEXTS = ("argparse", "ast", "calendar", "decimal", "difflib", "doctest", "inspect", "tarfile", "turtle", "typing")


@dataclass(frozen=True)
class Task:
    """A workload with its baseline and two targets."""

    batch_size: int
    """Samples of a step today."""
    learning_rate: float
    """Of AdamW, with that batch."""
    targets: tuple[float, float]
    """Held-out losses to reach."""
    every: int
    """Samples between two looks at the held-out loss."""
    most: int
    """Samples after which a training is given up."""


TASKS = {
    "demo": Task(batch_size=32, learning_rate=1e-3, targets=(0.5, 0.3), every=512, most=60_000),
    "digits": Task(batch_size=16, learning_rate=1e-3, targets=(0.5, 0.2), every=256, most=60_000),
    "characters": Task(batch_size=16, learning_rate=1e-3, targets=(2.4, 2.2), every=256, most=60_000),
}
FACTORS = (4, 16)
"""The larger batches, in baselines."""


def build_demo() -> autotune.Workload:
    """Return the demo's network and 8,192 of its images, augmented once."""
    return _workload("demo", SmallConvNet(), _images()[0])


def build_digits() -> autotune.Workload:
    """Return a small convolutional network and 1,437 digits."""
    layers = (nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
    return _workload("digits", nn.Sequential(*layers, nn.Flatten(), nn.Linear(1024, 10)), _digits()[0])


def build_characters() -> autotune.Workload:
    """Return a transformer of two layers and pieces of text."""
    return _workload("characters", CharacterModel(), _pieces()[0])


def held_out(name: str) -> TensorDataset:
    """Return the samples that are held out."""
    return {"demo": _images, "digits": _digits, "characters": _pieces}[name]()[1]


def _workload(name: str, model: nn.Module, dataset: TensorDataset) -> autotune.Workload:
    optimizer = functools.partial(torch.optim.AdamW, lr=TASKS[name].learning_rate)
    return autotune.Workload(model, dataset, loss=token_loss, optimizer=optimizer)


def token_loss(scores: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross-entropy over classes or characters."""
    return cross_entropy(scores.flatten(0, -2), targets.flatten())


class CharacterModel(nn.Module):
    """A causal transformer; maps (N, 64) characters to (N, 64, 128) scores of the next."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.characters = nn.Embedding(128, width)
        self.places = nn.Parameter(0.02 * torch.randn(CONTEXT, width))
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.scores = nn.Linear(width, 128)

    def forward(self, text: Tensor) -> Tensor:
        """Return the scores."""
        mask = nn.Transformer.generate_square_subsequent_mask(CONTEXT)
        scores: Tensor = self.scores(self.layers(self.characters(text) + self.places, mask=mask, is_causal=True))
        return scores


@functools.cache
def _images() -> tuple[TensorDataset, TensorDataset]:
    torch.manual_seed(0)
    samples = CompressedImages()
    images, labels = zip(*(samples[index] for index in range(8_192 + 1_024)), strict=True)
    return _split(torch.stack(images), torch.tensor(labels), 8_192)


@functools.cache
def _digits() -> tuple[TensorDataset, TensorDataset]:
    from sklearn.datasets import load_digits

    found = load_digits()
    order = torch.randperm(len(found.target), generator=torch.Generator().manual_seed(0))
    scans, labels = torch.tensor(found.images, dtype=torch.float32)[:, None] / 16, torch.tensor(found.target)
    return _split(scans[order], labels[order], 1_437)


@functools.cache
def _pieces() -> tuple[TensorDataset, TensorDataset]:
    text = "".join(inspect.getsource(importlib.import_module(name)) for name in TEXTS)
    codes = torch.tensor([min(ord(letter), 127) for letter in text])
    pieces = codes[: len(codes) // (CONTEXT + 1) * (CONTEXT + 1)].view(-1, CONTEXT + 1)
    pieces = pieces[torch.randperm(len(pieces), generator=torch.Generator().manual_seed(0))]
    return _split(pieces[:, :-1], pieces[:, 1:], len(pieces) - 512)


def _split(inputs: Tensor, targets: Tensor, count: int) -> tuple[TensorDataset, TensorDataset]:
    return TensorDataset(inputs[:count], targets[:count]), TensorDataset(inputs[count:], targets[count:])


def parse(description: str) -> argparse.Namespace:
    """Return the workloads of a command line; all where none is named."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("workloads", nargs="*", choices=[*TASKS, []], help="demo, digits or characters")
    flags = parser.parse_args()
    flags.workloads = flags.workloads or list(TASKS)
    return flags
