"""Copies of what Python writes: they look as the files would, and the files stay."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.measure.opening import BEFORE, NAMES

SEEDS = 60


def test_copies_look_as_the_changed_files_would_and_the_files_stay(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.measure.copying", str(tmp_path), str(SEEDS)],
        cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    for seed in range(SEEDS):
        folder = tmp_path / "held" / str(seed)
        left = {str(file.relative_to(folder)): file.read_text() for file in folder.rglob("*") if file.is_file()}
        assert left == {name: name for name in ("a", "d/a", "d/e/a")}
        assert (folder / "a").stat().st_mtime > 1


def test_what_other_code_opens_is_a_copy(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.measure.opening", str(tmp_path)],
        cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout) == {}
    assert {path.name: path.read_bytes() for path in (tmp_path / "held").rglob("*")} == dict.fromkeys(NAMES, BEFORE)
