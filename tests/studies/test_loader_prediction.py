"""The recorded predictions hold what is claimed, and the workloads are what they say."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pandas
import pytest

STUDY = Path(__file__).resolve().parents[2] / "studies" / "loader_prediction"


@pytest.fixture(scope="module")
def modules() -> Iterator[dict[str, ModuleType]]:
    sys.path.insert(0, str(STUDY))
    names = ("workloads", "summary")
    yield {name: import_module(name) for name in names}
    sys.path.remove(str(STUDY))
    for name in names:
        del sys.modules[name]


@pytest.fixture(scope="module")
def runs() -> pandas.DataFrame:
    return pandas.read_csv(STUDY / "recorded" / "runs.csv")


def test_every_loader_was_measured_with_twenty_settings_or_more(runs: pandas.DataFrame) -> None:
    settings = runs.drop_duplicates(["workload", "workers", "prefetch"]).groupby("workload").size()
    assert dict(settings) == {"jpegs": 20, "sleeping": 20, "texts": 20}


def test_predictions_of_loaders_that_sleep_are_true(runs: pandas.DataFrame) -> None:
    errors = runs[runs.workload == "sleeping"].error.abs()
    assert errors.median() <= 0.02
    assert errors.max() <= 0.06


def test_errors_are_those_of_the_rates_beside_them(runs: pandas.DataFrame) -> None:
    assert (runs.predicted / runs.measured - 1).to_list() == pytest.approx(runs.error.to_list(), abs=2e-4)


def test_the_readme_holds_the_table_of_the_recorded_runs(
    runs: pandas.DataFrame, modules: dict[str, ModuleType]
) -> None:
    text = (STUDY / "README.md").read_text(encoding="utf-8")
    for line in modules["summary"].table(runs):
        assert line in text


@pytest.mark.parametrize("name", ["sleeping", "jpegs", "texts"])
def test_a_workload_builds_batches(name: str, modules: dict[str, ModuleType]) -> None:
    from torch.utils.data import DataLoader

    workload = getattr(modules["workloads"], name)()
    batch = next(iter(DataLoader(workload.dataset, batch_size=4, shuffle=True, collate_fn=workload.collate_fn)))
    assert len(batch) == 4
