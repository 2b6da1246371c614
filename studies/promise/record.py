"""Record the study: tune each workload, then train with its file for two separate minutes.

    python studies/promise/record.py [--only digits] [--budget 3m] [--seconds 60] [--output FOLDER]

Tuning and each minute of training are processes of their own. Writes the folder ``recorded`` beside this script.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from autotune.machine.host import inspect_host

HERE = Path(os.path.relpath(Path(__file__).resolve().parent))
WORKLOADS = ("digits", "source_text", "photographs")
MINUTES = 2
"""Training runs with each file."""
WARM_UP = 10.0
"""Seconds of training before each."""


def main() -> None:
    options = parse_arguments()
    options.output.mkdir(exist_ok=True, parents=True)
    write(options.output / "machine.json", machine())
    for name in options.only or WORKLOADS:
        folder = options.output / name
        folder.mkdir(exist_ok=True)
        tune(name, folder, options.budget)
        minutes = [train(name, folder, options.seconds) for _ in range(MINUTES)]
        write(folder / "training.json", {"warm_up_seconds": WARM_UP, "runs": minutes})
        print(name, json.dumps(minutes), file=sys.stderr)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Record the study of promises.")
    parser.add_argument("--only", nargs="+", choices=WORKLOADS, help="these workloads alone")
    parser.add_argument("--budget", default="3m", help="what autotune may take for each workload")
    parser.add_argument("--seconds", type=float, default=60.0, help="length of each training run")
    parser.add_argument("--output", type=Path, default=HERE / "recorded", help="folder to write")
    return parser.parse_args()


def machine() -> dict[str, object]:
    facts = ("cpus", "cpu_model", "memory_bytes", "gpus", "versions")
    host = asdict(inspect_host())
    return {"date": datetime.now(UTC).isoformat(timespec="seconds")} | {key: host[key] for key in facts}


def tune(name: str, folder: Path, budget: str) -> None:
    """Run the command line for a workload, and keep all that it says."""
    command = [sys.executable, "-m", "autotune", "--model", f"{HERE}/workloads.py:{name}", "--device", "cpu", "--json"]
    command += ["--budget", budget, "--output", str(folder / "autotune.yaml")]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    (folder / "run.json").write_text(done.stdout, encoding="utf-8")
    (folder / "run.txt").write_text(done.stderr, encoding="utf-8")
    if done.returncode:
        sys.exit(f"{' '.join(command)} ended with exit code {done.returncode}:\n{done.stderr}")


def train(name: str, folder: Path, seconds: float) -> dict[str, float]:
    """Train with the file in a new process; return what it printed."""
    command = [sys.executable, str(HERE / "train.py"), str(folder / "autotune.yaml"), "--workload", name]
    command += ["--seconds", str(seconds), "--warm-up", str(WARM_UP)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return dict(json.loads(done.stdout))


def write(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
