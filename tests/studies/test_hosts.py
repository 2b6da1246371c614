"""The example jobs for Slurm are scripts that bash and shellcheck have nothing to say of."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

HOSTS = Path(__file__).resolve().parents[2] / "studies" / "hosts"
BINARIES = Path(sys.executable).parent


@pytest.fixture(params=["ray.sbatch", "postgresql.sbatch"])
def script(request: pytest.FixtureRequest) -> Path:
    return HOSTS / str(request.param)


def test_bash_and_shellcheck_find_nothing(script: Path) -> None:
    subprocess.run(["bash", "-n", str(script)], check=True)
    checked = subprocess.run([BINARIES / "shellcheck", str(script)], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_options_of_sbatch_come_before_the_first_command_and_take_whole_nodes(script: Path) -> None:
    lines = script.read_text(encoding="utf-8").splitlines()
    first = next(number for number, line in enumerate(lines) if line and not line.startswith("#"))
    options = [line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH ")]
    assert not any(line.startswith("#SBATCH") for line in lines[first:])
    assert {"--nodes=2", "--ntasks-per-node=1", "--exclusive", "--mem=0"} <= set(options)
    assert any(re.fullmatch(r"--time=\d\d:\d\d:\d\d", option) for option in options)
    assert not any(option.startswith(("--cpus-per-task", "--gpus")) for option in options)
    assert lines[first] == "set -euo pipefail"
