"""Has one rank of a trial fail, and looks at what becomes of the trial, of its processes, and of the next one."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from autotune.config import Config
from autotune.outcome import Outcome
from autotune.records import Attempt, Request
from autotune.runner.local import ProcessRunner
from autotune.workload import describe
from tests.processes import MARK, are_gone, marked
from tests.ranks.workloads import FAILS

CONFIG = Config(batch_size=8, num_workers=1, ranks=2)
LIMIT = 6.0  # seconds that a trial may take
FAILURES = {
    "raise": (Outcome.USER_ERROR, "rank 1 of 2: ValueError: the second rank has had enough"),
    "out_of_memory": (Outcome.DEVICE_OOM, "rank 1 of 2: OutOfMemoryError: CUDA out of memory"),
    "hang": (Outcome.TIMEOUT, "no answer within 6 s: it was in <lambda>, workloads.py line "),
    "kill": (Outcome.HOST_OOM, "rank 1: the process was killed (signal 9)"),
    "crash": (Outcome.CRASHED, "rank 1: the process ended without an answer (segmentation fault"),
    "exit": (Outcome.CRASHED, "rank 1: the process ended without an answer (exit code 3)"),
}  # how the second rank fails, the outcome of that, and how its message begins


@dataclass(frozen=True, slots=True, kw_only=True)
class Struck:
    attempt: Attempt
    seconds: float  # until the trial had ended
    is_trial_gone: bool  # whether none of its processes is left
    next: Attempt  # the same configuration, measured after it
    is_all_gone: bool = False  # whether no process is left once the runner is closed


def strike(ways: Iterable[str], failed: Path) -> dict[str, Struck]:
    """Measure with two ranks, of which the second fails once in each of the ways, one after another.

    ``failed`` is a new file, which says how the next failure is to be, and is gone once it has come.
    """
    found, mark = dict[str, Struck](), str(failed)
    with (
        _environment({FAILS: str(failed), MARK: mark}),
        ProcessRunner(describe("tests.ranks.workloads:failing"), "cpu") as runner,
    ):
        runner.inspect(CONFIG)
        for how in ways:
            failed.write_text(how, encoding="utf-8")
            begin = time.monotonic()
            attempt = runner.measure(CONFIG, Request(seconds=2.0, time_limit=LIMIT))
            seconds = time.monotonic() - begin
            is_trial_gone = are_gone(lambda: [each for each in marked(mark) if len(each.parents()) > _depth_of_guard()])
            after = runner.measure(CONFIG, Request(seconds=1.0, time_limit=60.0))
            found[how] = Struck(attempt=attempt, seconds=seconds, is_trial_gone=is_trial_gone, next=after)
    is_all_gone = are_gone(lambda: marked(mark))
    return {how: replace(struck, is_all_gone=is_all_gone) for how, struck in found.items()}


@contextmanager
def _environment(changes: dict[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(changes)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _depth_of_guard() -> int:
    """How many processes are above the one that sessions are forked from, itself included."""
    return len(psutil.Process().parents()) + 1
