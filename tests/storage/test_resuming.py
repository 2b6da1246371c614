"""The command line killed at any moment, and the same command again: nothing finished is lost, or measured twice."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from pathlib import Path

import pytest
from optuna.trial import TrialState

from autotune import load_config
from autotune.search.read import read_study
from tests.test_command_line import Running, start, wait_until, workload

pytestmark = pytest.mark.machine
FLAGS = (*workload("sleeping"), "--budget", "30s", "--trials", "2", "--batch-size", "8", "--baseline", "batch_size=8")
KNOBS = ("--num-workers", "0..2", "--prefetch-factor", "2", "--threads", "1", "--amp", "off", "--device", "cpu")
"""Of samples that are waited for: two workers are twice as fast on every machine, so there is a second trial."""


ENDED = (TrialState.COMPLETE, TrialState.PRUNED)


def kept_trials(folder: Path) -> list[str]:
    """The configurations of the search's trials that have ended in the study's file, in order."""
    path = folder / "autotune.study"
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    operations = [json.loads(line) for line in lines]
    ended = {each["trial_id"] for each in operations if each.get("state") in ENDED and "trial_id" in each}
    records = {
        each["trial_id"]: each["system_attr"]["autotune:record"]
        for each in operations
        if "autotune:record" in each.get("system_attr", {})
    }
    return [json.dumps(record["config"]) for number, record in records.items() if number in ended]


def test_after_a_kill_the_same_command_repeats_no_finished_trial(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path_factory.mktemp("scratch")
    monkeypatch.setenv("TMPDIR", str(scratch))
    with start(tmp_path, *FLAGS, *KNOBS, "--quiet") as process:
        wait_until(lambda: kept_trials(tmp_path) or process.poll() is not None)
        time.sleep(0.5)  # it is in the middle of the next
        process.kill()
    before = kept_trials(tmp_path)
    assert before
    with start(tmp_path, *FLAGS, *KNOBS, "--quiet") as process:
        out, errors = process.communicate(timeout=300)
    assert (process.returncode, errors) == (0, "")
    assert out.startswith("autotune: 1\n")
    assert load_config(tmp_path / "autotune.yaml").measured
    found = kept_trials(tmp_path)
    assert found[: len(before)] == before
    trials = [each for each in read_study(tmp_path / "autotune.study").history if each.kind != "confirm"]
    assert len(trials) == len(found)
    quiet = Counter(each.config for each in trials if not each.is_disturbed)  # a baseline beside others is taken again
    assert max(quiet.values(), default=1) == 1
    assert {path.name for path in tmp_path.iterdir()} == {"autotune.yaml", "autotune.study"}
    wait_until(lambda: not list(scratch.glob("autotune-*")))


SLOW = ("--num-workers", "1", "--batch-size", "8", "--threads", "1", "--baseline", "batch_size=8", "--budget", "10m")


def test_ctrl_c_twice_stops_at_once_and_loses_nothing(tmp_path: Path) -> None:
    running = Running(tmp_path, *workload("sleeping"), *SLOW, new_group=True)
    wait_until(lambda: len(kept_trials(tmp_path)) >= 2)  # there is something to confirm, which takes a while
    os.killpg(running.process.pid, signal.SIGINT)
    wait_until(lambda: "interrupt again to stop at once" in running.errors.read_text())
    begin = time.monotonic()
    os.killpg(running.process.pid, signal.SIGINT)
    running.process.communicate(timeout=180)
    assert running.process.returncode == 130
    assert time.monotonic() - begin < 10.0  # two seconds, on a machine that has the time
    errors = running.errors.read_text()
    assert "Traceback" not in errors
    assert "What was measured is kept in autotune.study: the same command continues." in errors
    wait_until(lambda: not running.children())
    assert {path.name for path in tmp_path.iterdir()} == {"autotune.study", "errors"}
    assert len(kept_trials(tmp_path)) >= 2
