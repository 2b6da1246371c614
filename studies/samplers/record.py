"""Compare samplers of the one study on simulated machines: at equal time, and in a study of the reader's own.

    python -m studies.samplers.record

``recorded/searches.csv`` has searches of autotune with each ``--sampler``, all with the same looks, limits and budget.
``recorded/studies.csv`` has studies whose objective returns samples per second and nothing more, from one baseline.
Regret is 1 - true rate of the fastest measured configuration / true optimum. Takes some four minutes on one core; no
time of this machine is measured.
"""

from __future__ import annotations

import csv
import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from unittest import mock

import optuna
from optuna.distributions import IntDistribution
from optuna.samplers import BaseSampler, TPESampler
from optuna.trial import TrialState

from autotune.config import WORKER_OPTIONS, Config
from autotune.flags import SAMPLERS
from autotune.limits import Budget, MemoryLimit
from autotune.messages import Messages
from autotune.records import Request
from autotune.search.loop import Search
from autotune.search.sampler import PredictiveSampler, Setup, make_sampler
from autotune.search.study import open_study
from studies.simulated_machines.machines import FAMILIES, Machine, draw_world

RECORDED = Path(__file__).with_name("recorded")
BUDGETS = (60.0, 120.0, 240.0)
"""Seconds on the machine's clock; confirmation keeps some of them."""
SEARCHES, STUDIES = range(2000, 2005), range(3000, 3015)
"""Seeds of the machines of each family: none of them was looked at while anything was chosen."""
TRIALS = 20
NOISE, HEADROOM = 0.03, 0.1


def searched() -> Iterator[dict[str, object]]:
    """Yield the end of every search."""
    for family, seed, budget, name in itertools.product(FAMILIES, SEARCHES, BUDGETS, SAMPLERS):
        machine = Machine(world=draw_world(family, seed), noise=NOISE, seed=seed)
        limit = MemoryLimit(headroom=HEADROOM)
        study = open_study(
            Setup(space=machine.space, facts=machine.facts, host=machine.host, memory_limit=limit),
            sampler=make_sampler(name, seed),
        )
        time = Budget(budget, machine.now)
        Search(runner=machine, study=study, budget=time, messages=Messages(time)).run()
        assert study.best is not None
        yield {
            "family": family,
            "seed": seed,
            "budget": budget,
            "sampler": name,
            "looks": len(study.probes),
            "trials": len(study.trials),
            "seconds": round(machine.time, 1),
            "regret": round(1 - machine.rate(study.best.config) / machine.optimum, 4),
        }


def measured() -> Iterator[dict[str, object]]:
    """Yield the regret after every trial of studies without looks."""
    samplers: dict[str, Callable[[int], BaseSampler]] = {
        "predictive": lambda seed: PredictiveSampler(),
        "tpe": lambda seed: TPESampler(seed=seed),
    }
    for family, seed, name in itertools.product(FAMILIES, STUDIES, samplers):
        machine = Machine(world=draw_world(family, seed), noise=NOISE, seed=seed)
        with mock.patch("autotune.search.sampler.inspect_host", return_value=machine.host):  # it stands for this host
            for trial, regret in enumerate(regrets(machine, samplers[name](seed)), 1):
                yield {"family": family, "seed": seed, "sampler": name, "trial": trial, "regret": round(regret, 4)}


def regrets(machine: Machine, sampler: BaseSampler) -> Iterator[float]:
    """Yield the regret after each trial of a study that knows knobs and rates alone."""
    setup = Setup(facts=machine.facts, host=machine.host, memory_limit=MemoryLimit(), space=machine.space)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    study.enqueue_trial(setup.settings(machine.space.base))
    best, rate = machine.space.base, 0.0
    for _ in range(TRIALS):
        trial = study.ask()
        config = suggested(trial, setup)
        found = machine.measure(config, Request(seconds=5.0)).measurement
        if found is None or found.peak_memory_bytes > (1 - HEADROOM) * found.memory_limit_bytes:
            study.tell(trial, state=TrialState.PRUNED)
        else:
            study.tell(trial, found.samples_per_second)
            if found.samples_per_second > rate:
                best, rate = config, found.samples_per_second
        yield 1 - machine.rate(best) / machine.optimum


def suggested(trial: optuna.Trial, setup: Setup) -> Config:
    """Return the configuration that a sampler suggests; workers live on between epochs."""
    settings: dict[str, object] = {"persistent_workers": True}
    for knob, known in setup.distributions.items():
        if knob in settings or (knob in WORKER_OPTIONS and not settings["num_workers"]):
            continue
        if isinstance(known, IntDistribution):
            settings[knob] = trial.suggest_int(knob, known.low, known.high, step=known.step)
        else:
            settings[knob] = trial.suggest_categorical(knob, known.choices)
    return setup.config(settings)


def write(name: str, rows: Iterable[dict[str, object]]) -> None:
    found = list(rows)
    with (RECORDED / name).open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, list(found[0]), lineterminator="\n")
        table.writeheader()
        table.writerows(found)


def main() -> None:
    warnings.simplefilter("ignore")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    RECORDED.mkdir(exist_ok=True)
    write("studies.csv", measured())
    write("searches.csv", searched())


if __name__ == "__main__":
    main()
