"""Ranks make the same steps, whoever is ahead, and hear the leader's word."""

from __future__ import annotations

import time
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.measure.rank_group import ALONE, WORD_SECONDS, RankGroup
from tests.ranks.in_ranks import in_ranks


def test_one_process_decides_alone() -> None:
    steps = count()
    assert [next(steps) for _ in ALONE.together(lambda _: next(steps) >= 6)] == [1, 3, 5]
    assert (ALONE.gather("own"), ALONE.tell("word")) == (["own"], "word")


@given(st.integers(0, 10_000), st.floats(0, 1e4))
def test_a_leader_decides_for_some_a_fifth_of_a_second_of_steps_and_never_for_more_than_were_made(
    made: int, seconds: float
) -> None:
    group = RankGroup()
    assert group.steps_at_once(made, seconds) == 1
    group.size = 2
    steps = group.steps_at_once(made, seconds)
    assert 1 <= steps <= max(1, made)
    assert steps == 1 or steps * seconds / made <= WORD_SECONDS * (1 + 1e-9)


@pytest.mark.parametrize("steps", [0, 5, 200])
def test_processes_tell_each_other_what_they_have_found_and_the_leader_counts_for_all(
    tmp_path: Path, steps: int
) -> None:
    def talk(group: RankGroup) -> Any:
        word, made = group.tell(f"from {group.rank}"), 0
        for made in group.together(lambda made: group.leads and made >= steps):  # noqa: B007
            time.sleep(0.002 if group.leads else 0.0)
        return word, group.gather(group.rank**2), group.decide(lambda: group.rank), made

    found = in_ranks(3, tmp_path, talk)
    made = found[0][-1]
    assert found == [["from 0", [0, 1, 4], 0, made] for _ in range(3)]
    assert steps <= made <= steps + WORD_SECONDS / 0.002
