"""One rank fails: the trial ends with the right outcome, nothing is left of it, and the next one does not notice."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import psutil
import pytest

from autotune.config import Config
from autotune.records import Outcome, Request
from autotune.runner import ProcessRunner
from autotune.workload import describe
from tests.processes import MARK, are_gone, marked
from tests.ranks.workloads import FAILED, HOW

CONFIG = Config(batch_size=8, num_workers=1, ranks=2)
LIMIT = 12.0
"""Seconds that a trial may take."""
FAILURES = {
    "raise": (Outcome.USER_ERROR, "rank 1 of 2: ValueError: the second rank has had enough"),
    "out_of_memory": (Outcome.DEVICE_OOM, "rank 1 of 2: OutOfMemoryError: CUDA out of memory"),
    "hang": (Outcome.TIMEOUT, "no answer within 12 s: it was in <lambda>, workloads.py line "),
    "kill": (Outcome.HOST_OOM, "rank 1: the process was killed (signal 9)"),
    "crash": (Outcome.CRASHED, "rank 1: the process ended without an answer (segmentation fault"),
    "exit": (Outcome.CRASHED, "rank 1: the process ended without an answer (exit code 3)"),
}


MORE = [how for how in FAILURES if how not in ("raise", "kill")]


def has_taken_longer(limit: float, begin: float) -> bool:
    return time.monotonic() - begin > limit


def can_be_bound(port: int) -> bool:
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do; one that listens still refuses
        try:
            other.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


@pytest.mark.parametrize("repetition", [0, *(pytest.param(number, marks=pytest.mark.slow) for number in range(1, 5))])
@pytest.mark.parametrize("how", ["raise", "kill", *(pytest.param(how, marks=pytest.mark.slow) for how in MORE)])
def test_a_rank_that_fails_ends_the_trial_and_nothing_else(
    how: str, repetition: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome, message = FAILURES[how]
    failed, mark = tmp_path / "failed", f"{how}-{repetition}-{os.getpid()}"
    monkeypatch.setenv(HOW, how)
    monkeypatch.setenv(FAILED, str(failed))
    monkeypatch.setenv(MARK, mark)
    with ProcessRunner(describe("tests.ranks.workloads:failing"), "cpu") as runner:
        runner.inspect(CONFIG)
        begin = time.monotonic()
        attempt = runner.measure(CONFIG, Request(seconds=2.0, time_limit=LIMIT))
        assert not has_taken_longer(LIMIT + 15, begin)
        assert (attempt.outcome, attempt.message[: len(message)]) == (outcome, message), attempt
        if how == "hang":
            assert attempt.message.endswith("of rank 1")
        assert are_gone(lambda: [each for each in marked(mark) if len(each.parents()) > depth_of_guard()])
        assert can_be_bound(int(failed.read_text(encoding="ascii")))
        again = runner.measure(CONFIG, Request(seconds=1.0, time_limit=60.0))
        assert again.found, again
    assert are_gone(lambda: marked(mark))


def depth_of_guard() -> int:
    """How many processes are above the one that sessions are forked from, itself included."""
    return len(psutil.Process().parents()) + 1
