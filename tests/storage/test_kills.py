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
from tests.storage.searching import KILLED


def said_until_killed(searches: subprocess.Popen[str], path: Path, seconds: float) -> list[str]:
    """Begin a search, kill it so many seconds after its first trial, and return the trials that it said to be kept."""
    assert searches.stdin is not None
    assert searches.stdout is not None
    searches.stdin.write(f"{path}\n")
    searches.stdin.flush()
    said = [searches.stdout.readline()]
    assert said[0], "the searches have ended"
    time.sleep(seconds)
    searches.stdin.write("\n")
    searches.stdin.flush()
    while KILLED not in said[-1]:
        said.append(searches.stdout.readline())
    return [line.strip() for line in said if line.endswith(")\n")]


def kills(folder: Path) -> Iterator[tuple[Path, list[str]]]:
    """Yield the file of each killed search and what that has said; a search that had come to its end begins anew."""
    generator, numbers = random.Random(0), itertools.count()
    path = folder / f"{next(numbers)}.study"
    command, pipe = [sys.executable, "-m", "tests.storage.searching"], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment()) as searches:
        while True:
            if said := said_until_killed(searches, path, generator.uniform(0.0, 0.2)):
                yield path, said
            else:
                path = folder / f"{next(numbers)}.study"


@pytest.mark.machine
def test_after_ten_kills_every_trial_that_was_said_is_there_once(tmp_path: Path) -> None:
    said: dict[Path, list[str]] = {}
    for path, lines in itertools.islice(kills(tmp_path), 10):
        said.setdefault(path, []).extend(lines)
    for path, lines in said.items():
        kept = [repr(trial.config) for trial in read_study(path).history]
        assert max(Counter(kept).values()) == 1
        assert set(lines) <= set(kept)
    assert {each.suffix for each in tmp_path.iterdir()} == {".study"}
