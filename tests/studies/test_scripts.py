"""The recorded study of scripts holds the figures that its README and the project's quote."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pandas as pd

ROOT = Path(__file__).resolve().parents[2]
STUDY = ROOT / "studies" / "scripts"
SHARED = ("shards", "replay")
"""Scripts whose workers share a stream: how many there are decides which samples come when."""


def test_scripts_are_read_right_and_trained_at_the_rate_of_their_file() -> None:
    runs = pd.read_csv(STUDY / "scripts.csv", keep_default_na=False, na_values=[""])
    assert set(runs.script) == {job.stem for job in (STUDY / "jobs").glob("*.py")}
    assert len(runs) == 20
    refused = runs[runs.verdict == "refused"]
    assert not refused.message.isna().any()
    runs = runs[runs.verdict != "refused"]
    assert runs.is_right_line.all()
    assert set(runs.files_written) == {"none"}
    assert (runs.loss_difference[~runs.script.isin(SHARED)] <= 1e-4).all()
    assert runs.present_ratio.between(0.9, 1.1).all()
    assert runs.ratio.between(0.9, 1.1).all()
    quoted = f"{runs.ratio.min():.2f} to {runs.ratio.max():.2f} times"
    for readme in (STUDY / "README.md", ROOT / "README.md"):
        assert quoted in " ".join(readme.read_text(encoding="utf-8").split())
    for run in runs.itertuples():
        present = f"{run.present_rate:,.0f} | {run.own_rate:,.0f} | {run.present_ratio:.3f}"
        applied = f"{run.file_rate:,.0f} | {run.own_rate_applied:,.0f} | {run.ratio:.3f}"
        cells = f"{run.verdict} | {run.speedup:g} | {present} | {applied} |"
        assert cells in (STUDY / "README.md").read_text(encoding="utf-8"), run.script


def test_variants_of_scripts_have_the_answers_that_they_should() -> None:
    ends, together, checks = (pd.read_csv(STUDY / f"{name}.csv") for name in ("ends", "together", "checks"))
    assert list(ends.steps[:4]) == [150, 215, 300, 500]
    assert set(ends.verdict) == {"faster"}
    assert ends.to_endless.between(0.9, 1.1).all()
    assert ends.ratio.between(0.9, 1.1).all()
    assert together[together.name == "answer"].to_best.item() >= 0.95
    assert set(zip(checks.change, checks.exit_code, strict=True)) == {("none", 0), ("a sleep", 1)}
    readme = " ".join((STUDY / "README.md").read_text(encoding="utf-8").split())
    assert f"{ends.to_endless.min():.2f} to {ends.to_endless.max():.2f} times the endless" in readme
    assert f"{together[together.name == 'answer'].to_best.item():.2f} of the best of that grid" in readme


def test_rates_of_scripts_are_those_of_workloads() -> None:
    rates = pd.read_csv(STUDY / "rates.csv")
    assert len(rates) == 2
    assert rates.ratio.between(0.95, 1.05).all()


def test_a_layer_costs_little_to_read_through(study: Callable[[str], ModuleType]) -> None:
    rows = pd.read_csv(STUDY / "files.csv").to_dict("records")
    assert len(rows) == 14
    a_file, large = 1e6 * study("files").more(rows, "small") / 3000, 100 * study("files").share(rows, "large")
    assert a_file <= 10
    assert large <= 3
    readme = " ".join((STUDY / "README.md").read_text(encoding="utf-8").split())
    assert f"takes {a_file:.1f} µs of CPU time a file more than without, a file of 64 MiB {large:.1f} % more" in readme
