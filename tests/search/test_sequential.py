from __future__ import annotations

import math
from itertools import pairwise
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import ttest_1samp

from autotune.stats import (
    ALPHA,
    LEAST_ROUNDS,
    MAX_ROUNDS,
    PLANNED_SHARE,
    alpha_of,
    bound,
    chance_by_pairs,
    chance_of_gain,
    fieller_interval,
    sequential_interval,
    shows_gain,
)
from tests.search.there import there

RATES = st.floats(0.8, 1.2)
Pairs = list[tuple[float, float]]
Floats = NDArray[np.float64]
PAIRS = st.lists(st.tuples(RATES, RATES), min_size=LEAST_ROUNDS, max_size=20)
RUNS = 20_000


def test_all_that_ever_enter_share_one_chance_and_the_first_has_most_of_it() -> None:
    shares = [alpha_of(number) for number in range(40)]
    assert all(after < before for before, after in pairwise(shares))
    assert sum(shares) == pytest.approx(ALPHA)
    assert sum(shares) <= ALPHA
    assert shares[0] > 0.5 * ALPHA


@pytest.mark.parametrize("alpha", [ALPHA, alpha_of(0), alpha_of(2)])
@pytest.mark.parametrize(("rounds", "planned"), [(MAX_ROUNDS, MAX_ROUNDS), (40, MAX_ROUNDS), (4, 4), (8, 8), (16, 6)])
def test_without_a_gain_one_is_claimed_no_more_often_than_agreed(alpha: float, rounds: int, planned: int) -> None:
    ratios = np.random.default_rng(7).normal(0.0, 0.042, (RUNS, rounds))
    is_proven = np.zeros(RUNS, dtype=bool)
    for count in range(LEAST_ROUNDS, rounds + 1):
        seen = ratios[:, :count]
        t = seen.mean(axis=1) / (seen.std(axis=1, ddof=1) / math.sqrt(count))
        is_proven |= t > bound(count, alpha, planned)
    assert is_proven.mean() <= alpha + 2 * math.sqrt(alpha / RUNS)


def test_bounds_fall_with_the_rounds_that_were_planned_and_rise_with_certainty() -> None:
    bounds = [bound(count, ALPHA) for count in range(LEAST_ROUNDS, MAX_ROUNDS + 1)]
    assert all(after < before for before, after in pairwise(bounds))
    assert bound(8, ALPHA) < bound(8, alpha_of(0)) < bound(8, alpha_of(3))


@given(st.integers(LEAST_ROUNDS, MAX_ROUNDS))
@settings(max_examples=MAX_ROUNDS)
def test_fewer_rounds_that_are_planned_ask_for_less_in_each_and_for_more_in_the_end(planned: int) -> None:
    for count in range(LEAST_ROUNDS, planned + 1):
        assert bound(count, ALPHA, planned) <= bound(count, ALPHA) + 1e-9
    assert bound(MAX_ROUNDS, ALPHA, planned) >= bound(MAX_ROUNDS, ALPHA) - 1e-9


def test_the_first_bound_is_students_own() -> None:
    # 3/16 of what is planned of 2.5 %, with two degrees of freedom: P(T > t) = (1 - t / sqrt(2 + t^2)) / 2
    tail = PLANNED_SHARE * 3 / 16 * ALPHA
    t = bound(3, ALPHA)
    assert (1 - t / math.sqrt(2 + t * t)) / 2 == pytest.approx(tail, rel=1e-3)


@given(PAIRS)
@settings(max_examples=50)
def test_an_interval_excludes_equality_exactly_where_the_bound_is_exceeded(pairs: Pairs) -> None:
    rates, others = zip(*pairs, strict=True)
    interval = fieller_interval(rates, others, bound(len(pairs), ALPHA))
    if interval is None:
        return  # the others' mean is hardly known: the next test
    gains = [rate - other for rate, other in pairs]
    spread = float(np.std(gains, ddof=1)) / math.sqrt(len(gains))
    margin = fmean(gains) - bound(len(gains), ALPHA) * spread
    if abs(margin) > 1e-9:
        assert (interval[0] > 1) == (margin > 0)


@given(st.lists(st.tuples(st.floats(1, 1e4), st.floats(1, 1e4)), min_size=LEAST_ROUNDS, max_size=8))
@settings(max_examples=50)
def test_there_is_always_an_interval_and_it_holds_the_ratio(pairs: Pairs) -> None:
    rates, others = zip(*pairs, strict=True)
    low, high = there(sequential_interval(rates, others, ALPHA))
    ratio = fmean(rates) / fmean(others)
    assert low <= ratio * (1 + 1e-9)
    assert high >= ratio * (1 - 1e-9)


def test_a_baseline_that_breaks_down_once_does_not_undo_what_is_proven() -> None:
    rates, others = [1300.0, 1290.0, 1330.0, 1310.0, 1320.0, 1280.0, 1300.0, 1310.0], [900.0] * 7
    for last in (900.0, 45.0):  # as two threads do on one CPU
        assert there(sequential_interval(rates, [*others, last], alpha_of(0)))[0] > 1.05


def test_a_gain_that_every_pair_shows_is_one_although_its_size_is_hardly_known() -> None:
    others = [1.0, 1.0, 1.2, 1.5]  # seconds where samples are sorted by their cost
    rates = [ratio * other for ratio, other in zip((1.9, 3.0, 4.0, 5.0), others, strict=True)]
    low, high = there(fieller_interval(rates, others, bound(4, alpha_of(0), 4)))
    assert low == 0
    assert sequential_interval(rates, others, alpha_of(0), 4) == (1.0, high)
    assert shows_gain((1.0, high))
    assert not shows_gain(sequential_interval([0.99, *rates[1:]], others, alpha_of(0), 4))  # one pair shows none


def test_neither_equal_rates_nor_too_few_rounds_show_a_gain() -> None:
    assert not shows_gain(None)
    assert not shows_gain(sequential_interval([1000.0] * 4, [1000.0] * 4, ALPHA))
    assert all(sequential_interval([1.5] * count, [1.0] * count, ALPHA) is None for count in range(LEAST_ROUNDS))


@given(PAIRS)
def test_the_chances_of_a_gain_and_of_a_loss_add_up(pairs: Pairs) -> None:
    rates, others = zip(*pairs, strict=True)
    chance = chance_of_gain(rates, others)
    assert 0 <= chance <= 1
    assert chance + chance_of_gain(others, rates) == pytest.approx(1)


@given(PAIRS, st.floats(1.0, 1.5))
def test_a_larger_gain_is_asked_for_as_if_the_others_were_so_much_faster(pairs: Pairs, ratio: float) -> None:
    rates, others = zip(*pairs, strict=True)
    faster = [ratio * other for other in others]
    assert chance_of_gain(rates, others, ratio) == pytest.approx(chance_of_gain(rates, faster))


@given(st.lists(st.tuples(RATES, RATES), min_size=2, max_size=8))
def test_the_chance_by_pairs_is_that_of_a_t_test_of_their_ratios(pairs: Pairs) -> None:
    rates, others = zip(*pairs, strict=True)
    logarithms = np.log(rates) - np.log(others)
    if np.std(logarithms) > 1e-6:
        expected = 1 - ttest_1samp(logarithms, 0, alternative="greater").pvalue
        assert chance_by_pairs(rates, others) == pytest.approx(expected, abs=1e-6)
    assert chance_by_pairs(rates[:1], others[:1]) == 0.5


# --- beside others that come and go ---


def excludes(rates: Floats, others: Floats) -> bool:
    found = sequential_interval(rates.tolist(), others.tolist(), alpha_of(0))
    return shows_gain(found)


@pytest.mark.parametrize("slope", [0.6, 0.3])
def test_what_others_want_makes_no_gain(slope: float) -> None:
    """They want one CPU half of the time, which costs the baseline six tenths of its rate, the other ``slope``."""
    chance, claims, mean = np.random.default_rng(0), 0, 0.5 * 0.85
    for _ in range(600):
        wanted = (chance.random((2, MAX_ROUNDS)) < 0.5) * chance.uniform(0.7, 1.0, (2, MAX_ROUNDS))
        noise = chance.lognormal(0, 0.12, (2, MAX_ROUNDS))
        rates = 800 * (1 - 0.6 * mean) / (1 - slope * mean) * (1 - slope * wanted[0]) * noise[0]
        others = 800 * (1 - 0.6 * wanted[1]) * noise[1]
        rounds = range(LEAST_ROUNDS, MAX_ROUNDS + 1)
        claims += any(excludes(rates[:count], others[:count]) for count in rounds)
    assert claims / 600 <= alpha_of(0) + 2 * math.sqrt(alpha_of(0) / 600)
