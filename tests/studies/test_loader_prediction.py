"""The recorded predictions hold what is claimed, and the workloads are what they say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pandas
import pytest

STUDY = Path(__file__).resolve().parents[2] / "studies" / "loader_prediction"
Study = Callable[[str], ModuleType]


def test_every_loader_was_measured_with_twenty_settings_or_more(runs: pandas.DataFrame) -> None:
    settings = runs.drop_duplicates(["workload", "workers", "prefetch"]).groupby("workload").size()
    assert dict(settings) == {"jpegs": 20, "sleeping": 20, "texts": 20}


def test_predictions_of_loaders_that_sleep_are_true(runs: pandas.DataFrame) -> None:
    errors = runs[runs.workload == "sleeping"].error.abs()
    assert errors.median() <= 0.02
    assert errors.max() <= 0.06


def test_errors_are_those_of_the_rates_beside_them(runs: pandas.DataFrame) -> None:
    assert (runs.predicted / runs.measured - 1).to_list() == pytest.approx(runs.error.to_list(), abs=2e-4)


def test_the_readme_holds_the_table_of_the_recorded_runs(runs: pandas.DataFrame, study: Study, readme: str) -> None:
    assert all(line in readme for line in study("summary").table(runs))


@pytest.mark.parametrize("name", ["sleeping", "jpegs", "texts"])
def test_a_workload_builds_batches(name: str, study: Study) -> None:
    from torch.utils.data import DataLoader

    workload = getattr(study("workloads"), name)()
    batch = next(iter(DataLoader(workload.dataset, batch_size=4, shuffle=True, collate_fn=workload.collate_fn)))
    assert len(batch) == 4
