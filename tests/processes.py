"""Other processes of Python: running them, and finding those that a test has started, however distant."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parents[1]
PATIENCE = 10.0
"""Seconds after which something that must happen has not happened."""
_WITHOUT_LEAST = """
import runpy, autotune.limits
autotune.limits.LEAST_BUDGET = 1.0
runpy.run_module("autotune", run_name="__main__", alter_sys=True)
"""
BRIEF = ("-c", _WITHOUT_LEAST)
"""What stands for ``-m autotune`` where a budget is shorter than users may give."""
MARK = "AUTOTUNE_TEST_MARK"
"""Environment variable that the processes of one test have in common."""


def run_python(
    *arguments: object, folder: Path = ROOT, seconds: float = 300.0, **environment: str
) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    command, given = [sys.executable, *map(str, arguments)], os.environ | {"PYTHONPATH": paths} | environment
    return subprocess.run(command, cwd=folder, env=given, capture_output=True, text=True, timeout=seconds)


def printed(*arguments: object, **options: Any) -> str:
    done = run_python(*arguments, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def known_time(place: Path) -> dict[str, str]:
    """Variables of a process in which code of a folder sleeps by a clock that no neighbour disturbs."""
    paths = [str(ROOT / "tests" / "known_time"), str(ROOT), os.environ.get("PYTHONPATH")]
    passive = {"OMP_WAIT_POLICY": "passive"}  # threads that wait for one another take no time of a CPU
    return {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "KNOWN_TIME": str(place)} | passive


def marked(mark: str) -> list[psutil.Process]:
    return [process for process in psutil.process_iter() if is_marked(process, mark)]


def is_marked(process: psutil.Process, mark: str) -> bool:
    try:
        is_dead = process.status() == psutil.STATUS_ZOMBIE
        return not is_dead and process.environ().get(MARK) == mark
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False


def are_gone(find: Callable[[], list[psutil.Process]]) -> bool:
    end = time.monotonic() + PATIENCE
    while find():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True
