"""What holds for all tests."""

from __future__ import annotations

import functools
import os
import signal
import uuid
from typing import TYPE_CHECKING

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # read when NumPy is first imported

import pytest
import torch

from tests.processes import MARK, marked
from tests.server import database, server
from tests.sharing import no_process_is_left, shared_processes

__all__ = ["database", "no_process_is_left", "server", "shared_processes"]

if TYPE_CHECKING:
    from collections.abc import Callable

    import psutil

for _number, _usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(_number) is signal.SIG_IGN:  # a script's background, nohup; children would ignore it, too
        signal.signal(_number, _usual)
torch.set_num_threads(1)  # operators are small here, and threads that share a CPU wait for each other


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[psutil.Process]]:
    """Finds every process, however distant, that was started from here on."""
    mark = f"{os.getpid()}-{uuid.uuid4()}"
    monkeypatch.setenv(MARK, mark)
    return functools.partial(marked, mark)
