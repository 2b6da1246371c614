"""What a measuring process is started with."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import autotune
from autotune.descendants import MARK
from autotune.process import MeasuringProcess, ProcessLostError


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """What the system is asked to start, which it refuses."""
    asked: dict[str, Any] = {}

    def start(command: list[str], **options: Any) -> None:
        asked.update(options, command=command)
        raise BlockingIOError

    monkeypatch.setattr(subprocess, "Popen", start)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return asked


def test_a_configurations_threads_come_before_those_of_the_users_shell(
    started: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.setenv("OF_THE_USER", "kept")
    with pytest.raises(ProcessLostError, match="no process can be started"):
        MeasuringProcess({"OMP_NUM_THREADS": "2"})
    assert started["command"] == [sys.executable, "-m", "autotune.measure.worker"]
    assert (started["env"]["OMP_NUM_THREADS"], started["env"]["OF_THE_USER"]) == ("2", "kept")
    assert started["start_new_session"]
    assert Path(started["env"][MARK]).parent == tmp_path
    assert list(tmp_path.iterdir()) == []


def test_a_package_that_is_not_installed_is_found_by_the_child(
    started: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "theirs")
    with pytest.raises(ProcessLostError):
        MeasuringProcess({})
    root = str(Path(autotune.__file__).parent.parent)
    assert started["env"]["PYTHONPATH"].split(os.pathsep) == [root, "theirs"]
