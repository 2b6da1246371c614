"""A search that is killed at random moments and goes on each time: nothing kept is lost, nothing is measured twice."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from autotune.storage.read import read_study
from tests.server import environment

KILLS = 10


@pytest.mark.machine
def test_after_ten_kills_every_trial_that_was_said_is_there_once(tmp_path: Path) -> None:
    path, generator, said = tmp_path / "a.study", random.Random(0), list[str]()
    for _ in range(KILLS):
        command = [sys.executable, "-m", "tests.storage.searching", str(path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) as process:
            assert process.stdout is not None
            first = process.stdout.readline()  # it has begun, and ends before it is through
            assert first
            time.sleep(generator.uniform(0.0, 0.3))
            process.kill()
            said += [line.strip() for line in (first, *process.stdout.readlines()) if line.endswith(")\n")]
    kept = [repr(trial.config) for trial in read_study(path).history]
    assert max(Counter(kept).values()) == 1
    assert set(said) <= set(kept)
    assert len(kept) >= KILLS
    assert [each.name for each in tmp_path.iterdir()] == ["a.study"]
