"""Faults that strike one trial of a running study, whatever its configuration: as long as a flag file is there."""

from __future__ import annotations

import ctypes
import functools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset, default_collate, get_worker_info

from autotune.outcome import Outcome
from autotune.workload import Workload

FLAG = "AUTOTUNE_TEST_FLAG"  # environment variable with the path of the file that switches the fault on
NAME = "AUTOTUNE_TEST_FAULT"  # the same with the name of the fault
FOREVER = 10_000.0
STEP_SECONDS = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One way to break a trial."""

    outcome: Outcome  # what it is to be told as
    item: Callable[[], object] | None = None
    """What a sample does in the process that loads it; without workers in the training process."""
    collate: Callable[[], object] | None = None  # the same for making a batch
    step: Callable[[], object] | None = None  # the same in the training step, before the loss
    loss: Callable[[torch.Tensor], torch.Tensor] | None = None  # what becomes of the loss
    optimizer: Callable[[], object] | None = None  # what the optimizer's step does
    in_workers: bool = False  # whether batches are built in a worker


def fail(error: BaseException) -> Callable[[], object]:
    def raise_it() -> None:
        raise error

    return raise_it


def send_itself(number: signal.Signals) -> Callable[[], object]:
    return lambda: os.kill(os.getpid(), number)


def recurse() -> None:
    recurse()


def open_files_without_end() -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    opened = []
    while True:
        opened.append(os.open(os.devnull, os.O_RDONLY))


def leave_processes_and_die() -> None:
    sleep = [sys.executable, "-c", f"import time; time.sleep({FOREVER})"]
    subprocess.Popen(sleep)
    subprocess.Popen(sleep, start_new_session=True)
    os._exit(7)


class FailingBackward(torch.autograd.Function):
    """Passes a number on, and runs out of memory on the way back."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        raise out_of_device_memory()


def out_of_device_memory() -> torch.OutOfMemoryError:
    return torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


def backward_fails(loss: torch.Tensor) -> Any:
    return FailingBackward.apply(loss)  # type: ignore[no-untyped-call]


read_address_zero = functools.partial(ctypes.string_at, 0)
hang = functools.partial(time.sleep, FOREVER)
crash, user_error = Outcome.CRASHED, Outcome.USER_ERROR
host_oom, device_oom, worker_died = Outcome.HOST_OOM, Outcome.DEVICE_OOM, Outcome.WORKER_DIED

FAULTS: dict[str, Fault] = {
    # in the dataset
    "item raises": Fault(outcome=user_error, item=fail(ValueError("their item is broken"))),
    "item recurses": Fault(outcome=user_error, item=recurse),
    "item runs out of files": Fault(outcome=Outcome.SHM, item=open_files_without_end),
    "item runs out of memory": Fault(outcome=host_oom, item=fail(MemoryError())),
    "item allocates a pebibyte": Fault(outcome=host_oom, item=lambda: torch.empty(2**48)),
    "item is killed": Fault(outcome=host_oom, item=send_itself(signal.SIGKILL)),
    "item hangs": Fault(outcome=Outcome.TIMEOUT, item=hang),
    "item exits with 3": Fault(outcome=crash, item=functools.partial(os._exit, 3)),
    "item exits with 0": Fault(outcome=crash, item=functools.partial(os._exit, 0)),
    "item asks Python to exit": Fault(outcome=crash, item=fail(SystemExit("their exit"))),
    "item raises KeyboardInterrupt": Fault(outcome=crash, item=fail(KeyboardInterrupt())),
    "item reads address zero": Fault(outcome=crash, item=read_address_zero),
    "item aborts": Fault(outcome=crash, item=os.abort),
    "item gets a bus error": Fault(outcome=Outcome.SHM, item=send_itself(signal.SIGBUS)),
    "item leaves processes and exits": Fault(outcome=crash, item=leave_processes_and_die),
    "collating raises": Fault(outcome=user_error, collate=fail(TypeError("cannot collate"))),
    # in the step
    "step raises": Fault(outcome=user_error, step=fail(IndexError("their step is broken"))),
    "step hangs": Fault(outcome=Outcome.TIMEOUT, step=hang),
    "step reads address zero": Fault(outcome=crash, step=read_address_zero),
    "loss is not a number": Fault(outcome=Outcome.NUMERICS, loss=lambda loss: loss * float("nan")),
    "loss is infinite": Fault(outcome=Outcome.NUMERICS, loss=lambda loss: loss + float("inf")),
    "device out of memory in forward": Fault(outcome=device_oom, step=fail(out_of_device_memory())),
    "device out of memory in backward": Fault(outcome=device_oom, loss=backward_fails),
    "device out of memory in the optimizer": Fault(outcome=device_oom, optimizer=fail(out_of_device_memory())),
    "device out of memory in cuBLAS": Fault(
        outcome=device_oom, step=fail(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `x`"))
    ),
    "device in an error that stays": Fault(
        outcome=Outcome.DEVICE_ERROR, step=fail(RuntimeError("CUDA error: device-side assert triggered"))
    ),
    # in a worker
    "worker raises": Fault(outcome=user_error, item=fail(KeyError("their item")), in_workers=True),
    "worker runs out of memory": Fault(outcome=host_oom, item=fail(MemoryError()), in_workers=True),
    "worker is killed": Fault(outcome=worker_died, item=send_itself(signal.SIGKILL), in_workers=True),
    "worker exits": Fault(outcome=worker_died, item=functools.partial(os._exit, 5), in_workers=True),
    "worker reads address zero": Fault(outcome=worker_died, item=read_address_zero, in_workers=True),
    "worker hangs": Fault(outcome=Outcome.TIMEOUT, item=hang, in_workers=True),
    "worker cannot collate": Fault(outcome=user_error, collate=fail(TypeError("no")), in_workers=True),
    "worker leaves processes and exits": Fault(outcome=worker_died, item=leave_processes_and_die, in_workers=True),
}  # every fault by its name


def strike(do: Callable[[], object] | None, *, in_workers: bool) -> None:
    """Do it, where the fault is switched on, and in the process that it is for."""
    if do is not None and is_on() and bool(get_worker_info()) == in_workers:
        do()


def is_on() -> bool:
    return Path(os.environ[FLAG]).exists()


class Samples(Dataset[torch.Tensor]):
    """Numbers without end, nearly."""

    def __init__(self, fault: Fault) -> None:
        self._fault = fault

    def __len__(self) -> int:
        return 10**6

    def __getitem__(self, index: int) -> torch.Tensor:
        strike(self._fault.item, in_workers=self._fault.in_workers)
        return torch.ones(1)


class Optimizer(torch.optim.SGD):
    """Plain gradient descent that may fail."""

    def __init__(self, parameters: Any, fault: Fault) -> None:
        super().__init__(parameters, lr=1e-6)
        self._fault = fault

    def step(self, closure: Any = None) -> Any:
        strike(self._fault.optimizer, in_workers=False)
        return super().step(closure)


def build() -> Workload:
    """Make the workload of the fault that the environment names: larger batches pay, since a step takes its time."""
    fault = FAULTS[os.environ[NAME]]

    def collate(samples: list[torch.Tensor]) -> Any:
        strike(fault.collate, in_workers=fault.in_workers)
        return default_collate(samples)

    def step(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        strike(fault.step, in_workers=False)
        time.sleep(STEP_SECONDS)
        loss: torch.Tensor = model(batch).mean()
        return fault.loss(loss) if fault.loss and is_on() else loss

    optimizer = functools.partial(Optimizer, fault=fault)
    return Workload(nn.Linear(1, 1), Samples(fault), collate_fn=collate, training_step=step, optimizer=optimizer)
