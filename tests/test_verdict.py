from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.result import Verdict, parse_verdict, verdict_text


@given(st.sampled_from(Verdict), st.floats(0.0, 10.0))
def test_a_verdict_is_read_as_what_it_was_written_as(verdict: Verdict, most_gain: float) -> None:
    assert parse_verdict(verdict_text(verdict, most_gain)) is verdict


@given(st.floats(0.0, 1.0))
def test_the_percentage_is_never_below_the_gain_that_was_not_excluded(share: float) -> None:
    percent = int(verdict_text(Verdict.NO_GAIN, share).split()[-2])
    assert share - 1e-7 <= percent / 100 < share + 0.01 + 1e-7


@pytest.mark.parametrize(("share", "text"), [(0.0, "0"), (0.02, "2"), (0.0201, "3"), (0.07, "7"), (0.05, "5")])
def test_whole_percents_stay_as_they_are(share: float, text: str) -> None:
    assert verdict_text(Verdict.NO_GAIN, share) == f"no gain above {text} %"


@pytest.mark.parametrize("text", [None, 3, "great", "no gain", "no gain above % ", "no gain above 3 %!", "Faster"])
def test_anything_else_is_no_verdict(text: object) -> None:
    assert parse_verdict(text) is None
