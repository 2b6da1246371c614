"""Record the study: tune the digits in two ranks, train with the file under torchrun, compare losses with one process.

    python studies/ranks/record.py [--budget 2m] [--seconds 8] [--rounds 10] [--reuse] [--output FOLDER]

Writes the folder ``recorded`` beside this script; takes some ten minutes. ``--reuse`` takes the file that lies
there, and records rounds and losses anew.
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
from typing import Any

import autotune
from autotune.config import Config
from autotune.machine.host import inspect_host
from autotune.records import Request
from autotune.runner.local import ProcessRunner
from autotune.workload import describe

HERE = Path(os.path.relpath(Path(__file__).resolve().parent))
DIGITS = HERE.parent / "digits"
WORKLOAD = f"{DIGITS}/workload.py:build"
RANKS = 2
STEPS = 22
"""Steps of the optimizer whose losses are compared, of 64 samples each: all of an epoch but its last batch."""
LOSSES = {
    "two ranks, batches of 32": (2, 32, 1),
    "two ranks, batches of 16, accumulated": (2, 16, 2),
    "one process, batches of 64": (1, 64, 1),
}
"""Ranks, batch size and accumulation that make the same step."""


def main() -> None:
    options = parse_arguments()
    options.output.mkdir(exist_ok=True, parents=True)
    file = options.output / "autotune.yaml"
    if not options.reuse:
        tune(options.output, options.budget)
    write(options.output / "machine.json", machine())
    curves = {name: losses(file, *sizes) for name, sizes in LOSSES.items()}
    write(options.output / "losses.json", curves)
    config = autotune.load_config(file)
    rounds = []
    with ProcessRunner(describe(WORKLOAD), "cpu") as runner:
        runner.inspect(config)
        before = measured(runner, config)
        for number in range(options.rounds):
            trained = torchrun(RANKS, str(file), "--seconds", str(options.seconds))
            after = measured(runner, config)
            rounds.append({"round": number + 1, "before": before, "trained": trained, "after": after})
            print(json.dumps(rounds[-1]), file=sys.stderr)
            before = after
    write(options.output / "rounds.json", rounds)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Record the study of ranks.")
    parser.add_argument("--budget", default="2m", help="what autotune may take")
    parser.add_argument("--seconds", type=float, default=8.0, help="length of each training run")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--reuse", action="store_true", help="take the file that was recorded")
    parser.add_argument("--output", type=Path, default=HERE / "recorded", help="folder to write")
    return parser.parse_args()


def machine() -> dict[str, object]:
    facts = ("cpus", "cpu_model", "memory_bytes", "gpus", "versions")
    host = asdict(inspect_host())
    return {"date": datetime.now(UTC).isoformat(timespec="seconds")} | {key: host[key] for key in facts}


def tune(folder: Path, budget: str) -> None:
    """Run the command line, and keep all that it says."""
    command = [
        sys.executable,
        "-m",
        "autotune",
        "--model",
        WORKLOAD,
        "--device",
        "cpu",
        "--ranks",
        str(RANKS),
        "--json",
    ]
    command += ["--budget", budget, "--output", str(folder / "autotune.yaml")]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    (folder / "run.json").write_text(done.stdout, encoding="utf-8")
    (folder / "run.txt").write_text(done.stderr, encoding="utf-8")
    if done.returncode:
        sys.exit(f"{' '.join(command)} ended with exit code {done.returncode}:\n{done.stderr}")


def measured(runner: ProcessRunner, config: Config) -> float:
    """Return what autotune measures of the configuration now, in fresh processes, the mean of two windows."""
    rates = []
    for _ in range(2):
        attempt = runner.measure(config, Request(seconds=5.0, fresh=True))
        if attempt.measurement is None:
            sys.exit(f"could not be measured: {attempt.message}")
        rates.append(attempt.measurement.samples_per_second)
    return sum(rates) / len(rates)


def torchrun(ranks: int, *arguments: str) -> Any:
    """Train in so many ranks; return what rank 0 printed."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1"]
    command = [*launcher, "--nproc-per-node", str(ranks), str(HERE / "train.py"), *arguments]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(DIGITS), os.environ.get("PYTHONPATH", "")])}
    environment |= {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    return json.loads(done.stdout)


def losses(file: Path, ranks: int, batch_size: int, accumulate: int) -> list[float]:
    sizes = ["--batch-size", str(batch_size), "--accumulate", str(accumulate)]
    found: list[float] = torchrun(ranks, str(file), "--losses", str(STEPS), *sizes)
    return found


def write(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
