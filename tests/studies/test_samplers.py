"""The recorded comparison of samplers holds the figures that its README and the documentation quote."""

from __future__ import annotations

import json
from pathlib import Path

import pandas
import pytest

ROOT = Path(__file__).resolve().parents[2]
STUDY = ROOT / "studies" / "samplers"
README = (STUDY / "README.md").read_text(encoding="utf-8")
SAMPLERS = ("predictive", "tpe", "gp", "random")


def text(regrets: pandas.Series) -> str:
    return f"{100 * regrets.median():.1f} ({100 * regrets.mean():.1f})"


@pytest.fixture(scope="module")
def searches() -> pandas.DataFrame:
    return pandas.read_csv(STUDY / "recorded" / "searches.csv")


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_the_table_of_searches_is_that_of_the_data(searches: pandas.DataFrame, sampler: str) -> None:
    found = searches[searches["sampler"] == sampler]
    assert len(found) == 60
    cells = [text(found[found["budget"] == budget]["regret"]) for budget in (60, 120, 240)]
    assert f"| {sampler} | {' | '.join(cells)} |" in README
    median = 100 * found[found["budget"] == 240]["regret"].median()
    assert f"| `{sampler}` | {median:.1f} % |" in (ROOT / "docs" / "optuna.md").read_text(encoding="utf-8")


def test_the_readme_quotes_the_medians(searches: pandas.DataFrame) -> None:
    medians = [
        f"{100 * searches[(searches['sampler'] == name) & (searches['budget'] == 240)]['regret'].median():.1f} %"
        for name in ("predictive", "tpe", "gp")
    ]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (row,) = [line for line in readme.splitlines() if "studies/samplers" in line]
    assert all(median in row for median in medians)


def test_the_journal_is_fast_and_small() -> None:
    found = json.loads((STUDY / "recorded" / "journal.json").read_text(encoding="utf-8"))
    assert found["trials"] == 200
    assert found["ask_and_tell_ms"] <= 30
    assert found["file_bytes"] <= 3e6
    assert f"telling takes {found['ask_and_tell_ms']} ms in the median" in " ".join(README.split())
    assert f"takes {found['forecast_ms']:.0f} ms. The file has {found['file_bytes'] / 1e6:.1f} MB" in README
