"""The recorded runs hold what is claimed, and the machines behave."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pandas
import pytest

from autotune.outcome import Outcome
from autotune.records import Request

STUDY = Path(__file__).resolve().parents[2] / "studies" / "simulated_machines"
Study = Callable[[str], ModuleType]


def regrets(runs: pandas.DataFrame, method: str, trial: int) -> pandas.Series:
    chosen = runs[(runs.noise == 0.03) & (runs.method == method) & (runs.trial == trial)]
    assert len(chosen) >= 100
    return chosen.regret


def test_the_answer_is_near_the_optimum_after_ten_trials_and_nearer_after_twenty(runs: pandas.DataFrame) -> None:
    ten, twenty = (regrets(runs, "autotune", trial) for trial in (10, 20))
    assert ten.mean() <= 0.03
    assert twenty.mean() <= 0.015
    assert twenty.quantile(0.9) <= 0.04
    assert ten.mean() < regrets(runs, "TPE, Optuna's default", 10).mean() / 5


def test_hardly_anything_runs_out_of_memory(runs: pandas.DataFrame) -> None:
    last = runs[(runs.method == "autotune") & (runs.trial == 30)]
    assert last.out_of_memory.sum() <= 0.02 * (last.trial + last.probes).sum()


@pytest.mark.parametrize("noise", [0.01, 0.03, 0.1])
def test_the_readme_holds_the_tables_of_the_recorded_runs(
    runs: pandas.DataFrame, study: Study, readme: str, noise: float
) -> None:
    lines = study("summary").by_method(runs, noise) + study("summary").by_family(runs, noise)
    assert all(line in readme for line in lines)


@pytest.mark.parametrize("family", range(4))
def test_a_machine_is_the_same_for_the_same_seed_and_repeats_itself_within_its_noise(family: int, study: Study) -> None:
    machines = study("machines")
    world = machines.draw_world(machines.FAMILIES[family], 7)
    assert world == machines.draw_world(machines.FAMILIES[family], 7)
    machine = machines.Machine(world=world, noise=0.01, disturbed=0.0)
    base = machine.space.base
    rates = [machine.measure(base, Request(seconds=2.0)).measurement.samples_per_second for _ in range(20)]
    assert machine.rate(base) == pytest.approx(sum(rates) / 20, rel=0.02)
    assert machine.time > 20


@pytest.mark.parametrize("family", [0])
def test_the_search_that_runs_on_real_machines_comes_near_the_optimum(family: int, study: Study) -> None:
    machines, compare = study("machines"), study("compare")
    machine = machines.Machine(world=machines.draw_world(machines.FAMILIES[family], 3), noise=0.01, disturbed=0.0)
    rows = list(compare.ours(machine))
    assert len(rows) == compare.TRIALS
    assert rows[-1]["regret"] <= 0.05
    assert not {outcome for _, _, outcome, _ in machine.attempts} - {Outcome.OK}
