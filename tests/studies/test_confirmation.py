"""The recorded simulated runs hold what is claimed of claims."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pandas
import pytest

STUDY = Path(__file__).resolve().parents[2] / "studies" / "confirmation"


@pytest.fixture(scope="module")
def modules() -> Iterator[dict[str, ModuleType]]:
    sys.path.insert(0, str(STUDY))
    names = ("simulate", "summary")
    yield {name: import_module(name) for name in names}
    sys.path.remove(str(STUDY))
    for name in names:
        del sys.modules[name]


@pytest.fixture(scope="module")
def runs() -> pandas.DataFrame:
    return pandas.read_csv(STUDY / "recorded" / "runs.csv")


def claimed(runs: pandas.DataFrame, gain: float) -> pandas.Series:
    """Share of runs that claim a gain, for each budget."""
    chosen = runs[runs.gain == gain]
    assert chosen.groupby("budget").size().min() >= 200
    return chosen.groupby("budget").verdict.apply(lambda verdicts: (verdicts == "faster").mean())


def test_without_a_gain_hardly_any_is_claimed(runs: pandas.DataFrame) -> None:
    assert claimed(runs, 0.0).max() <= 0.05


def test_a_gain_of_five_percent_is_found(runs: pandas.DataFrame) -> None:
    assert claimed(runs, 0.05).min() >= 0.9


def test_the_intervals_of_claims_hold_the_true_ratio(runs: pandas.DataFrame) -> None:
    found = runs[(runs.verdict == "faster") & (runs.gain >= 0.1)]
    assert ((found.low <= 1 + found.gain) & (1 + found.gain <= found.high)).mean() >= 0.92


def test_the_readme_holds_the_table_of_the_recorded_runs(
    runs: pandas.DataFrame, modules: dict[str, ModuleType]
) -> None:
    text = (STUDY / "README.md").read_text(encoding="utf-8")
    for line in modules["summary"].table(runs):
        assert line in text


@pytest.mark.parametrize(("gain", "verdict"), [(0.0, "no gain"), (0.3, "faster")])
def test_a_run_of_the_study_ends_as_it_should(gain: float, verdict: str, modules: dict[str, ModuleType]) -> None:
    found = modules["simulate"].run((gain, 180.0, 1))
    assert found["verdict"] == verdict
    assert float(found["seconds"]) <= 190


def test_on_a_real_machine_a_baseline_is_not_faster_than_itself() -> None:
    recorded = json.loads((STUDY / "recorded" / "real.json").read_text(encoding="utf-8"))
    assert {"date", "cpus", "cpu_model", "versions"} <= recorded["machine"].keys()
    assert recorded["run"]["verdict"] == "no proven gain"
    assert len(recorded["confirmations"]) >= 2
    for one in recorded["confirmations"]:
        assert one["rounds"] >= 2
        assert one["verdict"] == "no proven gain"
