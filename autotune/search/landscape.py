"""The space as the search sees it at its end, small enough to be kept and drawn. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from autotune.config import Config
from autotune.result import Importance, Landscape, LoaderForecast, StepForecast
from autotune.search.outlook import Outlook
from autotune.search.space import KNOBS, Space, without_loader

__all__ = ["landscape"]


def landscape(outlook: Outlook, space: Space, answer: Config, memory_bytes: int) -> Landscape:
    """Return what is expected of the space; the loader's settings at the step of ``answer``.

    ``memory_bytes`` is how much of the memory that limits the run may be used.
    """
    return Landscape(
        steps=tuple(_steps(outlook)),
        loaders=tuple(_loaders(outlook, replace(answer, options=space.base.options))),
        importances=_importances(outlook, space),
        memory_bytes=memory_bytes,
    )


def _steps(outlook: Outlook) -> Iterator[StepForecast]:
    """Yield the best of each batch size and precision."""
    prediction, rates = outlook.prediction, np.exp(outlook.posterior.means)
    alike: dict[tuple[str, int], list[int]] = {}
    for index, config in enumerate(outlook.configs):
        alike.setdefault((config.amp, config.batch_size), []).append(index)
    for (amp, batch_size), all_of_them in sorted(alike.items()):
        refusals = {index: outlook.refusal(outlook.configs[index]) for index in all_of_them}
        fitting = [index for index, refusal in refusals.items() if refusal is None]
        ceiling = max(float(prediction.ceilings[index]) for index in fitting or all_of_them)
        least = min(all_of_them, key=lambda index: outlook.configs[index].num_workers)
        yield StepForecast(
            batch_size=batch_size,
            amp=amp,
            ceiling=ceiling,
            rate=min(ceiling, max(float(rates[index]) for index in fitting or all_of_them)),
            refusal=None if fitting else refusals[least],
        )


def _loaders(outlook: Outlook, answer: Config) -> Iterator[LoaderForecast]:
    """Yield every setting of the loader with the step of the answer; of those alike the fastest."""
    step = without_loader(answer)
    means, errors = outlook.posterior.means, outlook.posterior.errors
    alike: dict[tuple[int, int], int] = {}
    for index, config in enumerate(outlook.configs):
        key = config.num_workers, config.prefetch_factor or 0
        if without_loader(config) == step and (key not in alike or means[index] > means[alike[key]]):
            alike[key] = index
    for (workers, prefetch), index in sorted(alike.items()):
        low, rate, high = (float(np.exp(means[index] + sign * errors[index])) for sign in (-1, 0, 1))
        yield LoaderForecast(
            num_workers=workers,
            prefetch_factor=prefetch or None,
            rate=rate,
            low=low,
            high=high,
            refusal=outlook.refusal(outlook.configs[index]),
        )


def _importances(outlook: Outlook, space: Space) -> tuple[Importance, ...]:
    """Return the main effects of functional ANOVA over the whole grid.

    Hutter, Hoos, Leyton-Brown: An Efficient Approach for Assessing Hyperparameter Importance, ICML 2014. There the
    function is a forest fitted to the trials; here it is the search's own expectation, known at every point.
    """
    ranges = [[space.values[knob].index(value) for value in space.allowed[knob]] for knob in KNOBS]
    means, position = outlook.posterior.means, outlook.position
    grid = np.array([means[position[space.config(point)]] for point in itertools.product(*ranges)])
    grid = grid.reshape([len(values) for values in ranges])
    whole = float(grid.var())
    if not whole:
        return ()
    shares = [Importance(knob=knob, share=_main_effect(grid, axis) / whole) for axis, knob in enumerate(KNOBS)]
    varying = [each for each, values in zip(shares, ranges, strict=True) if len(values) > 1]
    return tuple(sorted(varying, key=lambda each: -each.share))


def _main_effect(grid: NDArray[np.float64], axis: int) -> float:
    """Return the variance of the means along one axis."""
    others = tuple(other for other in range(grid.ndim) if other != axis)
    return float(grid.mean(axis=others).var())
