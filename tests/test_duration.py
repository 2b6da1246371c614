from __future__ import annotations

import contextlib
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.errors import UsageError
from autotune.limits import format_duration, parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("3m", 180),
        ("1h", 3600),
        ("1m30s", 90),
        ("1h2m3s", 3723),
        ("45", 45),
        ("0.5h", 1800),
        (7.5, 7.5),
    ],
)
def test_every_documented_form_is_read(text: str | float, seconds: float) -> None:
    assert parse_duration(text) == seconds


@given(st.integers(1, 10**7))
def test_a_formatted_duration_reads_back_as_itself(seconds: int) -> None:
    assert parse_duration(format_duration(seconds)) == seconds


@given(st.floats(max_value=0.49, allow_nan=False))
def test_what_is_left_of_a_spent_budget_reads_zero(seconds: float) -> None:
    assert format_duration(seconds) == "0s"


@given(st.text(alphabet="0123456789.hms -eE+x\u0663", max_size=8) | st.text())
def test_any_text_gives_positive_seconds_or_a_usage_error(text: str) -> None:
    with contextlib.suppress(UsageError):
        assert 0 < parse_duration(text) < float("inf")


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "0",
        "0s",
        "-3",
        "-3m",
        "3x",
        "m",
        "5ms",
        "30s1m",
        "1m30",
        "1e3",
        "nan",
        "inf",
        "\u0663m",
        "9" * 400,
    ],
)
def test_nonsense_and_nothing_are_usage_errors_that_repeat_it(text: str) -> None:
    with pytest.raises(UsageError, match=f"--budget is {re.escape(repr(text))}; allowed"):
        parse_duration(text)


@pytest.mark.parametrize("seconds", [0, -1.0, float("nan"), float("inf")])
def test_a_number_must_be_finite_and_above_zero(seconds: float) -> None:
    with pytest.raises(UsageError, match="--budget"):
        parse_duration(seconds)
