"""The cost of a larger batch: the samples that training needs for the same loss.

Pure. docs/batch-size.md has the formulas and their sources.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from autotune.probes import GradientNoise
from autotune.records import Interval

LEAST_PROBES = 8
"""Steps of the optimizer below which nothing is said of the noise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseScale:
    """The batch size at which the gradient's noise is as large as the gradient itself (McCandlish 1812.06162)."""

    samples: float
    """Its estimate, in samples."""
    interval: Interval
    """95 % interval of it; its upper end may be infinite."""
    horizon: int
    """Samples of training that it was measured over; it tells nothing of later ones."""

    def overheads(self, before: int, after: int) -> Interval:
        """Return how many times as many samples training needs with ``after`` samples of a step as with ``before``."""
        ends = sorted(1.0 if math.isinf(end) else (end + after) / (end + before) for end in self.interval)
        return ends[0], ends[1]


def noise_scale(measured: GradientNoise) -> NoiseScale | str:
    """Return the noise scale of measured gradients, or why there is none.

    Ratio of averages, never average of ratios: single steps come out negative. The interval is that of a jackknife of
    the inverse, whose denominator is known well.
    """
    from autotune.stats import student_quantile  # numpy takes a moment to import

    norms = [each for point in measured.points for each in point]
    if len(norms) < LEAST_PROBES:
        return f"there was time for {len(norms)} of the {LEAST_PROBES} steps that it takes"
    if not all(math.isfinite(each) for pair in norms for each in pair):
        return "the gradients are not finite"
    small, large = measured.batch_size, measured.batch_size * measured.parts
    signals = [(large * of_large - small * of_small) / (large - small) for of_small, of_large in norms]
    noises = [(of_small - of_large) / (1 / small - 1 / large) for of_small, of_large in norms]
    if sum(noises) <= 0:
        return "the gradients of small batches do not differ"
    inverse = sum(signals) / sum(noises)
    half = student_quantile(0.975, len(norms) - 1) * _jackknife_error(signals, noises)
    if inverse <= 0 or inverse + half <= 0:
        return f"the gradients of {large} samples are all noise"
    low, high = inverse - half, inverse + half
    return NoiseScale(
        samples=1 / inverse,
        interval=(1 / high, 1 / low if low > 0 else math.inf),
        horizon=measured.trained_samples,
    )


def _jackknife_error(numerators: Sequence[float], denominators: Sequence[float]) -> float:
    count, above, below = len(numerators), sum(numerators), sum(denominators)
    left_out = [(above - one) / (below - other) for one, other in zip(numerators, denominators, strict=True)]
    mean = sum(left_out) / count
    return math.sqrt((count - 1) / count * sum((each - mean) ** 2 for each in left_out))
