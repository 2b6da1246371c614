"""What a broken workload becomes: an outcome with its evidence, and the next configuration is measured."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
import uuid
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from autotune.config import Config
from autotune.encoding import from_json
from autotune.errors import UsageError
from autotune.outcome import Outcome
from autotune.records import Request, WorkloadFacts
from autotune.runner.device_lock import DeviceLock
from autotune.runner.local import ProcessRunner
from autotune.workload import describe
from tests.processes import ROOT, are_gone

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.machine

ENDED = "the process ended without an answer"
SOUND = Config(batch_size=8, intra_op_threads=1)


@pytest.mark.parametrize(
    ("name", "workers", "outcome", "message"),
    [
        (
            "segfaults",
            0,
            Outcome.CRASHED,
            f"{ENDED} (segmentation fault, signal SIGSEGV) in read_address_zero, broken.py",
        ),
        ("worker_segfaults", 1, Outcome.WORKER_DIED, "a loader worker died (segmentation fault): "),
    ],
)
def test_an_end_is_an_outcome_with_its_evidence(
    name: str, workers: int, outcome: Outcome, message: str, processes: Callable[[], list[psutil.Process]]
) -> None:
    config = Config(batch_size=8, num_workers=workers, intra_op_threads=2)
    with ProcessRunner(describe(f"tests.broken:{name}"), "cpu") as runner:
        attempt = runner.measure(config, Request(seconds=0.2, time_limit=60))
        assert (attempt.outcome, attempt.message[: len(message)]) == (outcome, message), attempt.details
        assert runner.measure(SOUND, Request(seconds=0.2, time_limit=60)).measurement is not None
    assert are_gone(processes)


@pytest.fixture
def on_accelerator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workloads are said to be on an accelerator, which no other test knows."""

    def facts(record: type[Any], values: object) -> Any:
        found = from_json(record, values)
        return replace(found, device="cuda:0", device_uuid="GPU-7") if record is WorkloadFacts else found

    monkeypatch.setattr("autotune.runner.device_lock.SHARED_FOLDER", tmp_path)
    monkeypatch.setattr("autotune.runner.local.from_json", facts)


@pytest.mark.usefixtures("on_accelerator")
def test_a_tuner_that_waits_for_an_accelerator_has_no_session_on_it() -> None:
    lock = DeviceLock("GPU-7")
    lock.take(0, print)
    sessions = []

    def look_and_free(holder: str) -> None:
        sessions.extend(each.children() for each in psutil.Process().children())
        lock.free()

    with ProcessRunner(describe("tests.workloads:small"), "cpu", on_wait=look_and_free) as runner:
        runner.inspect(SOUND)
        assert sessions  # at least one process that imports, and forks nothing
        assert not any(sessions)
        assert runner.measure(SOUND, Request(seconds=0.2, time_limit=60)).measurement is not None


class Filled:
    """A GPU that still holds a gibibyte at the next ``looks``."""

    looks = 0

    def used_bytes(self) -> int:
        self.looks = max(0, self.looks - 1)
        return 2**30 if self.looks else 0


@pytest.mark.usefixtures("on_accelerator")
def test_after_a_killed_session_its_memory_comes_back_before_the_next_is_opened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu, request = Filled(), Request(seconds=0.2, time_limit=60)
    monkeypatch.setattr("autotune.runner.local.open_gpu", {"GPU-7": gpu}.get)
    with ProcessRunner(describe("tests.workloads:killed"), "cpu") as runner:
        runner.inspect(SOUND)
        assert runner.measure(replace(SOUND, intra_op_threads=2), request).outcome is Outcome.HOST_OOM
        gpu.looks = 4
        assert runner.measure(SOUND, request).found
    assert gpu.looks == 0


@pytest.mark.usefixtures("on_accelerator")
def test_an_accelerator_is_held_from_the_first_look_to_the_end() -> None:
    told: list[str] = []
    with ProcessRunner(describe("tests.workloads:small"), "cpu") as runner:
        runner.inspect(SOUND)
        runner.close()  # as when the user interrupts the search, and confirmation follows
        second = ProcessRunner(describe("tests.workloads:small"), "cpu", patience=0.1, on_wait=told.append)
        with pytest.raises(UsageError, match="GPU-7 is in use by another autotune: process"), second:
            second.inspect(SOUND)
    assert len(told) == 1
    lock = DeviceLock("GPU-7")
    lock.take(0, told.append)
    lock.free()


# --- out of memory, in a control group with a gibibyte of it ---

KILLED_A_WORKER = "the kernel had run out of memory and killed a loader worker:"
WATCHED = "stopped before memory ran out: "
HIERARCHIES = ((Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"), (Path("/sys/fs/cgroup"), "memory.max"))


@pytest.fixture
def group() -> Iterator[Path]:
    """A control group with a limit on its memory; skips where this process may not make one."""
    for hierarchy, limit in HIERARCHIES:
        made = hierarchy / f"autotune-test-{uuid.uuid4()}"
        with suppress(OSError):
            made.mkdir()
        if (made / limit).exists():
            (made / limit).write_text(str(2**30))
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
        ("grows_at_once_in_worker", 8, 1, f"{KILLED_A_WORKER} RuntimeError: DataLoader"),
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
