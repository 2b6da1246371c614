from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.budget import LEAST_BUDGET, longer_budget, require_budget, told
from autotune.duration import parse_duration
from autotune.errors import UsageError


@given(st.floats(1.0, 1e6))
def test_a_longer_budget_is_longer_and_can_be_typed(seconds: float) -> None:
    assert parse_duration(longer_budget(seconds)) >= 1.4 * seconds


@pytest.mark.parametrize(("seconds", "text"), [(30.0, "1m"), (75.0, "2m"), (180.0, "5m"), (7200.0, "4h")])
def test_a_longer_budget_is_a_usual_one(seconds: float, text: str) -> None:
    assert longer_budget(seconds) == text


def test_a_budget_in_which_nothing_can_be_compared_is_refused_with_the_least_that_makes_sense() -> None:
    assert require_budget(LEAST_BUDGET) == LEAST_BUDGET
    with pytest.raises(UsageError, match="--budget 29s: too short to compare anything; the least is 30s"):
        require_budget(29.0)


def test_what_takes_long_is_told_again_and_again_and_no_more_once_it_has_ended() -> None:
    said: list[float] = []
    twice = threading.Event()

    def tell(seconds: float) -> None:
        said.append(seconds)
        if len(said) == 2:
            twice.set()

    with told(tell, every=0.01):
        assert twice.wait(30)
    count = len(said)
    assert said == sorted(said)
    assert count >= 2
    with told(said.append, every=60.0):
        pass
    assert len(said) == count
