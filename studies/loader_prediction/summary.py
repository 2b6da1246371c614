"""Print the table of the recorded runs.

python studies/loader_prediction/summary.py
"""

from __future__ import annotations

from pathlib import Path

import pandas

RECORDED = Path(__file__).resolve().parent / "recorded"


def table(runs: pandas.DataFrame) -> list[str]:
    """Return the lines of the table: how far predictions lie from measurements, in percent."""
    lines = [
        "| loader | step | settings | recursion: median | worst | usual formula: median | worst |",
        "|---|---|---|---|---|---|---|",
    ]
    for (workload, share), rows in runs.groupby(["workload", "step_share"], sort=False):
        lines.append(_line(f"{workload} | {share:.0%} of a build", rows))
    sleeping = runs[runs.workload == "sleeping"]
    return [*lines, _line("**sleeping, all** | ", sleeping)]


def _line(heading: str, rows: pandas.DataFrame) -> str:
    errors, simple = rows.error.abs(), (rows.simple / rows.measured - 1).abs()
    values = (f"{100 * value:.1f} %" for value in (errors.median(), errors.max(), simple.median(), simple.max()))
    return f"| {heading} | {len(rows)} | {' | '.join(values)} |"


if __name__ == "__main__":
    print(*table(pandas.read_csv(RECORDED / "runs.csv")), sep="\n")
