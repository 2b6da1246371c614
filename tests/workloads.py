"""Workloads that a measuring process imports: small, slow by sleeping, or broken in one way each.

What is broken breaks only where ``OMP_NUM_THREADS`` is 2, so that another configuration of it can be measured.
"""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
import torch
from torch import nn
from torch.utils.data import Dataset, get_worker_info

from autotune import Workload
from tests.datasets import CountingUp, Squares

if TYPE_CHECKING:
    from collections.abc import Callable

SAMPLE_SECONDS = 0.02
STEP_SECONDS = 0.03
BAD_INDEX = 3
FOREVER = 3600.0
KEPT: list[object] = []


class Sleeping(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        time.sleep(SAMPLE_SECONDS * len(indices))  # once for a batch: a sleeper wakes up late
        return [torch.zeros(1)] * len(indices)


class Quick(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        time.sleep(0.0002 * len(indices))
        return [torch.zeros(1)] * len(indices)


class Faulty(Squares):
    def __init__(self, fault: Callable[[], object]) -> None:
        super().__init__(64)
        self._fault = fault

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if index == BAD_INDEX and is_to_fail():
            self._fault()
        return super().__getitem__(index)


def is_to_fail() -> bool:
    return os.environ.get("OMP_NUM_THREADS") == "2"


class Keeping(Sleeping):
    def __init__(self) -> None:
        self.kept = dict[int, torch.Tensor]()

    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        new = [index for index in indices if index not in self.kept]
        self.kept.update(zip(new, super().__getitems__(new), strict=True))
        return [self.kept[index] for index in indices]


def sleeping(dataset: Sleeping | None = None) -> Workload:
    def step(model: nn.Module, batch: Any) -> torch.Tensor:
        time.sleep(STEP_SECONDS)
        return loss_of(model)

    return Workload(nn.Linear(1, 1), dataset or Sleeping(), training_step=step)


def keeping() -> Workload:
    return sleeping(Keeping())


def loss_of(model: nn.Module) -> torch.Tensor:
    loss: torch.Tensor = model(torch.zeros(1, 1)).sum()
    return loss


class Remembering(nn.Module):
    """Keeps its state from batch to batch, and takes no batch of 7."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.LSTM(1, 1)
        self.state: tuple[torch.Tensor, ...] | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if len(x) == 7:
            raise ValueError("7 samples")
        output, state = self.inner(x[None], self.state)
        self.state = tuple(each.detach() for each in state)
        return torch.as_tensor(output[0])


def remembering() -> Workload:
    return Workload(Remembering(), Squares(40 * 256))


def trained_on(dataset: Callable[..., Any], *given: int) -> Workload:
    return Workload(nn.Linear(1, 1), dataset(*given))


small = partial(trained_on, Squares, 256)


def talkative() -> Workload:
    """Prints, writes to the descriptor and reads input, at every moment that user code runs."""

    def speak() -> None:
        sys.stdout.write("{not json}\n")
        os.write(1, b"nor this\n")
        assert sys.stdin.read() == ""

    def step(model: nn.Module, batch: Any) -> torch.Tensor:
        speak()
        return loss_of(model)

    speak()
    return Workload(nn.Linear(1, 1), Squares(256), training_step=step)


def telling(number: Callable[[], float]) -> Workload:
    def step(model: nn.Module, batch: Any) -> torch.Tensor:
        return loss_of(model) * 0 + number()

    return Workload(nn.Linear(1, 1), Squares(256), training_step=step)


telling_process = partial(telling, os.getpid)
telling_frozen = partial(telling, gc.get_freeze_count)


def telling_parent_and_waiting_at_exit() -> Workload:
    atexit.register(time.sleep, FOREVER)
    KEPT.append(tempfile.TemporaryDirectory(prefix="of-workload-"))
    return telling(os.getppid)


def telling_threads() -> Workload:
    """10 times the thread count in the environment that the process was started with, plus torch's."""

    def number() -> float:
        return 10 * int(psutil.Process().environ().get("OMP_NUM_THREADS", "0")) + torch.get_num_threads()

    return telling(number)


def raising_at_batch_size_7() -> Workload:
    def step(model: nn.Module, batch: Any) -> torch.Tensor:
        if len(batch[0]) == 7:
            raise ValueError("cannot train on 7")
        return loss_of(model) * 0 + os.getpid()

    return Workload(nn.Linear(1, 1), Squares(70), training_step=step)


def nan_at_batch_size_7() -> Workload:
    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return output.sum() * (float("nan") if len(output) == 7 else 1.0)

    return Workload(nn.Linear(1, 1), Squares(70), loss=loss)


# --- broken in one way each ---


def broken(fault: Callable[[], object]) -> Workload:
    return Workload(nn.Linear(1, 1), Faulty(fault))


def raise_value_error() -> None:
    raise ValueError(f"item {BAD_INDEX} is broken")


def fail(kind: type[Exception], *words: str) -> Workload:
    raise kind(*words)


def kill_itself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def in_worker(fault: Callable[[], object]) -> Callable[[], object]:
    return lambda: get_worker_info() and fault()


item_raises = partial(broken, raise_value_error)
item_raises_in_worker = partial(broken, in_worker(raise_value_error))
killed = partial(broken, kill_itself)
worker_killed = partial(broken, in_worker(kill_itself))
hangs = partial(broken, partial(time.sleep, FOREVER))
worker_out_of_memory = partial(broken, in_worker(partial(fail, MemoryError)))
allocates_too_much = partial(broken, partial(torch.empty, 2**50))


def loss_is_nan() -> Workload:
    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return output.sum() * (float("nan") if is_to_fail() else 1.0)

    return Workload(nn.Linear(1, 1), Squares(256), loss=loss)


def collate_raises_in_worker() -> Workload:
    def collate(samples: list[Any]) -> Any:
        if get_worker_info() and is_to_fail():
            raise ValueError("cannot collate")
        return torch.utils.data.default_collate(samples)

    return Workload(nn.Linear(1, 1), Squares(256), collate_fn=collate)


# --- wrong from the start ---

build_raises = partial(fail, ZeroDivisionError, "their build fails")
build_finds_no_context = partial(
    fail, torch.AcceleratorError, "CUDA error: out of memory\nCUDA kernel errors might be ..."
)
build_finds_the_device_taken = partial(
    fail, torch.AcceleratorError, "CUDA error: CUDA-capable device(s) is/are busy or unavailable\nCUDA kernel ..."
)
build_finds_no_memory = partial(fail, MemoryError)
build_finds_no_shared_memory = partial(fail, RuntimeError, "unable to allocate shared memory(shm) for file </torch_1>")
with_empty_dataset = partial(trained_on, Squares, 0)
with_empty_stream = partial(trained_on, CountingUp, 0)


def that_does_not_fit() -> Workload:
    return Workload(nn.Linear(5, 1), Squares(256))


def without_parameters() -> Workload:
    return Workload(nn.ReLU(), Squares(256))


class EveryItemRaises(Squares):
    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        raise KeyError(f"their item {index}")


every_item_raises = partial(trained_on, EveryItemRaises, 64)


def asks_the_terminal() -> Workload:
    with open("/dev/tty") as terminal:
        terminal.readline()
    raise AssertionError("somebody has answered")


def ten_loadings() -> Workload:
    """A step takes ten times as long as loading its batch, whatever its size."""

    def step(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        time.sleep(0.002 * len(batch))
        loss: torch.Tensor = model(batch).sum()
        return loss

    return Workload(nn.Linear(1, 1), Quick(), training_step=step)


def telling_options() -> Workload:
    """Reports as its loss whether channels come last in its weights, plus 2 where the optimizer is fused."""
    made: list[torch.optim.Optimizer] = []

    def optimizer(parameters: Any) -> torch.optim.Optimizer:
        made.append(torch.optim.SGD(parameters, lr=0.1))
        return made[-1]

    def step(model: nn.Module, batch: Any) -> torch.Tensor:
        weight: Any = model.weight
        is_last = weight.is_contiguous(memory_format=torch.channels_last)
        is_fused = bool(made[-1].param_groups[0]["fused"])
        return weight.sum() * 0 + is_last + 2 * is_fused

    return Workload(nn.Conv2d(2, 2, 2), Squares(256), optimizer=optimizer, training_step=step)


class TellingWhoReads(Squares):
    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        with open(os.environ["WHO_READS"], "a") as file:
            file.write(f"{os.getpid()} {os.getppid()} {get_worker_info() is not None}\n")
        return super().__getitem__(index)


telling_who_reads = partial(trained_on, TellingWhoReads, 1024)


class Numbers(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Numbers behind something that is opened when the first is read, as many datasets do it."""

    opened: Any = None

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if self.opened is None:
            self.opened = self.open()
        if (found := self.read(index)) != index:
            raise ValueError(f"{found} is read instead of {index}")
        return torch.tensor([float(index)]), torch.tensor([float(found)])

    def open(self) -> Any:
        raise NotImplementedError

    def read(self, index: int) -> int:
        raise NotImplementedError


class InFile(Numbers):
    """A file without a buffer: whoever shares its offset reads what is another's."""

    def open(self) -> Any:
        path = os.environ["DATA"]
        if not os.path.exists(path):
            with open(path, "wb") as file:
                file.write(np.arange(len(self), dtype="<i8").tobytes())
        return open(path, "rb", buffering=0)  # for as long as the dataset lives

    def read(self, index: int) -> int:
        self.opened.seek(8 * index)
        time.sleep(0.0002)
        return int.from_bytes(self.opened.read(8), "little")


class BehindThreads(Numbers):
    """A client with a pool of threads, of which none lives in a fork."""

    def open(self) -> Any:
        return ThreadPoolExecutor(2)

    def read(self, index: int) -> int:
        return int(self.opened.submit(lambda: index).result())


opening_a_file_late = partial(trained_on, InFile)
with_a_client_of_threads = partial(trained_on, BehindThreads)
