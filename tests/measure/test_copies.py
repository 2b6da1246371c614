"""Copies of what Python writes: they look as the files would, and the files stay."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.measure.opening import BEFORE, NAMES
from tests.processes import run_python

SEEDS = 60


def run(module: str, *given: object) -> str:
    command = [sys.executable, "-m", module, *map(str, given)]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_copies_look_as_the_changed_files_would_and_the_files_stay(tmp_path: Path) -> None:
    run("tests.measure.copying", tmp_path, SEEDS)
    for seed in range(SEEDS):
        folder = tmp_path / "held" / str(seed)
        left = {str(file.relative_to(folder)): file.read_text() for file in folder.rglob("*") if file.is_file()}
        assert left == {name: name for name in ("a", "d/a", "d/e/a")}
        assert (folder / "a").stat().st_mtime > 1


def test_what_other_code_opens_is_a_copy(tmp_path: Path) -> None:
    assert json.loads(run("tests.measure.opening", tmp_path)) == {}
    assert {path.name: path.read_bytes() for path in (tmp_path / "held").rglob("*")} == dict.fromkeys(NAMES, BEFORE)


FORKED = """
import os, sys
from autotune.measure.copies import Copies
os.chdir(sys.argv[1])
copies = Copies(sys.argv[2], [])
copies.install()
for removes in (True, False):
    if (child := os.fork()) == 0:
        if removes:
            os.remove("removed")
            os.symlink("kept", "link")
        else:
            copies.begin_anew()
        os._exit(0)
    os.waitpid(child, 0)
    print(sorted(os.listdir(".")), os.path.exists("removed"), os.path.exists("link") and open("link").read())
"""


def test_processes_of_one_script_see_what_the_others_remove_and_link(tmp_path: Path) -> None:
    held, copies = tmp_path / "held", tmp_path / "copies"
    copies.mkdir()
    held.mkdir()
    for name in ("kept", "removed"):
        (held / name).write_text(name)
    done = run_python("-c", FORKED, held, copies)
    assert done.stdout.splitlines() == ["['kept', 'link'] False kept", "['kept', 'removed'] True False"], done.stderr
    assert sorted(path.name for path in held.iterdir()) == ["kept", "removed"]
