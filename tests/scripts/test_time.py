"""Time of the user's: a script that hangs before it trains ends with the budget, and leaves nothing."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.processes import MARK, marked, run_python

pytestmark = pytest.mark.machine
BUDGET, GRACE = 30, 15


def test_a_run_ends_with_its_budget_where_the_script_hangs_before_it_trains(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import time\ntime.sleep(600)\n")
    command = ("-m", "autotune", "run", "--budget", f"{BUDGET}s", "train.py")
    begin, mark = time.monotonic(), str(tmp_path)
    done = run_python(*command, folder=tmp_path, **{MARK: mark})
    assert done.returncode == 3, done.stderr
    assert time.monotonic() - begin <= BUDGET + GRACE
    assert "it was in <module>, train.py line 2" in " ".join(done.stderr.split())
    assert marked(mark) == []
