"""Print the tables of recorded runs, and the runs that went wrong.

python -m studies.neighbours.summary [FILE...]

Without a file, all that are recorded.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pandas

RECORDED = Path(__file__).resolve().parent / "recorded"
FAR = 2.0
"""Ratio of a factor that is told to the true one, or its inverse, from which it is far off."""
SLOWER, SAME = 0.03, 0.03
"""Shares of the rate by which an answer counts as slower, and within which two count as the same."""
MISSED, LARGE = 0.05, 0.3
"""True gains that a verdict of no gain must not leave, and of which most should be proven."""
LEAST_ROUNDS = 3
"""Rounds from which a factor is told."""
COLUMNS = (
    *("runs", "number", "faster", "no gain", "undecided", "errors", "factors off by 2"),
    *("outside the interval: answers", "alternatives", "slower answers: proven", "unproven"),
    *("gains of 5 % missed", "more there than excluded", "gains of 30 % proven", "rate / best: median", "mean"),
)


def read(path: Path) -> pandas.DataFrame:
    """Return recorded runs, with what is wrong with each."""
    runs = pandas.read_csv(path)
    is_told = runs.told.notna() & (runs.rounds >= LEAST_ROUNDS)
    off = runs.told / runs.true_of_told
    runs["far"] = is_told & ((off >= FAR) | (off <= 1 / FAR))
    runs["with_interval"] = runs.low.notna()
    runs["outside"] = runs.with_interval & ((runs.true_of_told < runs.low) | (runs.true_of_told > runs.high))
    runs["slower"] = runs.true < 1 - SLOWER
    runs["more"] = (runs.verdict == "no gain") & (runs.best > 1 + runs.excluded)
    runs["missed"] = (runs.verdict == "no gain") & (runs.best >= 1 + MISSED)
    return runs


def table(runs: pandas.DataFrame) -> list[str]:
    """Return what became of the runs of each part, line by line."""
    lines = [
        f"| {' | '.join(COLUMNS)} |",
        "|" + "---|" * len(COLUMNS),
    ]
    for part, rows in runs.groupby("part", sort=False):
        of = rows.verdict.value_counts()
        proven, large = rows.verdict == "faster", rows.best >= 1 + LARGE
        reached, is_written = rows.true / rows.best, rows.written != "baseline"
        counts = (of.get(verdict, 0) for verdict in ("faster", "no gain", "undecided", "error"))
        cells = (
            part,
            len(rows),
            *counts,
            rows.far.sum(),
            *(
                f"{(rows.outside & kind).sum()} of {(rows.with_interval & kind).sum()}"
                for kind in (is_written, ~is_written)
            ),
            (rows.slower & proven).sum(),
            (rows.slower & ~proven).sum(),
            rows.missed.sum(),
            f"{rows.more.sum()} of {of.get('no gain', 0)}",
            f"{(proven & large).sum()} of {large.sum()}",
            f"{reached.median():.3f}",
            f"{reached.mean():.3f}",
        )
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return lines


def twins(runs: pandas.DataFrame) -> str:
    """Return how runs whose looks stall compare with the quiet runs of their seeds."""
    both = runs[runs.part == "stalled"].merge(runs[runs.part == "quiet"], on="seed", suffixes=("", "_quiet"))
    ratio = both.true / both.true_quiet
    same, times = (ratio - 1).abs() <= SAME, both.seconds / both.seconds_quiet
    return (
        f"Of {len(both)} runs with stalls {same.sum()} have the answer of their twin within {SAME:.0%} in true rate "
        f"({(ratio < 1 - SAME).sum()} a slower one, {(ratio > 1 + SAME).sum()} a faster one); they take "
        f"{times.median():.2f} times its seconds in the median, {times.max():.2f} at most."
    )


def wrong(runs: pandas.DataFrame) -> pandas.DataFrame:
    """Return the runs that went wrong."""
    faults = ["far", "outside", "slower", "missed", "more"]
    shown = ["part", "seed", "family", "cpus", "budget", "verdict", "best", "true", "told", "low", "high"]
    return runs.loc[runs[faults].any(axis=1), [*shown, "true_of_told", "rounds", "confirmed", "crowded", *faults]]


def show(path: Path) -> None:
    """Print the tables of a file."""
    runs = read(path)
    print(f"{path.stem}:", "", *table(runs), "", twins(runs), "", wrong(runs).to_string(index=False), sep="\n")


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:]) if len(sys.argv) > 1 else sorted(RECORDED.glob("*.csv")):
        show(path)
