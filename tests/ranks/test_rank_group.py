"""Ranks make the same steps, whoever is ahead, and hear the leader's word."""

from __future__ import annotations

import random
import threading
import time
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.measure.rank_group import ALONE, Board, RankGroup
from tests.ranks.in_ranks import in_ranks


@given(st.integers(0, 2**20), st.integers(0, 2**39), st.booleans())
def test_the_leaders_word_is_read_as_it_was_written(phase: int, goal: int, is_final: bool) -> None:
    board = Board(2)
    board.write(phase, goal, is_final=is_final)
    assert board.read() == (phase, goal, is_final)


def test_a_board_is_ready_once_every_rank_is() -> None:
    board, found = Board(2), []
    for rank, is_ready in ((0, True), (1, True), (0, False)):
        board.post(rank, is_ready)
        found.append(board.all_ready)
    assert found == [False, True, False]


def test_one_process_decides_alone() -> None:
    steps = count()
    assert [next(steps) for _ in ALONE.together(lambda: next(steps) >= 6)] == [1, 3, 5]
    assert (ALONE.gather("own"), ALONE.tell("word"), ALONE.left) == (["own"], "word", 0)


class InThreads(RankGroup):
    """A team whose members are threads of this process."""

    def __init__(self, rank: int, size: int, board: Board, meeting: threading.Barrier) -> None:
        super().__init__(rank, 1, board)
        self.size = size
        self._meeting = meeting

    def barrier(self) -> None:
        self._meeting.wait(30)


@given(st.integers(2, 4), st.lists(st.integers(0, 12), min_size=1, max_size=5), st.integers(0, 1000))
def test_every_rank_makes_as_many_steps_in_every_phase(ranks: int, phases: list[int], seed: int) -> None:
    board, meeting = Board(ranks), threading.Barrier(ranks)
    made: list[list[int]] = [[] for _ in range(ranks)]

    def work(rank: int) -> None:
        group, chance = InThreads(rank, ranks, board, meeting), random.Random(seed + rank)
        for length in phases:
            steps = 0
            for _ in group.together(lambda length=length: steps >= length):  # noqa: B023  # called in here alone
                steps += 1
                if chance.random() < 0.2:
                    time.sleep(0.0005)
            made[rank].append(steps)

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert made == [made[0]] * ranks
    assert all(least <= steps <= least + 3 for least, steps in zip(phases, made[0], strict=True))


def test_a_follower_makes_no_step_that_was_not_allowed() -> None:
    leader, follower = (InThreads(rank, 2, board, threading.Barrier(2)) for board in [Board(2)] for rank in range(2))
    leader.allow(2, exactly=True)
    for _ in range(2):
        assert follower.may_step()
        follower.made_step()
    answers: list[bool] = []
    waiting = threading.Thread(target=lambda: answers.append(follower.may_step()))
    waiting.start()
    waiting.join(0.05)
    assert waiting.is_alive()
    leader.made_step()
    leader.made_step()
    leader.end()
    waiting.join(30)
    assert answers == [False]


@pytest.mark.parametrize("steps", [0, 5])
def test_processes_tell_each_other_what_they_have_found_and_the_leader_counts_for_all(
    tmp_path: Path, steps: int
) -> None:
    def talk(group: RankGroup) -> Any:
        word, made = group.tell(f"from {group.rank}"), 0
        for _ in group.together(lambda: made >= steps):  # noqa: B023
            made += 1
            time.sleep(0.002 if group.leads else 0.0)
        return word, group.gather(group.rank**2), group.leads, made

    found = in_ranks(3, tmp_path, talk)
    made = found[0][-1]
    assert found == [["from 0", [0, 1, 4], rank == 0, made] for rank in range(3)]
    assert steps <= made <= steps + 3 * (steps > 0)
