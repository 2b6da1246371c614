from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from studies.faults import summary
from studies.faults.zoo import FAULTS

RECORDED = Path(__file__).resolve().parents[2] / "studies" / "faults" / "recorded"
MIB = 2**20


def recorded(name: str) -> Any:
    return json.loads((RECORDED / name).read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def studies() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = recorded("zoo.json")["studies"]
    return found


def test_every_fault_was_told_as_what_it_is_and_left_nothing_behind(studies: list[dict[str, Any]]) -> None:
    assert {study["fault"] for study in studies} == FAULTS.keys()
    assert len(FAULTS) >= 25
    for study in studies:
        assert study["outcome"] == FAULTS[study["fault"]].outcome, study["fault"]
        assert study["valid_file"], study["fault"]
        assert study["processes_left"] == study["segments_left"] == [], study["fault"]


def test_every_fault_was_followed_by_a_confirmed_answer(studies: list[dict[str, Any]]) -> None:
    assert {study["fault"] for study in studies if study["confirmed_rounds"]} == FAULTS.keys()


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
        assert any("would need" in note for note in limit["left_out"])
    assert all(trial["bytes_in_flight"] <= 64 * MIB for trial in found["shared memory of 64 MiB"]["ran"])
    assert all(trial["peak_memory_bytes"] <= 1024 * MIB for trial in found["memory of 1 GiB"]["ran"])


def test_half_an_hour_of_faults_left_the_tuner_as_it_was() -> None:
    soaked = summary.soaked()
    warm = [study["memory_bytes"] for study in soaked[summary.WARM :]]
    middle = (max(warm) + min(warm)) / 2
    assert soaked[-1]["minutes"] >= 30
    assert max(warm) <= 1.05 * middle
    assert len({study["descriptors"] for study in soaked}) == 1


def test_the_readme_holds_what_was_recorded() -> None:
    text = (RECORDED.parent / "README.md").read_text(encoding="utf-8")
    for part in (summary.zoo(), summary.kills(), summary.confined(), summary.soak()):
        assert part in text
