"""The README is short, and a reader who copies its three steps trains with the answer."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.processes import BRIEF, run_python

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SETTINGS = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")


def test_it_is_short_and_says_early_where_the_tool_was_shown() -> None:
    lines = README.splitlines()
    assert len(lines) <= 140
    assert any("GPU yet" in line for line in lines[:15])
    assert README.count("<!-- command -->") == 2


@pytest.mark.machine
def test_its_three_steps_train_with_the_answer(tmp_path: Path) -> None:
    for name, text in re.findall(r"```python\n# (\w+\.py)\n(.*?)```", README + SETTINGS, flags=re.DOTALL):
        (tmp_path / name).write_text(text, encoding="utf-8")
    step = re.search(r"python -m autotune (--model mytraining\.py:build .*)", README)
    assert step is not None
    for command in ((*BRIEF, *shlex.split(step[1]), "--budget", "20s"), ("train.py",)):
        ended = run_python(*command, folder=tmp_path)
        assert ended.returncode == 0, ended.stderr
    assert re.findall(r"epoch (\d): loss \d", ended.stdout) == ["0", "1", "2"]
    assert ended.stderr == ""
