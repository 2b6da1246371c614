"""Is a gain that every round shows claimed where there is none? Before and after it counted as a gain.

    python studies/confirmation/places.py [--runs 300]

Confirmations of one finalist by the package's own ``follow``, eight or sixteen at most, on a machine where costs
depend on the place of the epoch. Writes ``recorded/places.csv`` beside this script and prints the README's table.
"""

from __future__ import annotations

import argparse
import csv
import math
import os
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from unittest.mock import patch

import pandas
from simulate import BASE_RATE, NOISE, Machine

from autotune import stats
from autotune.config import Config
from autotune.proof import Proof, confirmation_of
from autotune.records import Attempt, Request
from tests.simulated import measured

HERE = Path(os.path.relpath(Path(__file__).resolve().parent))
FIELDS = ("places", "gain", "rounds", "seed", "rule", "claimed", "taken", "speedup", "low", "high")
BASELINE, FINALIST = Config(), Config(num_workers=4)
GOLDEN = 0.6180339887498949
SPREAD = 19.0
"""How much more a sample costs at the end of the epoch than at its beginning, as a multiple."""


def sorted_by_cost(place: float) -> tuple[float, float]:
    """Loading costs ever more, up to five times as much; workers hide it. Rounds show 2 to 6 times the rate."""
    build, step = 4 + 16 * place, 4.0
    return build + step, step


PLACES: dict[str, Callable[[float], tuple[float, float]]] = {
    "alike": lambda place: (1.0, 1.0),
    "dearer for both": lambda place: (1 + SPREAD * place, 1 + SPREAD * place),
    "dearer for one, cheaper for the other": lambda place: (1 + place, 2 - place),
    "dearer for one alone": lambda place: (1 + place, 1.5),
    "sorted by cost, loading hidden": sorted_by_cost,
}
"""Cost of the baseline's and of the finalist's samples at a place of the epoch; totals are equal but for the last."""
CELLS = tuple((name, gain, rounds) for name in list(PLACES)[:4] for gain in (0.0, 0.05) for rounds in (8, 16))
CELLS += tuple(("sorted by cost, loading hidden", 0.0, rounds) for rounds in (4, 8, 16))


@dataclass(kw_only=True)
class Epoch(Machine):
    """A runner on which a rate depends on the place where the measurement begins."""

    places: str

    def measure(self, config: Config, request: Request) -> Attempt:
        place = (request.seed or 0) * GOLDEN % 1.0
        baseline, finalist = PLACES[self.places](place)
        cost = finalist / (1 + self.gain) if config == FINALIST else baseline
        attempt = self.train(config, 0.0)
        assert attempt.measurement is not None
        rate = BASE_RATE / cost * math.exp(self.generator.gauss(0, NOISE))
        payload = replace(attempt.measurement, samples_per_second=rate)
        return replace(attempt, payload=payload, seconds=1.0)


def by_interval(interval: stats.Interval | None) -> bool:
    """Return whether an interval showed a gain before every round's ratio counted."""
    return interval is not None and interval[0] > 1


def run(places: str, gain: float, most: int, seed: int, rule: str) -> dict[str, object]:
    """One confirmation under the rule of before or of now."""
    machine = Epoch(gain=gain, seed=seed, places=places)
    first = random.Random(seed).randrange(2**31)
    proof = Proof(name="places", finalists=(FINALIST,), baselines=1, seed=first, seconds=1.0)
    with patch("autotune.proof.shows_gain", {"before": by_interval, "now": stats.shows_gain}[rule]):
        trials = measured(machine, proof, BASELINE, lambda rounds: 2.0 * (most - rounds))
        found = confirmation_of(proof, BASELINE, trials)
        assert found is not None
        low, high = found.interval(FINALIST) or (math.nan, math.nan)
        return {
            "places": places,
            "gain": gain,
            "rounds": most,
            "seed": seed,
            "rule": rule,
            "claimed": int(found.is_proven(FINALIST)),
            "taken": found.rounds_of(FINALIST),
            "speedup": f"{found.speedup(FINALIST):.4g}",
            "low": f"{low:.4g}",
            "high": f"{high:.4g}",
        }


def table(runs: pandas.DataFrame) -> list[str]:
    """Return the lines of the table: how often a gain is claimed, before and now."""
    lines = ["| places | gain | rounds at most | claimed before | claimed now |", "|---|---|---|---|---|"]
    for (places, gain, most), rows in runs.groupby(["places", "gain", "rounds"], sort=False):
        before, now = (rows[rows.rule == rule].claimed.mean() for rule in ("before", "now"))
        size = "2 to 6 times" if places.startswith("sorted") else f"{gain:.0%}"
        lines.append(f"| {places} | {size} | {most} | {before:.1%} | {now:.1%} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description="Simulate confirmations where places differ.")
    parser.add_argument("--runs", type=int, default=300, help="of each kind")
    parser.add_argument("--output", type=Path, default=HERE / "recorded" / "places.csv")
    options = parser.parse_args()
    jobs = [(*cell, seed, rule) for cell in CELLS for seed in range(options.runs) for rule in ("before", "now")]
    with options.output.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, FIELDS)
        writer.writeheader()
        writer.writerows(run(*job) for job in jobs)
    print(*table(pandas.read_csv(options.output)), sep="\n")


if __name__ == "__main__":
    main()
