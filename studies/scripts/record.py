"""Record the study: tune each script as it is, train with the answer, and compare with a plain run.

    python studies/scripts/record.py [--only digits gan] [--budget 60s] [--epochs 3] [--output FOLDER]

Adds rows to ``scripts.csv`` and ``rates.csv`` beside this script, or in another folder. Scripts that are there already
are left out: delete the files to begin anew. Takes some forty minutes.
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
from autotune.errors import UserCodeError
from autotune.records import Request
from autotune.runner.local import ProcessRunner
from autotune.workload import Script, describe

HERE = Path(__file__).resolve().parent
JOBS = HERE / "jobs"
LINES: dict[str, str | tuple[str, ...]] = {
    "classifier": "training = DataLoader(",
    "gan": "loader = DataLoader(",
    "epochs": "loader = DataLoader(",
    "tokens": "loader = DataLoader(",
    "digits": "train_loader = DataLoader(",
    "lightning_job": "return DataLoader(Signals(1920)",
    "transformers_job": "TrainingArguments(",
    "accelerate_job": "loader = DataLoader(",
    "imagenet": "train_loader = DataLoader(",
    "dcgan": "dataloader = DataLoader(",
    "vae": "train_loader = DataLoader(",
    "language_model": "loader = DataLoader(",
    "siamese": "pairs_loader = DataLoader(",
    "transformers_eval": "TrainingArguments(",
    "accelerate_accumulation": "return DataLoader(",
    "lightning_val": "training = DataLoader(",
    "semi_supervised": ("labelled_loader = DataLoader(", "unlabelled_loader = DataLoader("),
    "shards": "stream = DataLoader(",
    "replay": "transitions = iter(DataLoader(",
    "own_iterator": "loader = EndlessLoader(",
}
"""The line of each script that decides the settings of its training loader; of several loaders, each one's."""
COLUMNS = (
    *("script", "verdict", "speedup", "settings", "present_rate", "own_rate", "present_ratio"),
    *("file_rate", "own_rate_applied", "ratio", "loader_found", "is_right_line", "files_written"),
    *("loss_plain", "loss_applied", "loss_difference", "message"),
)
"""Rates in samples per second: what autotune measured, and beside it what the script prints by its own clock."""
SAME = ("digits", "tokens")
"""Scripts that ``workloads.py`` writes as a workload too."""
ROUNDS = 3


class Refused(Exception):
    """Raised where autotune does not measure a script; the message is its own."""


def main() -> None:
    parser = argparse.ArgumentParser(description="Record the study of scripts.")
    parser.add_argument("--only", nargs="+", choices=LINES, default=list(LINES), help="these scripts alone")
    parser.add_argument("--budget", default="60s", help="what autotune may take for each script")
    parser.add_argument("--epochs", type=int, default=3, help="epochs to train; the first is not counted")
    parser.add_argument("--output", type=Path, default=HERE, help="folder to write")
    options = parser.parse_args()
    scripts, rates = options.output / "scripts.csv", options.output / "rates.csv"
    for name in options.only:
        if name not in recorded(scripts):
            try:
                row = record(name, options)
            except Refused as error:
                row = {"script": name, "verdict": "refused", "message": str(error)}
            print(row, file=sys.stderr, flush=True)
            append(scripts, COLUMNS, row)
    for name in SAME:
        if name in options.only and name not in recorded(rates):
            row = compare(name)
            append(rates, tuple(row), row)


def record(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Train a script as it is, tune it, train with the answer, and train without it but with the same threads."""
    job = JOBS / f"{name}.py"
    train = [job, "--epochs", options.epochs]
    with tempfile.TemporaryDirectory() as folder:
        present = run(folder, [sys.executable, *train])  # makes its data, too
        shown = run(folder, tuner("run", "--dry-run", *train))
        found = re.findall(r"(\S+\.py:\d+): \w+", shown)
        before = files(folder)
        tuned = json.loads(run(folder, tuner("run", "--budget", options.budget, "--json", job, "--epochs", "50")))
        written = sorted(files(folder) - before)
        config = load_config(Path(folder, "autotune.yaml"))
        applied = run(folder, tuner("apply", "autotune.yaml", *train))
        threads = config.thread_environment()
        plain = run(folder, [sys.executable, *train], threads) if threads else present
    measured = config.measured
    rates = {
        "present_rate": measured.get("baseline", measured)["samples_per_second"],
        "own_rate": own_rate(present),
        "file_rate": measured["samples_per_second"],
        "own_rate_applied": own_rate(applied),
    }
    losses = first_loss(plain), first_loss(applied)
    return {
        "script": name,
        "verdict": tuned["verdict"],
        "speedup": round(tuned["speedup"], 2),
        "settings": " ".join(f"{key}={value}" for key, value in config.dataloader_kwargs().items()),
        **rates,
        "present_ratio": round(rates["own_rate"] / rates["present_rate"], 3),
        "ratio": round(rates["own_rate_applied"] / rates["file_rate"], 3),
        "loader_found": " ".join(found),
        "is_right_line": is_right(name, found),
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
        run(folder, [sys.executable, JOBS / f"{name}.py", "--epochs", "1"])
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


def own_rate(printed: str) -> float:
    """Return the median of the rates that a script prints of its epochs, without the first."""
    rates = [float(rate) for rate in re.findall(r"^epoch \d+: loss \S+, (\S+) samples/s$", printed, re.MULTILINE)]
    return round(statistics.median(rates[1:]), 1)


def first_loss(printed: str) -> float:
    return float(re.search(r"^epoch 0: loss (\S+),", printed, re.MULTILINE)[1])


def is_right(name: str, found: list[str]) -> bool:
    """Return whether the lines that were found are those that decide the settings."""
    texts = LINES[name]
    wanted = (texts,) if isinstance(texts, str) else texts
    lines = (JOBS / f"{name}.py").read_text(encoding="utf-8").splitlines()
    numbers = [1 + next(i for i, line in enumerate(lines) if text in line) for text in wanted]
    return found == [f"{name}.py:{number}" for number in numbers]


def tuner(command: str, *arguments: object) -> list[object]:
    return [sys.executable, "-m", "autotune", command, *arguments]


def run(folder: str, command: list[Any], environment: dict[str, str] | None = None) -> str:
    """Run a command and return what it prints; raises ``Refused`` with autotune's message where it ends with one."""
    environment = {**os.environ, "PYTHONPATH": str(HERE.parents[1]), **(environment or {})}
    done = subprocess.run(
        [str(part) for part in command], cwd=folder, env=environment, check=False, capture_output=True, text=True
    )
    message = re.search(r"^autotune: error: (.*)$", done.stderr, re.MULTILINE)
    if message and done.returncode == UserCodeError.exit_code:
        raise Refused(message[1])
    if done.returncode:
        sys.exit(f"{command} ended with exit code {done.returncode}:\n{done.stderr}")
    return done.stdout


def files(folder: str) -> set[tuple[str, int]]:
    """Return all files below a folder, and when they were changed."""
    found = (path for path in Path(folder).rglob("*") if path.is_file())
    return {(str(path.relative_to(folder)), path.stat().st_mtime_ns) for path in found}


def recorded(path: Path, column: str = "script") -> set[str]:
    """Return the scripts that a file holds already."""
    if not path.exists():
        return set()
    with path.open(newline="", encoding="utf-8") as file:
        return {row[column] for row in csv.DictReader(file)}


def append(path: Path, columns: tuple[str, ...], row: dict[str, Any]) -> None:
    is_new = not path.exists()
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=columns, lineterminator="\n")
        if is_new:
            writer.writeheader()
        writer.writerow(row)


if __name__ == "__main__":
    main()
