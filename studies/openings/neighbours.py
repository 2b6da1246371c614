"""Searches beside a neighbour that holds a part of the card: no trial or probe may take more than is left.

    python -m studies.openings.neighbours

writes ``neighbours.csv`` beside this file: fifty jobs and neighbours, drawn at random.
"""

from __future__ import annotations

import csv
import os
import random
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from autotune.outcome import Outcome
from tests.accelerator import GIB, Card, Job
from tests.on_card import CardRunner, runner_on, tuned

HERE = Path(__file__).parent
SEARCHES, BUDGET = 50, 90.0
MEBIBYTE = 2**20


def drawn(seed: int) -> tuple[Card, Job]:
    """Draw a card whose neighbour holds up to 85 % of it, and a job that fits beside it."""
    generator = random.Random(seed)
    total = generator.choice((8, 16, 24, 80)) * GIB
    taken = round(generator.uniform(0.1, 0.85) * total)
    card = Card(total=total, context=GIB // 4, neighbour=lambda seconds: taken, spread=0.01, seed=seed)
    weights = round(generator.uniform(0.01, 0.08) * card.free)
    samples = generator.uniform(60, 2000)  # they fill the memory that is left
    job = Job(
        fixed=0.002,
        sample=generator.uniform(2e-4, 2e-3),
        half=generator.uniform(0.3, 0.9),
        weights=weights,
        activations=round((card.free - 2 * weights) / samples),
        workspace=round(generator.uniform(0, 0.1) * card.free),
        sample_bytes=200_000,
        build=generator.uniform(2e-4, 4e-3),
    )
    return card, job


def largest_share(runner: CardRunner) -> float:
    """Return the most that a trial or a probe took, as a share of the memory that it could have."""
    parts = [attempt.measurement or attempt.compute for _, _, attempt in runner.asked]
    return max(part.peak_memory_bytes / part.memory_limit_bytes for part in parts if part)


def run(seed: int) -> dict[str, object]:
    """Search once, and return the row."""
    card, job = drawn(seed)
    left = card.free
    with runner_on(card, job, opening=2.0) as runner:
        result, _ = tuned(runner, budget=BUDGET, seed=seed)
    failed = sum(attempt.outcome is not Outcome.OK for _, _, attempt in runner.asked)
    return {
        "seed": seed,
        "GiB on the card": card.total // GIB,
        "GiB left": f"{left / GIB:.2f}",
        "trials and probes": len(runner.asked),
        "out of memory or disturbed": failed,
        "largest share": f"{largest_share(runner):.3f}",
        "answer": result.config.batch_size,
        "its share": f"{job.peak(result.config.batch_size, result.config.amp) / left:.3f}",
    }


def main() -> None:
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        rows = list(pool.map(run, range(SEARCHES)))
    with (HERE / "neighbours.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    over = sum(float(str(row["largest share"])) > 0.9 or bool(row["out of memory or disturbed"]) for row in rows)
    print(f"{len(rows)} searches, {over} of them over the limit")


if __name__ == "__main__":
    main()
