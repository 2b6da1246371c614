"""The expected rates over a space, as charts and tables show them. Pure: arrays in, records out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.config import Config
from autotune.result import Importance, LoaderForecast, StepForecast

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """The expected rates of configurations; arrays have one entry for each."""

    configs: Sequence[Config]
    ceilings: Floats
    """Samples per second of the step alone."""
    means: Floats
    """Logarithm of the samples per second."""
    errors: Floats
    """Standard deviation of that logarithm."""
    refusals: Sequence[str | None]
    """Why one does not fit."""

    def steps(self) -> Iterator[StepForecast]:
        """Yield the best of each batch size and precision."""
        alike: dict[tuple[str, int], list[int]] = {}
        for index in sorted(range(len(self.configs)), key=lambda index: self.configs[index].num_workers):
            alike.setdefault((self.configs[index].amp, self.configs[index].batch_size), []).append(index)
        for (amp, batch_size), indices in sorted(alike.items()):
            fitting = [index for index in indices if self.refusals[index] is None]
            ceiling, rate = (float(each[fitting or indices].max()) for each in (self.ceilings, np.exp(self.means)))
            refusal = None if fitting else self.refusals[indices[0]]
            yield StepForecast(
                batch_size=batch_size, amp=amp, ceiling=ceiling, rate=min(ceiling, rate), refusal=refusal
            )

    def loaders(self, answer: Config) -> Iterator[LoaderForecast]:
        """Yield every setting of the loader with the step of an answer; of those alike the fastest."""
        alike: dict[tuple[int, int], int] = {}
        for index in np.argsort(-self.means, kind="stable").tolist():
            config = self.configs[index]
            if config.without_loader == answer.without_loader:
                alike.setdefault((config.num_workers, config.prefetch_factor or 0), index)
        for (workers, prefetch), index in sorted(alike.items()):
            low, rate, high = np.exp(self.means[index] + self.errors[index] * np.array([-1, 0, 1])).tolist()
            yield LoaderForecast(
                num_workers=workers,
                prefetch_factor=prefetch or None,
                rate=rate,
                low=low,
                high=high,
                refusal=self.refusals[index],
            )

    def importances(self, grid: Sequence[Config], values: Mapping[str, Sequence[Any]]) -> Iterator[Importance]:
        """Yield the main effects of functional ANOVA over a whole grid, with the values of each knob in order.

        Hutter, Hoos, Leyton-Brown: An Efficient Approach for Assessing Hyperparameter Importance, ICML 2014. There the
        function is a forest fitted to the trials; here it is the search's own expectation, known at every point.
        """
        position = {config: index for index, config in enumerate(self.configs)}
        means = self.means[[position[config] for config in grid]].reshape([len(each) for each in values.values()])
        whole = float(means.var())
        for axis, knob in enumerate(values):
            if means.shape[axis] > 1 and whole:
                along = means.mean(axis=tuple(other for other in range(means.ndim) if other != axis))
                yield Importance(knob=knob, share=float(along.var()) / whole)
