"""Record the study: tune from each trainer, then train and measure in turn.

    python studies/trainers/record.py [--only lightning] [--rounds 3] [--output FOLDER]

Every search, every training and every measurement is a process of its own. Writes the folder ``recorded``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import autotune
from autotune.machine.host import inspect_host

HERE = Path(__file__).resolve().parent
NAMES = ("lightning", "transformers", "accelerate")


def main() -> None:
    parser = argparse.ArgumentParser(description="Record the study of trainers.")
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES, help="these trainers alone")
    parser.add_argument("--rounds", type=int, default=3, help="trainings with each answer")
    parser.add_argument("--output", type=Path, default=HERE / "recorded", help="folder to write")
    options = parser.parse_args()
    for name in options.only:
        folder = options.output.resolve() / name
        folder.mkdir(exist_ok=True, parents=True)
        found: dict[str, Any] = {**machine(name), "tuned": run(name, "tune", folder), "rounds": []}
        for number in range(options.rounds):
            order = ("train", "beside") if number % 2 == 0 else ("beside", "train")
            found["rounds"].append({act: run(name, act, folder) for act in order})
            print(name, json.dumps(found["rounds"][-1]), file=sys.stderr)
        (folder / "rates.json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


def machine(name: str) -> dict[str, Any]:
    host = asdict(inspect_host())
    facts = {key: host[key] for key in ("cpus", "cpu_model", "memory_bytes", "gpus", "versions")}
    return {"date": datetime.now(UTC).isoformat(timespec="seconds"), "trainer": f"{name} {version(name)}", **facts}


def run(name: str, act: str, folder: Path) -> dict[str, Any]:
    """Run one of the scripts, with the threads of the file where there is one; return what it printed last."""
    file = folder / "autotune.yaml"
    threads = autotune.load_config(file).thread_environment() if act == "train" else {}
    with tempfile.TemporaryDirectory() as scratch:
        done = subprocess.run(
            [sys.executable, str(HERE / "scripts.py"), name, act, str(folder)],
            cwd=scratch,
            env=os.environ | threads | {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    return dict(json.loads(done.stdout.splitlines()[-1]))


if __name__ == "__main__":
    main()
