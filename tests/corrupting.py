"""A workload that spoils what its session tells the tuner, in one way for each of some batch sizes."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import struct
import sys
from typing import TYPE_CHECKING, Any

from torch import nn

from autotune import Workload
from autotune.protocol import LARGEST
from tests.datasets import Squares
from tests.workloads import loss_of

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

WRONG = {"outcome": "ok", "message": "this is to another request"}


def corrupting() -> Workload:
    """Reports the batch size as its loss, so that each reply tells what it was for."""

    def step(model: nn.Module, batch: Any) -> torch.Tensor:
        if len(batch[0]) in SPOILT.values():
            WAYS[len(batch[0]) - FIRST]()
        return loss_of(model) * 0 + len(batch[0])

    return Workload(nn.Linear(1, 1), Squares(10_000), training_step=step, loader_options={"drop_last": True})


def _write_to(numbers: range) -> None:
    for number in numbers:
        try:
            os.write(number, b"42\n")
        except OSError:
            continue


def encode(number: int, document: dict[str, Any]) -> bytes:
    content = json.dumps([number, document]).encode()
    return struct.pack("!i", len(content)) + content


def _spoil(change: Callable[[int, bytes, int], bytes], then: Callable[[], object] = bool) -> None:
    """Have the session send another reply: a function of its number, its frame, and any position in that."""

    def send(channel: Any, number: int, document: dict[str, Any]) -> None:
        frame = encode(number, document)
        sent = change(number, frame, random.randrange(1, len(frame) - 1))
        while sent:
            sent = sent[os.write(channel.fileno(), sent) :]
        then()

    vars(sys.modules["__main__"])["Channel"].send = send


def _half_of_megabytes(number: int, frame: bytes, position: int) -> bytes:
    large = encode(number, {**WRONG, "details": "x" * 2**22})
    return large[: len(large) // 2]


_WAYS: dict[str, Callable[[], object]] = {
    "write to low descriptors": lambda: _write_to(range(3, 256)),
    "write to all descriptors": lambda: _write_to(range(3, resource.getrlimit(resource.RLIMIT_NOFILE)[0])),
    "cut": lambda: _spoil(lambda number, frame, position: frame[:position]),
    "cut and exit": lambda: _spoil(lambda number, frame, position: frame[:position], lambda: os._exit(0)),
    "cut and kill": lambda: _spoil(_half_of_megabytes, lambda: os.kill(os.getpid(), signal.SIGKILL)),
    "noise": lambda: _spoil(lambda number, frame, position: os.urandom(64) + frame),
    "stale": lambda: _spoil(lambda number, frame, position: encode(number - 1, WRONG) + frame),
    "early": lambda: _spoil(lambda number, frame, position: encode(number + 1, WRONG) + frame),
    "twice": lambda: _spoil(lambda number, frame, position: frame + frame),
    "oversized": lambda: _spoil(lambda number, frame, position: encode(number, {"details": "x" * LARGEST})),
}
FIRST = 101
SPOILT = {name: FIRST + number for number, name in enumerate(_WAYS)}
"""The batch size at which each of them happens."""
WAYS = list(_WAYS.values())
