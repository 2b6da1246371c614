"""Measure every configuration of the search's space, then tune in a tenth of the time, and train with both answers.

    python studies/digits/grid.py [--reuse]

Every configuration within the bounds is measured once, in random order of batch size, precision and threads. autotune
gets a tenth of the time that took, three times. Then its answers and the three fastest of the grid train in turn, by
``train.py``. Writes into the folder ``recorded`` beside this script; ``--reuse`` takes the grid that lies there.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas

import autotune
from autotune.machine.host import inspect_host
from autotune.records import Request
from autotune.runner.local import ProcessRunner
from autotune.search.space import build_space
from autotune.workload import describe

HERE = Path(os.path.relpath(Path(__file__).resolve().parent))
RECORDED = HERE / "recorded"
REFERENCE = f"{HERE}/workload.py:build"
BASELINE = autotune.Config(batch_size=32)
WINDOW = Request(seconds=2.0)
FINALISTS = 3
RUNS = 3
ROUNDS = 3
TRAIN_SECONDS = 12.0
KNOBS = ("batch_size", "num_workers", "prefetch_factor", "persistent_workers", "amp", "intra_op_threads")


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare autotune with an exhaustive grid.")
    parser.add_argument("--reuse", action="store_true", help="take the grid that was measured before")
    RECORDED.mkdir(exist_ok=True)
    if not parser.parse_args().reuse:
        begin = time.monotonic()
        measure_grid()
        write("grid_machine.json", machine() | {"seconds": round(time.monotonic() - begin, 1)})
    wall = json.loads((RECORDED / "grid_machine.json").read_text(encoding="utf-8"))["seconds"]
    rows = read_grid()
    finalists = sorted((row for row in rows if row["rate"]), key=lambda row: -float(row["rate"]))[:FINALISTS]
    paths = {f"answer {number}": RECORDED / f"grid_answer_{number}.yaml" for number in range(1, RUNS + 1)}
    seconds = [tune(path, int(wall / 10)) for path in paths.values()]
    for place, row in enumerate(finalists, start=1):
        paths[f"grid {place}"] = RECORDED / f"grid_{place}.yaml"
        autotune.Config(**{knob: row[knob] for knob in KNOBS}).save(paths[f"grid {place}"])
    rounds = [{name: train(path) for name, path in shuffled(paths)} for _ in range(ROUNDS)]
    write("grid.json", machine() | {"autotune_seconds": seconds, "rounds": rounds})


def machine() -> dict[str, object]:
    return {"date": datetime.now(UTC).isoformat(timespec="seconds"), "cpu_model": inspect_host().cpu_model}


def write(name: str, content: object) -> None:
    (RECORDED / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def measure_grid() -> None:
    """Measure every configuration of the space that a search would have."""
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
            writer.writerow(row)
            file.flush()


def read_grid() -> list[dict[str, Any]]:
    """Return the measured configurations, with the types of ``Config``'s fields."""
    frame = pandas.read_csv(RECORDED / "grid.csv", dtype_backend="numpy_nullable")
    rows = frame.astype(object).where(frame.notna(), None).to_dict("records")
    return [{str(key): value for key, value in row.items()} for row in rows]


def tune(output: Path, seconds: int) -> float:
    """Tune once, and return the seconds that it took."""
    begin, told = time.monotonic(), ["--model", REFERENCE, "--budget", f"{seconds}s", "--output", str(output)]
    output.unlink(missing_ok=True)
    command = [sys.executable, "-m", "autotune", *told]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    output.with_suffix(".txt").write_text(done.stderr, encoding="utf-8")
    output.with_suffix(".study").unlink(missing_ok=True)
    return round(time.monotonic() - begin, 1)


def train(path: Path) -> float:
    """Return the samples per second of training as a file says."""
    script = [sys.executable, str(HERE / "train.py"), str(path), "--json", "--seconds", str(TRAIN_SECONDS)]
    done = subprocess.run(script, check=True, capture_output=True, text=True)
    return float(json.loads(done.stdout)["samples_per_second"])


def shuffled(paths: dict[str, Path]) -> list[tuple[str, Path]]:
    return random.sample(list(paths.items()), len(paths))


if __name__ == "__main__":
    main()
