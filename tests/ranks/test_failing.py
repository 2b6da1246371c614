"""One rank fails: the trial ends with the right outcome, nothing is left of it, and the next one does not notice.

All ways to fail, five times each, are in studies/ranks.
"""

from __future__ import annotations

import pytest

from tests.ranks.failing import FAILURES, LIMIT, Struck, strike

pytestmark = pytest.mark.machine

WAYS = ("raise", "hang", "kill", "crash")


@pytest.fixture(scope="module")
def struck(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Struck]:
    return strike(WAYS, tmp_path_factory.mktemp("ranks") / "failed")


@pytest.mark.parametrize("how", WAYS)
def test_a_rank_that_fails_ends_the_trial_and_nothing_else(how: str, struck: dict[str, Struck]) -> None:
    outcome, message = FAILURES[how]
    found, attempt = struck[how], struck[how].attempt
    assert (attempt.outcome, attempt.message[: len(message)]) == (outcome, message), attempt
    if how == "hang":
        assert attempt.message.endswith("of rank 1")
    assert found.seconds < LIMIT + 15
    assert found.is_trial_gone
    assert found.next.found, found.next
    assert found.is_all_gone
