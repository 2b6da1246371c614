"""Print the table of the recorded runs.

python studies/confirmation/summary.py
"""

from __future__ import annotations

from pathlib import Path

import pandas

RUNS = Path(__file__).resolve().parent / "recorded" / "runs.csv"


def table(runs: pandas.DataFrame) -> list[str]:
    """Return the lines of the table: what was claimed for each true gain and budget."""
    lines = [
        "| true gain | budget | runs | gain claimed | interval holds the true ratio | rounds | time spent |",
        "|---|---|---|---|---|---|---|",
    ]
    for (gain, budget), rows in runs.groupby(["gain", "budget"]):
        claimed = rows[rows.verdict == "faster"]
        holds = (claimed.low <= 1 + gain) & (1 + gain <= claimed.high)
        share = f"{holds.mean():.0%} of {len(claimed)}" if len(claimed) else "none"
        lines.append(
            f"| {gain:.0%} | {budget / 60:.0f} min | {len(rows)} | {len(claimed) / len(rows):.1%} | {share} "
            f"| {rows.rounds[rows.rounds > 0].mean():.1f} | {rows.seconds.mean():.0f} s |"
        )
    return lines


if __name__ == "__main__":
    print(*table(pandas.read_csv(RUNS)), sep="\n")
