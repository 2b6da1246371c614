"""Compare ways to search on simulated machines.

    python studies/simulated_machines/compare.py [--machines 100] [--noise 0.01 0.03 0.1] [--jobs 2]

Regret is 1 - true rate of the configuration that a method would return / true optimum, after so many trials. Writes
``recorded/runs.csv`` beside this script, one line for each method, machine, noise and number of trials; ``ran`` is how
many ran until the method stopped.
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
from machines import FAMILIES, HEADROOM, Machine, draw_world
from optuna.distributions import IntDistribution

from autotune.config import Config
from autotune.limits import Budget, MemoryLimit
from autotune.messages import Messages, Progress
from autotune.outcome import Outcome
from autotune.records import Request
from autotune.search.setup import Setup
from autotune.search.study import open_study
from autotune.search.tuner import Tuner
from tests.simulated import search_only

HERE = Path(os.path.relpath(Path(__file__).resolve().parent))
COUNTS = (5, 10, 20, 30)
"""Trials after which the answer is recorded."""
TRIALS = max(COUNTS)
PREDICTED = 5
"""Configurations that the methods with a predicted start measure first."""
REQUEST = Request(seconds=5.0)
FIELDS = (
    "method",
    "family",
    "seed",
    "noise",
    "trial",
    "ran",
    "regret",
    "finalist_regret",
    "seconds",
    "out_of_memory",
    "probes",
    "reason",
)
FAILED = (Outcome.DEVICE_OOM, Outcome.HOST_OOM, Outcome.SHM)


def ours(machine: Machine) -> Iterator[dict[str, object]]:
    """The search of autotune itself, as it runs on real machines."""
    rows: list[dict[str, object]] = []
    study = open_study(
        Setup(space=machine.space, facts=machine.facts, host=machine.host, memory_limit=MemoryLimit(headroom=HEADROOM))
    )

    def tell(progress: Progress) -> None:
        if progress.finished is None:
            return
        best, finalist = study.known.best, next(iter(study.known.finalists(1)), study.known.trials[0])
        assert best is not None
        assert finalist is not None
        rows.append(row(machine, best.config, finalist.config, len(study.known.probes)))

    time = Budget(3600.0, machine.now)
    reason = search_only(machine, study, time, Messages(time, tell), max_trials=TRIALS).text
    yield from rows
    for _ in range(TRIALS - len(rows)):
        yield {**rows[-1], "reason": reason.partition(":")[0]}


def row(machine: Machine, best: Config, finalist: Config, probes: int = 0) -> dict[str, object]:
    failures = sum(outcome in FAILED for _, _, outcome, _ in machine.attempts)
    return {
        "regret": 1 - machine.rate(best) / machine.optimum,
        "finalist_regret": 1 - machine.rate(finalist) / machine.optimum,
        "seconds": machine.time,
        "out_of_memory": failures,
        "probes": probes,
        "reason": "",
    }


class Incumbent:
    """Measures configurations and keeps the best observed."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.best = machine.space.base
        self.best_rate = 0.0

    def measure(self, config: Config) -> tuple[float | None, float]:
        attempt = self.machine.measure(config, REQUEST)
        if attempt.outcome is not Outcome.OK or attempt.measurement is None:
            return None, 1.0
        measured = attempt.measurement
        over = measured.peak_memory_bytes / ((1 - HEADROOM) * measured.memory_limit_bytes) - 1
        if over <= 0 and measured.samples_per_second > self.best_rate:
            self.best, self.best_rate = config, measured.samples_per_second
        return measured.samples_per_second, over

    def row(self) -> dict[str, object]:
        return row(self.machine, self.best, self.best)


def with_sampler(
    sampler: Callable[[int], optuna.samplers.BaseSampler], *, start: Callable[[Machine], list[Config]] | None = None
) -> Callable[[Machine], Iterator[dict[str, object]]]:
    def run(machine: Machine) -> Iterator[dict[str, object]]:
        space = machine.space
        incumbent = Incumbent(machine)
        study = optuna.create_study(direction="maximize", sampler=sampler(machine.seed))
        distributions = {knob: IntDistribution(0, len(space.values[knob]) - 1) for knob in space.allowed}
        if start:
            for config in start(machine):
                study.enqueue_trial(dict(zip(space.allowed, space.point(config), strict=True)))
        worst = None
        for _ in range(TRIALS):
            trial = study.ask(distributions)
            rate, over = incumbent.measure(space.config(tuple(trial.params[knob] for knob in space.allowed)))
            trial.set_constraint("memory", over)
            if rate is not None:
                worst = min(rate, worst or rate)
                study.tell(trial, rate)
            elif isinstance(study.sampler, optuna.samplers.GPSampler):
                study.tell(trial, worst or 0.0)
            else:
                study.tell(trial, state=optuna.trial.TrialState.PRUNED)
            yield incumbent.row()

    return run


def predicted_start(machine: Machine) -> list[Config]:
    """Measure the baseline, take the looks that autotune takes, and return what is predicted to be fast, diverse.

    That measurement of the baseline is not counted as a trial.
    """
    study = open_study(
        Setup(space=machine.space, facts=machine.facts, host=machine.host, memory_limit=MemoryLimit(headroom=HEADROOM))
    )
    time = Budget(3600.0, machine.now)
    Tuner(machine, study.setup, time, Messages(time), 1).search(study)
    forecast = study.known.forecast
    order = sorted(forecast.configs, key=lambda config: -forecast.prediction.rates[forecast.position[config]])
    fitting = [config for config in order if forecast.prediction.refusals[forecast.position[config]] is None]
    chosen: dict[tuple[int, str, int], Config] = {}
    for config in fitting:
        chosen.setdefault((config.batch_size, config.amp, config.num_workers), config)
    return list(chosen.values())[:PREDICTED]


def guesses(machine: Machine) -> list[Config]:
    """What people try first: the default, some workers, larger batches, mixed precision."""
    base, allowed, cpus = machine.space.base, machine.space.allowed, machine.world.cpus
    workers = max(count for count in allowed["num_workers"] if count <= max(1, cpus // 2))
    on_gpu = machine.world.device != "cpu"

    def config(batch: int, amp: str) -> Config:
        return Config(
            batch_size=batch,
            num_workers=workers,
            prefetch_factor=2,
            persistent_workers=True,
            pin_memory=on_gpu,
            amp=amp,
        )

    batch = [each for each in allowed["batch_size"] if each >= base.batch_size]
    return [base, config(batch[0], "off"), config(batch[0], "bf16"), config(batch[min(2, len(batch) - 1)], "bf16")]


def coordinate_descent(machine: Machine) -> Iterator[dict[str, object]]:
    """One knob at a time, a step up or down from the best, from the default."""
    space, incumbent = machine.space, Incumbent(machine)
    seen = {space.base}
    incumbent.measure(space.base)
    yield incumbent.row()
    count = 1
    while count < TRIALS:
        config = next(neighbours(machine, incumbent.best, seen), None)
        if config is None:
            yield incumbent.row()
        else:
            seen.add(config)
            incumbent.measure(config)
            yield incumbent.row()
        count += 1


def neighbours(machine: Machine, config: Config, seen: set[Config]) -> Iterator[Config]:
    space = machine.space
    here = space.settings(config)
    for knob, values in space.values.items():
        place = values.index(here[knob]) if knob in here else 0
        for near in (place + 1, place - 1):
            if 0 <= near < len(values):
                settings = {each: known[0] for each, known in space.values.items()} | here | {knob: values[near]}
                found = space.at(settings)
                if found in space.configs and found not in seen:
                    yield found


METHODS: dict[str, Callable[[Machine], Iterator[dict[str, object]]]] = {
    "random": with_sampler(lambda seed: optuna.samplers.RandomSampler(seed=seed)),
    "TPE, Optuna's default": with_sampler(lambda seed: optuna.samplers.TPESampler(seed=seed)),
    "TPE with warm start": with_sampler(lambda seed: optuna.samplers.TPESampler(seed=seed), start=guesses),
    "GP with warm start": with_sampler(lambda seed: optuna.samplers.GPSampler(seed=seed), start=guesses),
    "coordinate descent": coordinate_descent,
    "TPE with predicted start": with_sampler(lambda seed: optuna.samplers.TPESampler(seed=seed), start=predicted_start),
    "GP with predicted start": with_sampler(lambda seed: optuna.samplers.GPSampler(seed=seed), start=predicted_start),
    "autotune": ours,
}


def run(job: tuple[str, str, int, float]) -> list[dict[str, object]]:
    warnings.simplefilter("ignore")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    method, family, seed, noise = job
    machine = Machine(world=draw_world(family, seed), noise=noise, seed=seed)
    found = METHODS[method](machine)
    rows = list(found)
    ran = sum(not values["reason"] for values in rows)
    return [
        {
            "method": method,
            "family": family,
            "seed": seed,
            "noise": noise,
            "trial": count,
            "ran": ran,
            **rows[count - 1],
        }
        for count in COUNTS
    ]


def main() -> None:
    options = parse_arguments()
    jobs = [
        (method, FAMILIES[index % len(FAMILIES)], options.first + index // len(FAMILIES), noise)
        for noise in options.noise
        for method in options.methods
        for index in range(options.machines)
    ]
    options.output.parent.mkdir(exist_ok=True)
    begin = time.time()
    with options.output.open("w", newline="") as file, ProcessPoolExecutor(options.jobs) as pool:
        writer = csv.DictWriter(file, FIELDS)
        writer.writeheader()
        for rows in pool.map(run, jobs, chunksize=4):
            for values in rows:
                writer.writerow({k: f"{v:.5g}" if isinstance(v, float) else v for k, v in values.items()})
    print(f"{len(jobs)} runs in {time.time() - begin:.0f} s", file=sys.stderr)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compare ways to search on simulated machines.")
    parser.add_argument("--machines", type=int, default=100, help="how many, over all families")
    parser.add_argument("--first", type=int, default=2000, help="seed of the first machine of each family")
    parser.add_argument("--noise", type=float, nargs="+", default=[0.01, 0.03, 0.1])
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--output", type=Path, default=HERE / "recorded" / "runs.csv")
    return parser.parse_args()


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"
    main()
