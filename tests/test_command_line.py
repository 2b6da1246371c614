"""The command line as a user runs it: another process, the real tuning, real signals."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

import autotune
from autotune.cli import main
from tests.processes import MARK, marked
from tests.server import environment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.machine

PACKAGE = Path(autotune.__file__).parent
PATIENCE = 120.0
"""Seconds after which something that must happen has not happened."""


def workload(name: str) -> tuple[str, str]:
    return "--model", f"tests.workloads:{name}"


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The working folder of commands that go wrong: one for all, as processes are shared within a folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder := tmp_path_factory.mktemp("empty"))
        yield folder


TRACEBACK = ("Traceback (most recent call last):\n", 'tests/workloads.py", line ', ", in __getitem__\n")
"""What an error in an item shows."""


@pytest.mark.parametrize(
    ("flags", "exit_code", "message"),
    [
        (("--model", "no_such_module:build"), 2, "--model no_such_module: no module named 'no_such_module' here;"),
        (workload("with_empty_dataset"), 2, "the dataset is empty"),
        ((*workload("small"), "--pin-memory", "true"), 2, "--pin-memory true: pinning needs an accelerator"),
        ((*workload("small"), "--batch-size", "512"), 2, "--batch-size 512: an epoch has only 256 samples"),
        ((*workload("small"), "--device", "cuda:99"), 2, "--device cuda:99: "),
        (workload("build_raises"), 3, "ZeroDivisionError: their build fails"),
        (workload("every_item_raises"), 3, "the baseline configuration fails: KeyError: 'their item "),
        (workload("with_empty_stream"), 3, "the baseline configuration fails: the dataset yields no batch"),
        (workload("that_does_not_fit"), 3, "the baseline configuration fails: RuntimeError: mat1 and mat2"),
        (workload("without_parameters"), 3, "the baseline configuration fails: the model has no parameter that"),
    ],
)
@pytest.mark.usefixtures("shared_processes")
def test_wrong_input_gives_an_exit_code_and_one_line(
    empty: Path, capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], exit_code: int, message: str
) -> None:
    device = () if "--device" in flags else ("--device", "cpu")
    code = main([*flags, *device, "--budget", "30s"])
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert code == exit_code, err
    assert sum(line.startswith("autotune: error: ") for line in lines) == 1, err
    assert lines[-1].startswith("autotune: error: ")
    assert message in lines[-1]
    assert out == ""
    assert str(PACKAGE) not in err
    assert exit_code == 3 or "Traceback" not in err
    assert "their item" not in message or all(part in err for part in TRACEBACK)
    assert not list(empty.iterdir())


@pytest.mark.skipif(sys.platform != "linux", reason="terminals differ")
def test_code_that_asks_the_terminal_is_told_that_there_is_none_and_does_not_hang(tmp_path: Path) -> None:
    import pty

    number, terminal = pty.fork()
    if number == 0:  # as in a shell: the leader of a session, in the foreground
        os.chdir(tmp_path)
        command = [sys.executable, "-m", "autotune", *workload("asks_the_terminal"), "--device", "cpu"]
        os.execve(sys.executable, command, environment())
    said, begin = b"", time.monotonic()
    with contextlib.suppress(OSError):  # the terminal is gone with its last user
        while piece := os.read(terminal, 4096):
            said += piece
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(number, 0)[1]) == 3
    assert b"No such device or address" in said
    assert time.monotonic() - begin < PATIENCE


# --- Ctrl-C ---


def start(folder: Path, *flags: str) -> subprocess.Popen[str]:
    """Start a command line in a folder."""
    folder.mkdir(exist_ok=True)
    command, pipes = [sys.executable, "-m", "autotune", *flags], {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, cwd=folder, env=environment(), text=True, **pipes)


class Running:
    """A run that a test can interrupt, and whose processes it can find by a mark in their environment."""

    def __init__(self, folder: Path, *flags: str, new_group: bool = False) -> None:
        self._mark = str(uuid.uuid4())
        self.errors = folder / "errors"
        with self.errors.open("w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "autotune", *flags, "--device", "cpu"],
                cwd=folder,
                env=environment(**{MARK: self._mark}),
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                process_group=0 if new_group else None,
                preexec_fn=functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # as on a terminal
            )

    def children(self) -> list[psutil.Process]:
        return [process for process in marked(self._mark) if process.pid != self.process.pid]

    def interrupt(self) -> tuple[int, str, str]:
        """Send the signal; returns exit code, stdout and stderr."""
        self.process.send_signal(signal.SIGINT)
        out, _ = self.process.communicate(timeout=300)
        return self.process.returncode, out, self.errors.read_text()

    def lines(self) -> int:
        return len(self.errors.read_text().splitlines())


def wait_until(claim: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE
    while not claim():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


def test_ctrl_c_before_anything_is_known_ends_the_run_and_all_its_processes(tmp_path: Path) -> None:
    running = Running(tmp_path, *workload("small"))
    wait_until(running.children)
    code, out, errors = running.interrupt()
    assert (code, out) == (130, "")
    assert "nterrupted" in errors
    assert "Traceback" not in errors
    wait_until(lambda: not running.children())


def test_ctrl_c_during_the_search_writes_what_is_known(tmp_path: Path) -> None:
    flags = ("--num-workers", "1", "--batch-size", "8", "--threads", "1", "--baseline", "batch_size=8")
    running = Running(tmp_path, *workload("sleeping"), *flags, "--budget", "10m")
    wait_until(lambda: "\n  0 " in "\n" + running.errors.read_text())
    code, out, errors = running.interrupt()
    assert code == 130, errors
    assert "nterrupted" in errors
    assert "Traceback" not in errors
    assert out.startswith("autotune: 1\n")
    assert "Written: autotune.yaml" in errors
    assert autotune.load_config(tmp_path / "autotune.yaml").batch_size == 8
    wait_until(lambda: not running.children())
