"""One rank fails: the trial ends with the right outcome, nothing is left of it, and the next one does not notice.

All ways to fail, five times each, are in studies/ranks.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ranks.failing import FAILURES, LIMIT, strike

pytestmark = pytest.mark.machine


@pytest.mark.parametrize("how", ["raise", "hang", "kill", "crash"])
def test_a_rank_that_fails_ends_the_trial_and_nothing_else(how: str, tmp_path: Path) -> None:
    outcome, message = FAILURES[how]
    struck = strike(how, tmp_path / "failed")
    attempt = struck.attempt
    assert (attempt.outcome, attempt.message[: len(message)]) == (outcome, message), attempt
    if how == "hang":
        assert attempt.message.endswith("of rank 1")
    assert struck.seconds < LIMIT + 15
    assert struck.is_trial_gone
    assert struck.next.found, struck.next
    assert struck.is_all_gone
