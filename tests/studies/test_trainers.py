"""The recorded trainers report what was promised to them."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

STUDY = Path(__file__).resolve().parents[2] / "studies" / "trainers"
NAMES = ("accelerate", "lightning", "transformers")


@pytest.fixture(scope="module")
def summary() -> Iterator[ModuleType]:
    sys.path.insert(0, str(STUDY))
    yield import_module("summary")
    sys.path.remove(str(STUDY))
    del sys.modules["summary"]


def test_every_trainer_was_recorded_three_times_beside_a_measurement(summary: ModuleType) -> None:
    found = summary.read()
    assert [kept.trainer.split()[0] for kept in found] == list(NAMES)
    assert all(len(kept.rates) == len(kept.beside) == 3 for kept in found)


def test_trainers_report_what_was_measured_beside_them_as_far_as_the_machine_is_steady(summary: ModuleType) -> None:
    for kept in summary.read():
        pairs = [rate / beside for rate, beside in zip(kept.rates, kept.beside, strict=True)]
        assert min(pairs) < 1.1
        assert max(pairs) > 0.9


def test_the_recorded_runs_say_when_and_where() -> None:
    for name in NAMES:
        found = json.loads((STUDY / "recorded" / name / "rates.json").read_text(encoding="utf-8"))
        assert {"date", "trainer", "cpus", "cpu_model", "versions"} <= found.keys()


def test_the_readme_holds_the_table_of_the_recorded_runs(summary: ModuleType) -> None:
    assert "\n".join(summary.table(summary.read())) in (STUDY / "README.md").read_text(encoding="utf-8")
