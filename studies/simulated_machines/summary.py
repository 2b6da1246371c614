"""Print the tables of the README from the recorded runs.

python studies/simulated_machines/summary.py
"""

from __future__ import annotations

import os
from pathlib import Path

import pandas

RUNS = Path(os.path.relpath(Path(__file__).resolve().parent)) / "recorded" / "runs.csv"
COUNTS = (5, 10, 20, 30)


def load(path: Path = RUNS) -> pandas.DataFrame:
    return pandas.read_csv(path)


def by_method(runs: pandas.DataFrame, noise: float) -> list[str]:
    """Return a Markdown table: mean regret in percent (90th percentile), machine seconds, after so many trials."""
    chosen = runs[runs.noise == noise]
    lines = [
        "| method | " + " | ".join(f"{count} trials" for count in COUNTS) + " | out of memory |",
        "|---" * (len(COUNTS) + 2) + "|",
    ]
    for method, group in chosen.groupby("method", sort=False):
        cells = [cell(group[group.trial == count]) for count in COUNTS]
        last = group[group.trial == max(COUNTS)]
        share = last.out_of_memory.sum() / (last.trial + last.probes).sum()
        lines.append(f"| {method} | " + " | ".join(cells) + f" | {share:.1%} |")
    return lines


def cell(rows: pandas.DataFrame) -> str:
    return f"{regret(rows)}, {rows.seconds.mean():.0f} s"


def regret(rows: pandas.DataFrame) -> str:
    return f"{100 * rows.regret.mean():.1f} ({100 * rows.regret.quantile(0.9):.1f})"


def by_family(runs: pandas.DataFrame, noise: float, method: str = "autotune") -> list[str]:
    """Return a Markdown table of one method: regret after ten and twenty trials for each family of machines."""
    chosen = runs[(runs.noise == noise) & (runs.method == method)]
    lines = ["| family | 10 trials | 20 trials | worst after 20 | trials until it stopped |", "|---|---|---|---|---|"]
    for family, group in chosen.groupby("family", sort=False):
        ten, twenty = (group[group.trial == count] for count in (10, 20))
        worst, ran = 100 * twenty.regret.max(), twenty.ran.mean()
        lines.append(f"| {family} | {regret(ten)} | {regret(twenty)} | {worst:.1f} | {ran:.0f} |")
    return lines


def main() -> None:
    runs = load()
    for noise in sorted(runs.noise.unique()):
        print(f"\nNoise {noise:.0%}\n")
        print("\n".join(by_method(runs, noise)), "\n")
        print("\n".join(by_family(runs, noise)))


if __name__ == "__main__":
    main()
