"""Finding the processes that a test has started, however distant."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Callable

PATIENCE = 10.0
"""Seconds after which something that must happen has not happened."""
MARK = "AUTOTUNE_TEST_MARK"
"""Environment variable that the processes of one test have in common."""


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
