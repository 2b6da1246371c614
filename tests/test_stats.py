from __future__ import annotations

import math
import random
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import t as student

from autotune.stats import (
    around,
    autocorrelated_half_width,
    fieller_interval,
    half_width,
    mean_rate,
    mser_truncation,
    student_quantile,
)


@pytest.mark.parametrize("degrees", [*range(1, 9), 15, 30, 100, 1000])
@pytest.mark.parametrize("probability", [0.5001, 0.6, 0.9, 0.95, 0.975, 0.99, 0.995, 0.9995])
def test_quantiles_are_those_of_scipy(probability: float, degrees: int) -> None:
    expected = float(student.ppf(probability, degrees))
    assert student_quantile(probability, degrees) == pytest.approx(expected, rel=1e-6)


@given(st.lists(st.floats(1.0, 1e6), min_size=2, max_size=20), st.booleans())
def test_a_rate_lies_inside_its_interval_and_among_those_it_is_made_of(rates: list[float], is_crowded: bool) -> None:
    rate, width = mean_rate(rates, is_crowded=is_crowded)
    low, high = around(rate, width) or (0.0, 0.0)
    assert 0 <= low <= rate <= high
    assert min(rates) * (1 - 1e-9) <= rate <= max(rates) * (1 + 1e-9)


def test_the_rate_over_places_is_that_of_all_their_samples_and_over_times_that_of_all_their_time() -> None:
    rates = [500.0, 250.0, 100.0]
    assert mean_rate(rates)[0] == pytest.approx(3 / (1 / 500 + 1 / 250 + 1 / 100))  # as many samples at each place
    assert mean_rate(rates, is_crowded=True)[0] == pytest.approx(850 / 3)  # as long at each time
    spread = float(np.std([1 / rate for rate in rates], ddof=1))
    assert mean_rate(rates)[1] == pytest.approx(
        student.ppf(0.975, 2) * spread / math.sqrt(3) / np.mean([1 / rate for rate in rates])
    )


def resembling(seed: int, count: int, phi: float) -> list[float]:
    """A series of mean 10 and standard deviation 1 that forgets the share ``1 - phi`` with each value."""
    generator = random.Random(seed)
    values, deviation = [], generator.gauss(0, 1)
    for _ in range(count):
        values.append(10 + deviation)
        deviation = phi * deviation + math.sqrt(1 - phi * phi) * generator.gauss(0, 1)
    return values


def test_independent_values_have_about_the_same_width_autocorrelated_or_not() -> None:
    series = [resembling(seed, 200, phi=0.0) for seed in range(200)]
    ratios = [autocorrelated_half_width(values) / half_width(values) for values in series]
    assert min(ratios) >= 1 - 1e-9
    assert max(ratios) <= 1.4
    assert sum(ratio > 1 for ratio in ratios) >= 0.5 * len(ratios)  # on the safe side
    assert fmean(ratios) <= 1.1


def test_the_width_of_resembling_values_covers_their_mean_where_the_plain_one_does_not() -> None:
    series = [resembling(seed, 100, phi=0.8) for seed in range(400)]
    plain, covered = (
        sum(abs(fmean(values) - 10) <= width(values) for values in series)
        for width in (half_width, autocorrelated_half_width)
    )
    assert plain < 0.7 * 400
    assert covered >= 0.88 * 400


def test_the_more_the_values_resemble_their_neighbours_the_wider() -> None:
    widths = [
        fmean(autocorrelated_half_width(resembling(seed, 1000, phi)) for seed in range(20))
        for phi in (0.0, 0.3, 0.6, 0.9)
    ]
    assert widths == sorted(widths)
    expected = half_width(resembling(0, 1000, 0.0)) * math.sqrt((1 + 0.9) / (1 - 0.9))  # what infinitely many need
    assert expected * 0.8 <= widths[-1] <= expected * 1.5


LINES = [[float(index) for index in range(count)] for count in (3, 5, 12)]


@pytest.mark.parametrize("values", [[], [1.0], [1.0, 2.0], [1.0, 1.0], *LINES])
def test_fewer_than_three_values_and_those_on_a_line_say_nothing_of_their_resemblance(values: list[float]) -> None:
    assert autocorrelated_half_width(values) == math.inf
    assert around(*mean_rate([1.0])) is None  # one has no interval at all
    assert half_width([1.0]) == math.inf


@given(st.floats(-1e9, 1e9), st.integers(3, 50))
def test_equal_values_have_no_width(value: float, count: int) -> None:
    assert autocorrelated_half_width([value] * count) == 0


SIXTEEN = st.lists(st.integers(-1000, 1000), min_size=16, max_size=16)
"""Their mean is a fraction that a float holds, so that shifting and scaling are exact."""


@given(SIXTEEN, st.integers(-6, 6), st.integers(-(10**6), 10**6))
def test_the_width_scales_with_the_values_and_does_not_see_a_shift(values: list[int], power: int, shift: int) -> None:
    width = autocorrelated_half_width([float(value) for value in values])
    assert autocorrelated_half_width([value * 2.0**power for value in values]) == width * 2.0**power
    assert autocorrelated_half_width([float(value + shift) for value in values]) == width


@given(st.lists(st.floats(-1e6, 1e6), min_size=3, max_size=50))
def test_resemblance_never_narrows_the_width(values: list[float]) -> None:
    assert autocorrelated_half_width(values) >= half_width(values) * (1 - 1e-6) - 1e-9


@given(st.lists(st.floats(0.5, 2.0), min_size=2, max_size=20), st.floats(0.1, 10.0))
def test_drift_common_to_both_of_a_pair_cancels(drift: list[float], true: float) -> None:
    interval = fieller_interval([true * speed for speed in drift], drift, student_quantile(0.975, len(drift) - 1))
    assert interval is None or interval == pytest.approx((true, true), rel=1e-5)
    if max(drift) < 1.1 * min(drift) and len(drift) > 2:
        assert interval is not None


@given(st.lists(st.tuples(st.floats(90, 110), st.floats(90, 110)), min_size=4, max_size=20))
def test_an_interval_of_a_ratio_holds_what_students_test_does_not_exclude(pairs: list[tuple[float, float]]) -> None:
    rates, others = [a for a, _ in pairs], [b for _, b in pairs]
    interval = fieller_interval(rates, others, student_quantile(0.975, len(pairs) - 1))
    assert interval is not None
    for end in interval:
        rest = [a - end * b for a, b in pairs]
        assert abs(fmean(rest)) == pytest.approx(half_width(rest), rel=1e-4, abs=1e-6)


def test_neither_one_pair_nor_denominators_that_may_be_nothing_have_an_interval() -> None:
    assert fieller_interval([3.0], [2.0], 2.0) is None
    assert fieller_interval([1000.0, 1000.0, 1000.0], [1000.0, 1.0, 1.0], 4.3) is None
    with pytest.raises(ValueError, match="shorter"):
        fieller_interval([1.0, 2.0], [1.0], 2.0)


@pytest.mark.parametrize("value", [0.0, 0.1, 1 / 3, 1e9 + 0.1])
@pytest.mark.parametrize("count", [3, 10, 97])
def test_nothing_is_dropped_of_equal_values(value: float, count: int) -> None:
    assert mser_truncation([value] * count) == 0


@pytest.mark.parametrize("offset", [0.0, 1e6])
@pytest.mark.parametrize("slow", [1, 3, 8])
def test_a_slow_start_is_dropped_exactly(slow: int, offset: float) -> None:
    generator = random.Random(3)
    steady = [offset + 1 + generator.gauss(0, 0.01) for _ in range(40)]
    dropped = mser_truncation([offset + 5.0] * slow + steady)
    assert slow <= dropped <= slow + 15


@given(st.lists(st.floats(-1e9, 1e9), max_size=50))
def test_three_values_are_always_kept(values: list[float]) -> None:
    assert 0 <= mser_truncation(values) <= max(0, len(values) - 3)


@given(st.lists(st.integers(0, 1000), max_size=30), st.integers(-6, 6))
def test_the_unit_does_not_matter(values: list[int], power: int) -> None:
    assert mser_truncation([value * 2.0**power for value in values]) == mser_truncation([float(v) for v in values])
