"""Scripts that train in two ranks: their rates, their losses and their faults."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from autotune.config import Config
from autotune.errors import UserCodeError
from autotune.outcome import Outcome
from autotune.records import Attempt, Request
from autotune.runner.local import ProcessRunner
from autotune.workload import Script, describe
from tests.processes import MARK, marked, run_python
from tests.ranks.test_sockets import watched

pytestmark = pytest.mark.machine

JOB = Path(__file__).resolve().parents[2] / "studies" / "ranks" / "jobs" / "job.py"
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
FIRST = 6
"""Steps that a script makes on batches of its own before it is measured."""


@contextmanager
def started(*words: str, job: Path = JOB, **options: bool) -> Iterator[tuple[ProcessRunner, Config]]:
    """Start a job with these arguments in two ranks, and give its present settings."""
    script = Script(path=str(job), arguments=words, **options)
    with ProcessRunner(describe(script), load_limit=30.0, oversubscribe_ranks=True) as runner:
        runner.inspect(Config(ranks=2))
        assert runner.script is not None
        yield runner, replace(runner.script.present, ranks=2)


def measured(*words: str, job: Path = JOB, seconds: float = 1.5, limit: float = 60.0) -> Attempt:
    with started(*words, job=job) as (runner, present):
        return runner.measure(present, Request(seconds=seconds, time_limit=limit))


def require_nothing_left(folder: Path) -> None:
    """Require that a session which was marked with a folder, its temporary one, has left nothing."""
    assert [each for each in marked(str(folder)) if each.pid != os.getpid()] == []
    assert list(folder.iterdir()) == []
    assert not any(str(folder) in each.mountpoint for each in psutil.disk_partitions(all=True))


@pytest.mark.timed
@pytest.mark.parametrize("kind", ["validates", "slow", "ends"])
def test_the_rate_of_a_script_in_ranks_is_its_own_under_torchrun(kind: str, tmp_path: Path) -> None:
    done = run_python(*TORCHRUN, JOB, kind, folder=tmp_path, seconds=60, COUNTED="30")
    own = sum(float(line.split()[2]) for line in done.stdout.splitlines() if "'rate'" in line)
    found = measured(kind).measurement
    assert found is not None
    assert 0.85 <= found.samples_per_second / own <= 1.15, (found.samples_per_second, own)
    assert found.slowest_rank is not None
    if kind == "slow":
        assert found.slowest_rank.rank == 1
        assert (found.rank_spread or 0.0) > 0.2


@pytest.mark.parametrize(
    ("kind", "outcome", "message"),
    [
        ("killed", Outcome.HOST_OOM, "rank 1: the process was killed (signal 9)"),
        ("hung", Outcome.TIMEOUT, " of rank 1"),
        ("raising", Outcome.USER_ERROR, "rank 1 of 2: RuntimeError: this rank cannot go on"),
    ],
)
def test_a_rank_of_a_script_that_fails_ends_the_trial_and_leaves_nothing(
    kind: str, outcome: Outcome, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(MARK, str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    found = measured(kind, seconds=30.0, limit=6.0)
    assert (found.outcome, message in found.message) == (outcome, True), found
    require_nothing_left(tmp_path)


def test_ranks_that_train_apart_or_meet_at_a_port_are_refused() -> None:
    for kind, said in (
        ("alone", "makes no process group"),
        ("at an address", "process group at tcp://127.0.0.1:29511"),
    ):
        with pytest.raises(UserCodeError, match=said), started(kind):
            pass
    alone, said = (
        Script(path=str(JOB), arguments=("plain",)),
        r"^job.py trains in the ranks of a launcher: pass --ranks 2",
    )
    with ProcessRunner(describe(alone)) as runner, pytest.raises(UserCodeError, match=said):
        runner.inspect(Config())


def test_ranks_make_torchruns_losses_stay_equal_and_listen_to_nobody_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [tmp_path / name for name in ("torchrun", "measured")]
    for folder in folders:
        folder.mkdir()
    run_python(*TORCHRUN, JOB, "noted", folder=tmp_path, seconds=60, COUNTED="2", NOTED=str(folders[0]))
    monkeypatch.setenv("NOTED", str(folders[1]))
    monkeypatch.chdir(tmp_path)
    with watched() as addresses, started("noted", allow_writes=True) as (runner, present):
        assert runner.measure(present, Request(seconds=0.5, time_limit=60)).found
    own, found = ([(folder / f"{rank}").read_text().splitlines() for rank in range(2)] for folder in folders)
    assert [lines[:FIRST] for lines in found] == [lines[:FIRST] for lines in own]
    parameters = [[line.split()[1] for line in lines] for lines in found]
    both = min(map(len, parameters))
    assert both > 2 * FIRST
    assert parameters[0][:both] == parameters[1][:both]
    assert {address for address, _ in addresses} == {"127.0.0.1"}
