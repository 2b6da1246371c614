"""Predictions for every configuration from a few probes: an expected rate, a bound, and whether it fits. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from autotune.config import Config, StepKey
from autotune.outcome import Outcome
from autotune.search.feasibility import Fitting
from autotune.search.loader_model import NOTHING, LoaderModel, trace_from_baseline, with_inline
from autotune.search.observations import DISTURBANCE, Observations
from autotune.search.step_model import MEASURED, ComputeModel, Estimate, StepPoint

Floats = NDArray[np.float64]

BOUND_ERRORS = 2.0
"""Standard deviations of a step's time by which a bound lies above the expected ceiling."""
TRACED, GUESSED = 0.2, 0.4
"""Standard deviation of the logarithm of a rate that the loader limits: from a trace, and from the baseline alone."""
CROWDING = 4.0
"""How sharply the rate bends where the CPUs are used up: processes wait for each other before that."""
SHARPNESS = 8.0
"""How fast, in the logarithm of the ratio, the loader's part in the error takes over from the step's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """One entry for each configuration that was asked about; rates are samples per second."""

    rates: Floats
    """Expected over whole epochs."""
    ceilings: Floats
    """Expected of the step alone."""
    ceiling_errors: Floats
    """Standard deviation of their logarithm."""
    most: Floats
    """Upper bound of the step alone: measured, else with room for the unknown."""
    limits: Floats
    """The same where the loader is never late: the step alone, or the CPUs that both share. Without workers every batch
    is waited for."""
    bounds: Floats
    """Upper bound with any loader, with room for a step that is not fully known."""
    step_errors: Floats
    """Standard deviation of the logarithm of the rate because the step is not fully known."""
    loader_errors: Floats
    """The same because the loader is not fully known; it counts where the loader limits the rate."""
    refusals: tuple[str | None, ...]
    """Why a configuration would not fit the machine."""


def predict(configs: Sequence[Config], observations: Observations) -> Prediction:
    """Predict one configuration or more; takes milliseconds for thousands of them.

    Raises ``ValueError`` when not even the baseline was measured.
    """
    baseline = observations.baseline.measurement if observations.trials else None
    if baseline is None:
        raise ValueError("the baseline was not measured")
    steps, loader = _Steps(observations), loader_model(observations)
    seconds, errors = np.array([steps.at(config) for config in configs]).T
    batch = np.array([config.samples_per_step for config in configs], dtype=float)
    capacity = np.array([_capacity(config, steps, loader, observations) for config in configs])
    meet = np.minimum if observations.on_cpu else _crowded
    fed, unhindered = np.split(loader.rates([*configs, *configs], np.append(seconds, np.zeros_like(seconds))), 2)
    alone = batch * fed  # what the CPUs can bring holds at the start of an epoch too
    samples = baseline.epoch_samples
    over_epochs = samples / (samples / alone + loader.start_seconds(configs)) if samples else alone
    has_workers = np.array([config.num_workers > 0 for config in configs])
    ready = meet(unhindered, capacity)
    shares = 1 / (1 + (ready * seconds) ** SHARPNESS)  # of the loader in what limits the rate
    fitting = Fitting(observations, loader)
    room = np.exp(BOUND_ERRORS * np.sqrt(np.maximum(errors**2 - MEASURED**2, 0.0)))  # 1 where it was measured
    taken = max((trace.taken_share for trace in observations.traces), default=0.0)
    loader_error = math.hypot(TRACED, DISTURBANCE * taken) if observations.traces else GUESSED
    distrust = {amp: observations.distrust(amp) for amp in {config.amp for config in configs}}
    return Prediction(
        rates=meet(over_epochs, batch * capacity),
        ceilings=batch / seconds,
        ceiling_errors=errors,
        most=batch / seconds * room,
        limits=np.where(has_workers, batch * np.minimum(room / seconds, capacity), alone * room),
        bounds=batch / seconds * np.exp(BOUND_ERRORS * errors),
        step_errors=(1 - shares) * errors,
        loader_errors=shares * loader_error,
        refusals=tuple(distrust[config.amp] or fitting.refusal(config) for config in configs),
    )


class _Steps:
    def __init__(self, observations: Observations) -> None:
        self._observations = observations
        self._model = ComputeModel(_step_points(observations))
        self._known: dict[StepKey, Estimate] = {}
        used: dict[tuple[object, ...], list[float]] = defaultdict(list)
        for config, look in observations.looks:
            seconds = config.samples_per_step / look.samples_per_second
            used[observations.threads(config), config.options].append(look.cpu_seconds / seconds)
        self._cpus_in_use = {group: fmean(values) for group, values in used.items()}

    def at(self, config: Config) -> Estimate:
        key = self._observations.step_key(config)
        if key not in self._known:
            self._known[key] = self._model.estimate(key.batch_size, key.amp, key.threads or 0, key.options)
        return self._known[key]

    def cpu_seconds(self, config: Config) -> float:
        """Return the CPU time of a step: of all its threads, or of the host beside an accelerator."""
        threads = self._observations.threads(config)
        return self.at(config).seconds * self._cpus_in_use.get(
            (threads, config.options), threads if self._observations.on_cpu else 1
        )


def _step_points(observations: Observations) -> list[StepPoint]:
    """Return every measured step time; a disturbed one only where its step has no other, with a larger spread.

    None is longer than in the fastest measurement of training, disturbed or not: nothing makes that too fast. Where
    training is faster than a look at its step said, all looks in that precision are taken to be as much too slow.
    """
    key = observations.step_key
    measured_trials = [
        (trial.config, trial.measurement, trial.outcome) for trial in observations.trials if trial.measurement
    ]
    fastest: dict[StepKey, float] = defaultdict(float)
    for config, measurement, _ in measured_trials:
        fastest[key(config)] = max(fastest[key(config)], measurement.steady_samples_per_second)
    spreads = {key(config): look.spread for config, look in observations.looks}
    usual = max(spreads.values(), default=0.0)
    probed = [
        (probe.config, look, probe.attempt.outcome)
        for probe in observations.counted_steps
        if (look := probe.attempt.compute)
    ]
    found = [(config, look.samples_per_second, look.taken_share, outcome) for config, look, outcome in probed]
    found += [
        (config, measured.ceiling_samples_per_second, measured.conditions.taken_share, outcome)
        for config, measured, outcome in measured_trials
    ]
    sound = {key(config) for config, *_, outcome in found if outcome is Outcome.OK}
    counted = [one[:3] for one in found if one[3] is Outcome.OK or key(one[0]) not in sound]
    faster: dict[str, float] = defaultdict(lambda: 1.0)  # by precision
    for config, look, outcome in probed:
        if outcome is Outcome.OK:
            faster[config.amp] = max(faster[config.amp], fastest[key(config)] / look.samples_per_second)
    points = []
    for config, rate, taken in counted:
        step = key(config)
        seconds = config.samples_per_step / max(rate * faster[step.amp], fastest[step])
        spread = math.hypot(spreads.get(step, usual), DISTURBANCE * taken)
        points.append(StepPoint(step.batch_size, step.amp, step.threads or 0, seconds, spread, step.options))
    return points


def loader_model(observations: Observations) -> LoaderModel:
    """Return the loader's model from its probes and training without workers; else from the baseline's measurement."""
    baseline = observations.baseline
    assert baseline.measurement is not None
    launches: dict[int, float] = {}
    for config, look in observations.looks:
        if config.options == baseline.config.options:
            launches[config.batch_size] = min(look.host_seconds, launches.get(config.batch_size, math.inf))
    host_seconds = None if observations.on_cpu else launches
    traces = observations.traces or (trace_from_baseline(baseline.config, baseline.measurement),)
    without = (trial for trial in observations.trials if trial.measurement and not trial.config.num_workers)
    if (alone := next(without, None)) and alone.measurement:
        # an accelerator waits for a batch and for being asked
        launch = LoaderModel(traces, host_seconds).launch_seconds(alone.config.batch_size) or 0.0
        waited = alone.measurement.step_time.data_wait - launch
        traces = with_inline(traces, alone.config.batch_size, max(waited, NOTHING))
    return LoaderModel(traces, host_seconds)


def _capacity(config: Config, steps: _Steps, loader: LoaderModel, observations: Observations) -> float:
    """Return the batches per second that CPUs and the pinning thread can bring; without workers nothing is shared."""
    if not config.num_workers:
        return 1 / NOTHING
    work = loader.trace(config.batch_size).cpu_seconds + steps.cpu_seconds(config)
    return min(observations.cpus / max(work, NOTHING), loader.pin_rate(config))


def _crowded(rates: Floats, capacity: Floats) -> Floats:
    smaller, larger = np.minimum(rates, capacity), np.maximum(rates, capacity)
    crowded: Floats = smaller * (1 + (smaller / larger) ** CROWDING) ** (-1 / CROWDING)
    return crowded
