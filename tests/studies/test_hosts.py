"""The example job for Slurm is a script that bash can read, with options where sbatch finds them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "studies" / "hosts" / "postgresql.sbatch"


def test_bash_can_read_it() -> None:
    subprocess.run(["bash", "-n", str(SCRIPT)], check=True)


def test_options_of_sbatch_come_before_the_first_command_and_take_whole_nodes() -> None:
    lines = SCRIPT.read_text(encoding="utf-8").splitlines()
    first = next(number for number, line in enumerate(lines) if line and not line.startswith("#"))
    options = [line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH ")]
    assert not any(line.startswith("#SBATCH") for line in lines[first:])
    assert {"--nodes=2", "--ntasks-per-node=1", "--exclusive", "--mem=0"} <= set(options)
    assert any(re.fullmatch(r"--time=\d\d:\d\d:\d\d", option) for option in options)
    assert not any(option.startswith(("--cpus-per-task", "--gpus")) for option in options)
    assert lines[first] == "set -euo pipefail"
