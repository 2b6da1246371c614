"""Workloads that break the process that runs them, or leave things behind; as in ``tests.workloads``, where 2 threads
are asked for."""

from __future__ import annotations

import ctypes
import multiprocessing
import subprocess
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils.data import Dataset, default_collate, get_worker_info

from autotune import Workload
from tests.datasets import Squares
from tests.workloads import FOREVER, broken, in_worker, is_to_fail, loss_of, trained_on

if TYPE_CHECKING:
    from collections.abc import Callable

MIB = 2**20


# --- crashes ---


def read_address_zero() -> None:
    ctypes.string_at(0)


segfaults = partial(broken, read_address_zero)
worker_segfaults = partial(broken, in_worker(read_address_zero))


class Growing(Squares):
    """Takes so many bytes with every item, in the configuration that is to fail."""

    def __init__(self, count: int, seconds: float, *, only_in_workers: bool = False) -> None:
        super().__init__(10**6)
        self._only_in_workers = only_in_workers
        self._count = count
        self._seconds = seconds
        self._kept: list[bytearray] = []

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if is_to_fail() and (get_worker_info() or not self._only_in_workers):
            self._kept.append(bytearray(b"1" * self._count))
            time.sleep(self._seconds)
        return super().__getitem__(index)


def growing(*given: Any, **options: Any) -> Workload:
    return Workload(nn.Linear(1, 1), Growing(*given, **options), sampler=range(10**6))


grows_slowly = partial(growing, 8 * MIB, 0.1)
grows_at_once = partial(growing, 4096 * MIB, 0.0)
grows_at_once_in_worker = partial(growing, 4096 * MIB, 0.0, only_in_workers=True)


# --- other ways to start workers ---


class HangingInWorker(Squares):
    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        worker = get_worker_info()
        if worker and worker.id == 0 and index > 20:
            time.sleep(FOREVER)
        return super().__getitem__(index)


def hangs_in(method: str, strategy: str = "file_descriptor") -> Workload:
    multiprocessing.set_start_method(method, force=True)
    torch.multiprocessing.set_sharing_strategy(strategy)
    return Workload(nn.Linear(1, 1), HangingInWorker(256), sampler=range(256))


hangs_spawned = partial(hangs_in, "spawn")
hangs_sharing_files = partial(hangs_in, "fork", "file_system")


# --- leaves processes behind ---


class StartingOthers(Squares):
    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if index == 0:
            leave_processes()
        return super().__getitem__(index)


SLEEP = [sys.executable, "-c", f"import time; time.sleep({FOREVER})"]


def leave_processes() -> None:
    """Start one in this group, one in a session of its own, and one that has lost its parent and its environment."""
    subprocess.Popen(SLEEP)
    subprocess.Popen(SLEEP, start_new_session=True)
    orphaning = f"import subprocess; subprocess.Popen({SLEEP!r}, start_new_session=True)"
    subprocess.run([sys.executable, "-c", orphaning], check=True)


starting_others = partial(trained_on, StartingOthers, 64)


# --- too little shared memory ---


class Large(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.zeros(MIB // 4)


def stack_without_sharing(samples: list[torch.Tensor]) -> torch.Tensor:
    """Unlike torch's own function: the batch is moved to shared memory later, by the thread that sends it."""
    return torch.stack(samples)


def large_batches(collate: Callable[[list[Any]], Any]) -> Workload:
    def step(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        time.sleep(0.2)  # the workers are ahead
        return loss_of(model)

    return Workload(nn.Linear(1, 1), Large(), collate_fn=collate, training_step=step)


large_batches_shared = partial(large_batches, default_collate)
large_batches_sent = partial(large_batches, stack_without_sharing)
