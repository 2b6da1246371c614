from __future__ import annotations

import errno
import multiprocessing
import threading

import pytest
import torch
import torch.distributed as dist
from torch._utils import KeyErrorMessage
from torch.utils.data import DataLoader

from autotune.errors import UserCodeError
from autotune.measure.failures import classify
from autotune.measure.rank_launch import RankFailedError, raise_failure
from autotune.outcome import Outcome
from tests.datasets import Squares

KILLED = RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed. ")
BUS_ERROR = RuntimeError("DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that ...")
AFTER_BUS_ERROR = RuntimeError("DataLoader worker (pid(s) 7) exited unexpectedly")
AFTER_BUS_ERROR.__cause__ = BUS_ERROR

NCCL = "NCCL error in: NCCLUtils.cpp:94, {}, NCCL version 2.26.2\n{}: more words.\nLast error:\n{}"
NO_SEGMENT = "Error while creating shared memory segment /dev/shm/nccl-a (size 9637888), error: No space left (28)"
NO_ROOM_TO_PIN = (
    "Caught AcceleratorError in pin memory thread for device 0.\nOriginal Traceback (most recent call last):\n"
    "torch.AcceleratorError: CUDA error: out of memory\nCUDA kernel errors might be ..."
)


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), Outcome.DEVICE_OOM),
        (RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be ..."), Outcome.DEVICE_OOM),
        (RuntimeError("cublas: CUBLAS_STATUS_ALLOC_FAILED when calling x"), Outcome.DEVICE_OOM),
        (MemoryError(), Outcome.HOST_OOM),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried ..."), Outcome.HOST_OOM),
        (RuntimeError("unable to allocate shared memory(shm) for file </torch_1>"), Outcome.SHM),
        (BUS_ERROR, Outcome.SHM),
        (AFTER_BUS_ERROR, Outcome.SHM),
        (KILLED, Outcome.WORKER_DIED),
        (RuntimeError("DataLoader worker (pid(s) 7) exited unexpectedly"), Outcome.WORKER_DIED),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), Outcome.USER_ERROR),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), Outcome.DEVICE_ERROR),
        (torch.AcceleratorError("device-side assert triggered"), Outcome.DEVICE_ERROR),
        (torch.AcceleratorError("CUDA error: out of memory"), Outcome.DEVICE_OOM),
        (torch.AcceleratorError("CUDA error: CUDA-capable device(s) is/are busy or unavailable"), Outcome.SUSPECT),
        (RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"), Outcome.DEVICE_ERROR),
        (RuntimeError("HIP error: invalid device function"), Outcome.DEVICE_ERROR),
        (RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"), Outcome.DEVICE_OOM),
        (RuntimeError("MPS backend out of memory (MPS allocated: 17 GB)"), Outcome.DEVICE_OOM),
        (RuntimeError("cuDNN error: CUDNN_STATUS_NOT_SUPPORTED"), Outcome.USER_ERROR),  # the device is not full
        (OSError(errno.ENOMEM, "Cannot allocate memory"), Outcome.HOST_OOM),
        (
            OSError("Caught OSError in DataLoader worker process 0.\nOSError: [Errno 24] Too many open files"),
            Outcome.SHM,
        ),
        (RuntimeError("received 0 items of ancdata"), Outcome.SHM),
        (RuntimeError("DataLoader timed out after 3 seconds"), Outcome.USER_ERROR),
        (FileNotFoundError(errno.ENOENT, "No such file or directory"), Outcome.USER_ERROR),
        (ValueError("out of memory"), Outcome.USER_ERROR),
        (RuntimeError("NVML_SUCCESS == r INTERNAL ASSERT FAILED at CUDACachingAllocator.cpp:1131"), Outcome.DEVICE_OOM),
        (RuntimeError("Triton Error [CUDA]: out of memory"), Outcome.DEVICE_OOM),
        (RuntimeError("CUDA driver error: out of memory"), Outcome.DEVICE_OOM),
        (RuntimeError("hipErrorOutOfMemory"), Outcome.DEVICE_OOM),
        (
            RuntimeError(
                "Caught RuntimeError in DataLoader worker process 0.\nRuntimeError: Cannot re-initialize CUDA in "
                "forked subprocess. To use CUDA with multiprocessing, you must use the 'spawn' start method"
            ),
            Outcome.UNPICKLABLE,
        ),
        (RuntimeError("Invalid buffer size: 38.15 GiB"), Outcome.DEVICE_OOM),
        (RuntimeError(NO_ROOM_TO_PIN), Outcome.HOST_OOM),
        (
            dist.DistBackendError(
                NCCL.format("unhandled cuda error", "ncclUnhandledCudaError", "Failed to CUDA calloc 8 b")
            ),
            Outcome.DEVICE_OOM,
        ),
        (
            dist.DistBackendError(
                NCCL.format("unhandled cuda error", "ncclUnhandledCudaError", "Cuda failure 2 'out of memory'")
            ),
            Outcome.DEVICE_OOM,
        ),
        (dist.DistBackendError(NCCL.format("unhandled system error", "ncclSystemError", NO_SEGMENT)), Outcome.SHM),
    ],
    ids=lambda value: None if isinstance(value, Exception) else str(value),
)
def test_an_error_is_classified_by_its_type_first_and_then_by_its_text(error: Exception, outcome: Outcome) -> None:
    assert classify(error)[0] is outcome


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("cannot train on 7"), "ValueError: cannot train on 7"),
        (MemoryError(), "MemoryError"),
        (
            RuntimeError("CUDA error: device-side assert triggered\nCUDA kernel errors might ...\nCompile with `X`."),
            "RuntimeError: CUDA error: device-side assert triggered",
        ),
        (
            ValueError("Caught ValueError in DataLoader worker process 0.\nOriginal Traceback ...\nValueError: item 3"),
            "ValueError: item 3",
        ),
        (UserCodeError("the dataset yields no batch"), "the dataset yields no batch"),
        (
            RuntimeError("Caught BadImage in DataLoader worker process 0.\n...\npil.BadImage: no header\nof 8 bytes"),
            "pil.BadImage: no header",
        ),
        (KeyError(KeyErrorMessage("Caught KeyError in DataLoader worker process 1.\n...\nKeyError: 3")), "KeyError: 3"),
        (
            RuntimeError(NO_ROOM_TO_PIN),
            "torch.AcceleratorError: CUDA error: out of memory; pin no memory, or less of it",
        ),
        (
            dist.DistBackendError(NCCL.format("unhandled system error", "ncclSystemError", NO_SEGMENT)),
            f"DistBackendError: {NO_SEGMENT}",
        ),
        (RuntimeError("Caught Silent in DataLoader worker process 1."), "Silent in a loader worker"),
    ],
)
def test_what_went_wrong_is_said_in_one_line(error: Exception, line: str) -> None:
    assert classify(error)[1] == line


@pytest.mark.parametrize(("free", "outcome"), [(1, Outcome.DEVICE_OOM), (50, Outcome.USER_ERROR)])
@pytest.mark.parametrize("status", ["CUDNN_STATUS_NOT_SUPPORTED", "CUBLAS_STATUS_NOT_INITIALIZED when calling `x`"])
def test_a_vague_error_is_for_want_of_memory_where_the_device_is_full(
    status: str, free: int, outcome: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (free, 100))
    assert classify(RuntimeError(f"cuda: {status}"))[0] is outcome


def test_a_dead_worker_is_the_memorys_fault_where_the_kernel_counted_a_kill() -> None:
    outcome, message, _ = classify(KILLED, oom_kills=1)
    assert outcome is Outcome.HOST_OOM
    assert message.startswith("the kernel had run out of memory and killed a loader worker: RuntimeError: DataLoader")


def test_a_worker_may_die_while_its_batch_is_fetched() -> None:
    here, there = multiprocessing.Pipe()
    there.close()
    with here, pytest.raises(EOFError) as caught:
        here.recv()
    assert classify(caught.value)[0] is Outcome.WORKER_DIED
    assert classify(EOFError())[0] is Outcome.USER_ERROR


def test_too_many_open_files_comes_with_the_way_out_and_the_place() -> None:
    try:
        raise OSError(errno.EMFILE, "Too many open files")
    except OSError as error:
        _, message, details = classify(error)
    assert message.endswith("; allow more (ulimit -n), or have fewer batches in flight")
    assert "test_failure_kinds.py" in details


def test_a_timeout_of_the_loader_comes_with_the_way_out() -> None:
    message = classify(RuntimeError("DataLoader timed out after 3 seconds"))[1]
    assert message.endswith("after 3 seconds, the timeout in its own options; allow more, or have smaller batches")


def test_batch_normalisation_on_a_single_sample_comes_with_the_way_out() -> None:
    with pytest.raises(ValueError, match="more than 1 value") as raised:
        torch.nn.BatchNorm1d(4)(torch.zeros(1, 4))
    outcome, message, _ = classify(raised.value)
    assert outcome is Outcome.USER_ERROR
    assert message.endswith("drop that batch (drop_last=True), or take another batch size")


class WithLock(Squares):
    def __init__(self) -> None:
        super().__init__(256)
        self._lock = threading.Lock()


@pytest.mark.filterwarnings("ignore:Got pickle error:UserWarning")
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_what_cannot_be_sent_to_a_worker_is_said_with_the_way_out(method: str) -> None:
    loader = DataLoader(WithLock(), num_workers=1, multiprocessing_context=method)
    with pytest.raises(TypeError) as caught:
        next(iter(loader))
    outcome, message, _ = classify(caught.value)
    assert outcome is Outcome.UNPICKLABLE
    assert f"({method}): TypeError: cannot pickle '_thread.lock' object; define its classes" in message
    assert classify(TypeError("cannot pickle '_thread.lock' object"))[0] is Outcome.USER_ERROR


@pytest.mark.parametrize(
    ("text", "is_cut_off"),
    [
        ("Connection closed by peer [127.0.0.1]:1234", True),
        (NCCL.format("remote process exited or there was a network error", "ncclRemoteError", "socket closed"), True),
        (NCCL.format("unhandled system error", "ncclSystemError", NO_SEGMENT), False),
        ("mat1 and mat2 shapes cannot be multiplied", False),
    ],
)
def test_only_a_rank_that_lost_the_others_waits_for_the_root_cause(
    text: str, is_cut_off: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    monkeypatch.setattr("autotune.measure.rank_launch.time.sleep", slept.append)
    with pytest.raises(RankFailedError):
        raise_failure({}, RuntimeError(text))
    assert bool(slept) == is_cut_off
