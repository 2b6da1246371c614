"""A search that is killed at random moments and goes on each time: nothing kept is lost, nothing is measured twice."""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.search.read import read_study
from tests.server import environment

KILLS = 10


def said_until_killed(path: Path, seconds: float) -> list[str]:
    """Start a search, kill it so many seconds after its first trial, and return the trials that it said to be kept."""
    command = [sys.executable, "-m", "tests.storage.searching", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        time.sleep(seconds)
        process.kill()
        return [line.strip() for line in (first, *process.stdout.readlines()) if line.endswith(")\n")]


def kills(folder: Path) -> Iterator[tuple[Path, list[str]]]:
    """Yield the file of each killed search and what that has said; a search that had come to its end begins anew."""
    generator, numbers = random.Random(0), itertools.count()
    path = folder / f"{next(numbers)}.study"
    while True:
        if said := said_until_killed(path, generator.uniform(0.0, 0.2)):
            yield path, said
        else:
            path = folder / f"{next(numbers)}.study"


@pytest.mark.machine
def test_after_ten_kills_every_trial_that_was_said_is_there_once(tmp_path: Path) -> None:
    said: dict[Path, list[str]] = {}
    for path, lines in itertools.islice(kills(tmp_path), KILLS):
        said.setdefault(path, []).extend(lines)
    for path, lines in said.items():
        kept = [repr(trial.config) for trial in read_study(path).history]
        assert max(Counter(kept).values()) == 1
        assert set(lines) <= set(kept)
    assert {each.suffix for each in tmp_path.iterdir()} == {".study"}
