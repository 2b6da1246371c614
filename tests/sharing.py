"""One measuring process for many tests: starting one imports torch, which takes seconds.

What a runner is done with, and has closed in order, the next one gets; each opens sessions of its own in it, which are
new processes, as ever. What a test has marked (``processes``) is never shared.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from autotune.runner.process import MeasuringProcess
from autotune.torch_import import Variables
from tests.processes import MARK

Key = tuple[object, ...]
IDLE: dict[Key, Shared] = {}


class Shared(MeasuringProcess):
    """Is kept when it is stopped, if its sessions have ended as they should."""

    def __init__(self, variables: Variables) -> None:
        super().__init__(variables)
        self.key = key_of(variables)
        self.is_open = False
        self.is_sound = True

    def open(self, ranks: int = 1) -> dict[str, Any]:
        self.is_open, self.is_sound = True, False
        return super().open(ranks)

    def close(self) -> bool:
        self.is_open = False
        self.is_sound = super().close()
        return self.is_sound

    def stop(self) -> None:
        if self.is_open:
            self.close()
        if self.is_sound and self.key not in IDLE and MARK not in os.environ:
            IDLE[self.key] = self
        else:
            super().stop()


def key_of(variables: Variables) -> Key:
    """Return what a process takes over from the one that starts it."""
    own = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    return os.getcwd(), *sorted((own | dict(variables)).items())


def shared(
    variables: Variables, workload: int | None = None, folder: str | None = None, python: str | None = None
) -> MeasuringProcess:
    """Return a process that is idle, or a new one; one that holds a pickled workload is its runner's alone."""
    if workload is not None or folder is not None or python is not None:
        return MeasuringProcess(variables, workload, folder, python)
    found = IDLE.pop(key_of(variables), None)
    return found or Shared(variables)


@pytest.fixture(scope="module")
def shared_processes() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("autotune.runner.local.MeasuringProcess", shared)
        yield
    while len(IDLE) > 1:  # one is enough for the next module
        MeasuringProcess.stop(IDLE.pop(next(iter(IDLE))))


@pytest.fixture(scope="session", autouse=True)
def no_process_is_left() -> Iterator[None]:
    yield
    while IDLE:
        MeasuringProcess.stop(IDLE.popitem()[1])
