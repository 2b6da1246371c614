"""Strike one trial of a running study with every fault of the zoo: is it told, is there an answer, what is left?

    python -m studies.faults.record 30
    python -m studies.faults.record 0 "item hangs"  # some of them again, beside what is recorded

All studies run in one process, in random order, for so many minutes at least: what it holds after each is recorded,
too. A study whose answer could not be confirmed, because the machine was disturbed, is done once more at the end.
Writes ``recorded/zoo.json`` beside this script.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import psutil

from autotune.machine.host import inspect_host
from studies.faults.injecting import inject
from studies.faults.zoo import FAULTS

RECORDED = Path(os.path.relpath(Path(__file__).resolve().parent)) / "recorded" / "zoo.json"
SEED = 6


def main() -> None:
    minutes, again = float(sys.argv[1]), sys.argv[2:]
    begin, studies = time.monotonic(), json.loads(RECORDED.read_text(encoding="utf-8"))["studies"] if again else []
    run = 1 + max((study["run"] for study in studies), default=0)
    for name in again or names(60 * minutes, studies):
        studies.append({"run": run, **struck(name), **held(), "minutes": round((time.monotonic() - begin) / 60, 1)})
        print(json.dumps(studies[-1]), file=sys.stderr)
        text = json.dumps({"machine": machine(), "studies": studies}, indent=2)
        RECORDED.write_text(text + "\n", encoding="utf-8")


def names(seconds: float, studies: list[dict[str, object]]) -> Iterator[str]:
    """Yield every fault in random order, then those whose studies were not confirmed, then any until the time is up."""
    generator, end = random.Random(SEED), time.monotonic() + seconds
    yield from generator.sample(list(FAULTS), len(FAULTS))
    yield from [str(study["fault"]) for study in studies if not study["confirmed_rounds"]]
    while time.monotonic() < end:
        yield generator.choice(list(FAULTS))


def struck(name: str) -> dict[str, object]:
    """Run a study with a fault, and say what became of it."""
    found = inject(name)
    return {
        "fault": name,
        "expected": FAULTS[name].outcome,
        "outcome": found.outcome,
        "message": found.message,
        "recovery_seconds": None if found.recovery_seconds is None else round(found.recovery_seconds, 1),
        "confirmed_rounds": found.result.rounds,
        "verdict": found.result.verdict,
        "valid_file": found.is_valid,
        "processes_left": found.processes,
        "segments_left": found.segments,
    }


def held() -> dict[str, int]:
    """Return what this process, the tuner's, holds now."""
    process = psutil.Process()
    memory, threads = process.memory_info().rss, process.num_threads()
    return {"memory_bytes": memory, "descriptors": process.num_fds(), "threads": threads}


def machine() -> dict[str, object]:
    facts = ("cpus", "cpu_model", "memory_bytes", "gpus", "versions")
    host = asdict(inspect_host())
    return {"date": datetime.now(UTC).isoformat(timespec="seconds")} | {key: host[key] for key in facts}


if __name__ == "__main__":
    main()
