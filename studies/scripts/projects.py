"""Record projects' own training commands: does ``run`` find their loader, and is its rate that of their own log?

    python studies/scripts/projects.py [--only litgpt mace] [--budget 45s] [--output FOLDER]

Needs the projects, in an environment of their own: see README.md. Adds rows to ``projects.csv`` beside this script, or
in another folder. Projects that are there already are left out: delete the file to begin anew. Takes twenty minutes.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from record import HERE, append, recorded

from autotune import load_config

MAKE = HERE / "projects"
COLUMNS = (
    *("project", "version", "own_rate", "own_rate_after", "present_rate", "ratio", "verdict", "speedup"),
    *("found", "is_right", "change", "is_flag_named", "command", "message"),
)
"""Rates in samples per second, by the project's own log before and after, and by autotune between; where to change."""
LONG = 600.0
SITE = sysconfig.get_paths()["purelib"]


class Project(NamedTuple):
    """A project, its command and what is known of it."""

    package: str
    command: tuple[str, ...]
    """As its users type it, without an end that comes soon."""
    short: tuple[str, ...]
    """What is added for a training that ends."""
    rates: Callable[[Path, str], list[float]]
    """Samples per second from a folder and from what was printed."""
    loader: str
    """A part of the place, as autotune names it, where the training loader is made."""
    change: str
    """A part of the line that tells a user what to change."""


def epochs_of_yolo(folder: Path, printed: str) -> list[float]:
    """Rates of the epochs between the first, which warms up, and the last, which validates."""
    (path,) = folder.rglob("results.csv")
    with path.open(newline="", encoding="utf-8") as file:
        times = [float(row["time"]) for row in csv.DictReader(file)]
    return [640 / (after - before) for before, after in pairwise(times[:-1])]


def batches_of_open_clip(folder: Path, printed: str) -> list[float]:
    """Rates of each ten batches, by their mean time."""
    return [16 / float(mean) for mean in re.findall(r"Batch \(t\): (\S+),", printed)[1:]]


def throughput_of_litgpt(folder: Path, printed: str) -> list[float]:
    """Rates as its monitor writes them, of five entries each."""
    (path,) = folder.rglob("metrics.csv")
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    (column,) = (name for name in rows[-1] if name.endswith("samples_per_sec"))
    return [float(row[column]) for row in rows if row[column]][10:]


def summary_of_trl(folder: Path, printed: str) -> list[float]:
    return [float(rate) for rate in re.findall(r"'train_samples_per_second': '?([\d.]+)", printed)]


def epochs_of_mace(folder: Path, printed: str) -> list[float]:
    """Rates of the epochs, with the validation of 32 clusters."""
    stamps = re.findall(r"^(\S+ \S+) INFO: Epoch \d+: ", printed, re.MULTILINE)
    return [608 / seconds for seconds in gaps(datetime.fromisoformat(stamp).timestamp() for stamp in stamps)]


def steps_of_lightning(folder: Path, printed: str) -> list[float]:
    """Rates between two logged steps, by the times in TensorBoard's events."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (path,) = folder.rglob("events.out.tfevents.*")
    events = EventAccumulator(str(path)).Reload().Scalars("train_loss_step")
    steps = events[1].step - events[0].step
    return [16 * steps / seconds for seconds in gaps(event.wall_time for event in events)]


def gaps(times: Iterable[float]) -> list[float]:
    return [after - before for before, after in pairwise(times)]


PROJECTS: dict[str, Project] = {
    "ultralytics": Project(
        "ultralytics",
        (
            *("yolo", "detect", "train", "data=data.yaml", "model=yolo11n.yaml", "imgsz=64", "batch=16", "workers=0"),
            *("device=cpu", "val=False", "plots=False", "close_mosaic=0", "project=runs", "epochs=50"),
        ),
        ("epochs=5",),
        epochs_of_yolo,
        "ultralytics/data/build.py:404",
        "num_workers=2",
    ),
    "open_clip": Project(
        "open_clip_torch",
        (
            *("-m", "open_clip_train.main", "--train-data", "train.csv", "--model", "local-dir:model"),
            *("--batch-size", "16", "--workers", "0", "--precision", "fp32", "--log-every-n-steps", "10"),
            *("--logs", "logs", "--epochs", "50"),
        ),
        ("--epochs", "2"),
        batches_of_open_clip,
        "open_clip_train/data.py:461",
        "--workers 2",
    ),
    "litgpt": Project(
        "litgpt",
        (
            *(
                "litgpt",
                "pretrain",
                "pythia-14m",
                "--model_config.name",
                "pythia-14m",
                "--model_config.vocab_size",
                "64",
            ),
            *("--model_config.n_layer", "2", "--model_config.n_embd", "64", "--model_config.n_head", "2"),
            *("--model_config.block_size", "64", "--tokenizer_dir", "tokenizer", "--data", "TextFiles"),
            *("--data.train_data_path", "texts", "--data.num_workers", "0", "--train.micro_batch_size", "4"),
            *("--train.global_batch_size", "4", "--train.log_interval", "10", "--train.lr_warmup_steps", "10"),
            *("--devices", "1", "--precision", "32-true", "--logger_name", "csv", "--out_dir", "out"),
            *("--train.max_tokens", "40000000"),
        ),
        ("--train.max_tokens", "300000"),
        throughput_of_litgpt,
        "litgpt/data/text_files.py:116",
        "num_workers=2",
    ),
    "trl": Project(
        "trl",
        (
            *(
                "-m",
                "trl.scripts.sft",
                "--model_name_or_path",
                "model",
                "--dataset_name",
                "texts",
                "--output_dir",
                "out",
            ),
            *("--per_device_train_batch_size", "8", "--use_cpu", "--report_to", "none", "--bf16", "False"),
            *("--max_steps", "5000"),
        ),
        ("--max_steps", "400"),
        summary_of_trl,
        "trl/scripts/sft.py:113",
        "--dataloader_num_workers 2",
    ),
    "chemprop": Project(
        "chemprop",
        (
            *("chemprop", "train", "--data-path", "molecules.csv", "--batch-size", "16", "--accelerator", "cpu"),
            *("--message-hidden-dim", "32", "--ffn-hidden-dim", "32", "--no-cache", "--output-dir", "out"),
            *("--split-sizes", "0.96", "0.02", "0.02", "--epochs", "50"),
        ),
        ("--epochs", "4"),
        steps_of_lightning,
        "chemprop/data/dataloader.py:87",
        "num_workers=2",
    ),
    "mace": Project(
        "mace-torch",
        (
            *("mace_run_train", "--name", "small", "--train_file", "clusters.xyz", "--valid_fraction", "0.05"),
            *("--E0s", "average", "--model", "MACE", "--num_interactions", "1", "--num_channels", "8", "--max_L", "0"),
            *("--r_max", "3", "--correlation", "1", "--batch_size", "8", "--valid_batch_size", "32", "--device", "cpu"),
            *("--default_dtype", "float32", "--eval_interval", "1", "--max_num_epochs", "200"),
        ),
        ("--max_num_epochs", "8"),
        epochs_of_mace,
        "mace/cli/run_train.py:725",
        "--num_workers 2",
    ),
    "lightning": Project(
        "lightning",
        ("lightning_cli.py", "fit", "--config", "config.yaml", "--trainer.max_epochs", "200"),
        ("--trainer.max_epochs", "6"),
        steps_of_lightning,
        "lightning_cli.py:34",
        "--data.num_workers 2",
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Record projects' own training commands.")
    parser.add_argument("--only", nargs="+", choices=PROJECTS, default=list(PROJECTS), help="these projects alone")
    parser.add_argument("--budget", default="45s", help="what autotune may take for each project")
    parser.add_argument("--output", type=Path, default=HERE, help="folder to write")
    options = parser.parse_args()
    path = options.output / "projects.csv"
    for name in options.only:
        if name not in recorded(path, "project"):
            row = record(name, PROJECTS[name], options.budget)
            print(row, file=sys.stderr, flush=True)
            append(path, COLUMNS, row)


def record(name: str, project: Project, budget: str) -> dict[str, Any]:
    """Train with the project's own command, look for its loader, and take its rate with autotune."""
    with tempfile.TemporaryDirectory() as folder:
        run(folder, [sys.executable, "-c", f"import data, pathlib; data.MAKERS[{name!r}](pathlib.Path())"])
        if name == "lightning":
            shutil.copy(MAKE / "lightning_cli.py", folder)
        command = [shutil.which(project.command[0]) or project.command[0], *project.command[1:]]
        rate = own_rate(folder, project, command)
        row = {
            "project": name,
            "version": version(project.package),
            "command": " ".join(project.command),
            "own_rate": round(rate, 1),
        }
        shown = tune(folder, "--dry-run", *command)
        if shown.returncode:
            return {**row, "verdict": "refused", "message": shown.stderr.strip()}
        tuned = tune(folder, "--budget", budget, "--json", *command)
        found = " ".join(re.findall(r"^Found: (\S+:\d+)", shown.stdout, re.MULTILINE))
        row |= {"found": found.replace(f"{SITE}/", ""), "is_right": project.loader in found}
        if not tuned.stdout.strip():
            return {**row, "verdict": "refused", "message": tuned.stderr.strip()}
        measured = load_config(Path(folder, "autotune.yaml")).measured
        present = measured.get("baseline", measured)["samples_per_second"]
        answer = json.loads(tuned.stdout)
        change = advice(folder, command[: 1 + command[0].startswith("-")])
        after = own_rate(folder, project, command)
        return {
            **row,
            "present_rate": round(present, 1),
            "own_rate_after": round(after, 1),
            "ratio": round((rate + after) / 2 / present, 3),
            "verdict": answer["verdict"],
            "speedup": round(answer["speedup"], 2),
            "change": change,
            "is_flag_named": project.change in change,
        }


def own_rate(folder: str, project: Project, command: list[str]) -> float:
    """Return the project's own rate, in a copy of the folder, where no earlier run has written."""
    with tempfile.TemporaryDirectory() as copy:
        shutil.copytree(folder, copy, dirs_exist_ok=True)
        own = run(copy, [sys.executable, *command, *project.short])
        return statistics.median(project.rates(Path(copy), own.stdout + own.stderr))


def advice(folder: str, script: list[str]) -> str:
    """Return how autotune would have two workers given to the project, whatever the answer is."""
    path, config = Path(folder, "two.yaml"), load_config(Path(folder, "autotune.yaml"))
    present = {"batch_size": config.batch_size, "num_workers": 0, "pin_memory": config.pin_memory}
    workers = {"num_workers": 2, "prefetch_factor": 2, "measured": {**config.measured, "baseline": present}}
    replace(config, **workers).save(path)
    shown = run(folder, [sys.executable, "-m", "autotune", "export", path.name, "--to", "patch", *script], check=False)
    return " ".join((shown.stdout + shown.stderr).split()).replace(f"{SITE}/", "")


def tune(folder: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run(folder, [sys.executable, "-m", "autotune", "run", *arguments], check=False)


def run(folder: str, command: list[str], check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder, with all its settings kept there, and with one thread: the models are tiny."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join((str(HERE.parents[1]), str(MAKE))),
        "OMP_NUM_THREADS": "1",
        "TORCHDYNAMO_DISABLE": "1",
        "YOLO_CONFIG_DIR": folder,
        "COLUMNS": "200",
    }
    done = subprocess.run(
        command, cwd=folder, env=environment, check=False, capture_output=True, text=True, timeout=LONG
    )
    if check and done.returncode:
        sys.exit(f"{command} ended with exit code {done.returncode}:\n{done.stderr}")
    return done


if __name__ == "__main__":
    main()
