"""What a broken workload becomes: an outcome with its evidence, and the next configuration is measured."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

import autotune
from autotune.config import Config
from autotune.encoding import from_json
from autotune.errors import UsageError
from autotune.records import Outcome, Request, WorkloadFacts
from autotune.runner.device_lock import DeviceLock
from autotune.runner.local import ProcessRunner
from autotune.workload import describe
from tests.processes import are_gone

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import Any

    import psutil

pytestmark = pytest.mark.machine

SOUND = Config(batch_size=8, intra_op_threads=1)


@pytest.mark.parametrize(
    ("name", "workers", "outcome", "message"),
    [
        (
            "segfaults",
            0,
            Outcome.CRASHED,
            "the process ended without an answer (segmentation fault, signal SIGSEGV) in read_address_zero, broken.py",
        ),
        ("worker_segfaults", 1, Outcome.WORKER_DIED, "a loader worker died (segmentation fault): "),
        (
            "aborts",
            0,
            Outcome.CRASHED,
            "the process ended without an answer (aborted, signal SIGABRT) in __getitem__, workloads.py",
        ),
        ("step_hangs", 0, Outcome.TIMEOUT, "no answer within 5 s"),
        (
            "unpicklable",
            1,
            Outcome.UNPICKLABLE,
            "loader workers cannot be started (spawn): TypeError: cannot pickle '_thread.lock' object; define its",
        ),
    ],
)
def test_an_end_is_an_outcome_with_its_evidence(
    name: str, workers: int, outcome: Outcome, message: str, processes: Callable[[], list[psutil.Process]]
) -> None:
    config = Config(batch_size=8, num_workers=workers, intra_op_threads=2)
    with ProcessRunner(describe(f"tests.broken:{name}"), "cpu") as runner:
        attempt = runner.measure(config, Request(seconds=0.2, time_limit=5 if name == "step_hangs" else 60))
        assert (attempt.outcome, attempt.message[: len(message)]) == (outcome, message), attempt.details
        assert runner.measure(SOUND, Request(seconds=0.2, time_limit=60)).measurement is not None
    assert are_gone(processes)


def test_where_workers_cannot_be_started_zero_workers_are_tuned() -> None:
    result = autotune.tune(
        "tests.broken:unpicklable",
        device="cpu", budget=30, trials=3, baseline={"batch_size": 16, "threads": 1},
        batch_size=(16, 32, 64), num_workers=(0, 1, 2), amp="off", threads=1,
    )  # fmt: skip
    with_workers = [trial for trial in result.history if trial.config.num_workers]
    assert {trial.outcome for trial in with_workers} <= {Outcome.UNPICKLABLE, Outcome.SKIPPED}
    assert result.config.num_workers == 0
    assert result.samples_per_second > 0


def test_an_accelerator_is_held_from_the_first_look_to_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def on_accelerator(record: type[Any], values: object) -> Any:
        found = from_json(record, values)
        return replace(found, device="cuda:0", device_uuid="GPU-7") if record is WorkloadFacts else found

    monkeypatch.setattr("autotune.runner.device_lock.SHARED_FOLDER", tmp_path)
    monkeypatch.setattr("autotune.runner.local.from_json", on_accelerator)
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
