"""The example job for Slurm is a script that bash can read."""

from __future__ import annotations

import subprocess
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "studies" / "hosts" / "postgresql.sbatch"


def test_bash_can_read_it() -> None:
    subprocess.run(["bash", "-n", str(SCRIPT)], check=True)
