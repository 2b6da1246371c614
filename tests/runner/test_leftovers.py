"""Nothing outlives a measurement, however it ends: processes, shared memory, semaphores, temporary files."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from autotune.config import Config
from autotune.outcome import Outcome
from autotune.records import Request
from autotune.runner.local import ProcessRunner
from autotune.workload import describe
from tests.processes import are_gone

ROOT = Path(__file__).resolve().parents[2]
SETTLE = 'for i in $(seq 100); do [ -z "$(ls -A /dev/shm)" ] && break; sleep 0.1; done; ls -A /dev/shm'
"""What a shell does after a kill: it waits ten seconds for /dev/shm to be empty, and lists it."""
MOUNTS = "mount -t tmpfs -o size={} tmpfs /dev/shm"
LIMIT = 8  # seconds until a hang is given up


def can_mount() -> bool:
    """Whether a process may have a /dev/shm of its own, which others do not write to."""
    command = ["unshare", "--mount", "sh", "-c", MOUNTS.format("1m")]
    return shutil.which("unshare") is not None and not subprocess.run(command, capture_output=True).returncode


pytestmark = [
    pytest.mark.machine,
    pytest.mark.skipif(not can_mount(), reason="needs the right to mount a /dev/shm of its own"),
]


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A folder with a short name: the sockets by which torch shares memory have paths of 107 characters at most."""
    with tempfile.TemporaryDirectory(prefix="left-") as folder:
        yield Path(folder)


def leave(folder: Path, *arguments: object, size: str = "1g", then: str = "true") -> subprocess.CompletedProcess[str]:
    """Run ``tests.leaving`` with a /dev/shm and a folder for temporary files of its own."""
    command = f"{MOUNTS.format(size)} && {sys.executable} -m tests.leaving {' '.join(map(str, arguments))}; {then}"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder)}
    return subprocess.run(
        ["unshare", "--mount", "sh", "-c", command],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=180,
    )  # fmt: skip


def told(done: subprocess.CompletedProcess[str]) -> list[Any]:
    """Return what it says of the only attempt, or of each."""
    assert done.returncode == 0, done.stderr
    found: list[Any] = list(map(json.loads, done.stdout.splitlines()))
    return found[0] if len(found) == 1 else found


def temporary_files(folder: Path) -> list[str]:
    """What is left in the folder; the cache of torch's compiler is to stay."""
    return [name for name in os.listdir(folder) if not name.startswith("torchinductor_")]


def test_a_hang_leaves_nothing(tmp_path: Path, processes: Callable[[], list[psutil.Process]]) -> None:
    outcome, message, _, _, left = told(leave(tmp_path, "hangs_sharing_files", 4, 2, LIMIT))
    assert (outcome, left) == (Outcome.TIMEOUT, []), message
    assert are_gone(processes)
    assert temporary_files(tmp_path) == []


# below the tuner: the process that forks sessions, a session, its workers, and what cleans up after them
def test_a_tuner_that_is_killed_leaves_nothing(tmp_path: Path, processes: Callable[[], list[psutil.Process]]) -> None:
    done = leave(tmp_path, "hangs_spawned", 4, 2, 170, 5, then=SETTLE)
    assert done.stdout == "", "shared memory is left"
    assert "Killed" in done.stderr
    assert are_gone(processes)
    assert temporary_files(tmp_path) == []


def test_what_the_users_code_has_started_ends_with_its_session(processes: Callable[[], list[psutil.Process]]) -> None:
    with ProcessRunner(describe("tests.broken:starting_others"), "cpu") as runner:
        for fresh in (False, True):
            runner.measure(Config(batch_size=64, intra_op_threads=1), Request(seconds=0.2, fresh=fresh))
        names = [" ".join(process.cmdline()) for process in processes()]
        assert len(names) <= 1, names  # the one that sessions are forked from, if it has ended the last one in time
        assert all("autotune.measure.worker" in name for name in names)
    assert are_gone(processes)


def test_too_small_a_shared_memory_is_said_by_the_error_that_it_raises_and_without_workers_none_is_needed(
    tmp_path: Path,
) -> None:
    with_workers, alone = told(leave(tmp_path, "large_batches_shared", 8, "2,0", 60, size="20m"))
    assert with_workers[0] == Outcome.SHM, with_workers
    assert "shared memory" in with_workers[1]
    assert alone[0] in (Outcome.OK, Outcome.SUSPECT), alone


def test_a_batch_that_is_lost_for_want_of_shared_memory_is_no_hang(tmp_path: Path) -> None:
    outcome, message, details, seconds, left = told(leave(tmp_path, "large_batches_sent", 8, 2, 150, size="20m"))
    assert (outcome, left) == (Outcome.SHM, []), message
    assert message.endswith("a worker found no room for its batch in shared memory (/dev/shm)")
    assert "No space left on device" in details
    assert seconds < 150
