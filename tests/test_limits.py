from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.errors import UsageError
from autotune.limits import LEAST_BUDGET, longer_budget, parse_duration, require_budget
from autotune.messages import Messages, Progress


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
    said: list[Progress] = []
    twice = threading.Event()

    def tell(progress: Progress) -> None:
        said.append(progress)
        if len(said) == 2:
            twice.set()

    messages = Messages(on_progress=tell)
    with messages.waiting("loading it", every=0.01):
        assert twice.wait(30)
    count = len(said)
    assert {progress.message for progress in said[:2]} == {"loading it has taken 0 s"}
    with messages.waiting("loading it", every=60.0):
        pass
    assert len(said) == count
    assert messages.notes == ()


def test_a_message_keeps_what_is_known_of_the_rates() -> None:
    said: list[Progress] = []
    messages = Messages(on_progress=said.append)
    messages.show("search", best_rate=9.0, baseline_rate=3.0)
    messages.say("something")
    assert (said[-1].phase, said[-1].best_rate, said[-1].baseline_rate) == ("search", 9.0, 3.0)
