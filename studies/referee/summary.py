"""Tables of the study of the referee: false claims, differences found, and time.

python -m studies.referee.summary [FOLDER]
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean, median, stdev, variance
from typing import Any

from autotune.stats import student_cdf

RECORDED = Path(__file__).resolve().parent / "recorded"
KINDS = ("equal", "slower")
LEVEL = 0.05
"""Chance of a false claim that a t-test of steps is usually allowed."""
MOST_SECONDS = 21.0
"""Seconds of a pair at most: a measurement that runs at the end of the twenty has a moment to end."""


def by_autotune(pair: dict[str, Any]) -> str:
    verdict: str = pair["verdict"]
    return verdict


def by_alternations(pair: dict[str, Any]) -> str:
    """Return the claim of those whose mean and standard deviation of five alternations do not overlap."""
    sides = [[one["rate"] for one in pair["measured"] if one["side"] == side and one["rate"]][:5] for side in (0, 1)]
    (low, of_low), (high, of_high) = sorted((fmean(rates), stdev(rates)) for rates in sides)
    return "no claim" if low + of_low >= high - of_high else _direction(*sides)


def by_steps(pair: dict[str, Any]) -> str:
    """Return the claim of a t-test of twenty steps of each side, by Welch."""
    first, second = pair["steps"]
    if not (first and second):  # the first session of a side failed
        return "no claim"
    parts = [variance(steps) / len(steps) for steps in (first, second)]
    freedom = sum(parts) ** 2 / sum(part**2 / (len(first) - 1) for part in parts)
    t = abs(fmean(first) - fmean(second)) / math.sqrt(sum(parts))
    is_sure = 2 * (1 - student_cdf(t, math.floor(freedom))) < LEVEL
    return _direction([1 / fmean(first)], [1 / fmean(second)]) if is_sure else "no claim"


def _direction(first: Sequence[float], second: Sequence[float]) -> str:
    return "slower" if fmean(second) < fmean(first) else "faster"


WAYS: dict[str, Callable[[dict[str, Any]], str]] = {
    "`autotune compare`, 20 s": by_autotune,
    "mean ± sd of five alternations": by_alternations,
    "t-test of twenty steps": by_steps,
}


def read(part: str, folder: Path = RECORDED) -> list[dict[str, Any]]:
    path = folder / f"{part}.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def row(part: str, way: str, claims: Sequence[tuple[str, str]], seconds: Sequence[float]) -> str:
    """Return a line of the table from the kind of each pair and the claim about it."""
    equal, slower = ([claim for kind, claim in claims if kind == each] for each in KINDS)
    false = sum(claim in ("faster", "slower") for claim in equal)
    wrong = slower.count("faster")
    time = f"{median(seconds):.0f} s" if seconds else ""
    return (
        f"| {part} | {way} | {false} of {len(equal)} | {slower.count('slower')} of {len(slower)} | {wrong} | {time} |"
    )


def table(folder: Path = RECORDED) -> list[str]:
    lines = [
        "| machine | way | claims between equal ones | 5 % found | called faster | time, median |",
        "|---|---|---|---|---|---|",
    ]
    for part in ("quiet", "busy"):
        pairs = read(part, folder)
        for way, claim in WAYS.items() if pairs else ():
            seconds = [pair["seconds"] for pair in pairs] if claim is by_autotune else []
            lines.append(row(part, way, [(pair["kind"], claim(pair)) for pair in pairs], seconds))
    if pairs := read("train_doctor", folder):
        claims = [(pair["kind"], pair["verdict"]) for pair in pairs]
        lines.append(row("quiet", "`train-doctor compare`, five pairs", claims, [pair["seconds"] for pair in pairs]))
    return lines


if __name__ == "__main__":
    print(*table(Path(sys.argv[1]) if len(sys.argv) > 1 else RECORDED), sep="\n")
