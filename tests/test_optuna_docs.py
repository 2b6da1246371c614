"""The example of the documentation on Optuna runs as it stands."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.processes import ROOT, run_python

(EXAMPLE,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "optuna.md").read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.machine
def test_the_example_runs(tmp_path: Path) -> None:
    shutil.copy(ROOT / "studies" / "demo" / "recorded" / "autotune.study", tmp_path)
    (tmp_path / "example.py").write_text(EXAMPLE, encoding="utf-8")
    done = run_python("example.py", folder=tmp_path, seconds=120)
    assert done.returncode == 0, done.stderr
    assert "batch_size" in done.stdout
    assert "Traceback" not in done.stderr
    assert (tmp_path / "autotune.study").read_bytes() == (ROOT / "studies/demo/recorded/autotune.study").read_bytes()
