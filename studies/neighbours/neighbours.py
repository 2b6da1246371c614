"""Whole runs of autotune beside simulated neighbours, and with looks that stall.

    python -m studies.neighbours.neighbours [--runs 100] [--jobs 2] [--output FILE]

Writes a line for each run, and prints the tables of the README. Rates are true ones of a quiet machine; seconds are
those of the machine's own clock.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import sys
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import optuna
import pandas

from autotune.report.result import Result
from studies.neighbours import summary
from studies.neighbours.machines import Place, place
from tests.simulated import SimulatedMachine, each_third, tuner_of, visits

HERE = Path(os.path.relpath(Path(__file__).resolve().parent))
PARTS = {"neighbours": 1.0, "quiet": 0.5, "stalled": 0.3}
"""Runs of each part, for each run beside neighbours; the twin of a stalled run is the quiet one of its seed."""
BUDGETS = (60.0, 180.0)
NOISE = 0.02
"""Standard deviation of the logarithm of a rate, from measurement to measurement."""
OPENING, WINDOW = 3.0, 2.0
"""Seconds until a fresh process measures, and of a measurement."""
STALL = 10.0
"""How many times too slow each third look is."""

Row = dict[str, object]


def machine_of(part: str, seed: int, place: Place) -> SimulatedMachine:
    """Return the machine of a run."""
    machine = SimulatedMachine(
        cost=place.job.cost, noise=NOISE, seed=seed, seconds=WINDOW, opening=OPENING, cpus=place.job.cpus
    )
    if part == "neighbours":
        machine.neighbour = visits(seed, place.job.cpus)
    elif part == "stalled":
        machine.stall = each_third(STALL)
    return machine


def budget_of(seed: int) -> float:
    """Return the seconds of a run."""
    return random.Random(f"budget {seed}").uniform(*BUDGETS)


def run(job: tuple[str, int]) -> Row:
    """Run one job; an error that it raises is the row's verdict."""
    warnings.simplefilter("ignore")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    part, seed = job
    there, budget = place(seed), budget_of(seed)
    machine = machine_of(part, seed, there)
    row: Row = {
        "part": part,
        "seed": seed,
        "family": there.family,
        "cpus": there.job.cpus,
        "budget": budget,
        "best": 1 + there.gain,
    }
    try:
        row |= found(tuner_of(machine, there.space, there.facts, there.host, budget, seed=seed).result(), there)
    except Exception as error:
        print(f"{part}, seed {seed}: {type(error).__name__}: {error}", file=sys.stderr)
        row["verdict"] = "error"
    row |= {
        "seconds": machine.time,
        "measurements": len(machine.calls),
        "looks": len(machine.looks),
    }
    return {name: f"{value:.5g}" if isinstance(value, float) else value for name, value in row.items()}


def found(result: Result, place: Place) -> Row:
    """Return the answer of a run beside the truth.

    A run that keeps the baseline tells the factor of the best other configuration.
    """
    base, likeliest = place.job.rate(place.space.base), result.likeliest
    is_kept = result.config == result.baseline
    told, interval, config = result.speedup, result.speedup_ci95, result.config
    if is_kept and likeliest is not None:
        told, interval, config = likeliest.speedup, likeliest.interval, likeliest.config
    low, high = interval or (None, None)
    confirmed = [trial for trial in result.history if trial.kind == "confirm"]
    crowded = [trial for trial in confirmed if trial.measurement and trial.measurement.conditions.is_crowded]
    return {
        "verdict": str(result.verdict),
        "excluded": None if result.most_gain is None else math.ceil(round(100 * result.most_gain, 6)) / 100,
        "written": "baseline" if is_kept else words(result),
        "true": place.job.rate(result.config) / base,
        "told": told if likeliest is not None else None,
        "low": low,
        "high": high,
        "true_of_told": place.job.rate(config) / base,
        "rounds": len(likeliest.ratios) if likeliest is not None else 0,
        "confirmed": len(confirmed),
        "crowded": len(crowded),
    }


def words(result: Result) -> str:
    config = result.config
    return f"batch {config.batch_size} workers {config.num_workers} threads {config.intra_op_threads}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Simulate whole runs beside neighbours.")
    parser.add_argument("--runs", type=int, default=100, help="beside neighbours; half as many quiet, and so on")
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--output", type=Path, default=HERE / "recorded" / "runs.csv")
    options = parser.parse_args()
    jobs = [(part, options.first + n) for part, share in PARTS.items() for n in range(round(share * options.runs))]
    begin = time.time()
    with ProcessPoolExecutor(options.jobs) as pool:
        runs = pandas.DataFrame(list(pool.map(run, jobs, chunksize=2)))
    options.output.parent.mkdir(parents=True, exist_ok=True)
    runs.to_csv(options.output, index=False)
    print(f"{len(jobs)} runs in {time.time() - begin:.0f} s", file=sys.stderr)
    summary.show(options.output)


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"
    main()
