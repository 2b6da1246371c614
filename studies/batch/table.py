"""Hold the predicted cost of larger batches against the measured one: ``python -m studies.batch.table``."""

from __future__ import annotations

import csv
import json
import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean, median

from autotune.batch_cost import NoiseScale, noise_scale
from autotune.encoding import from_json
from autotune.probes import GradientNoise
from autotune.stats import Interval, half_width
from studies.batch.workloads import FACTORS, TASKS

RECORDED = Path(__file__).with_name("recorded")
SEEDS = (0, 1, 2)


@dataclass(frozen=True)
class Cell:
    """A workload with a larger batch, to one held-out loss."""

    name: str
    batch_size: int
    target: float
    rate: float
    """Samples a second of the larger batch over those of the baseline's."""
    cost: float
    """Samples to that loss with the larger batch over those with the baseline's, measured."""
    predicted_cost: float
    speed: float
    """How many times as fast that loss is reached, measured; the mean over the seeds."""
    measured: Interval
    """Its 95 % interval over the seeds."""
    predicted: Interval
    """The interval that a run would tell."""

    @property
    def is_told(self) -> bool:
        """Whether the predicted interval says which is faster."""
        return not self.predicted[0] <= 1 <= self.predicted[1]

    @property
    def is_sure(self) -> bool:
        """Whether the measured interval says which is faster."""
        return not self.measured[0] <= 1 <= self.measured[1]

    @property
    def is_right(self) -> bool:
        """Whether both say the same."""
        return (self.predicted[0] > 1) == (self.speed > 1)


def cells() -> Iterator[Cell]:
    """Yield all cells."""
    for name, task in TASKS.items():
        base, scale = task.batch_size, _median_scale(name)
        for batch_size in (factor * base for factor in FACTORS):
            rate = _rate(name, batch_size) / _rate(name, base)
            least, most = scale.overheads(base, batch_size)
            for target in task.targets:
                costs = [
                    _samples(name, batch_size, seed, target) / _samples(name, base, seed, target) for seed in SEEDS
                ]
                speeds = [math.log(rate / cost) for cost in costs]
                middle, half = fmean(speeds), half_width(speeds)
                yield Cell(
                    name=name,
                    batch_size=batch_size,
                    target=target,
                    rate=rate,
                    cost=fmean(costs),
                    predicted_cost=(scale.samples + batch_size) / (scale.samples + base),
                    speed=math.exp(middle),
                    measured=(math.exp(middle - half), math.exp(middle + half)),
                    predicted=(rate / most, rate / least),
                )


def same_batch(name: str) -> tuple[float, Interval, float]:
    """Return how many times as fast the answer reaches the loss, its interval over the pairs, and the file's gain."""
    seconds = {(int(row["seed"]), row["arm"]): float(row["seconds"]) for row in _rows(f"same-batch-{name}.csv")}
    seeds = sorted({seed for seed, _ in seconds})
    logs = [math.log(seconds[seed, "baseline"] / seconds[seed, "answer"]) for seed in seeds]
    middle, half = fmean(logs), half_width(logs)
    import yaml

    document = yaml.safe_load((RECORDED / f"answer-{name}.yaml").read_text(encoding="utf-8"))
    return math.exp(middle), (math.exp(middle - half), math.exp(middle + half)), document["measured"]["speedup"]


def _median_scale(name: str) -> NoiseScale:
    """Return the middle one of the looks' noise scales."""
    looks = json.loads((RECORDED / f"noise-{name}.json").read_text(encoding="utf-8"))
    scales = [noise_scale(from_json(GradientNoise, look)) for look in looks]
    return sorted((each for each in scales if isinstance(each, NoiseScale)), key=lambda each: each.samples)[1]


def _rate(name: str, batch_size: int) -> float:
    rows = (row for row in _rows(f"rates-{name}.csv") if int(row["batch_size"]) == batch_size)
    return median(float(row["samples_per_second"]) for row in rows)


def _samples(name: str, batch_size: int, seed: int, target: float) -> int:
    """Return the samples at the first look with the target's loss or less."""
    return next(samples for samples, loss in _curves(name)[batch_size, seed] if loss <= target)


@cache
def _curves(name: str) -> dict[tuple[int, int], list[tuple[int, float]]]:
    curves = defaultdict[tuple[int, int], list[tuple[int, float]]](list)
    for row in _rows(f"curves-{name}.csv"):
        curves[int(row["batch_size"]), int(row["seed"])].append((int(row["samples"]), float(row["loss"])))
    return curves


def _rows(file: str) -> list[dict[str, str]]:
    with (RECORDED / file).open(newline="", encoding="utf-8") as table:
        return list(csv.DictReader(table))


def main() -> None:
    """Print the tables."""
    print("| workload | batch | to loss | samples/s | samples needed, predicted | speed to that loss, predicted |")
    print("|---|---|---|---|---|---|")
    for cell in cells():
        batches = f"{TASKS[cell.name].batch_size} → {cell.batch_size}"
        cost = f"{cell.cost:.2f}, {cell.predicted_cost:.2f}"
        measured, predicted = ("{:.2f} to {:.2f}".format(*each) for each in (cell.measured, cell.predicted))
        speed = f"{cell.speed:.2f} ({measured}), {predicted}"
        print(f"| {cell.name} | {batches} | {cell.target} | {cell.rate:.2f} | {cost} | {speed} |")
    print("\n| workload | same-batch, speed to the loss | rate in the file |")
    print("|---|---|---|")
    for name in TASKS:
        speed, interval, promised = same_batch(name)
        print(f"| {name} | {speed:.2f} ({interval[0]:.2f} to {interval[1]:.2f}) | {promised:.2f} |")


if __name__ == "__main__":
    main()
