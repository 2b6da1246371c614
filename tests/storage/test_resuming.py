"""The command line killed at any moment, and the same command again: nothing finished is lost, or measured twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from autotune import load_config
from tests.test_command_line import PACKAGE, Running, environment, wait_until, workload

pytestmark = pytest.mark.machine
FLAGS = ("--device", "cpu", "--budget", "30s", "--trials", "3", "--batch-size", "8", "--baseline", "batch_size=8")
KNOBS = ("--num-workers", "0..2", "--prefetch-factor", "2", "--threads", "1", "--amp", "off")
"""Of samples that are waited for: two workers are twice as fast on every machine, so there is a second trial."""


def start(folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "autotune", *workload("sleeping"), *FLAGS, *KNOBS, "--quiet"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, cwd=folder, env=environment(), text=True, **pipes)


def kept_trials(folder: Path) -> list[str]:
    """The configurations of the whole lines in the study's file, in order."""
    path = folder / "autotune.study"
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    records = [json.loads(line).get("system_attrs", {}).get("autotune:record") for line in lines]
    return [json.dumps(record["config"]) for record in records if record and record["kind"] != "skipped"]


def kill_after(folder: Path, trials: int, seconds: float) -> None:
    """Kill a run so many seconds after that many trials were kept, if it has not ended by then."""
    with start(folder) as process:
        wait_until(lambda: len(kept_trials(folder)) >= trials or process.poll() is not None)
        try:
            _, errors = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
        else:
            assert len(kept_trials(folder)) >= trials, errors


def finish(folder: Path) -> None:
    with start(folder) as process:
        out, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    assert errors == ""
    assert 'load_config("autotune.yaml")' in out
    assert load_config(folder / "autotune.yaml").measured


def test_after_a_kill_the_same_command_repeats_no_finished_trial(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path_factory.mktemp("scratch")
    monkeypatch.setenv("TMPDIR", str(scratch))
    kill_after(tmp_path, trials=1, seconds=0.5)
    before = kept_trials(tmp_path)
    assert before
    finish(tmp_path)
    found = kept_trials(tmp_path)
    assert found[: len(before)] == before
    assert [config for config, count in Counter(found).items() if count > 1] == []
    assert {path.name for path in tmp_path.iterdir()} == {"autotune.yaml", "autotune.study"}
    wait_until(lambda: not list(scratch.glob("autotune-*")))


SLOW = ("--num-workers", "1", "--batch-size", "8", "--threads", "1", "--baseline", "batch_size=8", "--budget", "10m")


def test_a_batch_system_that_asks_to_stop_gets_what_is_known(tmp_path: Path) -> None:
    running = Running(tmp_path, *workload("sleeping"), *SLOW)
    wait_until(lambda: running.lines() >= 1)
    running.process.send_signal(signal.SIGTERM)
    running.process.communicate(timeout=180)
    assert running.process.returncode == 130
    assert "once more stops at once" in running.errors.read_text()
    assert load_config(tmp_path / "autotune.yaml").batch_size == 8
    assert kept_trials(tmp_path)


def test_ctrl_c_twice_stops_at_once_and_loses_nothing(tmp_path: Path) -> None:
    running = Running(tmp_path, *workload("sleeping"), *SLOW, new_group=True)
    wait_until(lambda: len(kept_trials(tmp_path)) >= 2)  # there is something to confirm, which takes a while
    os.killpg(running.process.pid, signal.SIGINT)
    wait_until(lambda: "once more stops at once" in running.errors.read_text())
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


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
def test_on_a_full_disk_the_answer_is_still_on_stdout(tmp_path: Path) -> None:
    """The disk is there when the run starts, and full when it writes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    script = 'mount -t tmpfs -o size=16k tmpfs "$0" && cd "$0" && head -c 16384 /dev/zero > full; exec "$@"'
    command = ["unshare", "-m", "sh", "-c", script, str(folder), sys.executable, "-m", "autotune", *workload("small")]
    command += [*FLAGS, *KNOBS, "--budget", "30s", "--json"]
    place = {"cwd": PACKAGE.parent, "env": environment()}
    done = subprocess.run(command, **place, capture_output=True, text=True, timeout=300)
    if "unshare" in done.stderr or "mount" in done.stderr:
        pytest.skip("mounting is not permitted here")
    assert done.returncode == 5, done.stderr
    assert "autotune: error: autotune.yaml: cannot be written: No space left on device" in done.stderr
    assert "the study could not be kept: autotune.study: No space left on device" in " ".join(done.stderr.split())
    assert json.loads(done.stdout)["config"]["autotune"] == 1
    assert "Traceback" not in done.stderr
