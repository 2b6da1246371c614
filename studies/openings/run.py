"""Default runs on machines whose sessions take seconds to open: the share of the best that each answer reaches.

    python -m studies.openings.run

writes ``runs.csv`` beside this file and prints the table of its README. The machines are those of
``tests.accelerator``: the real search, runner and measuring code, on the clock of a fake card.
"""

from __future__ import annotations

import argparse
import csv
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from autotune.limits import Budget
from autotune.messages import Messages
from autotune.search.setup import Setup
from autotune.search.tuner import Tuner
from studies.simulated_machines.machines import Machine, draw_world
from tests.accelerator import GIB, Card, Job, full_speed
from tests.on_card import runner_on, tuned

HERE = Path(__file__).parent
BUDGET = 180.0
SPREAD = 0.01
"""Standard deviation of a rate from one process to the next, and of the time of building a batch."""
MEBIBYTE = 2**20
IMAGE = 3 * 224 * 224 * 4
"""Bytes of an image in fp32."""


def heating(seconds: float) -> float:
    """Return the clock of a laptop's GPU under load: full for half a minute, then three quarters of it."""
    return 1.0 if seconds < 20 else max(0.75, 1.0 - 0.25 * (seconds - 20) / 30)


@dataclass(frozen=True, kw_only=True)
class Place:
    """A machine with an accelerator, and ResNet-50 with JPEGs on it."""

    opening: float
    """Seconds to open a session."""
    memory: float
    """GiB on the card."""
    fp32: float
    """Images per second that the card trains in fp32, and in half precision."""
    half: float
    decoding: float
    """Milliseconds to decode an image."""
    cpus: int
    taken: float = 0.5
    """GiB that contexts and the display take."""
    has_bf16: bool = True
    speed: Callable[[float], float] = full_speed

    def card(self, seed: int) -> Card:
        return Card(
            total=round(self.memory * GIB),
            context=round(self.taken * GIB),
            has_bf16=self.has_bf16,
            speed=self.speed,
            spread=SPREAD,
            seed=seed,
        )

    @property
    def job(self) -> Job:
        return Job(
            fixed=0.002,
            sample=1 / self.fp32,
            half=self.fp32 / self.half,
            kernels=700,
            sample_bytes=IMAGE,
            weights=100 * MEBIBYTE,
            activations=90 * MEBIBYTE,
            workspace=GIB // 4,
            build=self.decoding / 1000,
            cpus=self.cpus,
        )


PLACES = {
    "H200, fast decoding": Place(opening=1.5, memory=141, fp32=1100, half=3100, decoding=0.5, cpus=32),
    "H200, decoding of 2 ms": Place(opening=4, memory=141, fp32=1100, half=3100, decoding=2, cpus=32),
    "H200, decoding of 8 ms": Place(opening=6, memory=141, fp32=1100, half=3100, decoding=8, cpus=32),
    "laptop that throttles": Place(
        opening=2, memory=8, taken=1.4, fp32=160, half=430, decoding=4, cpus=8, speed=heating
    ),
    "laptop, decoding of 1 ms": Place(opening=2, memory=8, taken=1.4, fp32=160, half=430, decoding=1, cpus=8),
    "T4 with two CPUs": Place(opening=6, memory=15, fp32=110, half=300, decoding=6, cpus=2, has_bf16=False),
    "T4 with two CPUs, decoding of 1 ms": Place(
        opening=6, memory=15, fp32=110, half=300, decoding=1, cpus=2, has_bf16=False
    ),
    "T4 with two CPUs, opening of 3 s": Place(
        opening=3, memory=15, fp32=110, half=300, decoding=1, cpus=2, has_bf16=False
    ),
}
CPU = "CPU"


def run(job: tuple[str, int]) -> dict[str, object]:
    """Tune once, and return the row."""
    name, seed = job
    return on_cpu(seed) if name == CPU else on_accelerator(name, seed)


def on_accelerator(name: str, seed: int) -> dict[str, object]:
    place = PLACES[name]
    card, job = place.card(seed), place.job
    with runner_on(card, job, place.opening) as runner:
        result, known = tuned(runner, budget=BUDGET, seed=seed)
    fits = [c for c in known.setup.space.configs if job.peak(c.batch_size, c.amp) <= 0.9 * (card.total - card.context)]
    best = max(job.rate(card, config) for config in fits)
    spent, first = 0.0, ""
    for config, request, attempt in runner.asked:
        if config.amp != "off" and request.part == "compute" and not first:
            first = f"{spent:.0f}"
        spent += attempt.seconds
    return {
        "machine": name,
        "seed": seed,
        "share": f"{job.rate(card, result.config) / best:.4f}",
        "half precision after": first,
        "amp": result.config.amp,
        "verdict": result.verdict.value,
        "sessions": runner.process.opened,
        "seconds": f"{card.now:.0f}",
    }


def on_cpu(seed: int) -> dict[str, object]:
    machine = Machine(world=draw_world("CPU training", seed), noise=SPREAD, seed=seed)
    time = Budget(BUDGET, machine.now)
    setup = Setup(space=machine.space, facts=machine.facts, host=machine.host)
    result = Tuner(machine, setup, time, Messages(time, lambda progress: None), seed=seed).result()
    return {
        "machine": CPU,
        "seed": seed,
        "share": f"{machine.rate(result.config) / machine.optimum:.4f}",
        "half precision after": "",
        "amp": result.config.amp,
        "verdict": result.verdict.value,
        "sessions": "",
        "seconds": f"{machine.now():.0f}",
    }


def table(rows: list[dict[str, str]]) -> str:
    """Return the table of the README."""
    lines = ["| machine | runs | median share of the best | least | half precision looked at | proven |"]
    lines.append("|---|---|---|---|---|---|")
    for name in dict.fromkeys(row["machine"] for row in rows):
        own = [row for row in rows if row["machine"] == name]
        shares = [float(row["share"]) for row in own]
        looked = [float(row["half precision after"]) for row in own if row["half precision after"]]
        half = f"{len(looked)}, after {median(looked):.0f} s" if looked else "-"
        proven = sum(row["verdict"] == "faster" for row in own)
        lines.append(f"| {name} | {len(own)} | {median(shares):.1%} | {min(shares):.1%} | {half} | {proven} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20, help="of each machine")
    parser.add_argument("--machine", action="append", choices=[*PLACES, CPU])
    given = parser.parse_args()
    jobs = [(name, seed) for name in given.machine or [*PLACES, CPU] for seed in range(given.runs)]
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        rows = list(pool.map(run, jobs))
    with (HERE / "runs.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(table([{name: str(value) for name, value in row.items()} for row in rows]))


if __name__ == "__main__":
    main()
