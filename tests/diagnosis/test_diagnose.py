"""Diagnoses of real runs: workloads that are limited by one thing each."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

import autotune
from autotune.config import Config
from autotune.diagnosis.diagnose import Diagnosis, diagnose
from autotune.diagnosis.findings import Cause
from autotune.errors import ConfigFileError, UserCodeError
from tests.quiet import undisturbed

CPUS = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
ALONE = Config(batch_size=16)
WITH_WORKERS = Config(batch_size=16, num_workers=2, intra_op_threads=1)

pytestmark = [pytest.mark.machine, pytest.mark.timed, pytest.mark.usefixtures("shared_processes")]

LIMITS = {
    "by_decoding": (ALONE, Cause.DECODING),
    "by_waiting": (ALONE, Cause.WAITING),
    "by_cpus": (Config(batch_size=16, num_workers=2 * CPUS, intra_op_threads=1), Cause.CPUS),
    "by_the_same_samples": (WITH_WORKERS, Cause.SAME_SAMPLES),
    "by_restarts": (WITH_WORKERS, Cause.RESTARTS),
    "by_receiving": (WITH_WORKERS, Cause.RECEIVE),
}
HABITS = [Cause.SYNCHRONISATION, Cause.MANY_TENSORS, Cause.NUMPY, Cause.DATASET_COPIES]
"""What is told of a workload that has them all."""


def diagnosed(name: str, config: Config, cause: Cause, **options: Any) -> Diagnosis:
    """A diagnosis that names the cause; one beside busy neighbours says so, and that nothing else is to be trusted."""

    def is_right(found: Diagnosis) -> bool:
        return cause in [finding.cause for finding in found.findings] and found.bottleneck is not Cause.NEIGHBOURS

    return undisturbed(lambda: diagnose(f"tests.limited:{name}", config, device="cpu", **options), is_right)


@pytest.mark.parametrize("name", LIMITS)
def test_a_limited_workload_is_told_its_limit(name: str) -> None:
    config, cause = LIMITS[name]
    found = diagnosed(name, config, cause)
    assert found.bottleneck is cause, found.findings


def test_habits_are_told_beside_the_limit() -> None:
    found = diagnosed("with_habits", WITH_WORKERS, Cause.NUMPY)
    assert set(HABITS) <= {finding.cause for finding in found.findings if not finding.is_limit}, found.findings


def test_workers_that_are_spawned_are_told() -> None:
    found = diagnosed("with_spawn", WITH_WORKERS, Cause.SPAWN)
    assert Cause.SPAWN in [finding.cause for finding in found.findings], found.findings


def test_a_diagnosis_names_the_code_and_writes_a_trace(tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    found = diagnosed("by_decoding", ALONE, Cause.DECODING, trace=trace)
    decoding = next(finding for finding in found.findings if finding.cause is Cause.DECODING)
    assert any("limited.py" in figure and "compute" in figure for figure in decoding.evidence)
    assert found.anatomy is not None
    assert found.trace.operations
    assert json.loads(trace.read_text())["traceEvents"]


def test_a_trace_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigFileError, match="no_such_folder"):
        diagnose("tests.limited:by_compute", ALONE, device="cpu", trace=tmp_path / "no_such_folder" / "trace.json")


def test_code_that_fails_is_the_users(tmp_path: Path) -> None:
    with pytest.raises(UserCodeError, match="their item") as caught:
        diagnose("tests.workloads:every_item_raises", device="cpu")
    assert "every_item_raises" not in caught.value.user_traceback or "__getitem__" in caught.value.user_traceback


def test_the_default_configuration_fits_a_small_dataset() -> None:
    found = diagnose("tests.workloads:small", {"batch_size": 10_000}, device="cpu")
    assert found.config.batch_size == 256
    assert found.bottleneck in Cause
    assert autotune.diagnose is diagnose
