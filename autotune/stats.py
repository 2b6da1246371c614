"""Statistics of timed steps: intervals on block means, paired ratios, steady state.

Pure functions over plain numbers: no clock, no torch, no I/O.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import combinations, pairwise
from statistics import NormalDist, fmean, stdev

__all__ = [
    "Interval",
    "autocorrelated_half_width",
    "fieller_interval",
    "half_width",
    "mean_interval",
    "mser_truncation",
    "next_interval",
    "ratio_interval",
    "student_cdf",
    "student_quantile",
    "trend",
]

Interval = tuple[float, float]


def student_cdf(t: float, degrees: int) -> float:
    """Return P(T <= t) for Student's distribution with a whole number of degrees of freedom.

    Source: the finite series of Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4.
    """
    theta = math.atan2(t, math.sqrt(degrees))
    cosine = math.cos(theta)
    if degrees % 2:
        term, total = cosine, 0.0
        for k in range(1, degrees, 2):
            total += term
            term *= cosine * cosine * (k + 1) / (k + 2)
        area = 2 / math.pi * (theta + math.sin(theta) * total)
    else:
        term, total = 1.0, 0.0
        for k in range(0, degrees, 2):
            total += term
            term *= cosine * cosine * (k + 1) / (k + 2)
        area = math.sin(theta) * total
    return 0.5 + area / 2


@lru_cache(maxsize=256)
def student_quantile(probability: float, degrees: int) -> float:
    """Return the value that Student's distribution stays below with this probability (0.5 to 1).

    Above 30 degrees of freedom by the expansion around the normal quantile (Abramowitz and Stegun, 26.7.5).
    """
    if degrees > MANY_DEGREES:
        z, v = NormalDist().inv_cdf(probability), degrees
        terms = (
            (z**3 + z) / 4,
            (5 * z**5 + 16 * z**3 + 3 * z) / 96,
            (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
            (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
        )
        return float(z + sum(term / v**power for power, term in enumerate(terms, 1)))
    low, high = 0.0, 1.0
    while student_cdf(high, degrees) < probability:
        low, high = high, high * 2
    for _ in range(60):
        middle = (low + high) / 2
        if student_cdf(middle, degrees) < probability:
            low = middle
        else:
            high = middle
    return high


MANY_DEGREES = 30
MAX_AUTOCORRELATION = 0.98
EQUAL = 1e-9
"""Differences below this share of the mean come from rounding."""


def half_width(values: Sequence[float], confidence: float = 0.95) -> float:
    """Return the half-width of the t-interval of the mean; infinite with fewer than two values."""
    if len(values) < 2:
        return math.inf
    quantile = student_quantile(0.5 + confidence / 2, len(values) - 1)
    return quantile * stdev(values) / math.sqrt(len(values))


def autocorrelated_half_width(values: Sequence[float], confidence: float = 0.95) -> float:
    """Return the half-width of the t-interval of the mean of a series whose neighbours resemble each other.

    Takes the series for a first-order autoregression: ``n`` values are worth ``n * (1 - r) / (1 + r)`` independent
    ones, where ``r`` is the lag-1 autocorrelation, corrected for its bias of ``-(1 + 3 r) / n`` (Marriott and Pope,
    Biometrika 41, 1954) and, to be on the safe side, raised by half its standard error. Infinite where the values
    are worth fewer than two.
    """
    count = len(values)
    if count < 3:
        return math.inf
    mean = fmean(values)
    deviations = [value - mean for value in values]
    squares = sum(deviation * deviation for deviation in deviations)
    if squares <= count * (EQUAL * mean) ** 2:
        return 0.0
    r = sum(a * b for a, b in pairwise(deviations)) / squares
    r = min(MAX_AUTOCORRELATION, max(0.0, r + (1 + 3 * r) / count + 0.5 / math.sqrt(count)))
    worth = count * (1 - r) / (1 + r)
    if worth < 2:
        return math.inf
    variance = squares / (count - 1) / (1 - (count / worth - 1) / (count - 1))
    return student_quantile(0.5 + confidence / 2, int(worth) - 1) * math.sqrt(variance / worth)


def mean_interval(values: Sequence[float], confidence: float = 0.95) -> Interval | None:
    """Return the t-interval of the mean, or ``None`` with fewer than two values."""
    if len(values) < 2:
        return None
    centre, width = fmean(values), half_width(values, confidence)
    return centre - width, centre + width


def ratio_interval(
    numerators: Sequence[float], denominators: Sequence[float], confidence: float = 0.95
) -> tuple[float, Interval | None]:
    """Return the ratio of the means of positive pairs and its interval, ``None`` where there is none.

    Pairs must have been taken side by side: what disturbs both cancels.
    """
    quantile = student_quantile(0.5 + confidence / 2, max(1, len(numerators) - 1))
    return fmean(numerators) / fmean(denominators), fieller_interval(numerators, denominators, quantile)


def fieller_interval(numerators: Sequence[float], denominators: Sequence[float], quantile: float) -> Interval | None:
    """Return the ratios ``r`` of the means of positive pairs for which the mean of ``a - r b`` may be 0.

    That is, lies within so many standard errors of it. What is compared is what was delivered: a pair in which hardly
    anything was counts for one pair, where its logarithm would outweigh all the others. ``None`` below two pairs, and
    where the denominators' mean may be 0 itself. Source: Fieller, Journal of the Royal Statistical Society B 16, 1954.
    """
    count = len(numerators)
    if count < 2:
        return None
    over, under = fmean(numerators), fmean(denominators)
    pairs = [(a / over, b / under) for a, b in zip(numerators, denominators, strict=True)]
    square = quantile**2 / count / (count - 1)
    of_numerators = square * sum((a - 1) ** 2 for a, _ in pairs)
    of_denominators = square * sum((b - 1) ** 2 for _, b in pairs)
    of_both = square * sum((a - 1) * (b - 1) for a, b in pairs)
    scale, centre = 1 - of_denominators, 1 - of_both
    if scale <= 0:
        return None
    width = math.sqrt(max(0.0, centre**2 - scale * (1 - of_numerators)))
    ratio = over / under / scale
    return max(0.0, ratio * (centre - width)), ratio * (centre + width)


def next_interval(values: Sequence[float], confidence: float = 0.95) -> Interval | None:
    """Return the interval for one further of some positive values, ``None`` below two of them.

    It is wider than that of the mean, ``t s sqrt(1 + 1/n)``: readers take a promise for what they will see.
    """
    if len(values) < 2:
        return None
    centre, width = fmean(values), half_width(values, confidence) * math.sqrt(len(values) + 1)
    return max(0.0, centre - width), centre + width


def mser_truncation(values: Sequence[float], most: int | None = None) -> int:
    """Return how many leading values to drop, ``most`` at most, so that the mean of the rest is known best.

    The rule is MSER (White, Simulation 69(6), 1997): drop the ``d`` that minimises
    ``sum((x[d:] - mean)**2) / (n - d)**2``. Apply it to block means, not to single steps. A result above half
    the length means that no steady state was reached.
    """
    last = len(values) if most is None else most
    best, best_score = 0, math.inf
    mean = squares = 0.0
    for start in range(len(values) - 1, -1, -1):
        count = len(values) - start
        deviation = values[start] - mean
        mean += deviation / count
        squares += deviation * (values[start] - mean)  # Welford: exactly 0 for equal values, no cancellation
        if count < 3 or start > last:  # the spread of two values says nothing
            continue
        score = max(squares, count * (EQUAL * mean) ** 2) / count**2
        if score <= best_score:
            best, best_score = start, score
    return best


def trend(values: Sequence[float]) -> float:
    """Return how far a series rises (positive) or falls, in standard deviations of what chance would give.

    This is Kendall's rank correlation with the order, in its normal approximation (Kendall, Rank Correlation Methods,
    1948): the number of rising pairs less that of falling ones, over ``sqrt(n (n - 1) (2 n + 5) / 18)``.
    """
    count = len(values)
    if count < 2:
        return 0.0
    score = sum((later > earlier) - (later < earlier) for earlier, later in combinations(values, 2))
    return score / math.sqrt(count * (count - 1) * (2 * count + 5) / 18)
