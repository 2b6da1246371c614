"""Statistics of timed steps: intervals on block means, paired ratios, steady state. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import combinations, pairwise
from statistics import NormalDist, fmean, stdev, variance

import numpy as np
from numpy.typing import NDArray

Interval = tuple[float, float]
MAX_AUTOCORRELATION = 0.98
EQUAL = 1e-9
"""Differences below this share of the mean come from rounding."""
Floats = NDArray[np.float64]
ALPHA = 0.025
"""Chance that a study claims a gain where there is none."""
LEAST_ROUNDS = 3
"""Rounds before the first test: the spread of two pairs says nothing."""
MAX_ROUNDS = 16
"""Most rounds that are ever planned."""
PLANNED_SHARE, SHORT_SHARE = 0.77, 0.6
"""Share of it for the planned rounds, in equal parts: where these are the most possible, and where they are few, since
the study may well go on later."""
FINAL_SHARE = 0.8
"""Share of it for the planned rounds of a comparison that ends with them."""
TOTAL_SHARE = 0.82
"""The share for all rounds, later ones included. The rest stays unspent: bounds carried over to Student's t claim
up to a fifth more often than agreed (``tests/search/test_sequential.py``)."""
FIRST_SHARE = 0.7
"""Share of it for the first configuration to enter; each later one gets half of the rest."""
USUAL_SPREAD, USUAL_PAIRS = 0.1, 2.0
"""Prior of the spread of a pair's difference: this share of the rates, worth so many pairs."""
HUGE = 20.0
"""Logarithm of a ratio that no interval need exceed."""
GRID = 401
"""Points at which densities are computed."""
FAR = 8.0
"""Standard deviations beyond which there is nothing."""


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
    if degrees > 30:
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


def half_width(values: Sequence[float]) -> float:
    """Return the half-width of the 95 % t-interval of the mean; infinite with fewer than two values."""
    if len(values) < 2:
        return math.inf
    quantile = student_quantile(0.975, len(values) - 1)
    return quantile * stdev(values) / math.sqrt(len(values))


def autocorrelated_half_width(values: Sequence[float]) -> float:
    """Return the half-width of the 95 % t-interval of the mean of a series whose neighbours resemble each other.

    In a first-order autoregression ``n`` values are worth ``n * (1 - r) / (1 + r)`` independent values. ``r`` is the
    lag-1 autocorrelation, corrected for its bias of ``-(1 + 3 r) / n`` (Marriott and Pope, Biometrika 41, 1954). To be
    on the safe side it is raised by half its standard error. Infinite where the values are worth fewer than two.
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
    return student_quantile(0.975, int(worth) - 1) * math.sqrt(variance / worth)


def mean_rate(rates: Sequence[float], *, is_crowded: bool = False) -> tuple[float, float]:
    """Return the rate over measurements at several places of an epoch, and the half-width of its 95 % interval.

    The half-width is a share of the rate, infinite with one measurement. An epoch lasts as long as its parts together:
    the rate is the harmonic mean. Where rates change with what others take, not with the place, as much time as was
    measured gives their mean.
    """
    values = rates if is_crowded else [1 / rate for rate in rates]
    mean = fmean(values)
    return mean if is_crowded else 1 / mean, half_width(values) / mean


def around(rate: float, width: float) -> Interval | None:
    """Return the interval of a rate from its relative half-width; ``None`` for an infinite one."""
    return (max(0.0, rate * (1 - width)), rate * (1 + width)) if math.isfinite(width) else None


def count_interval(count: int) -> Interval:
    """Return the 95 % interval of the expectation of a count of rare events.

    Source: Byar's approximation (Breslow and Day, Statistical Methods in Cancer Research II, 1987).
    """

    def end(events: int, sign: int) -> float:
        return events * (1 - 1 / (9 * events) + sign * 1.96 / (3 * math.sqrt(events))) ** 3 if events else 0.0

    return max(0.0, end(count, -1)), end(count + 1, 1)


def fieller_interval(numerators: Sequence[float], denominators: Sequence[float], quantile: float) -> Interval | None:
    """Return the ratios ``r`` of the means of positive pairs for which the mean of ``a - r b`` may be 0.

    That is, lies within so many standard errors of it. The delivered samples are compared: a pair in which hardly
    anything was counts for one pair, where its logarithm would outweigh all the others. ``None`` below two pairs, and
    where the denominators' mean may be 0 itself. Source: Fieller, Journal of the Royal Statistical Society B 16, 1954.
    """
    count = len(numerators)
    if count < 2:
        return None
    over, under = fmean(numerators), fmean(denominators)
    pairs = [(a - over, b - under) for a, b in zip(numerators, denominators, strict=True)]
    share = 1 / count / (count - 1)
    of_over, of_under = share * sum(a * a for a, _ in pairs), share * sum(b * b for _, b in pairs)
    return ratio_bounds((over, of_over), (under, of_under), share * sum(a * b for a, b in pairs), quantile)


def ratio_bounds(
    numerator: tuple[float, float], denominator: tuple[float, float], covariance: float, quantile: float
) -> Interval | None:
    """Return the ratios ``r`` of two expectations for which ``a - r b`` may be 0, given both with their variances.

    That is, lies within so many standard errors of it; ``None`` where the denominator may be 0 itself. Source: Fieller,
    Journal of the Royal Statistical Society B 16, 1954.
    """
    (over, of_over), (under, of_under) = numerator, denominator
    square = quantile**2
    scale, centre = 1 - square * of_under / under**2, 1 - square * covariance / over / under
    if scale <= 0:
        return None
    width = math.sqrt(max(0.0, centre**2 - scale * (1 - square * of_over / over**2)))
    ratio = over / under / scale
    return max(0.0, ratio * (centre - width)), ratio * (centre + width)


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
    """Return how far a series rises (positive) or falls, in standard deviations of chance.

    This is Kendall's rank correlation with the order, in its normal approximation. It is the number of rising pairs
    less falling pairs over ``sqrt(n (n - 1) (2 n + 5) / 18)`` (Kendall, Rank Correlation Methods, 1948).
    """
    count = len(values)
    if count < 2:
        return 0.0
    score = sum((later > earlier) - (later < earlier) for earlier, later in combinations(values, 2))
    return score / math.sqrt(count * (count - 1) * (2 * count + 5) / 18)


def alpha_of(number: int) -> float:
    """Return the chance of a false claim that the configuration with this number has, counted from 0 in a study.

    All of them add up to ``ALPHA``, however many there will be.
    """
    return ALPHA * (FIRST_SHARE if number == 0 else (1 - FIRST_SHARE) / 2**number)


def sequential_interval(
    rates: Sequence[float],
    others: Sequence[float],
    alpha: float,
    planned: int = MAX_ROUNDS,
    share: float | None = None,
) -> Interval | None:
    """Return the interval of the ratio of two means, from pairs, that may be looked at after every pair.

    Each end has the chance ``alpha`` of ever being wrong, of which most is spent over the rounds that were ``planned``
    before the first test: a ``share``, by default the more the more rounds these are. ``None`` below ``LEAST_ROUNDS``
    pairs. On a machine that slows down the mean of ``others`` is hardly known, but each pair may still tell. Then the
    interval is of the geometric mean of the pairs' ratios, wide enough to hold the ratio of the means. That ratio lies
    among those of the pairs: where all are above 1, and so is the lower end for their geometric mean, there is a gain,
    and the interval begins at 1 at least.
    """
    if len(rates) < LEAST_ROUNDS:
        return None
    limit = bound(len(rates), alpha, planned, share)
    ratio, logarithms = fmean(rates) / fmean(others), [math.log(a / b) for a, b in zip(rates, others, strict=True)]
    mean, width = fmean(logarithms), limit * math.sqrt(variance(logarithms) / len(rates))
    by_pair = min(math.exp(mean - width), ratio), max(math.exp(min(HUGE, mean + width)), ratio)
    low, high = fieller_interval(rates, others, limit) or by_pair
    return (max(1.0, low) if min(logarithms) > 0 and mean > width else low), high


def shows_gain(interval: Interval | None) -> bool:
    """Return whether an interval of a ratio shows a gain: it holds nothing below 1, where it may begin."""
    return interval is not None and interval[0] >= 1 and interval[1] > 1


def chance_of_gain(
    rates: Sequence[float], others: Sequence[float], ratio: float = 1.0, usual_spread: float = USUAL_SPREAD
) -> float:
    """Return the probability of a mean rate above ``ratio`` times the mean of ``others``, from the first pair on.

    Nothing is supposed of the means. The spread is supposed near ``usual_spread``, a share of the rates: few pairs do
    not show it.
    Source: Gelman et al., Bayesian Data Analysis, 3.3 (the normal model with a conjugate prior of the variance).
    """
    count = len(rates)
    if not count:
        return 0.5
    middle = (fmean(rates) + ratio * fmean(others)) / 2
    gains = [(rate - ratio * other) / middle for rate, other in zip(rates, others, strict=True)]
    squares = variance(gains) * (count - 1) if count > 1 else 0.0
    freedom = USUAL_PAIRS + count - 1
    spread = math.sqrt((USUAL_PAIRS * usual_spread**2 + squares) / freedom)
    return student_cdf(fmean(gains) * math.sqrt(count) / spread, round(freedom))


def chance_by_pairs(rates: Sequence[float], others: Sequence[float]) -> float:
    """Return the probability of a gain by Student's t of the logarithms of the pairs' ratios; 0.5 below two pairs.

    Nothing is supposed of their spread: where it is wide, few pairs tell little.
    """
    logarithms = [math.log(rate / other) for rate, other in zip(rates, others, strict=True)]
    if len(logarithms) < 2:
        return 0.5
    mean, error = fmean(logarithms), math.sqrt(variance(logarithms) / len(logarithms))
    return student_cdf(mean / max(error, EQUAL), len(logarithms) - 1)


@lru_cache(maxsize=1024)
def bound(rounds: int, alpha: float, planned: int = MAX_ROUNDS, share: float | None = None) -> float:
    """Return the value that Student's t must exceed after so many rounds for a gain to be proven.

    The bounds of a normal random walk, as probabilities that a single test would have, carried over to Student's t
    (Jennison and Turnbull, Group Sequential Methods, 4.4).
    """
    computed = MAX_ROUNDS * math.ceil(rounds / MAX_ROUNDS)  # all at once, as they follow from one another
    share = share or max(SHORT_SHARE, PLANNED_SHARE * planned / MAX_ROUNDS)
    score = _normal_bounds(computed, alpha, planned, share)[rounds - LEAST_ROUNDS]
    return student_quantile(NormalDist().cdf(score), rounds - 1)


@lru_cache(maxsize=64)
def _normal_bounds(rounds: int, alpha: float, planned: int, share: float) -> tuple[float, ...]:
    """Return the bounds on a standard normal score after each round, from ``LEAST_ROUNDS`` to ``rounds``.

    By recursive integration of the walk's density below the bounds (Armitage, McPherson and Rowe, Journal of the Royal
    Statistical Society A 132, 1969).
    """
    least = -FAR * math.sqrt(rounds)
    found: list[float] = []
    points, mass = np.zeros(1), np.ones(1)
    steps, before = float(LEAST_ROUNDS), 0.0
    for count in range(LEAST_ROUNDS, rounds + 1):
        late = (TOTAL_SHARE - share) * (1 - planned / max(count, planned))
        spent = alpha * (share * min(count, planned) / planned + late)
        limit = _exceeded_with(spent - before, points, mass, math.sqrt(steps))
        grid = np.linspace(least, limit, GRID)
        density = (
            np.exp(-((grid[:, None] - points[None, :]) ** 2) / (2 * steps)) @ mass / math.sqrt(2 * math.pi * steps)
        )
        weights = np.full(GRID, grid[1] - grid[0])
        weights[[0, -1]] /= 2
        points, mass = grid, density * weights
        steps, before = 1.0, spent
        found.append(limit / math.sqrt(count))
    return tuple(found)


def _exceeded_with(chance: float, points: Floats, mass: Floats, spread: float) -> float:
    """Return the value that the next step of a walk at ``points`` exceeds with a chance."""
    low, high = float(points.min()), float(points.max()) + FAR * spread
    while high - low > 1e-6:
        middle = (low + high) / 2
        tails = np.array([math.erfc((middle - point) / (spread * math.sqrt(2))) / 2 for point in points])
        low, high = (middle, high) if float(tails @ mass) > chance else (low, middle)
    return (low + high) / 2
