"""The recorded training in ranks reached what was measured beside it, with the losses of one process."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from statistics import geometric_mean

import pytest

import autotune
from tests.ranks.failing import FAILURES, LIMIT

STUDY = Path(__file__).resolve().parents[2] / "studies" / "ranks"
RECORDED = STUDY / "recorded"

pytestmark = pytest.mark.filterwarnings("ignore:.*run autotune here to be sure")  # recorded on another machine


def rounds() -> list[dict[str, float]]:
    found: list[dict[str, float]] = json.loads((RECORDED / "rounds.json").read_text(encoding="utf-8"))
    return found


def ratios() -> list[float]:
    return [one["trained"] / ((one["before"] + one["after"]) / 2) for one in rounds()]


def test_training_under_torchrun_gave_what_was_measured_beside_it() -> None:
    assert len(rounds()) >= 4
    assert abs(geometric_mean(ratios()) - 1) < 0.10


def test_the_losses_are_those_of_one_process_at_the_same_effective_batch() -> None:
    curves = json.loads((RECORDED / "losses.json").read_text(encoding="utf-8"))
    one = curves.pop("one process, batches of 64")
    assert len(one) >= 20
    assert min(one) < one[0] - 0.4  # it learns
    for curve in curves.values():
        assert curve == pytest.approx(one, rel=1e-3)


def test_the_recorded_answer_is_for_two_ranks() -> None:
    config = autotune.load_config(RECORDED / "autotune.yaml")
    assert config.ranks == 2
    assert {"date", "cpus", "cpu_model", "versions"} <= json.loads((RECORDED / "machine.json").read_text()).keys()


def test_the_readmes_hold_the_rounds(readme: str) -> None:
    for one, ratio in zip(rounds(), ratios(), strict=True):
        rates = f"| {one['before']:,.0f} | **{one['trained']:,.0f}** | {one['after']:,.0f} | {ratio:.2f} |"
        assert f"| {one['round']} {rates}" in readme
    mean, page = f"{geometric_mean(ratios()):.2f} times", STUDY.parents[1] / "docs" / "ranks.md"
    assert f"{mean} what was measured beside it" in " ".join(readme.split())
    assert f"{mean} the rate measured beside it" in " ".join(page.read_text(encoding="utf-8").split())


def test_every_failure_of_a_rank_was_recorded_five_times_with_its_outcome_and_nothing_left() -> None:
    trials = json.loads((RECORDED / "failures.json").read_text(encoding="utf-8"))["trials"]
    assert Counter(trial["how"] for trial in trials) == dict.fromkeys(FAILURES, 5)
    for trial in trials:
        outcome, message = FAILURES[trial["how"]]
        assert trial["outcome"] == outcome
        assert trial["message"].startswith(message)
        assert trial["seconds"] < LIMIT + 15
        assert (trial["is_trial_gone"], trial["is_all_gone"]) == (True, True)
        assert trial["next"] in ("ok", "suspect")
