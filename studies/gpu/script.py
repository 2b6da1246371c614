"""A script as it is on this accelerator: tuned by ``run``, then trained without and with the answer by turns.

    python -m studies.gpu.script [--budget 3m]

Writes ``recorded/<device>/script.csv`` beside this script; exit code 2 without an accelerator. Takes some six minutes.
"""

from __future__ import annotations

import argparse
import csv
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import fmean
from typing import Any

from autotune.config import load_config
from autotune.machine.host import inspect_host
from studies.first_answers.study import by_turns
from studies.gpu.probes import folder_of

TRAINING = Path(__file__).with_name("training.py")


def main() -> int:
    parser = argparse.ArgumentParser(description="Tune a script on an accelerator, and train with the answer.")
    parser.add_argument("--budget", default="3m", help="autotune's")
    options = parser.parse_args()
    gpus = inspect_host().gpus
    if not gpus:
        print("no accelerator here", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        row = tuned_and_trained(Path(folder), options.budget)
    with (folder_of(gpus[0].name) / "script.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, row, lineterminator="\n")
        writer.writeheader()
        writer.writerow(row)
    print(row)
    return 0


def tuned_and_trained(folder: Path, budget: str) -> dict[str, Any]:
    """Tune the script in an empty folder, and train it by turns; return the figures of the table's row."""
    tuner, script = [sys.executable, "-m", "autotune"], str(TRAINING)
    subprocess.run([*tuner, "run", "--budget", budget, script], cwd=folder, check=True)
    measured = load_config(folder / "autotune.yaml").measured or {}
    rates = by_turns(
        {"present": [sys.executable, script], "answer": [*tuner, "apply", "autotune.yaml", script]}, folder, {}
    )
    return {
        "verdict": measured["verdict"],
        "speedup": measured["speedup"],
        "file_rate": measured["samples_per_second"],
        "trained_present": round(fmean(rates["present"]), 1),
        "trained_answer": round(fmean(rates["answer"]), 1),
    }


if __name__ == "__main__":
    sys.exit(main())
