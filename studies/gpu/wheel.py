"""torch's build for CUDA on a machine without a GPU: the words of a run by default, and of two ranks on CUDA.

    python -m studies.gpu.wheel [FOLDER]

installs that build, some gigabytes, into an environment of its own in FOLDER, and prints the commands and their ends.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DEMO = ("-m", "autotune", "--model", "autotune.demo:build", "--budget", "30s", "--force")
RUNS = {"by default": (), "two ranks on CUDA": ("--device", "cuda", "--ranks", "2")}
WORDS = ("build for GPUs", "error:")
"""Parts of the lines that are asked for."""


def environment(folder: Path) -> Path:
    """Install torch as PyPI has it and the project into a new environment; return its Python."""
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "-q", "torch", "-e", ROOT], check=True)
    return python


def said(python: Path, *arguments: str) -> tuple[int, list[str]]:
    """Run the demo; return the exit code and the lines about the device."""
    with tempfile.TemporaryDirectory() as folder:
        call = [python, *DEMO, *arguments]
        done = subprocess.run(call, cwd=folder, capture_output=True, text=True, env={**os.environ, "COLUMNS": "300"})
    lines = (done.stdout + done.stderr).splitlines()
    return done.returncode, [line.strip() for line in lines if any(word in line for word in WORDS)]


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp(prefix="cuda-wheel-"))
    python = environment(folder)
    for name, arguments in RUNS.items():
        code, lines = said(python, *arguments)
        print(f"{name}: exit code {code}", *lines, sep="\n  ")


if __name__ == "__main__":
    main()
