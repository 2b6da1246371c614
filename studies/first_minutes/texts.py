"""Texts of different lengths, padded by a collate function, and a recurrent network."""

from __future__ import annotations

import random
import sys
import time

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

import autotune


class Texts(Dataset[tuple[torch.Tensor, int]]):
    def __init__(self, length: int = 8000) -> None:
        generator = random.Random(0)
        self.lengths = [generator.randint(5, 120) for _ in range(length)]

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        generator = random.Random(index)
        return torch.tensor([generator.randrange(5000) for _ in range(self.lengths[index])]), index % 2


def collate(samples: list[tuple[torch.Tensor, int]]) -> tuple[torch.Tensor, torch.Tensor]:
    texts, labels = zip(*samples, strict=True)
    return pad_sequence(list(texts), batch_first=True), torch.tensor(labels)


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(5000, 64, padding_idx=0)
        self.recurrent = nn.GRU(64, 64, batch_first=True)
        self.classes = nn.Linear(64, 2)

    def forward(self, texts: torch.Tensor) -> torch.Tensor:
        outputs, _ = self.recurrent(self.words(texts))
        return self.classes(outputs.mean(1))


def build() -> autotune.Workload:
    return autotune.Workload(Classifier(), Texts(), collate_fn=collate)


def main() -> None:
    config = autotune.load_config(sys.argv[1])
    config.apply_threads()
    model, dataset = Classifier(), Texts()
    accumulator = config.accumulator(torch.optim.AdamW(model.parameters()), "cpu")
    loader = config.dataloader(dataset, shuffle=True, collate_fn=collate)
    for _ in range(2):
        begin = time.perf_counter()
        for texts, labels in loader:
            with config.autocast("cpu"):
                loss = nn.functional.cross_entropy(model(texts), labels)
            accumulator.backward(loss, len(labels))
            accumulator.step()
        accumulator.flush()
        print(f"{len(dataset) / (time.perf_counter() - begin):.0f} samples/s")


if __name__ == "__main__":
    main()
