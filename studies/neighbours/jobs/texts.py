"""Texts of different lengths, padded by a collate function, and a transformer block."""

from __future__ import annotations

import torch
from clock import Clock
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

SHORTEST, LONGEST, WORDS, CLASSES = 10, 80, 5000, 4


class Texts(Dataset[tuple[Tensor, int]]):
    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        lengths = torch.randint(SHORTEST, LONGEST + 1, (20_000,), generator=generator).tolist()
        self.texts = [torch.randint(1, WORDS, (length,), generator=generator) for length in lengths]

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.texts[index], int(self.texts[index][0]) % CLASSES


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 32, padding_idx=0)
        self.block = nn.TransformerEncoderLayer(32, 2, 64, batch_first=True)
        self.head = nn.Linear(32, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.block(self.embedding(tokens), src_key_padding_mask=tokens == 0)
        found: Tensor = self.head(hidden[:, 0])
        return found


def pad(samples: list[tuple[Tensor, int]]) -> tuple[Tensor, Tensor]:
    tokens, labels = zip(*samples, strict=True)
    return pad_sequence(list(tokens), batch_first=True), torch.tensor(labels)


def main() -> None:
    loader = DataLoader(Texts(), batch_size=32, shuffle=True, collate_fn=pad)
    model = Classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    clock = Clock()
    for _ in range(1000):
        for tokens, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(tokens), labels).backward()
            optimizer.step()
            clock.step(len(labels))


if __name__ == "__main__":
    main()
