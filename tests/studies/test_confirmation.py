"""The recorded simulated runs hold what is claimed of claims."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pandas
import pytest

from autotune.stats import ALPHA

STUDY = Path(__file__).resolve().parents[2] / "studies" / "confirmation"
Study = Callable[[str], ModuleType]


def of_kind(runs: pandas.DataFrame, machine: str, gain: float, budget: float = 600.0) -> pandas.DataFrame:
    chosen = runs[(runs.machine == machine) & (runs.gain == gain) & (runs.budget == budget)]
    assert len(chosen) >= 1000
    return chosen


def share_of(runs: pandas.DataFrame, verdict: str) -> float:
    return float((runs.verdict == verdict).mean())


@pytest.mark.parametrize("machine", ["steady", "drifting", "disturbed", "both"])
def test_without_a_gain_hardly_any_is_claimed(runs: pandas.DataFrame, machine: str) -> None:
    assert share_of(of_kind(runs, machine, 0.0), "faster") <= 0.035


@pytest.mark.parametrize(("gain", "rounds", "found"), [(0.05, 10, 0.93), (0.1, 6, 0.99), (0.3, 4, 1.0)])
def test_a_gain_is_found_in_few_rounds(runs: pandas.DataFrame, gain: float, rounds: float, found: float) -> None:
    chosen = of_kind(runs, "steady", gain)
    assert chosen.rounds.mean() <= rounds
    assert share_of(chosen, "faster") >= found


def test_with_drift_and_disturbance_a_small_gain_takes_little_longer(runs: pandas.DataFrame) -> None:
    assert of_kind(runs, "both", 0.05).rounds.mean() <= 12


def test_in_five_minutes_it_is_said_that_there_is_no_gain_where_there_is_none(runs: pandas.DataFrame) -> None:
    chosen = of_kind(runs, "steady", 0.0, 300.0)
    assert share_of(chosen, "no gain") >= 0.8
    assert chosen.most_gain.max() <= 0.05


def test_the_interval_for_a_further_run_holds_it(runs: pandas.DataFrame) -> None:
    chosen = runs[(runs.machine == "steady") & runs.next_low.notna()]
    assert ((chosen.next_low <= chosen.next) & (chosen.next <= chosen.next_high)).mean() >= 0.93


def test_the_intervals_of_claims_hold_the_true_ratio(runs: pandas.DataFrame) -> None:
    found = runs[(runs.verdict == "faster") & (runs.gain >= 0.05)]
    assert ((found.low <= 1 + found.gain) & (1 + found.gain <= found.high)).mean() >= 0.95


def test_the_readme_holds_the_table_of_the_recorded_runs(runs: pandas.DataFrame, study: Study, readme: str) -> None:
    assert all(line in readme for line in study("summary").table(runs))


@pytest.mark.parametrize(("gain", "verdict"), [(0.0, "no gain"), (0.3, "faster")])
def test_a_run_of_the_study_ends_as_it_should(gain: float, verdict: str, study: Study) -> None:
    found = study("simulate").run(("steady", gain, 180.0, 1))
    assert found["verdict"] == verdict
    assert float(found["seconds"]) <= 190


def test_on_a_real_machine_a_baseline_is_not_faster_than_itself() -> None:
    recorded = json.loads((STUDY / "recorded" / "real.json").read_text(encoding="utf-8"))
    assert {"date", "cpus", "cpu_model", "versions"} <= recorded["machine"].keys()
    assert recorded["run"]["verdict"] != "faster"
    assert len(recorded["confirmations"]) >= 2
    for one in recorded["confirmations"]:
        assert one["rounds"] >= 3
        assert one["verdict"] == "not proven"


def test_a_gain_that_every_round_shows_is_found_sooner_and_none_is_claimed_more_often(
    study: Study, readme: str
) -> None:
    module = study("places")
    places = pandas.read_csv(STUDY / "recorded" / "places.csv")
    assert all(line in readme for line in module.table(places))
    claims = places.groupby(["places", "gain", "rounds", "rule"]).claimed.mean().unstack()
    assert (places.groupby(["places", "gain", "rounds", "rule"]).size() >= 300).all()
    has_gain = (claims.index.get_level_values("gain") > 0) | claims.index.get_level_values("places").str.startswith(
        "sorted"
    )
    assert (claims.now[~has_gain] <= ALPHA).all()
    assert (claims.now[has_gain] >= claims.before[has_gain]).all()
    assert module.run("sorted by cost, loading hidden", 0.0, 8, 1, "now")["claimed"] == 1
