from __future__ import annotations

import contextlib
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.errors import UsageError
from autotune.limits import (
    LEAST_BUDGET,
    MemoryLimit,
    format_duration,
    format_size,
    longer_budget,
    parse_duration,
    parse_share,
    parse_size,
    require_budget,
)

# --- time ---


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
        ("2min", 120),
        ("1 hour 30 sec", 3630),
        ("90 seconds", 90),
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


NO_DURATIONS = [
    *("", " ", "0", "0s", "-3", "-3m", "3x", "m", "5ms", "30s1m", "1m30", "1e3", "nan", "inf", "\u0663m"),
    "9" * 400,
]


@pytest.mark.parametrize("given", [*NO_DURATIONS, 0, -1.0, float("nan"), float("inf")])
def test_nonsense_and_nothing_are_usage_errors_that_repeat_it(given: str | float) -> None:
    shown = f" is {re.escape(repr(given))}; allowed" if isinstance(given, str) else ""
    with pytest.raises(UsageError, match=f"--budget{shown}"):
        parse_duration(given)


@given(st.floats(1.0, 1e6))
def test_a_longer_budget_is_longer_and_can_be_typed(seconds: float) -> None:
    assert parse_duration(longer_budget(seconds)) >= 1.4 * seconds


def test_a_budget_in_which_nothing_can_be_compared_is_refused_with_the_least_that_makes_sense() -> None:
    assert require_budget(LEAST_BUDGET) == LEAST_BUDGET
    with pytest.raises(UsageError, match="--budget 29s: too short to compare anything; the least is 30s"):
        require_budget(29.0)


# --- memory ---


@pytest.mark.parametrize(
    ("given", "share"), [("10%", 0.1), ("0.1", 0.1), (0.25, 0.25), (" 7.5% ", 0.075), ("0%", 0.0), (0, 0.0)]
)
def test_headroom_is_a_share_or_a_percentage(given: Any, share: float) -> None:
    assert parse_share("--headroom", given) == pytest.approx(share)


@pytest.mark.parametrize("given", ["", "ten", "100%", "-1%", 1, 1.5, "nan", "1e9%", "10 %%"])
def test_any_other_headroom_is_refused_with_its_flag(given: Any) -> None:
    with pytest.raises(UsageError, match="--headroom"):
        parse_share("--headroom", given)


SIZES = [
    *(("12GiB", 12 * 2**30), ("12 gib", 12 * 2**30), ("12G", 12 * 2**30), ("12GB", 12 * 10**9)),
    *(("800MB", 800 * 10**6), ("1.5GiB", 3 * 2**29), ("1TiB", 2**40), ("2048k", 2**21)),
    *((" 2097152 ", 2**21), ("2097152B", 2**21), (2**33, 2**33), (1e9, 10**9)),
]


@pytest.mark.parametrize(("given", "size"), SIZES)
def test_a_size_has_a_unit_or_counts_bytes(given: Any, size: int) -> None:
    assert parse_size(given) == size


@pytest.mark.parametrize("given", ["", "GiB", "0", "-1GiB", "12XB", "12GiBs", "1e3", "nan", "inf", 0, "1,5GiB", "0.1B"])
def test_any_other_size_is_refused_with_its_flag(given: Any) -> None:
    with pytest.raises(UsageError, match="--max-memory"):
        parse_size(given)


@pytest.mark.parametrize(("given", "count"), [("12", "12"), (12, "12"), ("64k", "65,536")])
def test_a_size_in_which_nothing_trains_lacks_its_unit(given: Any, count: str) -> None:
    with pytest.raises(
        UsageError, match=f"^--max-memory {given}: is {count} bytes, in which nothing trains; name a unit"
    ):
        parse_size(given)


@given(st.integers(2**20, 2**45))
def test_a_size_that_is_shown_can_be_given(size: int) -> None:
    assert parse_size(format_size(size)) == pytest.approx(size, rel=0.05, abs=2**20)


def test_what_training_may_take_is_the_lesser_of_share_and_size() -> None:
    memory_limit = MemoryLimit(headroom=0.1, most=800)
    assert memory_limit.of(1000) == 800
    assert memory_limit.of(500) == 450
    assert memory_limit.beside(1000) == 900
    assert MemoryLimit(headroom=0.25).of(1000) == 750
