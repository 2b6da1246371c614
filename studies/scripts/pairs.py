"""Record pairs of scripts: a case that misleads, and its harmless twin, in which workers truly gain.

    python studies/scripts/pairs.py [--only stream shards_harmless] [--budget 30s] [--beside 2] [--output FOLDER]

Adds rows to ``pairs.csv`` beside this script, or in another folder. Scripts that are there already are left out: delete
the file to begin anew. Two scripts run beside each other; twenty take some twenty minutes.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple

from record import HERE, Refused, append, recorded, run, tuner

from autotune import Config, load_config

PAIRS = HERE / "pairs"
KINDS = ("misleads", "harmless")
SCRIPTS = sorted(path.stem for path in PAIRS.glob("*.py"))
NAMES = sorted({name.rpartition("_")[0] for name in SCRIPTS})
EPOCHS = {"EPOCHS": "4"}
TURNS = 2
EPOCH = re.compile(
    r"^epoch \d+: \S+ samples/s, (?P<seconds>\S+) s, batch (?P<batch>\d+)(?:, evaluation (?P<evaluation>\S+) s)?$",
    re.MULTILINE,
)
COLUMNS = (
    *("script", "kind", "verdict", "settings", "present_rate", "file_rate"),
    *("promised_low", "promised", "promised_high", "plain_seconds", "applied_seconds"),
    *("kept", "kept_to_low", "kept_later", "kept_with_evaluation", "batches_plain", "batches_applied"),
    *("batches_kept", "message"),
)
"""Rates in samples per second, seconds of four epochs in the mean of the turns, and the speed-ups that come of them."""


class Epoch(NamedTuple):
    """An epoch by a script's own clock."""

    seconds: float
    """Of training alone."""
    evaluation: float
    batch: int
    """The length of its first batch."""


def main() -> None:
    parser = argparse.ArgumentParser(description="Record pairs of scripts: one misleads, one is harmless.")
    parser.add_argument("--only", nargs="+", choices=[*NAMES, *SCRIPTS], default=NAMES, metavar="NAME")
    parser.add_argument("--budget", default="30s", help="what autotune may take for each script")
    parser.add_argument("--beside", type=int, default=2, metavar="N", help="scripts that run at a time (default: 2)")
    parser.add_argument("--output", type=Path, default=HERE, help="folder to write")
    options = parser.parse_args()
    table = options.output / "pairs.csv"
    wanted = [name for name in SCRIPTS if {name, name.rpartition("_")[0]} & set(options.only)]
    with ThreadPoolExecutor(options.beside) as pool:
        tasks = [pool.submit(row_of, name, options.budget) for name in wanted if name not in recorded(table)]
        for task in as_completed(tasks):
            row = task.result()
            print(row, file=sys.stderr, flush=True)
            append(table, COLUMNS, row)


def row_of(name: str, budget: str) -> dict[str, Any]:
    """Return the row of a script; a refusal, and a command that fails, are verdicts too."""
    script, kind = {"script": name}, {"kind": name.rpartition("_")[2]}
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(PAIRS / f"{name}.py", folder)
        try:
            return script | kind | tuned(folder, f"{name}.py", budget)
        except Refused as error:
            return script | kind | {"verdict": "refused", "message": str(error)}
        except SystemExit as error:
            return script | kind | {"verdict": "failed", "message": " ".join(str(error).split())}


def tuned(folder: str, script: str, budget: str) -> dict[str, Any]:
    """Tune a script; where the answer is faster, train with and without it by turns, else once with each."""
    plain = [trained(folder, [sys.executable, script])]
    anew(folder)
    told = json.loads(run(folder, tuner("run", "--budget", budget, "--json", script)))
    config = load_config(Path(folder, "autotune.yaml"))
    measured = config.measured
    assert measured
    is_faster = measured["verdict"] == "faster"
    applied = []
    for turn in range(TURNS if is_faster else 1):
        if turn:
            plain.append(trained(folder, [sys.executable, script]))
        applied.append(trained(folder, tuner("apply", "autotune.yaml", script)))
    promise: list[Any] = measured.get("speedup_ci95") or [None, None]
    return {
        "verdict": measured["verdict"],
        "settings": " ".join(f"{key}={value}" for key, value in config.dataloader_kwargs().items()),
        "present_rate": (measured.get("baseline") or measured)["samples_per_second"],
        "file_rate": measured["samples_per_second"],
        "promised_low": promise[0],
        "promised": measured.get("speedup"),
        "promised_high": promise[1],
        **(kept(plain, applied, promise[0]) if is_faster else {}),
        **batches(config, plain[0], applied[0]),
        "message": "; ".join([told["stop_reason"], *told["notes"]]),
    }


def kept(plain: list[list[Epoch]], applied: list[list[Epoch]], low: float) -> dict[str, Any]:
    """Return the speed-up that training keeps: of all epochs, of those after the first, and with evaluations."""
    present, answer = ([epoch for epochs in turns for epoch in epochs] for turns in (plain, applied))
    speedup = seconds(present) / seconds(answer)
    later = [seconds([epoch for epochs in turns for epoch in epochs[1:]]) for turns in (plain, applied)]
    evaluations = [sum(epoch.evaluation for epoch in epochs) for epochs in (present, answer)]
    whole = (seconds(present) + evaluations[0]) / (seconds(answer) + evaluations[1])
    return {
        "plain_seconds": round(seconds(present) / len(plain), 3),
        "applied_seconds": round(seconds(answer) / len(applied), 3),
        "kept": round(speedup, 3),
        "kept_to_low": round(speedup / low, 3),
        "kept_later": round(later[0] / later[1], 3),
        "kept_with_evaluation": round(whole, 3) if any(evaluations) else None,
    }


def seconds(epochs: list[Epoch]) -> float:
    return sum(epoch.seconds for epoch in epochs)


def batches(config: Config, plain: list[Epoch], applied: list[Epoch]) -> dict[str, Any]:
    """Return the batches of a script's epochs, and whether ``apply`` keeps those that the answer does not change."""
    present, answer = ([epoch.batch for epoch in epochs] for epochs in (plain, applied))
    measured = config.measured or {}
    asked = (measured.get("baseline") or {}).get("batch_size", config.batch_size)
    is_kept = present == answer if config.batch_size == asked else "changed by the answer"
    told = {"batches_plain": present, "batches_applied": answer}
    return {**{key: " ".join(map(str, value)) for key, value in told.items()}, "batches_kept": is_kept}


def trained(folder: str, command: list[Any]) -> list[Epoch]:
    """Train in a folder without results of an earlier run, and return the epochs that the script prints."""
    anew(folder)
    told = [found.groupdict() for found in EPOCH.finditer(run(folder, command, EPOCHS))]
    epochs = [(float(line["seconds"]), float(line["evaluation"] or 0), int(line["batch"])) for line in told]
    return [Epoch(whole - evaluation, evaluation, batch) for whole, evaluation, batch in epochs]


def anew(folder: str) -> None:
    shutil.rmtree(Path(folder, "runs"), ignore_errors=True)


if __name__ == "__main__":
    main()
