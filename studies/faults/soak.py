"""Run short studies with random faults, one after another, in one process: does it grow, is every answer written?

    python -m studies.faults.soak 30 studies/faults/recorded/soak.csv

The first argument is the minutes that it takes. Each row is what this process held after one more study.
"""

from __future__ import annotations

import csv
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import astuple, dataclass, fields
from pathlib import Path

import psutil

from tests.faults.injecting import inject
from tests.faults.zoo import FAULTS

SEED = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """This process after one more study."""

    minutes: float
    """Since the beginning."""
    fault: str
    outcome: str
    expected: str
    is_valid: bool
    """Whether the answer was written, and can be read."""
    rounds: int
    """Of the confirmation."""
    left: int
    """Processes and segments of shared memory that the study left behind."""
    rss_bytes: int
    descriptors: int
    threads: int


def studies(seconds: float) -> Iterator[Row]:
    """Run studies for so long, and yield what there is after each."""
    generator, begin = random.Random(SEED), time.monotonic()
    while time.monotonic() < begin + seconds:
        name = generator.choice(list(FAULTS))
        found = inject(name)
        process = psutil.Process()
        yield Row(
            minutes=round((time.monotonic() - begin) / 60, 2),
            fault=name,
            outcome=found.outcome,
            expected=FAULTS[name].outcome,
            is_valid=found.is_valid,
            rounds=found.result.rounds,
            left=len(found.processes) + len(found.segments),
            rss_bytes=process.memory_info().rss,
            descriptors=process.num_fds(),
            threads=process.num_threads(),
        )


def main() -> None:
    with Path(sys.argv[2]).open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(field.name for field in fields(Row))
        for row in studies(60 * float(sys.argv[1])):
            writer.writerow(astuple(row))
            file.flush()


if __name__ == "__main__":
    main()
