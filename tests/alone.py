"""Tests that need a process of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def assert_passes(file: str) -> None:
    """Run the tests of a file, given relative to the checkout, in a new process: all pass and none is skipped."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", file],
        cwd=ROOT,
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout, done.stdout
