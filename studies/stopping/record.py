"""Record whole runs of autotune on jagged machines, and Optuna's own samplers with the same machine time.

    python -m studies.stopping.record stop
    python -m studies.stopping.record answers
    python -m studies.stopping.record claims
    python -m studies.stopping.record rivals

Each writes ``recorded/<part>.csv`` beside this script or to ``--output``, a line for each run, and goes on where it
was interrupted. Rates and regrets are true ones; seconds are those of the machine's own clock.
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import optuna
from optuna.distributions import BaseDistribution, IntDistribution

from autotune.config import Config
from autotune.configfile import Objective
from autotune.limits import USUAL_BUDGET, Budget, MemoryLimit
from autotune.messages import Messages, Progress
from autotune.outcome import Outcome
from autotune.records import Measurement, Request
from autotune.report.result import Result
from autotune.search.setup import Setup
from autotune.search.space import Space, build_space
from autotune.search.tuner import Tuner
from autotune.settings import KNOBS
from studies.simulated_machines.machines import HEADROOM
from studies.stopping.machines import FAMILIES, Jagged, at_optimum, below, usual

RECORDED = Path(os.path.relpath(Path(__file__).resolve().parent)) / "recorded"
NOISE = 0.03
LONG, SHORT = 3600.0, 600.0
"""Seconds of the budgets: more than any run needs, and a user's ten minutes."""
GAINS = (0.1, 0.25)
"""What a baseline that is not the optimum leaves to gain."""
OBJECTIVES: tuple[Objective, ...] = ("samples", "same-batch")
JOBS = {"stop": 100, "answers": 160, "claims": 300, "rivals": 30}
FAILED = {"device_oom": Outcome.DEVICE_OOM, "host_oom": Outcome.HOST_OOM, "shm_oom": Outcome.SHM}
SAMPLERS: dict[str, Callable[[int], optuna.samplers.BaseSampler]] = {
    "TPE": lambda seed: optuna.samplers.TPESampler(seed=seed),
    "GP": lambda seed: optuna.samplers.GPSampler(seed=seed),
}

Row = dict[str, object]
Job = tuple[str, str, int, str, float]
"""Part, family, seed, what the baseline is or which sampler runs, and the seconds that it may take."""


class Watch:
    """Notes when the search of a run ended: when its first trial of confirmation began."""

    def __init__(self, machine: Jagged) -> None:
        self.machine = machine
        self.end: float | None = None

    def __call__(self, progress: Progress) -> None:
        trial = progress.finished
        if trial is not None and trial.kind == "confirm" and self.end is None:
            self.end = self.machine.time - trial.attempt.seconds


def tuned(machine: Jagged, budget: float | None, space: Space | None = None) -> tuple[Result, Watch]:
    """Run autotune once, search and confirmation; without a budget in the time that it chooses."""
    clock, watch = Budget(budget or USUAL_BUDGET, machine.now, is_given=budget is not None), Watch(machine)
    setup = Setup(
        space=space or machine.space,
        facts=machine.facts,
        host=machine.host,
        memory_limit=MemoryLimit(headroom=HEADROOM),
    )
    return Tuner(machine, setup, clock, Messages(clock, watch), seed=machine.seed).result(), watch


def regret(machine: Jagged, config: Config) -> float:
    """Return by how many percent a configuration trains below the optimum."""
    return 100 * (1 - machine.rate(config) / machine.optimum)


def failures(machine: Jagged) -> Row:
    """Count the trials and looks that ran out of memory, by memory."""
    outcomes = [outcome for _, _, outcome, _ in machine.attempts]
    return {name: outcomes.count(outcome) for name, outcome in FAILED.items()}


def is_within(measured: Measurement) -> bool:
    """Return whether a measurement has left the memory free that must be."""
    return measured.peak_memory_bytes <= (1 - HEADROOM) * measured.memory_limit_bytes


def stop(job: Job) -> Row:
    _, family, seed, _, budget = job
    machine = usual(family, seed, NOISE)
    result, watch = tuned(machine, budget)
    searched = [trial for trial in result.history if trial.kind != "confirm"]
    rated = [trial for trial in searched if trial.measurement and is_within(trial.measurement)]
    best = max(rated, key=lambda trial: trial.rate or 0.0).config if rated else result.baseline
    return {
        "regret": regret(machine, result.config),
        "search_regret": regret(machine, best),
        "trials": len(searched),
        "search_seconds": machine.time if watch.end is None else watch.end,
        "seconds": machine.time,
        **failures(machine),
        "is_safe": machine.is_safe(result.config),
        "verdict": result.verdict.value,
        "reason": result.stop_reason.partition(":")[0],
    }


def answers(job: Job) -> Row:
    """Run once for an objective; the other one's answer is the second."""
    _, family, seed, kind, budget = job
    machine = usual(family, seed, NOISE)
    objective = next(each for each in OBJECTIVES if kind.startswith(each))
    space = build_space(machine.facts, machine.world.cpus, machine.baseline, {}, objective=objective)
    result, _ = tuned(machine, budget or None, space)
    assert space.second
    most, second_most = (
        max(machine.rate(config) for config in each.configs if machine.is_safe(config))
        for each in (space, space.second)
    )
    base, second = machine.rate(machine.baseline), result.alternative
    return {
        "regret": 100 * (1 - machine.rate(result.config) / most),
        "second_regret": 100 * (1 - machine.rate(second.config if second else machine.baseline) / second_most),
        "possible": 100 * (second_most / base - 1),
        "trials": sum(trial.kind != "confirm" for trial in result.history),
        "seconds": machine.time,
        "verdict": result.verdict.value,
        "second_verdict": second.verdict.value if second else result.no_alternative,
        "second_most": 100 * (second.most_gain or 0.0) if second else "",
    }


def claim(job: Job) -> Row:
    _, family, seed, baseline, budget = job
    machine = at_optimum(family, seed, NOISE) if baseline == "optimum" else below(family, seed, NOISE, *GAINS)
    if machine is None:
        return {"verdict": "no such baseline"}
    result, _ = tuned(machine, budget)
    base = machine.rate(machine.baseline)
    return {
        "gain": 100 * (machine.rate(result.config) / base - 1),
        "possible": 100 * (machine.optimum / base - 1),
        "seconds": machine.time,
        **failures(machine),
        "is_safe": machine.is_safe(result.config),
        "verdict": result.verdict.value,
        "reason": result.stop_reason.partition(":")[0],
    }


def rival(job: Job) -> Row:
    """Let a sampler of Optuna choose until the time is over; its answer is the best that it observed."""
    _, family, seed, name, budget = job
    machine = usual(family, seed, NOISE)
    space = machine.space
    study = optuna.create_study(direction="maximize", sampler=SAMPLERS[name](seed))
    distributions: dict[str, BaseDistribution] = {
        knob: IntDistribution(0, len(space.values[knob]) - 1) for knob in space.allowed
    }
    held = {knob: getattr(space.base, KNOBS[knob].field) for knob in space.allowed}
    study.enqueue_trial(
        {knob: space.values[knob].index(value) if value in space.values[knob] else 0 for knob, value in held.items()}
    )
    best, best_rate, worst = space.base, 0.0, None
    while machine.time < budget:
        trial = study.ask(distributions)
        config = space.at({knob: space.values[knob][trial.params[knob]] for knob in space.allowed})
        measured = machine.measure(config, Request(seconds=5.0)).measurement
        if measured is None:
            trial.set_constraint("memory", 1.0)
            study.tell(trial, worst or 0.0)
            continue
        rate = measured.samples_per_second
        worst = min(rate, worst or rate)
        trial.set_constraint("memory", measured.peak_memory_bytes / ((1 - HEADROOM) * measured.memory_limit_bytes) - 1)
        study.tell(trial, rate)
        if is_within(measured) and rate > best_rate:
            best, best_rate = config, rate
    return {
        "regret": regret(machine, best),
        "trials": len(study.known.trials),
        "seconds": machine.time,
        **failures(machine),
        "is_safe": machine.is_safe(best),
    }


RUNS = {"stop": stop, "answers": answers, "claims": claim, "rivals": rival}


def run(job: Job) -> Row:
    """Run one job; an error that it raises is the row's verdict."""
    warnings.simplefilter("ignore")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    part, family, seed, kind, _ = job
    begin = time.process_time()
    try:
        row = RUNS[part](job)
    except Exception as error:
        text = " ".join(f"{type(error).__name__}: {error}".split())
        print(f"{family}, seed {seed}, {kind}: {text}", file=sys.stderr)
        row = {"verdict": "error", "reason": text}
    spent = time.process_time() - begin
    row = {"family": family, "seed": seed, "kind": kind, **row, "cpu_seconds": spent}
    return {name: f"{value:.5g}" if isinstance(value, float) else value for name, value in row.items()}


FIELDS = {
    "stop": ("regret", "search_regret", "trials", "search_seconds", "seconds", *FAILED, "is_safe", "verdict", "reason"),
    "answers": (
        "regret",
        "second_regret",
        "possible",
        "trials",
        "seconds",
        "verdict",
        "second_verdict",
        "second_most",
        "reason",
    ),
    "claims": ("gain", "possible", "seconds", *FAILED, "is_safe", "verdict", "reason"),
    "rivals": ("regret", "trials", "seconds", *FAILED, "is_safe", "verdict", "reason"),
}


def jobs(options: argparse.Namespace) -> Iterator[Job]:
    """Yield the jobs of a part; of claims, two at the optimum come before each one below it."""
    part, runs = options.part, options.runs or JOBS[options.part]
    if part == "rivals":
        with options.stop.open(encoding="utf-8", newline="") as file:
            rows = [row for row in csv.DictReader(file) if row["seconds"]]
        for row, name in ((row, name) for row in rows[:runs] for name in SAMPLERS):
            yield part, row["family"], int(row["seed"]), name, float(row["seconds"])
    elif part == "stop":
        for index in range(runs):
            yield part, FAMILIES[index % 4], options.first + index // 4, "usual", LONG
    elif part == "answers":  # each objective with more time than it takes, and in the time that it chooses
        for index in range(runs):
            place, kind = divmod(index, 4)
            objective, budget = OBJECTIVES[kind % 2], (LONG, 0.0)[kind // 2]
            name = f"{objective}, {'long' if budget else 'chosen'}"
            yield part, FAMILIES[place % 4], options.first + place // 4, name, budget
    else:
        for index in range(runs):
            group, place = divmod(index, 12)
            seed = options.first + 2 * group + (place // 4 if place < 8 else 0)
            yield part, FAMILIES[place % 4], seed, "optimum" if place < 8 else "below", SHORT


def main() -> None:
    options = parse_arguments()
    output = options.output or RECORDED / f"{options.part}.csv"
    output.parent.mkdir(parents=True, exist_ok=True)
    done: set[tuple[str, int, str]] = set()
    if output.exists():
        with output.open(encoding="utf-8", newline="") as file:
            done = {(row["family"], int(row["seed"]), row["kind"]) for row in csv.DictReader(file)}
    left = [job for job in jobs(options) if job[1:4] not in done]
    with output.open("a", encoding="utf-8", newline="") as file, ProcessPoolExecutor(options.processes) as pool:
        fields = ("family", "seed", "kind", *FIELDS[options.part], "cpu_seconds")
        writer = csv.DictWriter(file, fields, lineterminator="\n")
        if not done:
            writer.writeheader()
        for row in pool.map(run, left):
            writer.writerow(row)
            file.flush()


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=JOBS)
    parser.add_argument("--first", type=int, default=0, help="seed of the first machine of each family")
    parser.add_argument("--runs", type=int, help="how many, over all families; of rivals, for each sampler")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--stop", type=Path, default=RECORDED / "stop.csv", help="recorded runs that rivals equal")
    return parser.parse_args()


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"
    main()
