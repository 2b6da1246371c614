"""Scripts of the folder ``loops``, measured one after another in one process tree."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from autotune.config import Config
from autotune.records import Request, WorkloadFacts
from autotune.runner import local
from autotune.workload import Script
from tests.scripts.holding import InTurn

LOOPS = Path(__file__).resolve().parent / "loops"
LOAD_SECONDS = 10.0
"""Seconds in which every script has begun to train, or is refused."""
REQUEST = Request(seconds=0.6, time_limit=60)
NEEDS = {"resumed": "accelerate"}
"""Packages that scripts need."""


def per_second(samples: int, *milliseconds: float) -> float:
    return 1000 * samples / sum(milliseconds)


def place(name: str, text: str) -> str:
    lines = (LOOPS / f"{name}.py").read_text("utf-8").splitlines()
    return f"{name}.py:{next(number for number, line in enumerate(lines, 1) if text in line)}"


class Found(NamedTuple):
    rate: float | None
    """Samples per second; ``None`` where it was refused."""
    text: str
    """The message, and what is noted beside a rate."""
    apart: float = 0.0


class Loops(InTurn):
    """A runner for one script after another, each with its arguments."""

    @contextmanager
    def started(self, name: str, *arguments: str, loop: str | None = None) -> Iterator[WorkloadFacts]:
        """Run a script up to its loop, the first one or that of a place, and end its session afterwards."""
        if name in NEEDS:
            pytest.importorskip(NEEDS[name])
        self.turn_to(Script.of((f"{name}.py", *arguments), loop))
        try:
            yield self.inspect(Config())
        finally:
            self.end_session()

    def measured(self, batch_size: int | None = None, *, fresh: bool = False) -> Found:
        """Measure the script with its present settings, but for the batch size."""
        assert self.script is not None
        present = self.script.present
        request = replace(REQUEST, fresh=fresh)
        attempt = self.measure(replace(present, batch_size=batch_size or present.batch_size), request)
        if attempt.measurement is None:
            return Found(None, f"{attempt.outcome}: {attempt.message}")
        found = attempt.measurement
        return Found(found.samples_per_second, "; ".join((attempt.message, *found.notes)), found.apart_share)


@contextmanager
def started(folder: Path, **variables: str) -> Iterator[Loops]:
    """Start a runner in a copy of the scripts, whose paths are relative as a user types them."""
    shutil.copytree(LOOPS, folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(local, "LOAD_LIMIT", LOAD_SECONDS)
        for name, value in variables.items():
            patch.setenv(name, value)
        with Loops() as loops:
            yield loops
