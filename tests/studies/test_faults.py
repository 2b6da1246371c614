from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from tests.faults.zoo import FAULTS

RECORDED = Path(__file__).resolve().parents[2] / "studies" / "faults" / "recorded"
MIB = 2**20


def recorded(name: str) -> Any:
    return json.loads((RECORDED / name).read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def soak() -> list[dict[str, str]]:
    with (RECORDED / "soak.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_every_fault_was_struck_told_and_survived() -> None:
    struck = recorded("zoo.json")["faults"]
    assert struck.keys() == FAULTS.keys()
    assert len(struck) >= 25
    for name, became in struck.items():
        assert became["outcome"] == FAULTS[name].outcome, name
        assert became["confirmed_rounds"] > 0, name
        assert became["valid_file"], name
        assert became["processes_left"] == became["segments_left"] == [], name


def test_after_each_kill_the_same_command_went_on_and_nothing_was_lost_or_repeated() -> None:
    kills = recorded("kills.json")
    assert len(kills) >= 20
    assert all(kill["was_killed"] for kill in kills)
    assert sum(kill["trials_kept"] > 0 for kill in kills) >= 10
    for kill in kills:
        assert kill["trials_lost"] == kill["repeated_trials"] == kill["exit_code"] == 0
        assert kill["valid_file"]
        assert kill["left_behind"] == ["autotune.study", "autotune.yaml"]


def test_what_cannot_fit_was_not_started_and_the_rest_was_tuned() -> None:
    found = recorded("confined.json")
    assert len(found) == 2
    for limit in found.values():
        assert limit["exit_code"] == 0
        assert limit["verdict"] == "faster"
        assert limit["rounds"] > 0
        assert {trial["outcome"] for trial in limit["ran"]} <= {"ok", "suspect"}
        assert any("would need" in trial["message"] for trial in limit["left_out"])
    assert all(trial["bytes_in_flight"] <= 64 * MIB for trial in found["shared memory of 64 MiB"]["ran"])
    assert all(trial["peak_memory_bytes"] <= 1024 * MIB for trial in found["memory of 1 GiB"]["ran"])


def test_half_an_hour_of_faults_left_the_tuner_as_it_was(soak: list[dict[str, str]]) -> None:
    assert float(soak[-1]["minutes"]) >= 30
    warm = [int(row["rss_bytes"]) for row in soak[3:]]
    middle = (max(warm) + min(warm)) / 2
    assert max(warm) <= 1.05 * middle
    assert len({row["descriptors"] for row in soak[1:]}) == 1
    assert {(row["is_valid"], row["left"]) for row in soak} == {("True", "0")}
    assert all(row["outcome"] == row["expected"] for row in soak)
    assert all(int(row["rounds"]) > 0 for row in soak)
