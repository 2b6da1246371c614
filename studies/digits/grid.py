"""Measure every configuration of the search's space, then tune in a tenth of the time, and train with both answers.

    python studies/digits/grid.py

Every configuration within the bounds is measured once, in random order of batch size, precision and threads. autotune
gets a tenth of the time that took. Then its answer and the three fastest of the grid train in turn, by ``train.py``.
Writes into the folder ``recorded`` beside this script.
"""

from __future__ import annotations

import csv
import json
import os
import random
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import autotune
from autotune.host import inspect_host
from autotune.records import Request
from autotune.runner import ProcessRunner
from autotune.search.space import build_space
from autotune.workload import describe

HERE = Path(os.path.relpath(Path(__file__).resolve().parent))
RECORDED = HERE / "recorded"
REFERENCE = f"{HERE}/workload.py:build"
BASELINE = autotune.Config(batch_size=32)
WINDOW = Request(seconds=2.0)
FINALISTS = 3
ROUNDS = 4
TRAIN_SECONDS = 12.0
KNOBS = ("batch_size", "num_workers", "prefetch_factor", "persistent_workers", "amp", "intra_op_threads")


def main() -> None:
    RECORDED.mkdir(exist_ok=True)
    begin = time.monotonic()
    rows = measure_grid()
    wall = time.monotonic() - begin
    finalists = sorted((row for row in rows if row["rate"]), key=lambda row: -float(row["rate"]))[:FINALISTS]
    paths = {"autotune": RECORDED / "grid_answer.yaml"}
    for place, row in enumerate(finalists, start=1):
        paths[f"grid {place}"] = RECORDED / f"grid_{place}.yaml"
        autotune.Config(**{knob: row[knob] for knob in KNOBS}).save(paths[f"grid {place}"])
    begin = time.monotonic()
    tune(paths["autotune"], int(wall / 10))
    tuning = time.monotonic() - begin
    rounds = [{name: train(path) for name, path in shuffled(paths)} for _ in range(ROUNDS)]
    result = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu_model": inspect_host().cpu_model,
        "configurations": len(rows),
        "grid_seconds": round(wall, 1),
        "autotune_seconds": round(tuning, 1),
        "rounds": rounds,
    }
    (RECORDED / "grid.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


def measure_grid() -> list[dict[str, object]]:
    """Measure every configuration of the space that a search would have."""
    rows: list[dict[str, object]] = []
    generator = random.Random(0)
    with (
        ProcessRunner(describe(REFERENCE)) as runner,
        (RECORDED / "grid.csv").open("w", newline="", encoding="utf-8") as file,
    ):
        space = build_space(runner.inspect(BASELINE), inspect_host().cpus, BASELINE, {})
        cells = sorted({(c.batch_size, c.amp, str(c.intra_op_threads)) for c in space.configs})
        order = {cell: place for place, cell in enumerate(generator.sample(cells, len(cells)))}
        configs = sorted(space.configs, key=lambda c: order[c.batch_size, c.amp, str(c.intra_op_threads)])
        writer = csv.DictWriter(file, (*KNOBS, "outcome", "rate", "seconds"))
        writer.writeheader()
        for config in configs:
            attempt = runner.measure(config, WINDOW)
            rate = attempt.measurement.samples_per_second if attempt.measurement else None
            row = {knob: getattr(config, knob) for knob in KNOBS}
            row |= {"outcome": str(attempt.outcome), "rate": rate, "seconds": round(attempt.seconds, 2)}
            rows.append(row)
            writer.writerow(row)
            file.flush()
    return rows


def tune(output: Path, seconds: int) -> None:
    command = [
        sys.executable,
        "-m",
        "autotune",
        "--model",
        REFERENCE,
        "--budget",
        f"{seconds}s",
        "--output",
        str(output),
    ]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    (RECORDED / "grid_run.txt").write_text(done.stderr, encoding="utf-8")


def train(path: Path) -> float:
    """Return the samples per second of training as a file says."""
    script = [sys.executable, str(HERE / "train.py"), str(path), "--json", "--seconds", str(TRAIN_SECONDS)]
    done = subprocess.run(script, check=True, capture_output=True, text=True)
    return float(json.loads(done.stdout)["samples_per_second"])


def shuffled(paths: dict[str, Path]) -> list[tuple[str, Path]]:
    return random.sample(list(paths.items()), len(paths))


if __name__ == "__main__":
    main()
