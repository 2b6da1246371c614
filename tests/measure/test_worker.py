from __future__ import annotations

import pytest
import torch

from autotune.config import Config
from autotune.errors import UserCodeError
from autotune.measure.worker import Session, classify
from autotune.records import Outcome, Request
from tests import workloads


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), Outcome.DEVICE_OOM),
        (RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be ..."), Outcome.DEVICE_OOM),
        (RuntimeError("cublas: CUBLAS_STATUS_ALLOC_FAILED when calling x"), Outcome.DEVICE_OOM),
        (MemoryError(), Outcome.HOST_OOM),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried ..."), Outcome.HOST_OOM),
        (RuntimeError("unable to allocate shared memory(shm) for file </torch_1>"), Outcome.SHM),
        (
            RuntimeError("DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that ..."),
            Outcome.SHM,
        ),
        (
            caused(
                RuntimeError("DataLoader worker (pid(s) 7) exited unexpectedly"),
                RuntimeError("DataLoader worker (pid 7) is killed by signal: Bus error. It is possible ..."),
            ),
            Outcome.SHM,
        ),
        (RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed. "), Outcome.WORKER_DIED),
        (RuntimeError("DataLoader worker (pid(s) 7) exited unexpectedly"), Outcome.WORKER_DIED),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), Outcome.USER_ERROR),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), Outcome.USER_ERROR),
        (ValueError("out of memory"), Outcome.USER_ERROR),
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
    ],
)
def test_what_went_wrong_is_said_in_one_line(error: Exception, line: str) -> None:
    assert classify(error)[1] == line


def test_a_session_refuses_what_another_configuration_has_left_on_its_model() -> None:
    session = Session(workloads.telling_options(), "cpu")
    request = Request(seconds=0.1, part="compute")
    config = Config(batch_size=8, options=("channels_last",))
    assert session.measure(Config(batch_size=8), request).compute is not None
    assert session.measure(config, request).compute is not None
    refused = session.measure(Config(batch_size=8), request)
    assert (refused.outcome, refused.compute) == (Outcome.USER_ERROR, None)
    assert refused.message == "this session's model has channels_last: open another session"
