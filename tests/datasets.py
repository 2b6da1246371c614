"""Datasets that loader workers import by name, under every start method."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import Dataset, IterableDataset

if TYPE_CHECKING:
    from collections.abc import Iterator


class Squares(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Item ``i`` is ``(i, i * i)``."""

    def __init__(self, length: int = 10) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.tensor([float(index)]), torch.tensor([float(index * index)])


class CountingUp(IterableDataset[torch.Tensor]):
    """Yields 0, 1, 2, ... in every worker."""

    def __init__(self, length: int) -> None:
        self._length = length

    def __iter__(self) -> Iterator[torch.Tensor]:
        return (torch.tensor([float(index)]) for index in range(self._length))


def first_elements(samples: list[Any]) -> dict[str, torch.Tensor]:
    """A collate function of one's own."""
    return {"x": torch.stack([sample[0] for sample in samples])}
