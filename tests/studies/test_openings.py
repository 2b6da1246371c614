"""The recorded runs on machines whose sessions cost time hold the figures of their README."""

from __future__ import annotations

import csv
from pathlib import Path
from statistics import median

from studies.openings.run import CPU, PLACES, table

STUDY = Path(__file__).resolve().parents[2] / "studies" / "openings"
README = (STUDY / "README.md").read_text(encoding="utf-8")
LEAST = dict.fromkeys([*PLACES, CPU], 0.95)


def rows(name: str) -> list[dict[str, str]]:
    with (STUDY / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_the_answer_is_near_the_best_and_half_precision_is_looked_at_in_every_run() -> None:
    runs = rows("runs.csv")
    assert table(runs) in README
    for machine, least in LEAST.items():
        own = [run for run in runs if run["machine"] == machine]
        assert len(own) == 20
        assert median(float(run["share"]) for run in own) >= least
        assert all(run["half precision after"] for run in own) or machine == CPU


def test_beside_a_neighbour_nothing_takes_more_than_is_left() -> None:
    runs = rows("neighbours.csv")
    assert len(runs) == 50
    assert all(float(run["largest share"]) <= 0.9 and run["out of memory or disturbed"] == "0" for run in runs)
    assert f"In {len(runs)} searches, no trial or probe took more than 90 % of what was left" in README
