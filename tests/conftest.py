"""What holds for all tests: which of them may start what, and which may be tried again."""

from __future__ import annotations

import functools
import gc
import os
import shutil
import signal
import tempfile
import uuid
from typing import TYPE_CHECKING

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # read when NumPy is first imported

import hypothesis
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
hypothesis.settings.register_profile("busy", deadline=None)  # how long an example takes is the machine's matter
hypothesis.settings.load_profile("busy")
torch.set_num_threads(1)  # operators are small here, and threads that share a CPU wait for each other


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[psutil.Process]]:
    """Finds every process, however distant, that was started from here on."""
    mark = f"{os.getpid()}-{uuid.uuid4()}"
    monkeypatch.setenv(MARK, mark)
    return functools.partial(marked, mark)


def pytest_configure(config: pytest.Config) -> None:
    """Keep all temporary files together: a process that a test kills leaves its own."""
    if not hasattr(config, "workerinput"):  # those that run side by side take over the folder
        os.environ["TMPDIR"] = tempfile.tempdir = tempfile.mkdtemp(prefix="t-")  # short, as sockets have short paths
        os.chmod(tempfile.tempdir, 0o711)  # a database server is another user's


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove what was left there."""
    if not hasattr(config, "workerinput"):
        shutil.rmtree(os.environ["TMPDIR"], ignore_errors=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Try again, twice at most, what the machine may have disturbed; where the plugin for that is there."""
    if config.pluginmanager.hasplugin("rerunfailures"):
        for item in items:
            if item.get_closest_marker("machine"):
                item.add_marker(pytest.mark.flaky(reruns=2))


@pytest.fixture(autouse=True, scope="module")
def what_is_there_is_frozen() -> None:
    """Spare the collector what torch, pytest and earlier tests have left: measuring calls it, for up to a second."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def no_measuring_process(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests without a marker are quick and run side by side, so they start none."""
    if not any(map(request.node.get_closest_marker, ("machine", "server", "smoke", "gpu"))):
        monkeypatch.setattr("autotune.runner.local.MeasuringProcess", refuse_to_start)


def refuse_to_start(*_: object, **options: object) -> None:
    pytest.fail("a test that starts a measuring process has the marker machine, server or smoke")
