"""Record the study: tune the digit workload, train with the answer, keep everything.

    python studies/digits/record.py [--budget 3m] [--seconds 20] [--rounds 4]

A shared machine changes its speed from minute to minute, so each training run stands between two measurements
of the same configuration by autotune, and what counts is their ratio. Training with the baseline runs in the same
rounds. Writes the folder ``recorded`` beside this script.
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

import autotune
from autotune.machine.host import inspect_host
from autotune.records import Request
from autotune.runner.local import ProcessRunner
from autotune.workload import describe

HERE = Path(os.path.relpath(Path(__file__).resolve().parent))
RECORDED = HERE / "recorded"


def main() -> None:
    options = parse_arguments()
    RECORDED.mkdir(exist_ok=True)
    tuned, baseline = RECORDED / "autotune.yaml", RECORDED / "baseline.yaml"
    tune(tuned, options.budget)
    autotune.Config(batch_size=32).save(baseline)
    rounds = []
    for _ in range(options.rounds):
        rounds.append(
            {
                "measured_before": measure(tuned),
                "training": train(tuned, options.seconds),
                "measured_after": measure(tuned),
                "training_with_baseline": train(baseline, options.seconds),
            }
        )
        print(json.dumps(rounds[-1]), file=sys.stderr)
    write("training.json", rounds)
    facts = ("cpus", "cpu_model", "memory_bytes", "gpus", "versions")
    host = asdict(inspect_host())
    write("machine.json", {"date": datetime.now(UTC).isoformat(timespec="seconds")} | {key: host[key] for key in facts})


def measure(path: Path) -> float:
    """Return the rate that autotune measures for a file's configuration now, in a fresh process."""
    with ProcessRunner(describe(f"{HERE}/workload.py:build")) as runner:
        attempt = runner.measure(autotune.load_config(path), Request(seconds=4.0, fresh=True))
    assert attempt.measurement is not None, attempt.message
    return attempt.measurement.samples_per_second


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Record the digits study.")
    parser.add_argument("--budget", default="3m", help="what autotune may take")
    parser.add_argument("--seconds", type=float, default=20.0, help="length of each training run")
    parser.add_argument("--rounds", type=int, default=4, help="training runs with each configuration")
    return parser.parse_args()


def tune(output: Path, budget: str) -> None:
    reference = f"{HERE}/workload.py:build"
    command = [sys.executable, "-m", "autotune", "--model", reference, "--budget", budget, "--json"]
    done = subprocess.run([*command, "--output", str(output)], check=True, capture_output=True, text=True)
    (RECORDED / "run.json").write_text(done.stdout, encoding="utf-8")
    (RECORDED / "run.txt").write_text(done.stderr, encoding="utf-8")


def train(config: Path, seconds: float) -> dict[str, float]:
    command = [sys.executable, str(HERE / "train.py"), str(config), "--json", "--seconds", str(seconds)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return dict(json.loads(done.stdout))


def write(name: str, content: object) -> None:
    (RECORDED / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
