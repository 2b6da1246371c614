"""Every script of every study finds what it imports."""

from __future__ import annotations

import runpy
import sys
from contextlib import suppress
from pathlib import Path

import pytest

STUDIES = Path(__file__).resolve().parents[2] / "studies"


@pytest.mark.parametrize(
    "folder", sorted(path for path in STUDIES.iterdir() if path.is_dir()), ids=lambda path: path.name
)
def test_scripts_can_be_imported(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(folder)
    before = set(sys.modules)
    monkeypatch.setattr(sys, "argv", ["script", "--help"])
    for script in folder.glob("*.py"):
        with suppress(SystemExit):  # a training script reads its arguments at once
            runpy.run_path(str(script))
    for name in set(sys.modules) - before:
        if str(STUDIES) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]
