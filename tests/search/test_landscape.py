"""What is kept of the whole space, on machines where it is known what matters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from autotune.config import Config
from autotune.search.forecast import forecast_of
from autotune.search.landscape import landscape_of
from autotune.search.setup import Setup
from autotune.search.study import TuningStudy, open_study
from tests import examples
from tests.search.test_study import run
from tests.search.there import there
from tests.simulated import (
    SimulatedMachine,
    StepCost,
    gpu_facts,
    host,
    larger_batches_pay,
    loader_bound,
    space_of,
)


def explored(cost: Callable[[Config], StepCost], trials: int) -> TuningStudy:
    study = open_study(Setup(space=space_of(gpu_facts()), facts=gpu_facts(), host=host()))
    run(study, SimulatedMachine(cost=cost), trials)
    return study


def test_every_batch_size_and_precision_is_there_with_the_best_of_its_configurations() -> None:
    study, space = explored(larger_batches_pay, 12), space_of(gpu_facts())
    found = landscape_of(study.known.forecast, there(study.known.best).config)
    steps = found.steps
    assert all(each.low <= each.rate <= each.high for each in found.loaders)
    expected = {(amp, size) for amp in space.allowed["amp"] for size in space.allowed["batch_size"]}
    assert {(step.amp, step.batch_size) for step in steps} == expected
    for step in steps:
        alike = [c for c in space.configs if (c.amp, c.batch_size) == (step.amp, step.batch_size)]
        assert step.rate == min(step.ceiling, max(study.known.forecast.rate_of(config) for config in alike))


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
