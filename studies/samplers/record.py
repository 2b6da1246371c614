"""Compare samplers of the one study on simulated machines, at equal time.

    python -m studies.samplers.record

``recorded/searches.csv`` has searches of autotune with each ``--sampler``, all with the same looks, limits and budget.
Regret is 1 - true rate of the fastest measured configuration / true optimum. Takes at most eight minutes on one core;
no time of this machine is measured.
"""

from __future__ import annotations

import csv
import itertools
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path

import optuna

from autotune.flags import SAMPLERS
from autotune.limits import Budget, MemoryLimit
from autotune.messages import Messages
from autotune.search.sampler import make_sampler
from autotune.search.setup import Setup
from autotune.search.study import open_study
from autotune.search.tuner import Tuner
from studies.simulated_machines.machines import FAMILIES, Machine, draw_world

RECORDED = Path(__file__).with_name("recorded")
BUDGETS = (60.0, 120.0, 240.0)
"""Seconds on the machine's clock; confirmation keeps some of them."""
SEARCHES = range(2000, 2005)
"""Seeds of the machines of each family: none of them was looked at while anything was chosen."""
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
        Tuner(machine, study.setup, time, Messages(time)).search(study)
        assert study.known.best is not None
        yield {
            "family": family,
            "seed": seed,
            "budget": budget,
            "sampler": name,
            "looks": len(study.known.probes),
            "trials": len(study.known.trials),
            "seconds": round(machine.time, 1),
            "regret": round(1 - machine.rate(study.known.best.config) / machine.optimum, 4),
        }


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
    write("searches.csv", searched())


if __name__ == "__main__":
    main()
