"""The recorded training runs hold what their files promise."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch

STUDY = Path(__file__).resolve().parents[2] / "studies" / "promise"
WORKLOADS = {"digits", "source_text", "photographs"}
Study = Callable[[str], ModuleType]


def test_every_workload_was_recorded_for_two_minutes_of_training(study: Study) -> None:
    promises = study("summary").read()
    assert {promise.name for promise in promises} == WORKLOADS
    for promise in promises:
        assert len(promise.seconds) == 2
        assert min(promise.seconds) >= 60


def test_training_gives_what_the_file_promises(study: Study) -> None:
    promises = study("summary").read()
    assert promises
    for promise in promises:
        low, high = promise.interval
        mean = sum(promise.rates) / len(promise.rates)
        assert low <= mean <= high or mean == pytest.approx(promise.promised, rel=0.03), promise.name


def test_the_recorded_runs_say_when_and_where() -> None:
    machine = json.loads((STUDY / "recorded" / "machine.json").read_text(encoding="utf-8"))
    assert {"date", "cpus", "cpu_model", "versions"} <= machine.keys()
    for name in WORKLOADS:
        folder = STUDY / "recorded" / name
        assert "Written: " in (folder / "run.txt").read_text(encoding="utf-8")
        assert json.loads((folder / "run.json").read_text(encoding="utf-8"))["config"]["measured"]


def test_the_readme_holds_the_table_of_the_recorded_runs(study: Study, readme: str) -> None:
    assert "\n".join(study("summary").table(study("summary").read())) in readme


def test_words_are_followed_by_words_of_the_same_passage(study: Study) -> None:
    workloads = study("workloads")
    words, following = workloads.pad_passages([torch.tensor([5, 6, 7]), torch.tensor([8, 9])])
    assert words.tolist() == [[5, 6], [8, 9]]
    assert following.tolist() == [[6, 7], [9, workloads.PADDING]]
