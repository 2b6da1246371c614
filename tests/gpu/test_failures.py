from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import autotune
from autotune.config import Config
from autotune.outcome import Outcome
from autotune.records import Attempt, Request
from autotune.runner.local import ProcessRunner
from autotune.workload import describe
from tests.gpu.workloads import FAULT_VARIABLE, LARGEST_THAT_FITS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CONFIG = Config(batch_size=8)
REQUEST = Request(seconds=0.3, time_limit=60)

pytestmark = pytest.mark.usefixtures("cuda")


@pytest.fixture(scope="module")
def fault(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fault") / "phase"


@pytest.fixture(scope="module")
def runner(fault: Path) -> Iterator[ProcessRunner]:
    with (
        pytest.MonkeyPatch.context() as patch,
        ProcessRunner(describe("tests.gpu.workloads:failing_once"), "cuda") as runner,
    ):
        patch.setenv(FAULT_VARIABLE, str(fault))
        yield runner


def is_measured(attempt: Attempt) -> bool:
    """Heat or a busy neighbour makes a measurement suspect, but is no failure."""
    return attempt.outcome in (Outcome.OK, Outcome.SUSPECT) and attempt.measurement is not None


@pytest.mark.parametrize(
    ("phase", "outcome", "evidence"),
    [
        ("forward", Outcome.DEVICE_OOM, "out of memory"),
        ("backward", Outcome.DEVICE_OOM, "out of memory"),
        ("optimizer", Outcome.DEVICE_OOM, "out of memory"),
        ("assertion", Outcome.DEVICE_ERROR, "device-side assert"),
    ],
)
def test_a_failure_on_the_device_is_an_outcome_and_the_same_configuration_is_measured_afterwards(
    runner: ProcessRunner, fault: Path, phase: str, outcome: Outcome, evidence: str
) -> None:
    fault.write_text(phase, encoding="utf-8")
    failed = runner.measure(CONFIG, REQUEST)
    assert (failed.outcome, failed.measurement) == (outcome, None), (failed.message, failed.details)
    assert evidence in (failed.message if outcome is Outcome.DEVICE_OOM else failed.details)
    again = runner.measure(CONFIG, REQUEST)
    assert is_measured(again), (again.outcome, again.message, again.details)


def test_tuning_goes_round_what_does_not_fit() -> None:
    result = autotune.tune(
        "tests.gpu.workloads:too_large_above_32",
        device="cuda", budget=30, baseline={"batch_size": LARGEST_THAT_FITS, "threads": 1},
        batch_size=(LARGEST_THAT_FITS, 2 * LARGEST_THAT_FITS), num_workers=0, pin_memory=(False, True),
        amp="off", threads=1,
    )  # fmt: skip
    too_large = [trial for trial in result.history if trial.config.batch_size > LARGEST_THAT_FITS]
    assert {trial.outcome for trial in too_large} == {Outcome.DEVICE_OOM}
    assert result.config.batch_size == LARGEST_THAT_FITS
    assert result.facts.device.startswith("cuda:")
    assert result.measurement.memory == "device"
    assert result.samples_per_second > 0
