"""The recorded study that lost a node lost nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from autotune.search.losses import owed, settled
from autotune.search.reading import read_study

HOSTS = Path(__file__).resolve().parents[2] / "studies" / "hosts"
RECORDED = HOSTS / "recorded"


def recorded() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RECORDED / "lost_node.json").read_text(encoding="utf-8"))
    return found


def test_every_trial_is_accounted_for_and_what_was_lost_was_measured_on_the_other_node() -> None:
    history = read_study(RECORDED / "lost_node.study").history
    trials = [trial for trial in history if trial.kind in ("baseline", "search")]
    lost = [trial for trial in trials if trial.outcome == "lost"]
    assert lost
    for trial in lost:
        (again,) = [other for other in trials if other.config == trial.config and other.outcome != "lost"]
        assert again.host != trial.host
        assert again.measurement is not None
    assert owed(trials) == ()
    done = settled(trials)
    assert len(done) == len({trial.config for trial in done}) >= 20
    assert len({trial.host for trial in done}) == 2


def test_the_answer_was_confirmed_on_one_host() -> None:
    found = recorded()
    assert found["verdict"] == "faster"
    assert found["rounds"] >= 2
    assert len({trial["host"] for trial in found["trials"] if trial["kind"] == "confirm"}) == 1


def test_the_readme_says_what_was_recorded() -> None:
    found, text = recorded(), " ".join((HOSTS / "README.md").read_text(encoding="utf-8").split())
    lost = sum(trial["outcome"] == "lost" for trial in found["trials"])
    done = sum(trial["kind"] in ("baseline", "search") for trial in found["trials"]) - lost
    assert f"{done} trials, {lost} lost, {found['rounds']} rounds, {found['speedup']:.2f} times the baseline" in text
