from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.errors import UsageError
from autotune.limits import MemoryLimit, format_size, parse_headroom, parse_size


@pytest.mark.parametrize(
    ("given", "share"), [("10%", 0.1), ("0.1", 0.1), (0.25, 0.25), (" 7.5% ", 0.075), ("0%", 0.0), (0, 0.0)]
)
def test_headroom_is_a_share_or_a_percentage(given: Any, share: float) -> None:
    assert parse_headroom(given) == pytest.approx(share)


@pytest.mark.parametrize("given", ["", "ten", "100%", "-1%", 1, 1.5, "nan", "1e9%", "10 %%"])
def test_any_other_headroom_is_refused_with_its_flag(given: Any) -> None:
    with pytest.raises(UsageError, match="--headroom"):
        parse_headroom(given)


@pytest.mark.parametrize(
    ("given", "size"),
    [
        ("12GiB", 12 * 2**30),
        ("12 gib", 12 * 2**30),
        ("12G", 12 * 2**30),
        ("12GB", 12 * 10**9),
        ("800MB", 800 * 10**6),
        ("1.5GiB", 3 * 2**29),
        ("1TiB", 2**40),
        ("64k", 2**16),
        (" 1024 ", 1024),
        ("1024B", 1024),
        (2**33, 2**33),
        (1e9, 10**9),
    ],
)
def test_a_size_has_a_unit_or_counts_bytes(given: Any, size: int) -> None:
    assert parse_size(given) == size


@pytest.mark.parametrize("given", ["", "GiB", "0", "-1GiB", "12XB", "12GiBs", "1e3", "nan", "inf", 0, "1,5GiB", "0.1B"])
def test_any_other_size_is_refused_with_its_flag(given: Any) -> None:
    with pytest.raises(UsageError, match="--max-memory"):
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
