"""Measure pipelines of known rate, as usual and with autotune, and say how far off each is.

    python studies/measurement_truth/record.py            # three repetitions, some 25 minutes
    python studies/measurement_truth/record.py --table    # the tables, from what was recorded

What is measured sleeps, so that several pipelines are measured side by side (``--jobs``).
"""

from __future__ import annotations

import argparse
import csv
import datetime
import json
import os
import platform
import random
import warnings
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, fields
from multiprocessing import get_context, set_start_method
from pathlib import Path
from statistics import median

import torch
from naive import measure_naively
from pipelines import BATCH_SIZE, LENGTH, Pipeline, SleepingStep, build_seconds, scenarios, true_rate, workload

from autotune.config import Config
from autotune.machine.host import inspect_host
from autotune.measure.benchmark import measure
from autotune.measure.device import CpuDevice
from autotune.measure.step_probe import open_step
from autotune.records import Request

RECORDED = Path(__file__).parent / "recorded"
RUNS = RECORDED / "runs.csv"
LOADERS = [(0, 0), *((workers, prefetch) for workers in (1, 2, 4, 8) for prefetch in (1, 2, 8, 32))]
REPETITIONS = (1, 2, 3)
SHORT = "random builds, 5 s"
LONGEST = {"random builds": 60.0}
"""Seconds that a window may take where it is not 5, as in a trial: slow builds at random need more of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One pipeline under one loader; rates in samples per second."""

    repetition: int
    pipeline: str
    delay: str
    num_workers: int
    prefetch_factor: int
    truth: float
    """Of the batches of autotune's window, over and over."""
    long_run: float
    """Of many batches; another one only where builds are random."""
    naive_truth: float
    """Of the batches that were timed as usual."""
    naive: float
    naive_median: float
    ours: float
    low: float
    high: float
    settling_steps: int
    steps: int
    seconds: float
    ready: float
    notes: str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=12)
    parser.add_argument("--table", action="store_true")
    arguments = parser.parse_args()
    if not arguments.table:
        record(arguments.jobs)
    print(tables(list(recorded())))


def record(jobs: int) -> None:
    """Measure every scenario under every loader, in random order, and write each row as it comes."""
    runs = [(r, pipeline, *loader) for r in REPETITIONS for pipeline in scenarios() for loader in LOADERS]
    random.Random(0).shuffle(runs)
    RECORDED.mkdir(exist_ok=True)
    (RECORDED / "environment.json").write_text(
        json.dumps({**environment(), "jobs": jobs}, indent=1) + "\n", encoding="utf-8"
    )
    with (
        RUNS.open("w", encoding="utf-8", newline="") as file,
        ProcessPoolExecutor(jobs, get_context("spawn"), initializer=prepare) as pool,
    ):
        writer = csv.DictWriter(file, [field.name for field in fields(Row)])
        writer.writeheader()
        for done in as_completed([pool.submit(compare, *run) for run in runs]):
            writer.writerow(asdict(done.result()))
            file.flush()


def prepare() -> None:
    """Prepare a process that measures whose loaders fork their workers, as they do by default in a script."""
    set_start_method("fork", force=True)
    warnings.filterwarnings("ignore", message="This DataLoader will create")  # sleeping workers need no CPU
    torch.set_num_threads(1)


def compare(repetition: int, pipeline: Pipeline, num_workers: int, prefetch_factor: int) -> Row:
    """Measure one pipeline under one loader, as usual and with autotune."""
    config = Config(batch_size=BATCH_SIZE)
    if num_workers:
        config = Config(batch_size=BATCH_SIZE, num_workers=num_workers, prefetch_factor=prefetch_factor)
    naive = measure_naively(pipeline, config)
    step, device = SleepingStep(pipeline), CpuDevice()
    subject = workload(pipeline, step)
    request = Request(seconds=LONGEST.get(pipeline.delay, 5.0))
    warm = open_step(subject, config, device)
    step.begin_loader()
    found = measure(subject, config, warm, device, request)
    first = found.settling_steps
    low, high = found.ci95 or (0.0, 0.0)

    def truth(batches: Iterable[int]) -> float:
        builds = [build_seconds(pipeline, index) for index in batches]
        return round(true_rate(pipeline, num_workers, prefetch_factor, builds), 3)

    return Row(
        repetition=repetition,
        pipeline=pipeline.name,
        delay=pipeline.delay,
        num_workers=num_workers,
        prefetch_factor=prefetch_factor,
        truth=truth(step.seen[first : first + found.steps]),
        long_run=truth(range(0, LENGTH, 10)),
        naive_truth=truth(naive.batches),
        naive=round(naive.mean, 3),
        naive_median=round(naive.median, 3),
        ours=round(found.steady_samples_per_second, 3),
        low=round(low, 3),
        high=round(high, 3),
        settling_steps=found.settling_steps,
        steps=found.steps,
        seconds=round(found.seconds, 3),
        ready=round(found.ready_batches, 1),
        notes="; ".join(found.notes),
    )


def environment() -> dict[str, object]:
    """Return what the rows were recorded with."""
    host = inspect_host()
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "cpu": host.cpu_model,
        "cpus": host.cpus,
        "memory_gib": round(host.memory_bytes / 2**30, 1),
        "system": f"{platform.system()} {os.uname().machine}",
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def recorded() -> Iterator[Row]:
    """Yield the recorded rows."""
    kinds = {field.name: {"int": int, "float": float, "str": str}[str(field.type)] for field in fields(Row)}
    with RUNS.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            yield Row(**{name: kinds[name](value) for name, value in row.items()})


def tables(rows: list[Row]) -> str:
    """Return, in Markdown, the errors by pipeline and delay, and in words what else the rows say."""
    lines = [
        "| pipeline | delay | runs | naive | naive, median step | autotune |",
        "|---|---|---:|---:|---:|---:|",
    ]
    timed = [row for row in rows if row.delay != SHORT]
    groups = {(row.pipeline, row.delay): None for row in timed}
    order = [(pipeline.name, pipeline.delay) for pipeline in scenarios()]
    for pipeline, delay in sorted(groups, key=order.index):
        of_group = [row for row in timed if (row.pipeline, row.delay) == (pipeline, delay)]
        lines.append(f"| {pipeline} | {delay} | {_summary(of_group)} |")
    lines.append(f"| **all** | | {_summary(timed)} |")
    return "\n".join([*lines, "", *_spreads(rows), "", *_coverages(rows)])


def errors(rows: list[Row]) -> tuple[list[float], list[float], list[float]]:
    """Return the relative errors of the naive rate, of the naive median and of autotune's."""
    return (
        [row.naive / row.naive_truth - 1 for row in rows],
        [row.naive_median / row.naive_truth - 1 for row in rows],
        [row.ours / row.truth - 1 for row in rows],
    )


def _summary(rows: list[Row]) -> str:
    cells = [f"{median(map(abs, found)):.1%}, {max(found, key=abs):+.1%}" for found in errors(rows)]
    return " | ".join([str(len(rows)), *cells])


def _spreads(rows: list[Row]) -> Iterator[str]:
    """Yield how far the compute-bound rates lie apart over all numbers of workers and prefetched batches."""
    for repetition in REPETITIONS:
        rates = [
            row.ours
            for row in rows
            if (row.repetition, row.pipeline, row.delay) == (repetition, "compute-bound", "none") and row.num_workers
        ]
        if rates:
            spread = max(rates) / min(rates) - 1
            yield f"- Compute-bound, repetition {repetition}: {len(rates)} loaders within {spread:.1%}."


def _coverages(rows: list[Row]) -> Iterator[str]:
    """Yield how often the intervals held the long-run rate of random builds."""
    for delay in ("random builds", SHORT):
        found = [row for row in rows if row.delay == delay and row.pipeline != "compute-bound"]
        held = sum(row.low <= row.long_run <= row.high for row in found)
        widths = [(row.high - row.low) / 2 / row.ours for row in found]
        if found:
            yield (
                f"- Random builds, windows of {LONGEST.get(delay, 5.0):.0f} s: {held} of {len(found)} intervals held "
                f"the long-run rate; their median half-width is {median(widths):.0%}."
            )


if __name__ == "__main__":
    main()
