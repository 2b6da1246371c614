"""What Optuna's dashboard shows of a study: names, values and outcomes that make sense there."""

from __future__ import annotations

import json
from typing import Any
from wsgiref.util import setup_testing_defaults

import optuna
import optuna_dashboard
import pytest

from autotune.report.result import Result
from tests.report.results import kept_study

KNOBS = {"batch_size", "num_workers", "prefetch_factor", "pin_memory", "persistent_workers", "amp", "threads"}


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, Any]:
    path = tmp_path_factory.mktemp("kept") / "a.study"
    result = kept_study(path)
    return result, optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(path)))


def answered(storage: Any, path: str) -> dict[str, Any]:
    status: list[str] = []
    environment: dict[str, Any] = {"PATH_INFO": path}
    setup_testing_defaults(environment)
    body = optuna_dashboard.wsgi(storage)(environment, lambda code, headers, error=None: status.append(code))
    assert status == ["200 OK"]
    return dict(json.loads(b"".join(body)))


def test_trials_have_the_values_of_the_knobs_and_their_outcomes_in_words(kept: tuple[Result, Any]) -> None:
    result, storage = kept
    shown = answered(storage, "/api/studies/0")
    assert shown["objective_names"] == ["samples/s"]
    assert len(shown["trials"]) == len(result.history)
    for row, record in zip(shown["trials"], sorted(result.history, key=lambda trial: trial.number), strict=True):
        params = {each["name"]: each["param_external_value"] for each in row["params"]}
        words = {each["key"]: each["value"] for each in row["user_attrs"]}
        assert set(params) <= KNOBS
        assert params["batch_size"] == str(record.config.batch_size)
        assert params["num_workers"] == str(record.config.num_workers)
        assert params["amp"] == record.config.amp
        assert ("prefetch_factor" in params) == bool(record.config.num_workers)
        assert words["outcome"].strip('"') == record.outcome
        assert ("message" in words) == bool(record.attempt.message)
        assert not [word for word in words.values() if len(word) > 300]


def test_the_study_says_what_came_of_it(kept: tuple[Result, Any]) -> None:
    result, storage = kept
    shown = answered(storage, "/api/studies/0")
    words = {each["key"]: each["value"] for each in shown["user_attrs"]}
    assert words["verdict"].strip('"') == result.verdict
    assert float(words["times the samples a second"]) == pytest.approx(result.speedup, rel=1e-3)
    assert "ResNet on FolderOfJpegs" in words["tuned"]
    assert "times the samples a second" in words["sentence"]
