"""Running out of memory for real, in a control group with a gibibyte of it."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from autotune.records import Outcome
from tests.processes import are_gone

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import psutil

ROOT = Path(__file__).resolve().parent.parent
LIMIT = 2**30
WATCHED = "ended before memory ran out: "
HIERARCHIES = ((Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"), (Path("/sys/fs/cgroup"), "memory.max"))

pytestmark = pytest.mark.machine


@pytest.fixture
def group() -> Iterator[Path]:
    """A control group with a limit on its memory; skips where this process may not make one."""
    for hierarchy, limit in HIERARCHIES:
        made = hierarchy / f"autotune-test-{uuid.uuid4()}"
        with suppress(OSError):
            made.mkdir()
        if (made / limit).exists():
            (made / limit).write_text(str(LIMIT))
            yield made
            remove(made)
            return
        with suppress(OSError):
            made.rmdir()
    pytest.skip("needs the right to make a control group")


def remove(group: Path) -> None:
    end = time.monotonic() + 10
    while time.monotonic() < end:
        with suppress(OSError):
            group.rmdir()
            return
        time.sleep(0.1)


@pytest.mark.parametrize(
    ("name", "batch_size", "workers", "message"),
    [
        ("grows_slowly", 128, 0, WATCHED),
        ("grows_at_once", 8, 0, "the process was killed (signal 9) by the kernel, which had run out of memory"),
        (
            "grows_at_once_in_worker",
            8,
            1,
            "the kernel had run out of memory and killed a loader worker: RuntimeError: DataLoader",
        ),
    ],
)
def test_running_out_of_memory_is_said_with_its_evidence(
    name: str, batch_size: int, workers: int, message: str, group: Path, processes: Callable[[], list[psutil.Process]]
) -> None:
    leaving = shlex.join([sys.executable, "-m", "tests.leaving", name, str(batch_size), str(workers), "120"])
    done = subprocess.run(
        ["sh", "-c", f"echo $$ > {group}/cgroup.procs && exec {leaving}"],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    outcome, said, *_ = json.loads(done.stdout)
    assert outcome == Outcome.HOST_OOM, said
    was_first = name != "grows_slowly" and said.startswith(WATCHED)  # the watchdog looked in the instant before
    assert was_first or said.startswith(message), said
    assert are_gone(processes)
