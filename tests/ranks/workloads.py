"""Workloads for several ranks, whose true rates are known: their steps are sleeps."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset, IterableDataset

from autotune import Workload

SAMPLE, STEP, SYNC = 0.004, 0.150, 0.060
"""Seconds for each sample, in each forward, and in each synchronisation of gradients; what two ranks on two CPUs take
besides (receiving, reducing, waking up) is some 5 ms a step."""
SLOWER = 0.050  # what the second rank's forward takes longer


CLOCK = "AUTOTUNE_TEST_CLOCK"
"""Environment variable with the beginning of files' names: in its own, each rank notes when a forward begins and ends,
in seconds. A sleeper wakes up late."""
FAILS = "AUTOTUNE_TEST_FAILS"
"""Environment variable with the name of a file that says how the second rank fails next; it removes it as it does."""


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


class Sleeping(Dataset[Any]):
    def __init__(self, length: int = 4096, seconds: float = SAMPLE) -> None:
        self.length, self.seconds = length, seconds

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        time.sleep(self.seconds)
        return torch.tensor([float(index)]), torch.tensor([0.0])

    def __getitems__(self, indices: list[int]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        time.sleep(self.seconds * len(indices))  # one sleep for all: each takes a little longer than it is asked to
        return [(torch.tensor([float(index)]), torch.tensor([0.0])) for index in indices]


class Nap(nn.Module):
    """A linear layer that takes its time; ``slower`` in all ranks but the first."""

    def __init__(self, seconds: float = STEP, slower: float = 0.0) -> None:
        super().__init__()
        self.linear = nn.Linear(1, 1)
        self.seconds, self.slower = seconds, slower

    def forward(self, x: torch.Tensor) -> Any:
        begin = time.perf_counter()
        time.sleep(self.seconds + (self.slower if rank() else 0.0))
        if place := os.environ.get(CLOCK):
            with Path(f"{place}{rank()}").open("a", encoding="utf-8") as file:
                file.write(f"{begin} {time.perf_counter()}\n")
        return self.linear(x / 1e4)


def equal() -> Workload:
    return Workload(Nap(), Sleeping())


def unequal() -> Workload:
    return Workload(Nap(slower=SLOWER), Sleeping())


def small() -> Workload:
    return Workload(Nap(seconds=0.01), Sleeping(60))


def slow_sync(model: nn.Module) -> nn.Module:
    """Wrap a model so that each synchronisation takes a known time."""
    replicas = DistributedDataParallel(model)

    def hook(state, bucket):  # type: ignore[no-untyped-def]  # torch refuses what is annotated by name
        time.sleep(SYNC)
        dist.all_reduce(bucket.buffer())
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        future.set_result(bucket.buffer() / dist.get_world_size())
        return future

    replicas.register_comm_hook(None, hook)
    return replicas


def synchronising() -> Workload:
    return Workload(Nap(), Sleeping(), parallelize=slow_sync)


class Failing(Nap):
    """Fails in the second rank, in one of its steps, as the file that ``FAILS`` names says while it is there."""

    def __init__(self, at: int = 60) -> None:
        super().__init__(seconds=0.002)
        self.at, self.steps = at, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.steps += 1
        if rank() == 1 and self.steps >= self.at:
            file = Path(os.environ[FAILS])
            if file.exists():
                how = file.read_text(encoding="utf-8")
                file.unlink()
                HOW_TO_FAIL[how]()
        return super().forward(x)


def _raise() -> None:
    raise ValueError("the second rank has had enough")


def _run_out_of_memory() -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")


HOW_TO_FAIL: dict[str, Callable[[], object]] = {
    "raise": _raise,
    "out_of_memory": _run_out_of_memory,
    "hang": lambda: time.sleep(600),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "crash": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "exit": lambda: os._exit(3),
}


def failing() -> Workload:
    """The second rank fails once, as the environment says."""
    return Workload(Failing(), Sleeping(seconds=0.0))


class Uneven(IterableDataset[Any]):
    """Every rank and every worker yields the same samples."""

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for number in range(4096):
            time.sleep(0.0005)
            yield torch.tensor([float(number)]), torch.tensor([0.0])


def undivided() -> Workload:
    """An iterable dataset that nobody divides among the ranks."""
    return Workload(Nap(seconds=0.005), Uneven())


def sharded(model: nn.Module) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    found: nn.Module = fully_shard(model)
    return found


def shards() -> Workload:
    """Parameters that lie in pieces on all ranks."""
    model = nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 1))
    return Workload(model, Sleeping(seconds=0.0), parallelize=sharded)


def shards_with_an_optimizer() -> Workload:
    """The optimizer has parameters that sharding replaces."""
    model = nn.Sequential(nn.Linear(1, 4), nn.Linear(4, 1))
    return Workload(model, Sleeping(seconds=0.0), optimizer=torch.optim.SGD(model.parameters()), parallelize=sharded)


class Partial(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(1, 1), nn.Linear(1, 1)

    def forward(self, x: torch.Tensor) -> Any:
        return self.used(x / 1e4)


def partial() -> Workload:
    """DistributedDataParallel asks for an argument."""
    return Workload(Partial(), Sleeping(seconds=0.0))


def leaving() -> Workload:
    """The training step ends the process, as if all were well."""

    def step(model: nn.Module, batch: Any) -> torch.Tensor:
        raise SystemExit(0)

    return Workload(Nap(), Sleeping(seconds=0.0), training_step=step)


def data_parallel() -> Workload:
    return Workload(nn.DataParallel(Nap(seconds=0.005)), Sleeping(seconds=0.0))
