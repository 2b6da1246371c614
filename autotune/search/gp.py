"""Rates of unmeasured configurations, from the measured ones: a Gaussian process around the prediction.

The process models the logarithm of measured over predicted rate. Its prior error is the prediction's, in three parts:
shared by configurations with similar steps, shared by those with similar loaders, and common to all.

Pure: arrays in, arrays out. Source of the formulas: Rasmussen and Williams, Gaussian Processes for Machine Learning,
algorithm 2.1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from autotune.config import AMP_MODES, Config
from autotune.search.predict import Prediction

Floats = NDArray[np.float64]

COMMON = 0.05
"""Standard deviation of an error that all predictions share, in logarithms."""
OWN = 0.02
"""Standard deviation of an error that each configuration has for itself, in logarithms."""
STEP_SCALES = (2.0, 1.0, 1.5)
"""How far errors of steps resemble each other, in doublings of batch size and threads, for precision and options."""
LOADER_SCALES = (1.5, 2.0, 4.0, 0.5)
"""How far errors of loaders resemble each other, in doublings of batch size, workers and prefetch factor, and for
pinning."""
WITHOUT_WORKERS = -3.0
"""Where a loader without workers stands on that scale: far off, because it works in another way."""
NOISES = (0.01, 0.02, 0.04, 0.08, 0.16)
"""Candidate standard deviations of the measurements; the likeliest is taken."""
JOINT = 0.1
"""Standard deviation of an error that only configurations with similar steps and similar loaders share."""
SCALES = (1.0, 2.0, 4.0, 8.0, 16.0)
"""Candidate factors on the errors of the prediction."""


@dataclass(frozen=True, slots=True)
class Posterior:
    """The logarithm of the rate of every configuration, given the measurements."""

    means: Floats
    """Expected logarithm of the samples per second."""
    errors: Floats
    """Standard deviation of it."""
    noise: float
    """Standard deviation of the logarithm of a measurement."""


class _Points(NamedTuple):
    step: Floats
    loader: Floats
    step_errors: Floats
    loader_errors: Floats


def posterior(
    configs: Sequence[Config],
    prediction: Prediction,
    measured: Sequence[int],
    rates: Floats,
    own_threads: int,
    disturbances: Floats | None = None,
) -> Posterior:
    """Return the posterior of every configuration after those at the indices ``measured`` gave ``rates``.

    ``rates`` are samples per second, one for each index; ``own_threads`` is torch's own choice of threads.
    ``disturbances`` are standard deviations that others add to the logarithm of each rate, beside the noise.
    """
    prior = np.log(prediction.rates)
    points = _points(configs, prediction, own_threads)
    index = np.array(measured, dtype=np.int64)
    residuals = np.log(rates) - prior[index]
    seen = _Points(*(part[index] for part in points))
    same = OWN**2 * (index[:, None] == index[None, :])
    if disturbances is not None:
        same = same + np.diag(disturbances**2)
    scale, noise = max(
        ((scale, noise) for scale in SCALES for noise in NOISES),
        key=lambda pair: _log_likelihood(_kernel(seen, seen, pair[0]) + same, residuals, pair[1]),
    )
    lower = _cholesky(_kernel(seen, seen, scale) + same, noise)
    across = _kernel(seen, points, scale)
    across += OWN**2 * (index[:, None] == np.arange(len(configs))[None, :])
    weights = np.linalg.solve(lower.T, np.linalg.solve(lower, residuals))
    explained = np.linalg.solve(lower, across)
    shared = COMMON**2 + JOINT**2 + points.step_errors**2 + points.loader_errors**2
    variances = OWN**2 + scale**2 * shared
    left = np.maximum(variances - (explained**2).sum(axis=0), 1e-12)
    return Posterior(prior + across.T @ weights, np.sqrt(left), noise)


def expected_gain(means: Floats, errors: Floats, best: float) -> Floats:
    """Return the expected improvement over ``best``, all in logarithms: how much a measurement is likely to win."""
    z = (means - best) / errors
    density = np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
    share = 0.5 * np.vectorize(math.erfc, otypes=[float])(-z / math.sqrt(2))
    gain: Floats = errors * np.maximum(z * share + density, 0.0)
    return gain


def _points(configs: Sequence[Config], prediction: Prediction, own_threads: int) -> _Points:
    options = sorted({option for config in configs for option in config.options})
    step = [
        (
            math.log2(c.batch_size),
            math.log2(c.intra_op_threads or own_threads),
            2.0 * AMP_MODES.index(c.amp),
            *(2.0 * (option in c.options) for option in options),
        )
        for c in configs
    ]
    loader = [
        (
            math.log2(c.batch_size),
            math.log2(c.num_workers + 0.5) if c.num_workers else WITHOUT_WORKERS,
            math.log2(c.prefetch_factor or 1),
            float(c.pin_memory),
        )
        for c in configs
    ]
    scales = (*STEP_SCALES, *STEP_SCALES[2:] * len(options))
    return _Points(
        np.array(step) / scales, np.array(loader) / LOADER_SCALES, prediction.step_errors, prediction.loader_errors
    )


def _kernel(one: _Points, other: _Points, scale: float) -> Floats:
    """Return the covariances of the prediction's errors."""
    similar_steps, similar_loaders = _similarity(one.step, other.step), _similarity(one.loader, other.loader)
    step = np.outer(one.step_errors, other.step_errors) * similar_steps
    loader = np.outer(one.loader_errors, other.loader_errors) * similar_loaders
    covariances: Floats = scale**2 * (COMMON**2 + JOINT**2 * similar_steps * similar_loaders + step + loader)
    return covariances


def _similarity(one: Floats, other: Floats) -> Floats:
    """Matern kernel of smoothness 3/2 over scaled coordinates."""
    distance = np.sqrt(((one[:, None, :] - other[None, :, :]) ** 2).sum(axis=2))
    similarity: Floats = (1 + math.sqrt(3) * distance) * np.exp(-math.sqrt(3) * distance)
    return similarity


def _cholesky(kernel: Floats, noise: float) -> Floats:
    return np.asarray(np.linalg.cholesky(kernel + noise**2 * np.eye(len(kernel))), dtype=np.float64)


def _log_likelihood(kernel: Floats, residuals: Floats, noise: float) -> float:
    lower = _cholesky(kernel, noise)
    white = np.linalg.solve(lower, residuals)
    unusual = math.log(noise / 0.03) ** 2 / 2  # most machines repeat themselves within a few percent
    return float(-0.5 * white @ white - np.log(np.diag(lower)).sum() - unusual)
