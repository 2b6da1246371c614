"""The noise scale of gradients whose noise is known, and the samples that a larger batch needs more."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.batch_cost import LEAST_PROBES, NoiseScale, noise_scale
from autotune.probes import GradientNoise
from tests import examples

BATCHES = st.integers(1, 100_000)


def quadratic(noise: float, seed: int, *, numbers: int = 40, probes: int = 60, small: int = 4) -> GradientNoise:
    """Norms of the gradients of a quadratic problem: a mean of length one, and normal noise in each of its numbers."""
    draw, parts = np.random.default_rng(seed), 16
    mean = np.full(numbers, numbers**-0.5)
    found = []
    for _ in range(probes):
        each = mean + draw.normal(0, math.sqrt(noise / numbers / small), (parts, numbers))
        found.append((float((each**2).sum(1).mean()), float((each.mean(0) ** 2).sum())))
    points = tuple(tuple(found[place::3]) for place in range(3))
    return GradientNoise(batch_size=small, parts=parts, points=points, trained_samples=probes * small * parts)


@pytest.mark.parametrize("noise", [8.0, 40.0, 200.0])
def test_the_noise_scale_of_quadratic_problems_is_found_within_20_percent_in_45_of_50_runs(noise: float) -> None:
    scales = [noise_scale(quadratic(noise, seed)) for seed in range(50)]
    found = [each for each in scales if isinstance(each, NoiseScale)]
    assert sum(0.8 * noise <= each.samples <= 1.2 * noise for each in found) >= 45
    assert sum(each.interval[0] <= noise <= each.interval[1] for each in found) >= 44


def test_gradients_that_are_all_noise_have_no_noise_scale() -> None:
    draw = np.random.default_rng(0)
    points = tuple(tuple((32.0, 2.0 + float(draw.normal(0, 0.3))) for _ in range(4)) for _ in range(3))
    refusal = noise_scale(
        examples.gradient_noise(points=tuple(tuple((a, b / 1.1) for a, b in each) for each in points))
    )
    assert refusal == "the gradients of 32 samples are all noise"


def test_an_interval_that_reaches_all_noise_has_no_upper_end() -> None:
    points = (((32.0, 2.0), (32.0, 2.6), (32.0, 2.1)), ((32.0, 1.2), (32.0, 3.1), (32.0, 2.0)), ((32.0, 2.4),) * 3)
    found = noise_scale(examples.gradient_noise(points=points))
    assert isinstance(found, NoiseScale)
    assert found.interval[1] == math.inf
    assert found.overheads(32, 512)[0] == 1.0


@pytest.mark.parametrize(
    ("points", "why"),
    [
        ((((17.0, 2.0),) * 2,) * 3, f"there was time for 6 of the {LEAST_PROBES} steps that it takes"),
        ((((17.0, math.nan),) * 3,) * 3, "the gradients are not finite"),
        ((((2.0, 2.0),) * 3,) * 3, "the gradients of small batches do not differ"),
    ],
)
def test_a_noise_scale_is_refused_with_the_reason(
    points: tuple[tuple[tuple[float, float], ...], ...], why: str
) -> None:
    assert noise_scale(examples.gradient_noise(points=points)) == why


@given(st.floats(1e-3, 1e6), BATCHES, BATCHES)
def test_a_larger_batch_needs_more_samples_but_no_more_than_it_is_larger(noise: float, one: int, other: int) -> None:
    before, after = sorted((one, other))
    scale = NoiseScale(samples=noise, interval=(noise / 2, 2 * noise), horizon=1)
    low, high = scale.overheads(before, after)
    assert 1.0 <= low <= high <= after / before * (1 + 1e-9)
    assert scale.overheads(after, before) == pytest.approx((1 / high, 1 / low))
