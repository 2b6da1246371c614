"""Data that takes a known time, and a look at everything that tuning must leave alone."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import random
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset

from autotune import limits

SAMPLES = 1600
BATCH = 8
SECONDS = 0.01
"""What one sample takes to read: two workers give 200 of them in a second, and a step takes a small part of that."""
KNOBS: dict[str, Any] = {"batch_size": BATCH, "num_workers": "0,2", "prefetch_factor": 2, "amp": "off", "threads": 1}
KNOBS["budget"] = float(os.environ.get("AUTOTUNE_TEST_BUDGET", "100"))
if "AUTOTUNE_TEST_BUDGET" in os.environ:
    limits.LEAST_BUDGET = 1.0


class Slow(Dataset[Any]):
    """Samples whose batches are waited for; sentences of 1 to 6 words where asked for."""

    def __init__(self, as_sentences: bool = False) -> None:
        self.as_sentences = as_sentences

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        time.sleep(SECONDS)
        return self._sample(index)

    def __getitems__(self, indices: list[int]) -> list[Any]:
        time.sleep(SECONDS * len(indices))
        return [self._sample(index) for index in indices]

    def _sample(self, index: int) -> Any:
        if self.as_sentences:
            return {"input_ids": [index % 50] * (1 + index % 6), "labels": index % 3}
        return torch.full((8,), float(index % 7)), index % 3


def digest(*things: Any) -> str:
    content = hashlib.sha256()
    for thing in things:
        if isinstance(thing, nn.Module):
            for name, tensor in thing.state_dict().items():
                content.update(name.encode() + tensor.numpy().tobytes() + str(tensor.grad).encode())
        else:
            content.update(pickle.dumps(thing))
    content.update(torch.get_rng_state().numpy().tobytes())
    content.update(repr((random.getstate(), np.random.get_state(), torch.get_num_threads())).encode())
    return content.hexdigest()


def say(**facts: Any) -> None:
    sys.stdout.write(json.dumps(facts) + "\n")


def unchanged(look: Callable[[], str], act: Callable[[], Any]) -> tuple[bool, Any]:
    """Return whether a look is the same before and after an act, and what that gave."""
    before = look()
    given = act()
    return look() == before, given
