"""Tests that need a process of their own."""

from __future__ import annotations

from tests.processes import run_python


def assert_passes(file: str) -> None:
    """Run the tests of a file, given relative to the checkout, in a new process: all pass and none is skipped."""
    done = run_python("-m", "pytest", "-q", file, seconds=600.0, HF_HUB_OFFLINE="1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout, done.stdout
