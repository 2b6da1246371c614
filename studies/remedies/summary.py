"""Table of the study of remedies: what was measured beforehand beside what training gained.

python -m studies.remedies.summary
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import Any

from autotune.diagnosis.findings import Remedy
from studies.remedies.jobs import STORED

RECORDED = Path(__file__).resolve().parent / "recorded" / "runs.jsonl"
JOBS = {
    "png": "PNG decoding",
    "augmented": "PNG decoding, random augmentation",
    "collate": "a slow collate function",
    "memory": "all in memory already",
}


def read() -> list[dict[str, Any]]:
    return [json.loads(line) for line in RECORDED.read_text(encoding="utf-8").splitlines()]


def remedy(run: dict[str, Any], name: str = "stored") -> dict[str, Any]:
    found: dict[str, Any] = next(each for each in run["remedies"] if each["name"] == name)
    return found


def gained(run: dict[str, Any]) -> float:
    """Return how many times as fast two epochs with stored items were, in the median of the turns."""
    return median(after / before for before, after in run["turns"])


def is_worth(found: dict[str, Any]) -> bool | None:
    """Return whether a remedy was said to pay."""
    return Remedy(**found).is_worth


def said(found: dict[str, Any]) -> str:
    words = {True: "", False: "not worth it, ", None: "undecided, "}[is_worth(found)]
    return f"{words}{found['ratio']:.2f} ({found['interval'][0]:.2f} to {found['interval'][1]:.2f})"


def shares(run: dict[str, Any]) -> tuple[float, float, float]:
    """Return the gain, the bytes and the time to make that were told, each over what was found."""
    found = remedy(run)
    return (
        found["ratio"] / gained(run),
        found["total_bytes"] / run["bytes"],
        found["seconds"] / run["make_seconds"],
    )


def reading() -> float:
    """Return the rate of reading stored items over that by hand, in the median of the turns."""
    turns = json.loads((RECORDED.parent / "reading.json").read_text(encoding="utf-8"))
    return median(own / by_hand for own, by_hand in turns)


def table() -> list[str]:
    lines = [
        "| job | stored | in memory | gained by training | told ÷ gained | bytes | time to make |",
        "|---|---|---|---|---|---|---|",
    ]
    for run in read():
        cells = [JOBS[run["job"]], said(remedy(run)), said(remedy(run, "in-memory"))]
        if run["job"] in STORED:
            cells += [f"{gained(run):.2f}", *(f"{share:.2f}" for share in shares(run))]
        lines.append(f"| {' | '.join(cells + [''] * (7 - len(cells)))} |")
    return lines


if __name__ == "__main__":
    print(*table(), f"Items of 150 kB are read at {reading():.2f} of the rate by hand.", sep="\n")
