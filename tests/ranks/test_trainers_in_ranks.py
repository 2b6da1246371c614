"""Trainers in two ranks, and the line of their launcher: rates, faults, and refusals whose way out works."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from autotune.config import Config
from autotune.errors import UserCodeError
from autotune.outcome import Outcome
from autotune.runner.local import ProcessRunner
from autotune.workload import Script, describe
from tests.processes import MARK, run_python
from tests.ranks.test_ranks_of_scripts import JOB, TORCHRUN, measured, require_nothing_left, started

pytestmark = pytest.mark.machine

TRAINERS = JOB.with_name("trainers.py")


@pytest.mark.timed
def test_the_rate_of_a_trainer_in_ranks_is_its_own_under_torchrun(tmp_path: Path) -> None:
    done = run_python(*TORCHRUN, TRAINERS, "transformers", folder=tmp_path, seconds=60, COUNTED="30")
    own = sum(float(line.split()[2]) for line in done.stdout.splitlines() if "'rate'" in line)
    found = measured("transformers", job=TRAINERS).measurement
    assert found is not None
    assert 0.85 <= found.samples_per_second / own <= 1.15, (found.samples_per_second, own)


def test_under_torchrun_the_first_rank_works_for_all_which_end_as_it_does(tmp_path: Path) -> None:
    launched = (*TORCHRUN, "-m", "autotune", "run")
    done = run_python(*launched, "--dry-run", TRAINERS, "accelerate", folder=tmp_path, seconds=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Found: trainers.py:") == 1
    assert "batch 8" in done.stdout
    done = run_python(*launched, "--ranks", "3", TRAINERS, "accelerate", folder=tmp_path, seconds=60)
    assert done.stderr.count("the launcher started 2 ranks, not 3: leave out --ranks") == 1
    assert done.stderr.count("exitcode  : 2 ") == 2 or done.stderr.count("SIGTERM") == 1, done.stderr


@pytest.mark.parametrize(
    ("kind", "fault", "outcome", "message"),
    [
        ("accelerate", "raising", Outcome.USER_ERROR, "rank 1 of 2: RuntimeError: this rank cannot go on"),
        ("lightning", "killed", Outcome.HOST_OOM, "rank 1: the process was killed (signal 9)"),
    ],
)
def test_a_trainers_rank_that_fails_ends_the_trial_and_leaves_nothing(
    kind: str, fault: str, outcome: Outcome, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(MARK, str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    found = measured(kind, fault, job=TRAINERS, seconds=30.0, limit=15.0)
    assert (found.outcome, message in found.message) == (outcome, True), found
    require_nothing_left(tmp_path)


def test_batches_that_one_rank_reads_for_all_are_refused_and_the_way_out_works() -> None:
    said = "has rank 0 read for all ranks, by the DataLoader of trainers.py:.*: pass dispatch_batches=False, in Data"
    with pytest.raises(UserCodeError, match=said), started("dispatcher", job=TRAINERS):
        pass
    with started("dispatches nothing", job=TRAINERS) as (_, present):
        assert (present.batch_size, present.ranks) == (8, 2)


def test_ranks_that_a_trainer_starts_are_refused_and_the_way_out_works() -> None:
    script = describe(Script(path=str(TRAINERS), arguments=("lightning",)))
    with ProcessRunner(script) as runner, pytest.raises(UserCodeError, match="pass --ranks N for the N devices"):
        runner.inspect(Config())
    with started("lightning", job=TRAINERS) as (_, present):
        assert (present.batch_size, present.ranks) == (8, 2)
