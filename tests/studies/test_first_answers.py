"""The study of first answers counts whole epochs after a warm-up, and keeps one row for each job and door."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pandas as pd
import pytest

from autotune import Config, load_config

STUDY = Path(__file__).resolve().parents[2] / "studies" / "first_answers"
Study = Callable[[str], ModuleType]


def test_whole_epochs_after_the_warm_up_are_counted(study: Study) -> None:
    told = (("step", 50, 1.0), ("epoch", 100, 1.5), ("epoch", 200, 3.0), ("epoch", 300, 6.0), ("step", 350, 9.5))
    lines = [f"{kind}: {done} samples until {moment} s\n" for kind, done, moment in (*told, ("epoch", 400, 13.0))]
    assert study("study").rate_of(["a warning\n", *lines]) == pytest.approx(200 / 10.0)
    assert study("study").rate_of(lines[:4]) is None


def test_a_part_of_a_long_epoch_is_counted(study: Study) -> None:
    lines = [f"step: {10 * moment} samples until {moment} s\n" for moment in range(1, 40)]
    assert study("study").rate_of(lines) == pytest.approx(10.0)


def test_a_row_replaces_the_older_one_of_its_job_and_door(study: Study, tmp_path: Path) -> None:
    table = tmp_path / "results.csv"
    for door, rate in (("script", 1.0), ("function", 2.0), ("script", 3.0)):
        study("study").add(table, {"job": "jpeg", "door": door}, {"present": [rate], "answer": [rate, rate + 2.0]})
    found = pd.read_csv(table)
    assert list(found.columns) == list(study("study").COLUMNS)
    assert list(zip(found.door, found.trained_present, found.trained_answer, strict=True)) == [
        ("function", 2.0, 3.0),
        ("script", 3.0, 4.0),
    ]


def test_an_answer_is_known_by_its_numbers(study: Study, tmp_path: Path) -> None:
    Config(batch_size=64, num_workers=2, amp="bf16", intra_op_threads=1).save(tmp_path / "autotune.yaml")
    assert study("study").settings_of(tmp_path / "autotune.yaml") == {
        "batch_size": 64,
        "num_workers": 2,
        "prefetch_factor": 2,
        "persistent_workers": False,
        "pin_memory": False,
        "threads": 1,
        "amp": "bf16",
    }


def test_every_job_has_a_script_and_both_doors(study: Study) -> None:
    for name, job in study("study").JOBS.items():
        assert job.exists()
        assert study("study").asking(name, "script", None)[3:] == ["run", str(job)]
        assert str(job) in " ".join(study("study").asking(name, "function", "30s"))


def test_importing_a_job_or_the_neutral_loop_does_nothing(
    study: Study, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FIRST_ANSWERS_DATA", str(tmp_path))
    monkeypatch.syspath_prepend(str(STUDY / "jobs"))
    for name in ("neutral", "jpeg", "text"):
        study(name)
    assert not list(tmp_path.iterdir())


def test_the_comparison_of_two_versions_says_what_was_recorded() -> None:
    trained = pd.read_json(STUDY / "recorded" / "jpeg" / "trained.jsonl", lines=True)
    answers = {run.name: load_config(run / "autotune.yaml") for run in STUDY.glob("recorded/jpeg/*-*")}
    settings = trained.settings.map(json.loads)
    rates = {
        name: trained.rate[[_trains(own, config) for own in settings]].median() for name, config in answers.items()
    }
    readme = (STUDY / "README.md").read_text(encoding="utf-8")
    for run in range(3):
        old, new = rates[f"old-{run}"], rates[f"new-{run}"]
        assert f"| {old:,.0f} |" in readme
        assert f"| {new:,.0f} | {new / old:.3f} |" in readme
    proven = [name for name, config in answers.items() if (config.measured or {})["verdict"] == "faster"]
    assert sorted(proven) == ["new-0", "new-1", "new-2", "old-0"]


def test_the_recorded_answers_are_those_of_the_table_and_of_both_readmes() -> None:
    table = pd.read_csv(STUDY / "results.csv")
    answers = table[table.door != "by_hand"]
    readme = (STUDY / "README.md").read_text(encoding="utf-8")
    for row in answers.itertuples():
        folder = STUDY / "recorded" / "answers" / f"{row.job}-{row.door.replace(', ', '-')}"
        measured = load_config(folder / "autotune.yaml").measured or {}
        assert (measured["verdict"], measured["samples_per_second"]) == (row.verdict, row.promised)
        trained = json.loads((folder / "trained.json").read_text(encoding="utf-8"))
        assert row.trained_answer == pytest.approx(sum(trained["answer"]) / 2, abs=0.1)
        assert f"| {row.trained_present:,.0f} | {row.trained_answer:,.0f} |" in readme
    once = answers[answers.door != "script, again"]
    is_inside = once.trained_answer.between(once.next_run_low, once.next_run_high)
    assert (len(once), (once.verdict == "faster").sum(), is_inside.sum()) == (8, 6, 6)
    ratios = (table.trained_answer / table.trained_present).round(2)
    proven, by_hand = ratios[table.verdict == "faster"], ratios[table.door == "by_hand"]
    words = f"{proven.min():.1f} to {proven.max():.1f} times the present rate"
    project = (STUDY.parents[1] / "README.md").read_text(encoding="utf-8")
    assert words in project
    assert f"by hand give {by_hand.min():.1f} to {by_hand.max():.2f} times" in project


def _trains(own: dict[str, object], config: Config) -> bool:
    names = ("batch_size", "num_workers", "prefetch_factor", "persistent_workers", "amp")
    return all(own[name] == getattr(config, name) for name in names) and own["threads"] == config.intra_op_threads
