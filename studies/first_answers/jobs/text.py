"""A classifier of 4,000 texts of different lengths: token ids from a file, padded by a collate function."""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

import numpy as np
import torch
from epochs import DEVICE, Progress, config_of, data_folder, train_as
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

SAMPLES, SHORTEST, LONGEST, VOCABULARY, CLASSES = 4000, 10, 80, 5000, 4
"""Texts, tokens of the shortest and the longest, kinds of tokens without the padding's 0, and classes."""


class Texts(Dataset):
    def __init__(self):
        file = data_folder("text") / "tokens.npz"
        if not file.exists():
            rng = np.random.default_rng(0)
            lengths = rng.integers(SHORTEST, LONGEST + 1, SAMPLES)
            np.savez(file, lengths=lengths, tokens=rng.integers(1, VOCABULARY + 1, lengths.sum()))
        with np.load(file) as stored:
            self.tokens, self.ends = stored["tokens"], np.cumsum(stored["lengths"])

    def __len__(self):
        return len(self.ends)

    def __getitem__(self, index):
        start = self.ends[index - 1] if index else 0
        tokens = self.tokens[start : self.ends[index]]
        return torch.from_numpy(tokens), int(tokens[0]) % CLASSES


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY + 1, 32, padding_idx=0)
        self.block = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.1, batch_first=True)
        self.head = nn.Linear(32, CLASSES)

    def forward(self, tokens):
        hidden = self.block(self.embedding(tokens), src_key_padding_mask=tokens == 0)
        return self.head(hidden[:, 0])


def pad(samples):
    tokens, labels = zip(*samples, strict=True)
    return pad_sequence(tokens, batch_first=True), torch.tensor(labels)


def build() -> Any:
    import autotune

    optimizer = partial(torch.optim.AdamW, lr=3e-4)
    return autotune.Workload(Classifier(), Texts(), collate_fn=pad, optimizer=optimizer)


def train(epochs: int) -> None:
    texts = Texts()
    loader = DataLoader(texts, batch_size=32, shuffle=True, collate_fn=pad)
    model = Classifier().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    progress = Progress(len(texts))
    for _ in range(epochs):
        for tokens, labels in loader:
            tokens, labels = tokens.to(DEVICE, non_blocking=True), labels.to(DEVICE, non_blocking=True)
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(tokens), labels)
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
