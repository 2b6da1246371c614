"""Command lines that share a study on a real server, one of which is killed."""

from __future__ import annotations

import subprocess
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from optuna.trial import FrozenTrial, TrialState

from autotune import load_config
from autotune.storage.server import read_database
from autotune.storage.trials import is_record, trial_of
from tests.server import PASSWORD
from tests.test_command_line import PATIENCE, start, workload

pytestmark = pytest.mark.server

FLAGS = ("--device", "cpu", "--trials", "5", "--batch-size", "8", "--baseline", "batch_size=8", "--quiet")
KNOBS = ("--num-workers", "0..4", "--prefetch-factor", "2", "--threads", "1", "--amp", "off", "--budget", "4m")


def trials_in(url: str) -> list[FrozenTrial]:
    """What Optuna itself, and with it the dashboard, sees of the only study behind a URL."""
    try:
        database = read_database(url)
    except Exception:
        return []  # there are no tables yet
    studies = database.get_all_studies()
    return database.get_all_trials(studies[0]._study_id) if studies else []


def others(runs: Sequence[subprocess.Popen[str]], url: str) -> list[subprocess.Popen[str]]:
    """Wait until the baseline has been measured, and return the command lines that did not."""
    end = time.monotonic() + PATIENCE
    while not (done := [trial for trial in trials_in(url) if trial.state is TrialState.COMPLETE]):
        assert time.monotonic() < end
        time.sleep(0.05)
    return [run for run in runs if not done[0].user_attrs["measured by"].endswith(f"process {run.pid}")]


def test_command_lines_fill_one_study_and_one_that_is_killed_leaves_nothing_stuck(
    database: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    flags = (*workload("sleeping"), *FLAGS, *KNOBS, "--storage", database)
    runs = [start(tmp_path / str(number), *flags) for number in range(3)]
    request.addfinalizer(lambda: [run.kill() for run in runs])
    victim, last = others(runs, database)
    assert (victim.poll(), last.poll()) == (None, None)  # both have waited
    victim.kill()
    victim.communicate()
    for name, run in enumerate(runs):
        if run is victim:
            continue
        out, errors = run.communicate(timeout=300)
        assert (run.returncode, errors) == (0, "")
        assert out.startswith("autotune: 1\n")
        assert load_config(tmp_path / str(name) / "autotune.yaml").measured
        assert [path.name for path in (tmp_path / str(name)).iterdir()] == ["autotune.yaml"]
    done = [trial for each in trials_in(database) if is_record(each) and (trial := trial_of(each)).kind != "confirm"]
    assert done[0].kind == "baseline"
    assert max(Counter(trial.config for trial in done if trial.kind != "baseline").values()) == 1
    report = start(tmp_path, "report", database)
    _, errors = report.communicate(timeout=120)
    assert report.returncode == 0, errors
    assert PASSWORD not in errors + next(tmp_path.glob("*.html")).read_text()
