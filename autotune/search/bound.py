"""The largest gain that is possible, by the measurements of the baseline and the looks at its step. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from autotune.config import Config, StepKey
from autotune.records import Measurement
from autotune.search.forecast import Forecast
from autotune.search.observations import Observations

NOTHING_LEFT = 0.03
"""Gain below which nothing is left to look for."""
ONCE, ALWAYS = 1.25, 1.02
"""Ratio by which a step that was looked at once may be faster than that look, since the machine's own speed varies, and
one that was looked at again."""


def largest_gain(observations: Observations, forecast: Forecast, baselines: Sequence[Measurement]) -> float | None:
    """Return the largest gain of anything that may vary, as a share; ``None`` where the measurements do not tell.

    ``baselines`` are those that nobody disturbed, at several places of an epoch. With a loader that is never late the
    baseline gains the time for which it waits, and the time that workers take from its step. Another step gains the
    ratio of the looks at both. Without a look at the baseline's step there is no bound.
    """
    steps = _steps(observations, forecast)
    if not steps or not baselines:
        return None
    return _loader_gain(observations, baselines) * max(step.gain for step in steps) - 1


def unsure_step(observations: Observations, forecast: Forecast, baselines: Sequence[Measurement]) -> Config | None:
    """Return the step that alone leaves a gain, since it was looked at once only; ``None`` without any."""
    steps, own = _steps(observations, forecast), _loader_gain(observations, baselines) if baselines else math.inf
    surely = [step.gain * (ALWAYS / ONCE if step.is_seen_once else 1.0) for step in steps]
    if not steps or own * max(surely) - 1 >= NOTHING_LEFT:
        return None
    unsure = [step for step in steps if step.is_seen_once and own * step.gain - 1 >= NOTHING_LEFT]
    return max(unsure, key=lambda step: step.gain).config if unsure else None


def _loader_gain(observations: Observations, baselines: Sequence[Measurement]) -> float:
    """Return how many times as fast the baseline would be with a loader that is never late and takes nothing."""
    is_alone = observations.on_cpu and not observations.baseline.config.num_workers
    return max(1 + measured.gain_of_loader(is_alone=is_alone) for measured in baselines)


class _Step(NamedTuple):
    config: Config
    """Its configuration without a loader."""
    gain: float
    """How many times as fast as the baseline's step it may be, with a loader that is never late."""
    is_seen_once: bool
    """Whether there was a single look at it."""


def _steps(observations: Observations, forecast: Forecast) -> list[_Step]:
    """Return the step of the baseline and all others that fit; empty where the baseline's was not looked at.

    With further options the host may launch steps faster, so the step alone is the limit. Numbers of threads beyond
    another that is slower are left out.
    """
    key, times = observations.step_key(observations.baseline.config), Counter[StepKey]()
    for probe in observations.step_probes:
        if probe.attempt.compute and not probe.taken_share:
            times[observations.step_key(probe.config)] += 1
    if not times[key]:
        return []
    prediction, limits, configs = forecast.prediction, dict[StepKey, float](), dict[StepKey, Config]()
    fitting = [index for index, refusal in enumerate(prediction.refusals) if refusal is None]
    for index in fitting:
        config = forecast.configs[index]
        step = observations.step_key(config)
        configs.setdefault(step, config)
        limit = (prediction.limits if config.options == key.options else prediction.most)[index]
        limits[step] = max(limits.get(step, 0.0), float(limit))
    if key not in limits:
        return []
    seen = [step for step in limits if times[step] and step._replace(threads=key.threads) == key]
    slower = [step.threads or 0 for step in seen if ONCE * limits[step] < limits[key]]
    base = key.threads or 0
    found = [_Step(config=configs[key].without_loader, gain=1.0, is_seen_once=False)]
    for step, limit in limits.items():
        threads = step.threads or 0
        if step == key or any(threads < count < base or base < count < threads for count in slower):
            continue
        gain = limit / limits[key] * (ONCE if times[step] == 1 else ALWAYS)
        found.append(_Step(config=configs[step].without_loader, gain=gain, is_seen_once=times[step] == 1))
    return found
