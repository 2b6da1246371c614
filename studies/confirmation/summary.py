"""Print the table of the recorded runs.

python studies/confirmation/summary.py
"""

from __future__ import annotations

from pathlib import Path

import pandas

RUNS = Path(__file__).resolve().parent / "recorded" / "runs.csv"


def table(runs: pandas.DataFrame) -> list[str]:
    """Return the lines of the table: what each kind of run came to."""
    lines = [
        (
            "| machine | true gain | budget | runs | faster | no gain above X | undecided "
            "| interval holds the true ratio | rounds | next run inside | time spent |"
        ),
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for (machine, gain, budget), rows in runs.groupby(["machine", "gain", "budget"], sort=False):
        claimed, none = rows[rows.verdict == "faster"], rows[rows.verdict == "no gain"]
        holds = (claimed.low <= 1 + gain) & (1 + gain <= claimed.high)
        share = f"{holds.mean():.0%} of {len(claimed)}" if len(claimed) else "none"
        limit = f" (X {100 * none.most_gain.median():.0f} % in the median)" if len(none) else ""
        promised = rows[rows.next_low.notna()]
        inside = (promised.next_low <= promised.next) & (promised.next <= promised.next_high)
        lines.append(
            f"| {machine} | {gain:.0%} | {budget / 60:.0f} min | {len(rows)} | {len(claimed) / len(rows):.1%} "
            f"| {len(none) / len(rows):.1%}{limit} | {(rows.verdict == 'undecided').mean():.1%} | {share} "
            f"| {rows.rounds[rows.rounds > 0].mean():.1f} | {inside.mean():.1%} | {rows.seconds.mean():.0f} s |"
        )
    return lines


if __name__ == "__main__":
    print(*table(pandas.read_csv(RUNS)), sep="\n")
