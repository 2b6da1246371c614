"""A dataset that does something at every item, and what that may be."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from tests.datasets import Squares

MANY = 100_000  # more samples than any measurement builds


class Doing(Squares):
    def __init__(self, do: Callable[[int], object], length: int = MANY) -> None:
        super().__init__(length)
        self._do = do

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        self._do(index)
        return super().__getitem__(index)


def spin(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass
