"""The expected rates over a space, as charts and tables show them. Pure."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from autotune.config import Config
from autotune.result import Landscape, LoaderForecast, StepForecast
from autotune.search.forecast import Forecast


def landscape_of(forecast: Forecast, answer: Config) -> Landscape:
    """Return the space as it looks now, the loader's settings with the step of an answer."""
    baseline, memory_limit = forecast.observations.baseline.measurement, forecast.observations.memory_limit
    assert baseline is not None
    return Landscape(
        steps=tuple(_steps(forecast)),
        loaders=tuple(_loaders(forecast, answer)),
        memory_bytes=int(memory_limit.of(baseline.memory_limit_bytes)),
    )


def _steps(forecast: Forecast) -> Iterator[StepForecast]:
    disturbed = forecast.observations.disturbed_steps
    alike: dict[tuple[str, int], list[int]] = {}
    for index in sorted(range(len(forecast.configs)), key=lambda index: forecast.configs[index].num_workers):
        alike.setdefault((forecast.configs[index].amp, forecast.configs[index].batch_size), []).append(index)
    for (amp, batch_size), indices in sorted(alike.items()):
        fitting = [index for index in indices if forecast.refusals[index] is None]
        arrays = forecast.prediction.ceilings, np.exp(forecast.posterior.means)
        ceiling, rate = (float(each[fitting or indices].max()) for each in arrays)
        yield StepForecast(
            batch_size=batch_size,
            amp=amp,
            ceiling=ceiling,
            rate=min(ceiling, rate),
            refusal=None if fitting else forecast.refusals[indices[0]],
            is_disturbed=(amp, batch_size) in disturbed,
        )


def _loaders(forecast: Forecast, answer: Config) -> Iterator[LoaderForecast]:
    alike: dict[tuple[int, int], int] = {}
    for index in np.argsort(-forecast.posterior.means, kind="stable").tolist():
        config = forecast.configs[index]
        if config.without_loader == answer.without_loader:
            alike.setdefault((config.num_workers, config.prefetch_factor or 0), index)
    for (workers, prefetch), index in sorted(alike.items()):
        mean, error = forecast.posterior.means[index], forecast.posterior.errors[index]
        low, rate, high = np.exp(mean + error * np.array([-1, 0, 1])).tolist()
        yield LoaderForecast(
            num_workers=workers,
            prefetch_factor=prefetch or None,
            rate=rate,
            low=low,
            high=high,
            refusal=forecast.refusals[index],
        )
