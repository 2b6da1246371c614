"""Datasets that open what they read when the first sample is read, or keep what they have read.

Each sample takes 2 ms more than it takes to read it, a step 10 ms.
"""

from __future__ import annotations

import functools
import os
import tempfile
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset

from autotune import Workload

__all__ = ["archive", "cached", "client", "mapped", "raw"]

COUNT, WIDTH = 4000, 256
FOLDER = Path(os.environ.get("REAL_JOBS", tempfile.gettempdir())) / "real_jobs"
MAPPED_BYTES = int(float(os.environ.get("MAPPED_GIB", "1")) * 2**30)
"""Size of the mapped file, which has holes instead of data."""


class Slow(nn.Module):
    """A step of 10 ms."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(0.01)
        return self.linear(x)


class Opened(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Samples of something that is opened with the first of them; a sample that is another's is an error."""

    opened: Any = None

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if self.opened is None:
            self.opened = self.open()
        time.sleep(0.002)
        values = np.frombuffer(self.read(index), dtype=np.float32)
        if values[0] not in (0.0, index):
            raise ValueError(f"sample {values[0]:.0f} was read instead of {index}")
        return torch.tensor(values), torch.zeros(1)

    def open(self) -> Any:
        raise NotImplementedError

    def read(self, index: int) -> bytes:
        raise NotImplementedError


class Archive(Opened):
    """A member of a zip file for each sample."""

    def open(self) -> Any:
        return zipfile.ZipFile(_written("samples.zip"))

    def read(self, index: int) -> bytes:
        return bytes(self.opened.read(str(index)))


class Raw(Opened):
    """One file without a buffer, in which every sample has its place."""

    def open(self) -> Any:
        return open(_written("samples.bin"), "rb", buffering=0)

    def read(self, index: int) -> bytes:
        self.opened.seek(4 * WIDTH * index)
        return bytes(self.opened.read(4 * WIDTH))


class Client(Opened):
    """A client that answers from a pool of threads."""

    def open(self) -> Any:
        return ThreadPoolExecutor(4)

    def read(self, index: int) -> bytes:
        return bytes(self.opened.submit(lambda: np.full(WIDTH, index, np.float32).tobytes()).result())


class Mapped(Opened):
    """A mapped file, of which each sample is a piece of 128 KiB."""

    def open(self) -> Any:
        path = FOLDER / "samples.map"
        FOLDER.mkdir(exist_ok=True)
        with path.open("ab") as file:
            file.truncate(MAPPED_BYTES)
        return np.memmap(path, dtype=np.float32, mode="r")

    def read(self, index: int) -> bytes:
        piece, pieces = 2**15, len(self.opened) // 2**15
        part = self.opened[index % pieces * piece :][:piece]
        return bytes(part.reshape(WIDTH, -1).sum(axis=1).tobytes())


class Cached(Opened):
    """Samples of 100 KB are kept once they were read."""

    def open(self) -> Any:
        return functools.lru_cache(COUNT)(lambda index: time.sleep(0.004) or np.full(25_000, index, np.float32))

    def read(self, index: int) -> bytes:
        return bytes(self.opened(index)[:WIDTH].tobytes())


def _written(name: str) -> Path:
    """Return a file of all samples, written by whoever comes first."""
    path = FOLDER / name
    if not path.exists():
        FOLDER.mkdir(exist_ok=True)
        part = path.with_suffix(f".{os.getpid()}")
        rows = [np.full(WIDTH, index, np.float32).tobytes() for index in range(COUNT)]
        if path.suffix == ".zip":
            with zipfile.ZipFile(part, "w") as file:
                for index, row in enumerate(rows):
                    file.writestr(str(index), row)
        else:
            part.write_bytes(b"".join(rows))
        part.rename(path)
    return path


def archive() -> Workload:
    """A zip file."""
    return Workload(Slow(), Archive())


def raw() -> Workload:
    """A file without a buffer."""
    return Workload(Slow(), Raw())


def client() -> Workload:
    """A client with a pool of threads."""
    return Workload(Slow(), Client())


def mapped() -> Workload:
    """A mapped file."""
    return Workload(Slow(), Mapped())


def cached() -> Workload:
    """Samples that are kept."""
    return Workload(Slow(), Cached())
