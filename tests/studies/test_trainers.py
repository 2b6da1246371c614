"""The recorded trainers report what was promised to them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

STUDY = Path(__file__).resolve().parents[2] / "studies" / "trainers"
NAMES = ("accelerate", "lightning", "transformers")

pytestmark = pytest.mark.filterwarnings("ignore:.*run autotune here to be sure")  # recorded on another machine


@pytest.fixture
def summary(study: Callable[[str], ModuleType]) -> ModuleType:
    return study("summary")


def test_every_trainer_was_recorded_three_times_beside_a_measurement(summary: ModuleType) -> None:
    found = summary.read()
    assert [kept.trainer.split()[0] for kept in found] == list(NAMES)
    assert all(len(kept.rates) == len(kept.beside) == 3 for kept in found)


def test_the_documentation_says_how_far_trainers_were_from_the_rate_measured_beside_them(summary: ModuleType) -> None:
    ratios = [kept.of_beside for kept in summary.read()]
    claim = f"{min(ratios):.2f} to {max(ratios):.2f} times the rate measured beside them"
    assert claim in " ".join((STUDY.parents[1] / "docs" / "trainers.md").read_text(encoding="utf-8").split())
    assert all(abs(ratio - 1) < 0.12 for ratio in ratios)


def test_the_recorded_runs_say_when_and_where() -> None:
    for name in NAMES:
        found = json.loads((STUDY / "recorded" / name / "rates.json").read_text(encoding="utf-8"))
        assert {"date", "trainer", "cpus", "cpu_model", "versions"} <= found.keys()


def test_the_readme_holds_the_table_of_the_recorded_runs(summary: ModuleType, readme: str) -> None:
    assert "\n".join(summary.table(summary.read())) in readme
