"""What is kept of the whole space, on machines where it is known what matters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from autotune.config import Config
from autotune.result import Landscape
from autotune.search import landscape
from autotune.search.forecast import forecast_of
from autotune.search.setup import Setup
from autotune.search.study import TuningStudy, open_study
from tests import examples
from tests.search.test_study import run
from tests.search.there import there
from tests.simulated import (
    SimulatedMachine,
    StepCost,
    equal_everywhere,
    gpu_facts,
    host,
    larger_batches_pay,
    loader_bound,
    space_of,
)


def explored(cost: Callable[[Config], StepCost], trials: int = 12, **bounds: Any) -> TuningStudy:
    study = open_study(Setup(space=space_of(gpu_facts(), **bounds), facts=gpu_facts(), host=host()))
    run(study, SimulatedMachine(cost=cost), trials)
    return study


def landscape_of(study: TuningStudy) -> Landscape:
    baseline = there(study.known.trials[0].measurement)
    return landscape.landscape_of(study.setup, study.known.forecast, baseline, there(study.known.best).config)


@pytest.mark.parametrize("cost", [larger_batches_pay, loader_bound, equal_everywhere])
def test_main_effects_are_shares_of_one_variance(cost: Callable[[Config], StepCost]) -> None:
    shares = [each.share for each in landscape_of(explored(cost)).importances]
    assert all(0 <= share <= 1 for share in shares)
    assert sum(shares) <= 1 + 1e-9
    assert shares == sorted(shares, reverse=True)


def test_knobs_that_do_not_vary_are_left_out() -> None:
    study = explored(loader_bound, 6, amp="off", threads=2, num_workers="0..4")
    varying = {"batch_size", "num_workers", "prefetch_factor", "pin_memory"}
    assert {each.knob for each in landscape_of(study).importances} == varying


def test_every_batch_size_and_precision_is_there_with_the_best_of_its_configurations() -> None:
    study, space = explored(larger_batches_pay), space_of(gpu_facts())
    steps = landscape_of(study).steps
    expected = {(amp, size) for amp in space.allowed["amp"] for size in space.allowed["batch_size"]}
    assert {(step.amp, step.batch_size) for step in steps} == expected
    for step in steps:
        alike = [c for c in space.configs if (c.amp, c.batch_size) == (step.amp, step.batch_size)]
        assert step.rate == min(step.ceiling, max(study.known.forecast.rate_of(config) for config in alike))


def test_the_loaders_settings_are_those_of_the_answers_step() -> None:
    study = explored(loader_bound)
    found, answer = landscape_of(study).loaders, there(study.known.best).config
    settings = [(each.num_workers, each.prefetch_factor or 0) for each in found]
    assert settings == sorted(settings)
    assert all(each.low <= each.rate <= each.high for each in found)
    assert max(found, key=lambda each: each.rate).num_workers >= 0.5 * answer.num_workers


def test_a_refusal_says_what_became_of_the_one_that_is_like_it() -> None:
    study = explored(loader_bound, 3)
    small = Config(batch_size=32, num_workers=1, prefetch_factor=2)
    larger = next(c for c in study.known.forecast.configs if (c.amp, c.batch_size, c.num_workers) == ("off", 64, 4))
    assert study.known.forecast.refusal(larger) is None
    most = study.setup.memory_limit.of(examples.measurement().memory_limit_bytes)
    measured = examples.measurement(peak_memory_bytes=int(most) + 1)
    ran = examples.trial(number=9, kind="search", config=small, measurement=measured)
    observations = replace(study.known.observations, trials=(*study.known.observations.trials, ran))
    refusal = forecast_of(observations, space_of(gpu_facts())).refusal(larger)
    assert refusal == "batch 32 in fp32 with 1 worker takes more memory than allowed"
