"""The largest gain that is possible, by the measurements of the baseline and the looks at its step.

Pure: no clock, no torch, no I/O.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from autotune.records import Measurement
from autotune.search.forecast import Forecast
from autotune.search.observations import Observations

NOTHING_LEFT = 0.03
"""Gain below which nothing is left to look for."""
AGREEMENT = 1.1
"""Ratio up to which two measurements of one step agree."""
BELOW = 0.97
"""Share of a measured rate below which a look at its step is wrong: no step alone is slower than training with it."""
SLOWER = 0.9
"""Share of the rate with the baseline's threads below which still fewer, or still more, are taken to be no faster."""


def largest_gain(observations: Observations, forecast: Forecast, baselines: Sequence[Measurement]) -> float | None:
    """Return the largest gain of anything that may vary, as a share; ``None`` where the measurements do not tell.

    The larger of two bounds, by the ``baselines``, which nobody disturbed, at several places of an epoch. With a loader
    that is never late the baseline does not wait for data. And no configuration is faster than its step alone; that of
    the baseline has to be known from two measurements that agree.
    """
    key = observations.step_key(observations.baseline.config)
    looks = [look for config, look in observations.looks if observations.step_key(config) == key]
    alone = [look.samples_per_second for look in looks if not look.taken_share]
    alone += [measured.ceiling_samples_per_second for measured in baselines]
    if not looks or not baselines or max(alone) > AGREEMENT * min(alone):
        return None
    if min(alone) < BELOW * max(measured.steady_samples_per_second for measured in baselines):
        return None
    without_waiting = max(1 / (1 - waiting_share(measured)) for measured in baselines)
    most, slowest = _most(observations, forecast), min(measured.samples_per_second for measured in baselines)
    return max(without_waiting, most / slowest, without_waiting * most / max(alone)) - 1


def waiting_share(measured: Measurement) -> float:
    """Return the share of the time of training in which it waits for batches or copies them, or epochs begin."""
    step, rate = measured.step_time, measured.samples_per_second
    steady = max(rate, measured.steady_samples_per_second)
    waiting = (step.data_wait + step.host_to_device) / step.total if step.total else 1.0
    return min(1 - rate / steady * (1 - waiting), 0.99)


def _most(observations: Observations, forecast: Forecast) -> float:
    """Return the samples per second of the fastest configuration that fits, with a loader that is never late.

    Numbers of threads beyond a clearly slower one are left out. With further options the host may launch steps faster,
    so the step alone is the limit.
    """
    key = observations.step_key(observations.baseline.config)
    rates = {
        one.threads or 0: look.samples_per_second
        for config, look in observations.looks
        if not look.taken_share and (one := observations.step_key(config))._replace(threads=key.threads) == key
    }
    base = key.threads or 0
    slower = [threads for threads, rate in rates.items() if rate < SLOWER * rates.get(base, 0.0)]
    fewest = max((threads for threads in slower if threads < base), default=0)
    most = min((threads for threads in slower if threads > base), default=math.inf)
    counted = np.array([fewest <= observations.threads(config) <= most for config in forecast.configs])
    may_run = np.array([refusal is None for refusal in forecast.prediction.refusals])
    is_plain = np.array([config.options == key.options for config in forecast.configs])
    limits = np.where(is_plain, forecast.prediction.limits, forecast.prediction.most)
    return float(np.max(limits[counted & may_run], initial=0.0)) or math.inf
