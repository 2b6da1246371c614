"""Record what becomes of scripts that end, of a loader beside another, and of a promise once a script sleeps.

    python studies/scripts/variants.py [--only ends together checks] [--output FOLDER]

Writes ``ends.csv``, ``together.csv`` and ``checks.csv`` beside this script, or to another folder; fifteen minutes.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import chdir
from pathlib import Path
from typing import Any

import pandas
from record import HERE, JOBS, tuner

from autotune import Config, load_config
from autotune.records import Request
from autotune.runner.local import ProcessRunner
from autotune.workload import Script, describe

ENDS = HERE.parents[1] / "tests" / "scripts" / "loops" / "ends.py"
STEPS = ("150", "215", "300", "500", "100000")
"""Steps after which the script ends by itself; the last never comes."""
WORKERS = [Config(batch_size=16, num_workers=n, prefetch_factor=p) for n in (1, 2, 3, 4) for p in (2, 8)]
GRID = [Config(batch_size=16), *WORKERS]
"""The workers and prefetch factors that a search has by default on two cores."""
CHECKED = ("vae", "language_model", "siamese")
SLEEP = 0.06
"""Seconds of the sleep that is added to a step, so that workers gain twice the rate there and no longer three times."""
BUDGET = "45s"
BUDGET_TOGETHER = "3m"
"""As a run of 45 seconds advises there: a round of its proof takes 15 seconds."""
ROUNDS = 3


def main() -> None:
    parser = argparse.ArgumentParser(description="Record the variants of scripts.")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--output", type=Path, default=HERE, help="folder to write")
    options = parser.parse_args()
    output = options.output.resolve()
    for part in options.only:
        with tempfile.TemporaryDirectory() as folder, chdir(folder):
            rows = list(PARTS[part]())
        pandas.DataFrame(rows).to_csv(output / f"{part}.csv", index=False)


def ends() -> Iterator[dict[str, Any]]:
    """Tune a script that ends after so many steps, and train one that never does with all answers by turns."""
    for steps in STEPS:
        tuned(ENDS, steps, "break", output=f"{steps}.yaml")
    configs = [load_config(f"{steps}.yaml") for steps in STEPS]
    rates = by_turns(ENDS, (STEPS[-1], "break"), configs)
    for steps, config, rate in zip(STEPS, configs, rates, strict=True):
        yield {
            "steps": steps,
            **facts(config),
            "trained_rate": rate,
            "ratio": round(rate / config.measured["samples_per_second"], 3),
            "to_endless": round(rate / rates[-1], 3),
        }


def together() -> Iterator[dict[str, Any]]:
    """Tune a script that draws from a fast and a slow loader; train with the answer and a grid by turns."""
    job = JOBS / "semi_supervised.py"
    tuned(job, "--epochs", "50", output="answer.yaml", budget=BUDGET_TOGETHER)
    configs = [load_config("answer.yaml"), *GRID]
    rates = by_turns(job, ("--epochs", "50"), configs)
    for name, config, rate in zip(["answer", *["grid"] * len(GRID)], configs, rates, strict=True):
        yield {"name": name, **facts(config), "trained_rate": rate, "to_best": round(rate / max(rates), 3)}


def checks() -> Iterator[dict[str, Any]]:
    """Check the promise of scripts as they are, and with a sleep in the step that was not there before."""
    for name in CHECKED:
        script = Path(f"{name}.py")
        script.write_text((JOBS / script).read_text(encoding="utf-8"), encoding="utf-8")
        tuned(script, "--epochs", "50", output=f"{name}.yaml")
        for change in ("none", "a sleep"):
            if change == "a sleep":
                lines = script.read_text(encoding="utf-8").splitlines(keepends=True)
                place = next(number for number, line in enumerate(lines) if "optimizer.step()" in line)
                indent = lines[place][: len(lines[place]) - len(lines[place].lstrip())]
                lines.insert(place, f"{indent}time.sleep({SLEEP})\n")
                script.write_text("".join(lines), encoding="utf-8")
            yield {
                "script": name,
                "change": change,
                "exit_code": run("check", f"{name}.yaml", script, "--epochs", "50"),
            }


def facts(config: Config) -> dict[str, Any]:
    """Return the settings of a configuration, and what its file says of them."""
    settings = {"batch_size": config.batch_size, "workers": config.num_workers, "prefetch": config.prefetch_factor}
    told = config.measured or {}
    measured = {name: told.get(name) for name in ("verdict", "speedup", "samples_per_second")}
    return settings | measured


def tuned(script: Path, *arguments: str, output: str, budget: str = BUDGET) -> None:
    if code := run("run", "--budget", budget, "--output", output, script, *arguments):
        sys.exit(f"{script.name} {' '.join(arguments)}: exit code {code}")


def run(command: str, *arguments: object) -> int:
    """Run a command of autotune, which tells the terminal how it goes, and return its exit code."""
    environment = {**os.environ, "PYTHONPATH": str(HERE.parents[1])}
    words = [str(word) for word in tuner(command, *arguments)]
    return subprocess.run(words, env=environment, check=False, stdout=subprocess.DEVNULL).returncode


def by_turns(script: Path, arguments: tuple[str, ...], configs: Sequence[Config]) -> list[float]:
    """Return the median rate of a script with each of some settings, measured by turns."""
    rates: list[list[float]] = [[] for _ in configs]
    with ProcessRunner(describe(Script(path=str(script), arguments=arguments))) as runner:
        runner.inspect(configs[0])
        for _ in range(ROUNDS):
            for config, found in zip(configs, rates, strict=True):
                attempt = runner.measure(config, Request(seconds=2.0, time_limit=60.0))
                assert attempt.measurement, attempt.message
                found.append(attempt.measurement.samples_per_second)
    return [round(statistics.median(found), 1) for found in rates]


PARTS = {"ends": ends, "together": together, "checks": checks}


if __name__ == "__main__":
    main()
