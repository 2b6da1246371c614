"""A workload for nodes that share one machine: it waits and hardly computes, so they do not disturb each other."""

from __future__ import annotations

import multiprocessing
import time
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset

from autotune.workload import Workload

LOADING, TRAINING = 0.003, 0.002
"""Seconds for a sample."""


class OneLine(Dataset[torch.Tensor]):
    """Samples that come over one line, however many workers ask: no number of them is foretold to be of no use."""

    def __init__(self) -> None:
        self.line = multiprocessing.get_context("fork").Lock()

    def __len__(self) -> int:
        return 10**6

    def __getitem__(self, index: int) -> torch.Tensor:
        with self.line:
            time.sleep(LOADING)
        return torch.zeros(1)


def train(model: nn.Module, batch: Any) -> torch.Tensor:
    time.sleep(TRAINING * len(batch))
    loss: torch.Tensor = model(batch).sum()
    return loss


def one_line() -> Workload:
    return Workload(nn.Linear(1, 1), OneLine(), training_step=train)
