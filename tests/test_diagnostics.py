"""Diagnoses of real runs: workloads that are limited by one thing each."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.config import Config
from autotune.diagnosis.findings import Cause, Diagnosis
from autotune.diagnostics import _examine, diagnose
from autotune.errors import UserCodeError
from autotune.messages import Messages
from autotune.outcome import Outcome
from autotune.records import Attempt, Request
from tests import examples
from tests.limited import CPUS
from tests.quiet import undisturbed
from tests.simulated import SimulatedMachine, StepCost

ALONE = Config(batch_size=16)
WITH_WORKERS = Config(batch_size=16, num_workers=2, intra_op_threads=1)

pytestmark = pytest.mark.usefixtures("shared_processes")

HABITS = [Cause.SYNCHRONISATION, Cause.MANY_TENSORS, Cause.NUMPY, Cause.DATASET_COPIES]


@pytest.mark.machine
def test_habits_are_told_beside_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autotune.diagnostics.WINDOW_SECONDS", 2.0)
    monkeypatch.setattr("autotune.diagnostics.PART_SECONDS", 1.0)
    found = diagnose("tests.limited:with_habits", WITH_WORKERS, device="cpu")
    assert set(HABITS) <= {finding.cause for finding in found.findings if not finding.is_limit}, found.findings


@pytest.mark.machine
@pytest.mark.skipif(CPUS < 2, reason="has but one CPU")
@pytest.mark.parametrize(
    ("workload", "who"),
    [("tests.masked:build", "training"), ("tests.limited:with_masked_workers", "each loader worker")],
)
def test_cpus_that_an_import_or_a_worker_gives_away_are_named(
    workload: str, who: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autotune.diagnostics.WINDOW_SECONDS", 1.0)
    monkeypatch.setattr("autotune.diagnostics.PART_SECONDS", 0.5)
    found = diagnose(workload, WITH_WORKERS, device="cpu")
    (lost,) = (each for each in found.findings if each.cause is Cause.AFFINITY)
    assert lost.what.startswith(f"{who} may use 1 of {CPUS} CPUs")
    assert lost.evidence == (f"1 of {CPUS} CPUs",)


@pytest.mark.machine
@pytest.mark.timed
def test_a_diagnosis_names_the_limit_and_its_code() -> None:
    def is_right(found: Diagnosis) -> bool:  # beside busy neighbours it says so, and that nothing else is to be trusted
        return found.bottleneck is Cause.DECODING

    found = undisturbed(lambda: diagnose("tests.limited:by_decoding", ALONE, device="cpu"), is_right)
    assert is_right(found), found.findings
    assert any("limited.py" in figure and "compute" in figure for figure in found.findings[0].evidence)
    assert found.anatomy is not None


@pytest.mark.machine
def test_code_that_fails_is_the_users(tmp_path: Path) -> None:
    with pytest.raises(UserCodeError, match="their item") as caught:
        diagnose("tests.workloads:every_item_raises", device="cpu")
    assert "every_item_raises" not in caught.value.user_traceback or "__getitem__" in caught.value.user_traceback


class Hanging(SimulatedMachine):
    """A machine whose loader waits for ever once it has a worker, and whose training waits for data."""

    def _look(self, config: Config, request: Request) -> Attempt:
        if request.part == "loader":
            return Attempt(outcome=Outcome.TIMEOUT, message="no answer within 29 s: it was in __getitem__")
        return super()._look(config, request) if request.part == "compute" else Attempt(outcome=Outcome.CRASHED)


def test_where_the_look_at_the_loader_hangs_workers_are_not_advised() -> None:
    machine = Hanging(cost=lambda config: StepCost(wait=0.05, compute=0.02))
    messages = Messages(on_progress=lambda progress: None)
    found, _ = _examine(machine, Config(), examples.facts(), messages)
    assert "one worker failed here (no answer within 29 s" in found.findings[0].advice
    assert "use loader workers" not in found.findings[0].advice
    assert found.anatomy is None
    assert "diagnose" not in found.findings[0].advice
