"""When paired rounds prove a gain: a group-sequential t-test, which may be looked at after every round.

The chance of a false claim, one-sided, is divided over all rounds before the first: after each round a share of it is
spent, and the bound on Student's t follows (Lan and DeMets, Biometrika 70, 1983). Half of a two-sided 95 % is shared
out among all configurations that a study ever compares, each share being fixed before its configuration enters.

Pure functions over plain numbers: no clock, no torch, no I/O.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from statistics import NormalDist, fmean, variance

import numpy as np
from numpy.typing import NDArray

from autotune.stats import Interval, fieller_interval, student_cdf, student_quantile

__all__ = ["ALPHA", "LEAST_ROUNDS", "MAX_ROUNDS", "alpha_of", "bound", "chance_of_gain", "sequential_interval"]

Floats = NDArray[np.float64]

ALPHA = 0.025
"""Chance that a study claims a gain where there is none."""
LEAST_ROUNDS = 3
"""Rounds before the first test: the spread of two pairs says nothing."""
MAX_ROUNDS = 16
"""Most rounds that are ever planned."""
PLANNED_SHARE, SHORT_SHARE = 0.77, 0.6
"""Share of it that is spent over the rounds that are planned, in equal parts: where those are the most, and where they
are few, since the study may well go on later."""
TOTAL_SHARE = 0.82
"""The share for all rounds, later ones included. What is left stays unspent: bounds carried over to Student's t claim
up to a fifth more often than agreed (``tests/search/test_sequential.py``)."""
FIRST_SHARE = 0.7
"""Share of it for the first configuration that enters; each one after that has half of what is left then."""
USUAL_SPREAD, USUAL_PAIRS = 0.1, 2.0
"""What is known of the spread of a pair's difference before the first: this share of the rates, worth so many pairs."""
HUGE = 20.0
"""Logarithm of a ratio that no interval need exceed."""
GRID = 401
"""Points at which densities are computed."""
FAR = 8.0
"""Standard deviations beyond which there is nothing."""


def alpha_of(number: int) -> float:
    """Return the chance of a false claim that the configuration with this number has, counted from 0 in a study.

    All of them add up to ``ALPHA``, however many there will be.
    """
    return ALPHA * (FIRST_SHARE if number == 0 else (1 - FIRST_SHARE) / 2**number)


def sequential_interval(
    rates: Sequence[float], others: Sequence[float], alpha: float, planned: int = MAX_ROUNDS
) -> Interval | None:
    """Return the interval of the ratio of two means, from pairs, that may be looked at after every pair.

    Each end has the chance ``alpha`` of ever being wrong, of which most is spent over the rounds that were ``planned``
    before the first test. ``None`` below ``LEAST_ROUNDS`` pairs. Where the others vary so much that their mean is
    hardly known, as on a machine that slows down, each pair may tell all the same: then it is that of the geometric
    mean of the pairs' ratios, wide enough to hold the ratio of the means.
    """
    count = len(rates)
    if count < LEAST_ROUNDS:
        return None
    limit = bound(count, alpha, planned)
    if interval := fieller_interval(rates, others, limit):
        return interval
    logarithms = [math.log(rate / other) for rate, other in zip(rates, others, strict=True)]
    width = limit * math.sqrt(variance(logarithms) / count)
    low, high = math.exp(fmean(logarithms) - width), math.exp(min(HUGE, fmean(logarithms) + width))
    ratio = fmean(rates) / fmean(others)
    return min(low, ratio), max(high, ratio)


def chance_of_gain(
    rates: Sequence[float], others: Sequence[float], ratio: float = 1.0, usual_spread: float = USUAL_SPREAD
) -> float:
    """Return the probability that the mean of rates is above ``ratio`` times that of others, from the first pair on.

    Nothing is supposed of the means; of the spread that ``usual_spread`` is usual, as a share of the rates, since few
    pairs do not show it.
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
    t = fmean(gains) * math.sqrt(count) / spread
    below = student_cdf(abs(t), round(freedom))
    return below if t >= 0 else 1 - below


@lru_cache(maxsize=1024)
def bound(rounds: int, alpha: float, planned: int = MAX_ROUNDS) -> float:
    """Return the value that Student's t must exceed after so many rounds for a gain to be proven.

    The bounds of a normal random walk, as probabilities that a single test would have, carried over to Student's t
    (Jennison and Turnbull, Group Sequential Methods, 4.4).
    """
    computed = MAX_ROUNDS * math.ceil(rounds / MAX_ROUNDS)  # all at once, as they follow from one another
    score = _normal_bounds(computed, alpha, planned)[rounds - LEAST_ROUNDS]
    return student_quantile(NormalDist().cdf(score), rounds - 1)


@lru_cache(maxsize=64)
def _normal_bounds(rounds: int, alpha: float, planned: int) -> tuple[float, ...]:
    """Return the bounds on a standard normal score after each round, from ``LEAST_ROUNDS`` to ``rounds``.

    By recursive integration of the walk's density below the bounds (Armitage, McPherson and Rowe, Journal of the Royal
    Statistical Society A 132, 1969).
    """
    least = -FAR * math.sqrt(rounds)
    found: list[float] = []
    points, mass = np.zeros(1), np.ones(1)
    steps, before = float(LEAST_ROUNDS), 0.0
    for count in range(LEAST_ROUNDS, rounds + 1):
        spent = alpha * _spent(count, planned)
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
    """Return what the next step of a walk at ``points`` exceeds with a chance."""
    low, high = float(points.min()), float(points.max()) + FAR * spread
    while high - low > 1e-6:
        middle = (low + high) / 2
        tails = np.array([math.erfc((middle - point) / (spread * math.sqrt(2))) / 2 for point in points])
        low, high = (middle, high) if float(tails @ mass) > chance else (low, middle)
    return (low + high) / 2


def _spent(rounds: int, planned: int) -> float:
    """Return the share of the chance that is spent after so many rounds."""
    share = max(SHORT_SHARE, PLANNED_SHARE * planned / MAX_ROUNDS)
    return share * min(rounds, planned) / planned + (TOTAL_SHARE - share) * (1 - planned / max(rounds, planned))
