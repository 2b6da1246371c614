"""Some of the faults strike a trial of a whole study; all of them do in studies/faults."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import psutil
import pytest

from autotune import load_config
from tests.faults.injecting import inject
from tests.faults.zoo import FAULTS, FLAG, NAME
from tests.processes import are_gone

ROOT = Path(__file__).resolve().parents[2]
FLAGS = (
    *("--model", "tests.faults.zoo:build", "--device", "cpu", "--budget", "60s", "--trials", "3", "--amp", "off"),
    *("--batch-size", "16,64", "--threads", "1", "--num-workers", "0", "--baseline", "batch_size=8,threads=1"),
)

pytestmark = pytest.mark.machine


def test_a_study_goes_on_after_a_fault_and_leaves_nothing_behind() -> None:
    name = "worker leaves processes and exits"
    found = inject(name, seconds=30.0)
    assert found.outcome is FAULTS[name].outcome, found.message
    assert found.recovery_seconds is not None
    assert (found.processes, found.segments, found.is_valid) == ((), (), True)


def test_the_command_line_tells_a_fault_and_writes_an_answer(
    tmp_path: Path, processes: Callable[[], list[psutil.Process]]
) -> None:
    folder, scratch, flag = tmp_path / "run", tmp_path / "scratch", tmp_path / "flag"
    folder.mkdir()
    scratch.mkdir()
    environment = {**os.environ, NAME: "item leaves processes and exits", FLAG: str(flag), "TMPDIR": str(scratch)}
    lines: list[str] = []
    with subprocess.Popen(
        [sys.executable, "-m", "autotune", *FLAGS], cwd=folder, text=True,
        env={**environment, "PYTHONPATH": str(ROOT)}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stderr is not None
        for line in process.stderr:  # the fault strikes what comes after the baseline
            flag.unlink(missing_ok=True)
            lines.append(line)
            if line.startswith("  0 "):
                flag.touch()
    assert process.returncode == 0, lines
    told = next(after for line, after in pairwise(lines) if line.startswith("  0 "))
    assert "exit code 7" in told, lines
    assert any(line.startswith(("  1 ok ", "  2 ok ")) for line in lines), lines  # one may be suspect: others were busy
    assert load_config(folder / "autotune.yaml").measured is not None
    assert {path.name for path in folder.iterdir()} == {"autotune.study", "autotune.yaml"}
    assert are_gone(processes)
    assert list(scratch.glob("autotune-*")) == []
