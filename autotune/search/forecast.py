"""The whole space as it looks now: the expected rate of each configuration, and those worth measuring. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from autotune.config import WITHOUT_WORKERS, Config
from autotune.limits import percent
from autotune.records import Trial
from autotune.search.feasibility import beyond_data, exceeds, refusals_of
from autotune.search.gp import OWN, Posterior, expected_gain, posterior
from autotune.search.observations import DISTURBANCE, GAIN, Observations
from autotune.search.option_looks import usable_step
from autotune.search.plan import bursts
from autotune.search.predict import BOUND_ERRORS, Prediction, predict
from autotune.search.space import Space
from autotune.search.step_model import MEASURED
from autotune.settings import KNOBS

SURE = 1.5
"""Standard deviations beyond which nothing is hoped for: nine in ten lie within."""
NEAR_KNOBS = ("batch_size", "num_workers", "amp", "threads")
"""Knobs whose next values beside the best are not left out lightly."""
KNOWN = 1.5
"""Ratio of a step's possible to its expected rate, above which the possible rate tells nothing."""
CEILING_SHARE = 0.97
"""Share of the ceiling that a rate must reach to count as one with it."""
NEARLY = 0.8
"""Share of the largest expected gain from which what needs no new warm-up goes first, then what takes less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Every configuration of a space, in the order of ``Space.configs``, then those with the options that may be used.

    The arrays have one entry for each.
    """

    configs: tuple[Config, ...]
    position: Mapping[Config, int]
    prediction: Prediction
    """The prediction before any was measured."""
    posterior: Posterior
    apart: NDArray[np.float64]
    """Standard deviation of the logarithm of the ratio of each rate to the best."""
    is_open: NDArray[np.bool_]
    """Whether measuring one could still pay: not measured by anyone, fits, and may gain more than ``GAIN``."""
    is_untried: NDArray[np.bool_]
    """Whether it lies within the bounds, and nobody has measured it or is doing so."""
    is_doubtful: NDArray[np.bool_]
    """Whether one has loader workers, which have failed so far: it comes last, and is not confirmed untried."""
    base: Config
    best: Trial
    """The trial whose configuration is expected to be the fastest."""
    best_log: float
    observations: Observations
    """The measurements so far."""
    refusals: tuple[str | None, ...]
    """Why not to try one: it would not fit, or a similar one has failed."""
    cut_shares: NDArray[np.float64] | float = 0.0
    """Chance that the end of an epoch cuts its window, which a whole epoch then follows."""
    promised: Posterior | None = None
    """The expectation if other tuners' running trials give the expected rates; ``None`` without any."""

    def proposal(self) -> Config | None:
        """Return the configuration whose measurement is likely to win most, or ``None`` when none could win."""
        if not self.is_open.any():
            return None
        if twin := self._uncrowded_twin():
            return twin
        sure = self.is_open & ~self.is_doubtful
        pool = sure if sure.any() else self.is_open
        means = np.minimum(self._expected.means, np.log(self.prediction.bounds))
        gains = expected_gain(means, self.apart, self.best_log)
        gains = np.where(pool, gains / (1 + self.cut_shares), -1.0)
        near = [self.configs[index] for index in np.flatnonzero(pool & (gains >= NEARLY * gains.max()))]
        last = self.observations.trials[-1].config  # its process may still live
        step, options = last.step_key, self.configs[int(gains.argmax())].options
        equal = [config for config in near if config.options == options]  # no others take a look to be told from them
        return min(equal, key=lambda config: (config.step_key != step, cost(config, self.base)))

    def _uncrowded_twin(self) -> Config | None:
        """Return the best with as many threads as its workers leave CPUs: too many hinder each other, unforeseen."""
        best = self.best.config
        free = max(1.0, self.observations.cpus - best.num_workers)
        if not self.observations.on_cpu or not best.num_workers or self._threads(best) <= free:
            return None
        near = (each for each in self.configs if each.num_workers == best.num_workers)
        alike = [each for each in near if replace(each, intra_op_threads=best.intra_op_threads) == best]
        twins = [each for each in alike if self._threads(each) <= free]
        if not twins:
            return None
        twin = self.position[max(twins, key=self._threads)]
        return self.configs[twin] if self.is_open[twin] else None

    def _threads(self, config: Config) -> int:
        return config.intra_op_threads or self.observations.facts.intra_op_threads

    def rate_of(self, config: Config) -> float:
        """Return the samples per second expected of a configuration now."""
        return float(np.exp(self.posterior.means[self.position[config]]))

    def error_of(self, config: Config) -> float:
        """Return the standard deviation of the logarithm of that rate."""
        return float(self.posterior.errors[self.position[config]])

    def bound(self, config: Config) -> float:
        """Return the samples per second that it cannot exceed."""
        return float(self.prediction.bounds[self.position[config]])

    def refusal(self, config: Config) -> str | None:
        """Return the reason not to try a configuration."""
        return self.refusals[self.position[config]]

    def most_promising(self) -> Config | None:
        """Return the unmeasured configuration that is expected to be the fastest that fits, even if it may not win."""
        is_left = self.is_left & ~self.is_doubtful
        return self.configs[int(np.where(is_left, self._expected.means, -np.inf).argmax())] if is_left.any() else None

    @property
    def is_left(self) -> NDArray[np.bool_]:
        """Whether each is untried and may run."""
        left: NDArray[np.bool_] = self.is_untried & [refusal is None for refusal in self.refusals]
        return left

    @property
    def remaining(self) -> float:
        """Largest gain of an untried configuration over the best, as a share."""
        if not self.is_left.any():
            return 0.0
        is_known = self.prediction.most <= self.prediction.ceilings
        hopes = self._expected.means + np.where(is_known, SURE, BOUND_ERRORS) * self.apart
        highest = float(np.minimum(hopes, np.log(self.prediction.most))[self.is_left].max())
        return max(0.0, math.expm1(min(highest, math.log(self.highest_limit)) - self.best_log))

    @property
    def reason_to_stop(self) -> str | None:
        """The reason why nothing is left to gain, or ``None``."""
        if self.is_open.any():
            return None
        best = float(np.exp(self.best_log))
        most = max(float(self.prediction.most[self._fits].max()), best)  # of any step alone, unmeasured ones included
        if best >= CEILING_SHARE * most:
            share = percent(1 - CEILING_SHARE)
            return f"within {share} of the ceiling: no data loader can give more than {most:,.0f} samples/s"
        if not self.is_left.any():
            return "every allowed configuration that fits was measured"
        return f"no untried setting is expected to gain more than {percent(GAIN)}"

    def refusal_of_more_workers(self, config: Config) -> str | None:
        """Return the reason why no more workers would fit with the same step, or ``None``."""
        more = [o for o in self.configs if o.step_key == config.step_key and o.num_workers > config.num_workers]
        refusals = [self.prediction.refusals[self.position[each]] for each in sorted(more, key=lambda o: o.num_workers)]
        return refusals[0] if refusals and None not in refusals else None

    def are_workers_vain(self, config: Config) -> bool:
        """Return whether more workers with the same batch are known and may run, and none is expected to gain."""
        step = config.step_key._replace(threads=None)
        alike = [other for other in self.configs if other.step_key._replace(threads=None) == step]
        own = [self.rate_of(other) for other in alike if other.num_workers == config.num_workers]
        more = [other for other in alike if other.num_workers > config.num_workers and self.refusal(other) is None]
        return bool(own and more) and max(map(self.rate_of, more)) < (1 + GAIN) * max(own)

    @property
    def highest_limit(self) -> float:
        """The samples per second of all that fits if no loader is ever late; infinite where too little is known."""
        top = int(np.argmax(np.where(self._fits, self.prediction.limits, -1.0)))
        if self.prediction.most[top] > KNOWN * self.prediction.ceilings[top]:
            return math.inf
        return max(float(self.prediction.limits[top]), float(np.exp(self.best_log)))

    @property
    def _fits(self) -> NDArray[np.bool_]:
        fits = np.array([refusal is None for refusal in self.prediction.refusals])
        return fits if fits.any() else ~fits

    @property
    def _expected(self) -> Posterior:
        return self.promised or self.posterior


def forecast_of(observations: Observations, space: Space) -> Forecast:
    """Return the forecast after the measurements so far, the baseline at least."""
    baseline, step = observations.baseline.config, usable_step(observations, space)
    with_options = (replace(c, options=step.options) for c in space.configs if step and c.amp == step.amp)
    configs = tuple(dict.fromkeys((*space.configs, *with_options, baseline)))
    position = {config: index for index, config in enumerate(configs)}
    prediction = predict(configs, observations)
    counted = feasible(observations, configs)
    index = [position[trial.config] for trial in counted]
    rates = np.array([trial.rate for trial in counted], dtype=float)
    taken = [measured.conditions.taken_share for trial in counted if (measured := trial.measurement)]
    errors, own_threads = DISTURBANCE * np.array(taken), observations.facts.intra_op_threads
    after, promised = posterior(configs, prediction, index, rates, own_threads, errors), None
    if claimed := [position[config] for config in observations.claimed if config in position]:
        # "kriging believer": others look elsewhere, and nobody counts on it
        rates, errors = np.append(rates, np.exp(after.means[claimed])), np.append(errors, np.zeros(len(claimed)))
        promised = posterior(configs, prediction, index + claimed, rates, own_threads, errors)
    fastest = int(after.means[index].argmax())
    tried = {trial.config for trial in observations.trials} | set(observations.claimed)
    is_untried = np.array([config not in tried for config in configs])
    best_log = float(after.means[index[fastest]])
    are_doubtful = bool(observations.worker_failures)
    refusals = tuple(refusals_of(configs, prediction.refusals, observations))
    may_run = np.array([refusal is None for refusal in refusals])
    expected, index_of_best = promised or after, index[fastest]
    apart, best = expected.differences(fastest, index_of_best), counted[fastest]
    beyond = np.where(_are_near(best.config, configs, space), BOUND_ERRORS * np.hypot(apart, OWN), SURE * apart)
    unknown = np.sqrt(np.maximum(prediction.ceiling_errors**2 - MEASURED**2, 0.0))
    ceilings = np.log(prediction.ceilings) + SURE * unknown
    luck = max(0.0, best_log - float(ceilings[index_of_best]))  # none is faster than its step
    hopes = np.minimum(expected.means + beyond, ceilings + luck)  # the highest that are still believed possible
    epoch = (measured.epoch_samples if (measured := observations.baseline.measurement) else None) or math.inf
    return Forecast(
        configs=configs,
        position=position,
        prediction=prediction,
        posterior=after,
        promised=promised,
        apart=apart,
        is_open=is_untried & may_run & (hopes >= best_log + math.log(1 + GAIN)),
        is_untried=is_untried,
        is_doubtful=np.array([are_doubtful and config.num_workers > 0 for config in configs]),
        base=space.base,
        cut_shares=np.minimum(1.0, [bursts(config) / epoch for config in configs]),
        best=best,
        best_log=best_log,
        observations=observations,
        refusals=refusals,
    )


def _are_near(best: Config, configs: Sequence[Config], space: Space) -> NDArray[np.bool_]:
    here, near = space.settings(best), set[Config]()
    usual = {knob: space.allowed[knob][0] for knob in WITHOUT_WORKERS if knob in space.allowed}
    for knob in NEAR_KNOBS:
        values = space.allowed[knob]
        if here[knob] in values:
            place = values.index(here[knob])
            steps = values if knob == "amp" else values[max(0, place - 1) : place + 2]
            near |= {space.at({**usual, **here, knob: value}) for value in steps}
    return np.array([config in near for config in configs])


def feasible(observations: Observations, configs: Sequence[Config]) -> list[Trial]:
    """Return the trials of these configurations that may be the answer, disturbed ones too; the baseline always.

    They gave a number, left enough memory free, and have no more workers than get data.
    """
    is_beyond = dict(zip(configs, beyond_data(configs, observations), strict=True))
    numbered = [(trial, trial.measurement) for trial in observations.trials if trial.config in is_beyond]
    return [
        trial
        for trial, measured in numbered
        if measured is not None
        if trial.kind == "baseline" or not (is_beyond[trial.config] or exceeds(measured, observations))
    ]


def cost(config: Config, base: Config) -> tuple[float, ...]:
    """Order configurations of equal speed: first those that change training less, and take less of the machine."""
    costs = (knob.cost(getattr(config, knob.field), getattr(base, knob.field)) for knob in KNOBS.values())
    return (len(config.options), *costs)
