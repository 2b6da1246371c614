"""Rates of unmeasured configurations, from the measured ones: a Gaussian process around the prediction.

The process models the logarithm of measured over predicted rate. Its prior error is the prediction's, in three parts:
shared by configurations with similar steps, shared by those with similar loaders, and common to all.

Pure: arrays in, arrays out. Source of the formulas: Rasmussen and Williams, Gaussian Processes for Machine Learning,
algorithm 2.1.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autotune.config import Config
from autotune.search.predict import Prediction
from autotune.settings import KNOBS

Floats = NDArray[np.float64]

COMMON = 0.05
"""Standard deviation of an error that all predictions share, in logarithms."""
OWN = 0.02
"""Standard deviation of an error that each configuration has for itself, in logarithms."""
OPTION_SCALE = 0.75
"""How far errors of steps resemble each other with and without an option of the step; settings have their own."""
NOISES = (0.01, 0.02, 0.04, 0.08, 0.16)
"""Candidate standard deviations of the measurements; the likeliest is taken."""
JOINT = 0.1
"""Standard deviation of an error that only configurations with similar steps and similar loaders share."""
SCALES = (1.0, 2.0, 4.0, 8.0, 16.0)
"""Candidate factors on the errors of the prediction."""


@dataclass(frozen=True, slots=True)
class Posterior:
    """The logarithm of the samples per second of every configuration, given the measurements."""

    means: Floats
    errors: Floats
    """Standard deviations."""
    covariances: Floats
    """Covariances of the measured configurations, a row for each, with every one."""

    def differences(self, row: int, index: int) -> Floats:
        """Return the standard deviations of the difference of each from the measured one at a row and an index.

        The error that each has for itself is left out: nothing foretells it, so no search is worth it.
        """
        variances = self.errors**2 - OWN**2 + self.errors[index] ** 2 - 2 * self.covariances[row]
        found: Floats = np.sqrt(np.maximum(variances, 1e-12))
        return found


def posterior(
    configs: Sequence[Config],
    prediction: Prediction,
    measured: Sequence[int],
    rates: Floats,
    own_threads: int,
    disturbances: Floats | float = 0.0,
) -> Posterior:
    """Return the posterior of every configuration after those at the indices ``measured`` gave ``rates``.

    ``rates`` are samples per second, one for each index; ``own_threads`` is torch's own choice of threads.
    ``disturbances`` are standard deviations that others add to the logarithm of each rate, beside the noise.
    """
    prior, index = np.log(prediction.rates), np.array(measured, dtype=np.int64)
    residuals, unit = np.log(rates) - prior[index], np.eye(len(index))
    steps, loaders = (_similarity(part[index], part) for part in coordinates(configs, own_threads))
    step_errors, loader_errors = prediction.step_errors, prediction.loader_errors
    of_steps = np.outer(step_errors[index], step_errors) * steps
    of_loaders = np.outer(loader_errors[index], loader_errors) * loaders
    shared = COMMON**2 + JOINT**2 * steps * loaders + of_steps + of_loaders
    own = OWN**2 * (index[:, None] == np.arange(len(configs)))

    def lower(scale: float, noise: float) -> Floats:
        among = scale**2 * shared[:, index] + own[:, index] + unit * disturbances**2
        return np.asarray(np.linalg.cholesky(among + noise**2 * unit), dtype=np.float64)

    def likelihood(pair: tuple[float, float]) -> float:
        factor = lower(*pair)
        white = np.linalg.solve(factor, residuals)
        unusual = math.log(pair[1] / 0.03) ** 2 / 2  # most machines repeat themselves within a few percent
        return float(-0.5 * white @ white - np.log(np.diag(factor)).sum() - unusual)

    scale, noise = max(itertools.product(SCALES, NOISES), key=likelihood)
    factor, across = lower(scale, noise), scale**2 * shared + own
    weights = np.linalg.solve(factor.T, np.linalg.solve(factor, residuals))
    explained = np.linalg.solve(factor, across)
    variances = OWN**2 + scale**2 * (COMMON**2 + JOINT**2 + step_errors**2 + loader_errors**2)
    left = np.maximum(variances - (explained**2).sum(axis=0), 1e-12)
    return Posterior(prior + across.T @ weights, np.sqrt(left), across - explained[:, index].T @ explained)


def expected_gain(means: Floats, errors: Floats, best: float) -> Floats:
    """Return the expected improvement over ``best``, all in logarithms: how much a measurement is likely to win."""
    z = (means - best) / errors
    density = np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
    share = 0.5 * np.vectorize(math.erfc, otypes=[float])(-z / math.sqrt(2))
    gain: Floats = errors * np.maximum(z * share + density, 0.0)
    return gain


def coordinates(configs: Sequence[Config], own_threads: int) -> tuple[Floats, Floats]:
    """Return the scaled coordinates of steps and of loaders, a row for each configuration."""
    options = sorted({option for config in configs for option in config.options})
    parts: dict[str, list[list[float]]] = {"step": [], "loader": []}
    for knob in KNOBS.values():
        values = [knob.coordinate(getattr(config, knob.field), own_threads) for config in configs]
        for part, scale in knob.scales.items():
            parts[part].append([value / scale for value in values])
    parts["step"] += [[(option in config.options) / OPTION_SCALE for config in configs] for option in options]
    return np.transpose(parts["step"]), np.transpose(parts["loader"])


def _similarity(one: Floats, other: Floats) -> Floats:
    """Matern kernel of smoothness 3/2 over scaled coordinates."""
    distance = np.sqrt(((one[:, None, :] - other[None, :, :]) ** 2).sum(axis=2))
    similarity: Floats = (1 + math.sqrt(3) * distance) * np.exp(-math.sqrt(3) * distance)
    return similarity
