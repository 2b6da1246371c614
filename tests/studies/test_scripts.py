"""The recorded study of scripts holds the figures that its README and the project's quote."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pandas as pd

ROOT = Path(__file__).resolve().parents[2]
STUDY = ROOT / "studies" / "scripts"


def test_eight_scripts_are_read_right_and_trained_at_the_rate_of_their_file() -> None:
    runs = pd.read_csv(STUDY / "scripts.csv", keep_default_na=False)
    assert len(runs) == 8
    assert runs.is_right_line.all()
    assert set(runs.files_written) == {"none"}
    assert (runs.loss_difference <= 1e-4).all()
    assert runs.ratio.between(0.9, 1.1).all()
    quoted = f"{runs.ratio.min():.2f} to {runs.ratio.max():.2f} times"
    for readme in (STUDY / "README.md", ROOT / "README.md"):
        assert quoted in " ".join(readme.read_text(encoding="utf-8").split())
    assert list(runs.verdict).count("faster") == 7
    for run in runs.itertuples():
        cells = f"{run.verdict} | {run.speedup:g} | {run.file_rate:,.0f} | {run.trained_rate:,.0f} | {run.ratio:.3f} |"
        assert cells in (STUDY / "README.md").read_text(encoding="utf-8"), run.script


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
