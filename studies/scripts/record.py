"""Record the study: tune each script as it is, train with the answer, and compare with a plain run.

    python studies/scripts/record.py [--only digits gan] [--budget 60s] [--epochs 4] [--output FOLDER]

Writes ``scripts.csv`` and ``rates.csv`` beside this script, or to another folder. Takes some fifteen minutes.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from autotune import Config, load_config
from autotune.records import Request
from autotune.runner.local import ProcessRunner
from autotune.workload import Script, describe

HERE = Path(__file__).resolve().parent
JOBS = HERE / "jobs"
LINES = {
    "classifier": "training = DataLoader(",
    "gan": "loader = DataLoader(",
    "epochs": "loader = DataLoader(",
    "tokens": "loader = DataLoader(",
    "digits": "train_loader = DataLoader(",
    "lightning_job": "return DataLoader(Signals(1920)",
    "transformers_job": "TrainingArguments(",
    "accelerate_job": "loader = DataLoader(",
}
"""The line of each script that decides the settings of its training loader."""
SAME = ("digits", "tokens")
"""Scripts that ``workloads.py`` writes as a workload too."""
ROUNDS = 3


def main() -> None:
    parser = argparse.ArgumentParser(description="Record the study of scripts.")
    parser.add_argument("--only", nargs="+", choices=LINES, default=list(LINES), help="these scripts alone")
    parser.add_argument("--budget", default="60s", help="what autotune may take for each script")
    parser.add_argument(
        "--epochs", type=int, default=4, help="epochs to train with the answer; the first is not counted"
    )
    parser.add_argument("--output", type=Path, default=HERE, help="folder to write")
    options = parser.parse_args()
    rows = []
    for name in options.only:
        rows.append(record(name, options))
        print(rows[-1], file=sys.stderr, flush=True)
        write(options.output / "scripts.csv", rows)
    write(options.output / "rates.csv", [compare(name) for name in SAME if name in options.only])


def record(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Tune a script, train with the answer, and train without it but with the same threads."""
    job = JOBS / f"{name}.py"
    with tempfile.TemporaryDirectory() as folder:
        run(folder, [sys.executable, job, "--epochs", "1"], {})  # makes its data
        shown = run(folder, tuner("run", "--dry-run", job), {}).stdout
        found, length = re.match(r"Found: (\S+): \w+, .*?([\d,]+) samples", shown).groups()
        before = files(folder)
        tuned = json.loads(
            run(folder, tuner("run", "--budget", options.budget, "--json", job, "--epochs", "50"), {}).stdout
        )
        written = sorted(files(folder) - before)
        config = load_config(Path(folder, "autotune.yaml"))
        events = Path(folder, "events.json")
        observed = {
            "OBSERVED_EVENTS": str(events),
            "PYTHONPATH": os.pathsep.join([str(HERE / "observer"), str(HERE.parents[1])]),
        }
        command = tuner("apply", "autotune.yaml", job, "--epochs", options.epochs)
        applied = run(folder, command, observed)
        rate = trained_rate(json.loads(events.read_text(encoding="utf-8")), int(length.replace(",", "")))
        plain = run(folder, [sys.executable, job, "--epochs", options.epochs], config.thread_environment())
    losses = [float(re.search(r"epoch 0: loss (\S+?),?\s", done.stdout)[1]) for done in (plain, applied)]
    measured = config.measured["samples_per_second"]
    line = 1 + next(i for i, text in enumerate(job.read_text(encoding="utf-8").splitlines()) if LINES[name] in text)
    return {
        "script": name,
        "verdict": tuned["verdict"],
        "speedup": round(tuned["speedup"], 2),
        "settings": " ".join(f"{key}={value}" for key, value in config.dataloader_kwargs().items()),
        "file_rate": measured,
        "trained_rate": round(rate, 1),
        "ratio": round(rate / measured, 3),
        "loader_found": found,
        "is_right_line": found == f"{name}.py:{line}",
        "files_written": " ".join(each for each, _ in written if not each.startswith("autotune")) or "none",
        "loss_plain": losses[0],
        "loss_applied": losses[1],
        "loss_difference": f"{abs(losses[1] / losses[0] - 1):.1e}",
    }


def compare(name: str) -> dict[str, Any]:
    """Measure a script and the same training as a workload, by turns, with the same settings."""
    config = Config(batch_size=16, num_workers=2, prefetch_factor=2, intra_op_threads=1)
    reference = describe(f"{HERE}/workloads.py:{name}")
    with tempfile.TemporaryDirectory() as folder, ProcessRunner(reference) as built:
        run(folder, [sys.executable, JOBS / f"{name}.py", "--epochs", "1"], {})
        os.chdir(folder)
        with ProcessRunner(describe(Script(path=str(JOBS / f"{name}.py"), arguments=("--epochs", "50")))) as script:
            rates: dict[str, list[float]] = {"script": [], "workload": []}
            for runner in (script, built):
                runner.inspect(config)
            for _ in range(ROUNDS):
                for kind, runner in (("script", script), ("workload", built)):
                    found = runner.measure(config, Request(seconds=4.0, time_limit=60.0))
                    assert found.measurement, found.message
                    rates[kind].append(found.measurement.samples_per_second)
        os.chdir(HERE)
    one, other = (statistics.median(found) for found in rates.values())
    return {
        "script": name,
        **{k: " ".join(f"{r:.1f}" for r in v) for k, v in rates.items()},
        "ratio": round(one / other, 3),
    }


def trained_rate(events: list[tuple[str, float]], samples: int) -> float:
    """Return samples per second of all epochs but the first, each from its loader's start to its last step."""
    epochs, begin, end = [], 0.0, None
    for kind, moment in [*events, ("iterate", 0.0)]:
        if kind == "step":
            end = moment
        else:
            if end is not None:
                epochs.append(end - begin)
            begin, end = moment, None
    return samples * len(epochs[1:]) / sum(epochs[1:])


def tuner(command: str, *arguments: object) -> list[object]:
    return [sys.executable, "-m", "autotune", command, *arguments]


def run(folder: str, command: list[Any], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(HERE.parents[1]), **environment}
    done = subprocess.run(
        [str(part) for part in command], cwd=folder, env=environment, check=False, capture_output=True, text=True
    )
    if done.returncode:
        sys.exit(f"{command} ended with exit code {done.returncode}:\n{done.stderr}")
    return done


def files(folder: str) -> set[tuple[str, int]]:
    """Return all files below a folder, and when they were changed."""
    found = (path for path in Path(folder).rglob("*") if path.is_file())
    return {(str(path.relative_to(folder)), path.stat().st_mtime_ns) for path in found}


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    if not rows:
        return
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
