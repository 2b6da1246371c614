"""Ceilings where batches differ: padded texts of log-normal lengths, on a machine made of formulas."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from statistics import fmean

import numpy as np
import pytest

from autotune.config import Config
from autotune.limits import Budget, MemoryLimit
from autotune.measure.step_probe import RESIDENT, ceiling
from autotune.messages import Messages
from autotune.records import Attempt, Measurement, Request
from autotune.search.forecast import forecast_of
from autotune.search.observations import GAIN, Observations
from autotune.search.run import Ending, Stop
from autotune.search.setup import Setup
from autotune.search.study import TuningStudy, open_study
from tests import examples
from tests.simulated import SimulatedMachine, StepCost, gpu_facts, host, search_only, space_of

WINDOW = 500
"""Batches in a measurement of training."""
BUILD = 1e-3
"""Seconds in which a worker builds a sample."""
FACTS = gpu_facts(amp_modes=("off",))


def length(generator: random.Random) -> float:
    return min(480.0, max(32.0, generator.lognormvariate(math.log(90), 0.7)))


def step_seconds(batch_size: int, generator: random.Random) -> float:
    """Seconds of a step on texts padded to the longest of them."""
    return 0.005 + 2e-6 * batch_size * max(length(generator) for _ in range(batch_size))


@cache
def mean_seconds(batch_size: int) -> float:
    generator = random.Random(batch_size)
    return fmean(step_seconds(batch_size, generator) for _ in range(3000))


def cost(config: Config) -> StepCost:
    compute, build = mean_seconds(config.batch_size), BUILD * config.batch_size
    return StepCost(
        wait=max(0.0, build / config.num_workers - compute) if config.num_workers else build, compute=compute
    )


@dataclass(kw_only=True)
class PaddedText(SimulatedMachine):
    """Looks are taken on a few batches, training goes over many."""

    resident: int = RESIDENT

    def _alone(self, config: Config) -> tuple[float, float]:
        times = [step_seconds(config.batch_size, self._generator) for _ in range(self.resident)]
        return ceiling(times, [config.batch_size] * self.resident)

    def _look(self, config: Config, request: Request) -> Attempt:
        attempt = super()._look(config, request)
        if attempt.compute is None:
            return attempt
        rate, spread = self._alone(config)
        return replace(attempt, payload=replace(attempt.compute, samples_per_second=rate, spread=spread))

    def _measurement(self, config: Config, place: float, *, is_disturbed: bool) -> Measurement:
        found = super()._measurement(config, place, is_disturbed=is_disturbed)
        many = fmean(step_seconds(config.batch_size, self._generator) for _ in range(WINDOW))
        rate = config.batch_size / (many + cost(config).wait)
        top = max(rate, self._alone(config)[0])
        numbers = {"samples_per_second": rate, "steady_samples_per_second": rate, "ceiling_samples_per_second": top}
        return replace(found, ci95=(0.98 * rate, 1.02 * rate), **numbers)


def searched(seed: int, batches: str, workers: str, **options: int) -> tuple[PaddedText, TuningStudy, Stop]:
    machine = PaddedText(cost=cost, seed=seed, **options)
    space = space_of(FACTS, batch_size=batches, num_workers=workers, prefetch_factor=2, pin_memory="off")
    study = open_study(Setup(space=space, facts=FACTS, host=host()))
    time = Budget(120.0, machine.now)
    messages = Messages(time, lambda progress: None)
    return machine, study, search_only(machine, study, time, messages)


def broken_claims(machine: PaddedText, study: TuningStudy, stop: Stop) -> Iterator[str]:
    """Yield what is said of the most that can be had, and is not so; what no measurement tells apart is no breach."""
    forecast = study.known.forecast
    for trial in study.known.trials:
        if forecast.prediction.ceilings[forecast.position[trial.config]] < (1 - 1e-9) * trial.rate:
            yield f"the ceiling of {trial.config} is below what was measured"
    best = math.exp(forecast.best_log)
    claims = [("limit", forecast.highest_limit)]
    if stop.ending is Ending.COMPLETE:
        claims.append(("remaining", (1 + forecast.remaining) * best))
    claims += [("stop", float(most.replace(",", ""))) for most in re.findall(r"([\d,]+) samples/s", stop.text)]
    highest = max(machine.rate(config) for config in forecast.configs)
    for name, most in claims:
        if highest > (1 + GAIN) * most:
            yield f"{name}: {highest:.0f} is more than {most:.0f}"
    looked_at = {study.known.observations.step_key(config) for config, _ in study.known.observations.looks}
    for config in (each for each in forecast.configs if study.known.observations.step_key(each) in looked_at):
        if best > forecast.bound(config) and machine.rate(config) > (1 + GAIN) * forecast.bound(config):
            yield f"the bound of {config}: {machine.rate(config):.0f} is more than {forecast.bound(config):.0f}"


SPACES = [("32,128,512", "0,2,4,8"), ("8,16,32,64,128", "0,8"), ("64", "0,4,8")]


@pytest.mark.parametrize(("batches", "workers"), SPACES)
@pytest.mark.parametrize("seed", range(2))
def test_where_batches_differ_no_ceiling_is_refuted_by_what_is_measured_next(
    batches: str, workers: str, seed: int
) -> None:
    assert list(broken_claims(*searched(seed, batches, workers))) == []


def test_one_batch_alone_says_too_little_of_the_others() -> None:
    assert any(any(broken_claims(*searched(seed, *SPACES[1], resident=1))) for seed in range(10))


def test_what_a_single_batch_size_says_of_larger_ones_is_as_wide_as_it_can_be() -> None:
    """Every step takes 10 ms, and there is no look: batches of 128 are four times as fast as those of 32."""
    machine = SimulatedMachine(cost=lambda config: StepCost(compute=0.010))
    trial = examples.trial(config=examples.BASELINE, attempt=machine.measure(examples.BASELINE, Request(seconds=1)))
    known = Observations(facts=FACTS, host=host(), memory_limit=MemoryLimit(), trials=(trial,))
    forecast = forecast_of(known, space_of(FACTS, batch_size="32,128", num_workers="0,2", prefetch_factor=2))
    assert forecast.prediction.most[forecast.is_left].max() >= 12_800
    assert forecast.remaining >= 1
    assert {config.batch_size for config in np.array(forecast.configs)[forecast.is_open]} == {128}
    assert forecast.reason_to_stop is None
