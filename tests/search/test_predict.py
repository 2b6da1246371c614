from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from autotune.config import Config
from autotune.limits import MemoryLimit
from autotune.machine.host import Host
from autotune.outcome import Outcome
from autotune.records import Attempt, Part, Probe, Trial
from autotune.search.observations import Observations
from autotune.search.predict import BOUND_ERRORS, GUESSED, TRACED, Prediction, predict
from tests import examples
from tests.simulated import gpu_facts, host, space_of

Floats = NDArray[np.float64]

MIB, GIB = 2**20, 2**30
ENDLESS = examples.facts(epoch_samples=None)
STEP = 32 / 2960.0
"""Seconds of the example's baseline step alone."""


def machine(cpus: int = 8, **changes: Any) -> Host:
    return replace(host(cpus), **changes)


def known(**changes: Any) -> Observations:
    """The baseline on a CPU, in an epoch without end; every precision was compared with fp32."""
    changes["probes"] = (*examples.compared("bf16", "fp16"), *changes.get("probes", ()))
    limit, baseline = MemoryLimit(headroom=0.1), examples.trial(measurement=examples.measurement(epoch_samples=None))
    return replace(Observations(facts=ENDLESS, host=machine(), memory_limit=limit, trials=(baseline,)), **changes)


def known_of_gpu(**changes: Any) -> Observations:
    example = {"facts": gpu_facts(epoch_samples=None), "trials": (gpu_baseline(),), "host": machine(64)}
    return known(**(example | changes))


def gpu_baseline(config: Config = examples.BASELINE, **changes: Any) -> Trial:
    return examples.trial(config=config, measurement=examples.device_measurement(**{"epoch_samples": None, **changes}))


def look(part: Part, config: Config, payload: Any, outcome: Outcome = Outcome.OK) -> Probe:
    return Probe(part=part, config=config, attempt=Attempt(outcome=outcome, payload=payload))


def look_at_loader(**changes: Any) -> Probe:
    trace = examples.loader_trace(**changes)
    return look("loader", Config(batch_size=trace.batch_size), trace)


def look_at_step(batch_size: int = 32, outcome: Outcome = Outcome.OK, /, **changes: Any) -> Probe:
    config = {name: changes.pop(name) for name in ("amp", "intra_op_threads") if name in changes}
    return look("compute", Config(batch_size=batch_size, **config), examples.compute_probe(**changes), outcome)


def workers(count: int = 2, prefetch: int = 2, **changes: Any) -> Config:
    return Config(**{"num_workers": count, "prefetch_factor": prefetch, **changes})


def rate(config: Config, observations: Observations) -> float:
    return float(predict([config], observations).rates[0])


def refusal(config: Config, observations: Observations) -> str | None:
    return predict([config], observations).refusals[0]


ARRAYS = ("rates", "ceilings", "ceiling_errors", "most", "limits", "bounds", "step_errors", "loader_errors")


def assert_consistent(prediction: Prediction, count: int, of_loader: float = TRACED) -> None:
    """Every array has its entries, and none contradicts another."""
    for values in (getattr(prediction, name) for name in ARRAYS):
        assert values.shape == (count,)
        assert np.isfinite(values).all()
    assert (prediction.rates > 0).all()
    assert (prediction.rates <= prediction.limits * (1 + 1e-9)).all()
    assert (prediction.limits <= prediction.most * (1 + 1e-9)).all()
    assert (prediction.ceilings <= prediction.most).all()
    assert (prediction.most <= prediction.bounds * (1 + 1e-9)).all()
    assert (prediction.ceiling_errors > 0).all()
    assert prediction.bounds == pytest.approx(prediction.ceilings * np.exp(BOUND_ERRORS * prediction.ceiling_errors))
    steps, loaders = prediction.step_errors / prediction.ceiling_errors, prediction.loader_errors / of_loader
    assert min(steps.min(), loaders.min()) >= 0
    assert steps + loaders == pytest.approx(np.ones(count))
    assert len(prediction.refusals) == count


SECONDS, COSTS = st.floats(1e-4, 0.5), st.floats(0, 0.05)
TRACES = st.fixed_dictionaries(
    {
        "build_seconds": st.lists(SECONDS, min_size=1, max_size=20).map(tuple),
        **dict.fromkeys(("inline_seconds", "cpu_seconds"), SECONDS),
        **dict.fromkeys(("receive_seconds", "pin_seconds", "transfer_seconds"), COSTS),
    }
)


@settings(max_examples=40)
@given(st.sampled_from([(ENDLESS, known), (gpu_facts(epoch_samples=None), known_of_gpu)]), TRACES)
def test_no_rate_exceeds_the_ceiling_whatever_the_loader_costs(device: Any, trace: dict[str, Any]) -> None:
    facts, known_of = device
    space = space_of(facts, batch_size="32,256", num_workers="0,1,5", amp="off")
    assert_consistent(predict(space.configs, known_of(probes=(look_at_loader(**trace),))), len(space.configs))


@pytest.mark.parametrize("facts", [examples.facts(), gpu_facts()], ids=["cpu", "gpu"])
def test_without_any_look_the_baselines_own_measurement_is_enough(facts: Any) -> None:
    numbers = examples.measurement() if facts.device == "cpu" else examples.device_measurement()
    space = space_of(facts)
    observations = known(facts=facts, trials=(examples.trial(measurement=numbers),))
    assert_consistent(predict(space.configs, observations), len(space.configs), GUESSED)


def test_a_baseline_without_workers_is_predicted_from_its_split() -> None:
    assert rate(examples.BASELINE, known()) == pytest.approx(32 / (0.062 + STEP))
    assert rate(workers(2), known()) == pytest.approx(32 * 2 / 0.062)


@pytest.mark.parametrize("trials", [(), (examples.failed_trial(),)])
def test_not_even_a_baseline_is_an_error(trials: tuple[Trial, ...]) -> None:
    with pytest.raises(ValueError, match="the baseline was not measured"):
        predict([examples.BASELINE], known(trials=trials))


def test_a_configuration_is_predicted_alike_alone_and_among_others() -> None:
    space = space_of(ENDLESS, num_workers="0..6", batch_size="16..128")
    observations = known(probes=(look_at_loader(build_seconds=tuple(np.linspace(0.03, 0.09, 20))),))
    together = predict(space.configs, observations)
    for index in range(0, len(space.configs), 7):
        alone = predict([space.configs[index]], observations)
        for name in ARRAYS:
            assert getattr(alone, name)[0] == pytest.approx(getattr(together, name)[index], rel=1e-9)
        assert alone.refusals[0] == together.refusals[index]


def test_training_on_a_cpu_shares_it_with_the_workers_if_there_are_any() -> None:
    observations = known(host=machine(2), probes=(look_at_loader(), look_at_step()))
    step = math.sqrt(STEP * 0.010)  # the trial's and the look's
    capacity = 2 / (0.060 + 2 * step)
    prediction = predict([workers(8)], observations)
    assert prediction.rates[0] == pytest.approx(32 * capacity)
    assert prediction.limits[0] == pytest.approx(32 * capacity)
    assert prediction.ceilings[0] == pytest.approx(32 / step)
    assert rate(workers(8), replace(observations, host=machine(2, quota_cpus=1.0))) == pytest.approx(16 * capacity)
    assert rate(workers(8), replace(observations, host=machine(64))) == pytest.approx(32 / step)
    alone = predict([examples.BASELINE], known(host=machine(1), probes=(look_at_loader(),)))
    assert alone.limits[0] == alone.rates[0]  # every batch is waited for


@given(st.integers(1, 100_000))
@settings(max_examples=20)
def test_the_shorter_the_epoch_the_more_new_workers_cost(samples: int) -> None:
    probes = (look_at_loader(start_seconds=0.5),)
    configs = [workers(4), workers(4, persistent_workers=True)]
    baselines = (gpu_baseline(epoch_samples=length) for length in (samples, 2 * samples))
    short, long = (predict(configs, known_of_gpu(trials=(each,), probes=probes)).rates for each in baselines)
    assert short[0] < short[1]
    assert long[0] < long[1]
    assert (short < long).all()


def test_a_look_that_failed_says_nothing_and_a_disturbed_one_counts_only_where_there_is_nothing_else() -> None:
    configs = [Config(), Config(batch_size=64)]
    failed = look("compute", configs[1], None, Outcome.DEVICE_OOM)
    assert predict(configs, known(probes=(failed,))).rates == pytest.approx(predict(configs, known()).rates)
    disturbed = known(probes=(look_at_step(32, Outcome.SUSPECT, samples_per_second=10.0),))
    suspect = known(trials=(examples.trial(outcome=Outcome.SUSPECT),))
    for observations in (disturbed, suspect):
        assert predict([Config()], observations).ceilings[0] == pytest.approx(2960)


@pytest.mark.parametrize(("count", "prefetch"), [(1, 1), (1, 4), (3, 2), (8, 8)])
@pytest.mark.parametrize(("headroom", "allowed"), [(0.0, 1000 * MIB), (0.1, 900 * MIB)])
def test_shared_memory_holds_batches_ahead_plus_one(count: int, prefetch: int, headroom: float, allowed: int) -> None:
    def of(batch_bytes: int) -> str | None:
        observations = known(
            memory_limit=MemoryLimit(headroom=headroom),
            host=machine(memory_bytes=1000 * GIB, shm_bytes=1000 * MIB),
            probes=(look_at_loader(batch_bytes=batch_bytes),),
        )
        assert refusal(Config(), observations) is None
        return refusal(workers(count, prefetch), observations)

    largest = allowed // (count * prefetch + 1)
    assert of(largest) is None
    assert "of shared memory; /dev/shm has 1000 MiB" in str(of(largest + 1))


@pytest.mark.parametrize("known_of", [known, known_of_gpu], ids=["cpu", "gpu"])
def test_workers_and_batches_in_flight_need_host_memory(known_of: Any) -> None:
    loader = look_at_loader(batch_bytes=10 * MIB, worker_memory_bytes=100 * MIB)
    given = {"memory_limit": MemoryLimit(headroom=0.0), "probes": (loader, look_at_step(host_memory_bytes=512 * MIB))}
    for count, prefetch in [(1, 1), (3, 2), (5, 4)]:
        needed = (512 + 10 * (count * prefetch + 1) + 100 * count) * MIB
        hosts = (machine(memory_bytes=needed - missing, shm_bytes=None) for missing in (0, 1))
        enough, less = (known_of(host=host, **given) for host in hosts)
        assert refusal(workers(count, prefetch), enough) is None
        assert "of host memory" in str(refusal(workers(count, prefetch), less))
        assert refusal(Config(), less) is None
