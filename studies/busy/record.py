"""Tune, confirm and compare beside a neighbour that takes one CPU half of the time.

    python -m studies.busy.record [--runs 10] [--budget 3m] [--minutes 10] [--only tuned equal compared quiet]

Four parts, each written to ``recorded`` beside this script as it goes on, so that they may be recorded one at a time:
``tuned``, runs of the command line on studies/digits beside the neighbour; ``equal``, the baseline confirmed against
itself there; ``compared``, the answers side by side with the baseline there, each for so many minutes; ``quiet``, the
answers and that of a run on the quiet machine, side by side without the neighbour.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Any

from autotune.comparison import Side, in_rounds
from autotune.config import Config
from autotune.errors import NothingFeasibleError
from autotune.limits import Budget, parse_duration
from autotune.machine.host import inspect_host
from autotune.messages import Messages
from autotune.records import Request
from autotune.runner.local import ProcessRunner
from autotune.stats import fieller_interval, student_quantile
from autotune.workload import describe

ROOT = Path(__file__).resolve().parents[2]
RECORDED = Path(__file__).resolve().parent / "recorded"
WORKLOAD = os.path.relpath(ROOT / "studies" / "digits" / "workload.py") + ":build"
WINDOW_SECONDS, TIME_LIMIT = 3.0, 120.0
QUIET_ROUNDS = 6
"""Rounds in which the answers are compared on the quiet machine."""


def main() -> None:
    parser = argparse.ArgumentParser(description="Record the study of a busy machine.")
    parser.add_argument("--runs", type=int, default=10, help="runs of the command line, and of equal configurations")
    parser.add_argument("--budget", default="3m", help="what each may take")
    parser.add_argument("--minutes", type=float, default=10.0, help="how long each answer is compared")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), help="these parts alone")
    options = parser.parse_args()
    for name in options.only:
        PARTS[name](options)


@contextmanager
def neighbour(seed: int) -> Iterator[None]:
    """Have the neighbour beside what runs inside."""
    process = subprocess.Popen([sys.executable, "-m", "studies.busy.neighbour", "--seed", str(seed)], cwd=ROOT)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def tuned(options: argparse.Namespace) -> None:
    runs = []
    for seed in range(options.runs):
        with neighbour(seed):
            runs.append({"seed": seed} | answer_of(options.budget))
        write("tuned", {"runs": runs, "budget": options.budget})


def answer_of(budget: str) -> dict[str, Any]:
    """Run the command line, and return what it says."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "autotune.json")
        command = [sys.executable, "-m", "autotune", "--model", WORKLOAD, "--device", "cpu", "--budget", budget]
        done = subprocess.run(
            [*command, "--json", "--quiet", "--output", str(path)], check=True, stdout=subprocess.PIPE, text=True
        )
    content = json.loads(done.stdout)
    outcomes = [trial["outcome"] for trial in content["trials"]]
    names = (
        "verdict",
        "speedup",
        "speedup_ci95",
        "next_run_95",
        "rounds",
        "stop_reason",
        "missing",
        "notes",
        "seconds",
    )
    return {
        **{name: content[name] for name in names},
        "config": content["config"],
        "likeliest": content["likeliest"],
        "suspect": outcomes.count("suspect"),
        "measurements": len(outcomes),
    }


def equal(options: argparse.Namespace) -> None:
    runs = []
    for seed in range(options.runs):
        with neighbour(seed), measuring() as (runner, baseline):
            runs.append({"seed": seed} | confirmed(runner, baseline, parse_duration(options.budget), seed))
        write("equal", {"runs": runs, "budget": options.budget})


def compared(options: argparse.Namespace) -> None:
    configs, chance, rounds = list(answers()), random.Random(0), list[list[float]]()
    with neighbour(100), measuring() as (runner, baseline):
        together = [baseline, *configs]
        clock = Budget(60 * options.minutes * len(together) / 2)  # each answer beside the baseline for so many minutes
        while clock.left > 0:
            rates = {each: rate(runner, each) for each in chance.sample(together, len(together))}
            rounds.append([rates[each] for each in together])
            found = [ratio_of(rounds, number) for number in range(1, len(together))]
            documents = [{"config": config.to_document(), **each} for config, each in zip(configs, found, strict=True)]
            write("compared", {"answers": documents, "rounds": rounds, "minutes": options.minutes})


def ratio_of(rounds: Sequence[Sequence[float]], number: int) -> dict[str, Any]:
    """Return the ratio of an answer to the baseline over all rounds, with its interval."""
    ours, others = [rates[number] for rates in rounds], [rates[0] for rates in rounds]
    interval = fieller_interval(ours, others, student_quantile(0.975, max(1, len(rounds) - 1)))
    return {"ratio": fmean(ours) / fmean(others), "ci95": interval}


def quiet(options: argparse.Namespace) -> None:
    best = Config.from_document(answer_of(options.budget)["config"])
    configs, chance, rounds = list(dict.fromkeys([best, *answers()])), random.Random(0), []
    with measuring() as (runner, baseline):
        for _ in range(QUIET_ROUNDS):
            order = chance.sample([baseline, *configs], len(configs) + 1)
            rates = {each: rate(runner, each) for each in order}
            rounds.append([rates[each] for each in (baseline, *configs)])
            document = [each.to_document() for each in (baseline, *configs)]
            write("quiet", {"configs": document, "best": 1, "rounds": rounds})


def rate(runner: ProcessRunner, config: Config) -> float:
    attempt = runner.measure(config, Request(seconds=WINDOW_SECONDS, time_limit=TIME_LIMIT, fresh=True))
    assert attempt.measurement is not None, attempt.message
    return attempt.measurement.samples_per_second


def answers() -> Sequence[Config]:
    """Return the different answers of the runs on record."""
    runs = json.loads((RECORDED / "tuned.json").read_text(encoding="utf-8"))["runs"]
    configs = (Config.from_document(run["config"]) for run in runs if run["verdict"] == "faster")
    return tuple(dict.fromkeys(configs))


@contextmanager
def measuring() -> Iterator[tuple[ProcessRunner, Config]]:
    """Open the workload; the baseline is what is run where nothing is said."""
    with ProcessRunner(describe(WORKLOAD), "cpu") as runner:
        facts = runner.inspect(Config())
        yield runner, Config(intra_op_threads=facts.intra_op_threads, inter_op_threads=facts.inter_op_threads)


def confirmed(runner: ProcessRunner, baseline: Config, seconds: float, seed: int) -> dict[str, Any]:
    """Confirm the baseline against itself as a run would in so many seconds."""
    clock, sides = Budget(seconds), (Side("baseline", baseline, runner), Side("again", baseline, runner))
    try:
        found, _ = in_rounds(sides, clock, Messages(clock), seed=seed)
    except NothingFeasibleError:
        return {"rounds": 0, "is_proven": False}
    return {
        "rounds": found.rounds_of(baseline),
        "is_proven": found.is_proven(baseline),
        "speedup": found.speedup(baseline),
        "ci95": found.interval(baseline),
        "seconds": clock.spent,
    }


def write(name: str, content: dict[str, Any]) -> None:
    host = asdict(inspect_host())
    machine = {key: host[key] for key in ("cpus", "cpu_model", "memory_bytes", "versions")}
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
    about = {"date": datetime.now(UTC).isoformat(timespec="seconds"), "commit": commit.stdout.strip(), **machine}
    text = json.dumps({**about, **content}, indent=1)
    RECORDED.mkdir(exist_ok=True)
    (RECORDED / f"{name}.json").write_text(text + "\n", encoding="utf-8")


PARTS: dict[str, Callable[[argparse.Namespace], None]] = {
    "tuned": tuned,
    "equal": equal,
    "compared": compared,
    "quiet": quiet,
}

if __name__ == "__main__":
    main()
