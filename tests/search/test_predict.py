from __future__ import annotations

import math
import time
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from autotune.config import Config
from autotune.host import Host
from autotune.limits import MemoryLimit
from autotune.records import Attempt, Outcome, Part, Probe, StepTime, Trial
from autotune.search.observations import Observations
from autotune.search.predict import BOUND_ERRORS, CROWDING, GUESSED, TRACED, Prediction, predict
from tests import examples
from tests.search.there import there
from tests.simulated import gpu_facts, host, space_of

Floats = NDArray[np.float64]

MIB, GIB = 2**20, 2**30
ENDLESS = examples.facts(dataset_length=None)
STEP = 32 / 2960.0
"""Seconds of the example's baseline step alone."""

ALL_OF_IT = MemoryLimit(headroom=0.0)


def machine(cpus: int = 8, **changes: Any) -> Host:
    return replace(host(cpus), **changes)


def known(**changes: Any) -> Observations:
    """The baseline on a CPU, in an epoch without end; every precision was compared with fp32."""
    changes["probes"] = (*examples.compared("bf16", "fp16"), *changes.get("probes", ()))
    limit = MemoryLimit(headroom=0.1)
    return replace(
        Observations(facts=ENDLESS, host=machine(), memory_limit=limit, trials=(examples.trial(),)), **changes
    )


def known_of_gpu(**changes: Any) -> Observations:
    """The same on an accelerator."""
    example = {"facts": gpu_facts(dataset_length=None), "trials": (gpu_baseline(),), "host": machine(64)}
    return known(**(example | changes))


def gpu_baseline(config: Config = examples.BASELINE, **changes: Any) -> Trial:
    return examples.trial(config=config, measurement=examples.device_measurement(**changes))


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


def crowded(rate: float, capacity: float) -> float:
    """Batches per second where the CPUs bring so many at most, which bends before it gets there."""
    return (rate**-CROWDING + capacity**-CROWDING) ** (-1 / CROWDING)


def error_shares(prediction: Prediction, of_loader: float = TRACED) -> tuple[Floats, Floats]:
    """The shares of what is not known of the step, and of the loader, that count in the error of each rate."""
    return prediction.step_errors / prediction.ceiling_errors, prediction.loader_errors / of_loader


ARRAYS = ("rates", "ceilings", "ceiling_errors", "limits", "bounds", "step_errors", "loader_errors")


def assert_consistent(prediction: Prediction, count: int, of_loader: float = TRACED) -> None:
    """Every array has its entries, and none contradicts another."""
    for values in (getattr(prediction, name) for name in ARRAYS):
        assert values.shape == (count,)
        assert np.isfinite(values).all()
    assert (prediction.rates > 0).all()
    assert (prediction.rates <= prediction.limits * (1 + 1e-9)).all()
    assert (prediction.limits <= prediction.ceilings * (1 + 1e-9)).all()
    assert (prediction.ceiling_errors > 0).all()
    assert prediction.bounds == pytest.approx(prediction.ceilings * np.exp(BOUND_ERRORS * prediction.ceiling_errors))
    steps, loaders = error_shares(prediction, of_loader)
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


@settings(deadline=None, max_examples=40)
@given(st.sampled_from([(ENDLESS, known), (gpu_facts(dataset_length=None), known_of_gpu)]), TRACES)
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


def test_a_baseline_whose_workers_are_the_limit_is_predicted_as_measured() -> None:
    waits = StepTime(data_wait=0.3, host_to_device=0.0, forward=0.004, backward=0.004, optimizer=0.002, other=0.0)
    baseline = examples.trial(config=workers(3), measurement=examples.measurement(step_time=waits))
    assert rate(workers(3), known(trials=(baseline,), host=machine(64))) == pytest.approx(32 / 0.31, rel=0.01)


@pytest.mark.parametrize("trials", [(), (examples.failed_trial(),)])
def test_not_even_a_baseline_is_an_error(trials: tuple[Trial, ...]) -> None:
    with pytest.raises(ValueError, match="the baseline was not measured"):
        predict([examples.BASELINE], known(trials=trials))


def test_some_thousand_configurations_take_less_than_a_second() -> None:
    space = space_of(gpu_facts(), cpus=32)
    traces = tuple(look_at_loader(batch_size=b, build_seconds=tuple(np.linspace(0.5, 1, 150) * b)) for b in (32, 128))
    steps = tuple(look_at_step(b, amp=amp) for b in (32, 64, 128) for amp in ("off", "bf16"))
    observations = known_of_gpu(probes=(*traces, *steps))
    configs = space.configs
    assert len(configs) > 2500
    begin = time.process_time()
    assert_consistent(predict(configs, observations), len(configs))
    assert time.process_time() - begin < 1


def test_a_configuration_is_predicted_alike_alone_and_among_others() -> None:
    space = space_of(ENDLESS, num_workers="0..6", batch_size="16..128")
    observations = known(probes=(look_at_loader(build_seconds=tuple(np.linspace(0.03, 0.09, 20))),))
    together = predict(space.configs, observations)
    for index in range(0, len(space.configs), 7):
        alone = predict([space.configs[index]], observations)
        for name in ARRAYS:
            assert getattr(alone, name)[0] == pytest.approx(getattr(together, name)[index], rel=1e-9)
        assert alone.refusals[0] == together.refusals[index]


def test_the_ceiling_is_the_step_and_the_bound_lies_above_it_by_what_is_not_known() -> None:
    prediction = predict([Config(batch_size=batch) for batch in (32, 64, 256)], known())
    assert prediction.ceilings[0] == pytest.approx(2960)
    above = prediction.bounds / prediction.ceilings
    assert 1 < above[0] < above[1] < above[2]


@pytest.mark.parametrize(("count", "limit"), [(0, "inline"), (1, "build"), (2, "build"), (4, "build"), (8, "step")])
def test_more_workers_help_until_the_step_is_the_limit(count: int, limit: str) -> None:
    observations = known_of_gpu(probes=(look_at_loader(cpu_seconds=0.0, inline_seconds=0.05),))
    config = workers(count) if count else Config()
    seconds = {"inline": 0.05, "build": 0.06 / max(1, count), "step": STEP}[limit]
    assert rate(config, observations) == pytest.approx(32 / seconds)


@pytest.mark.parametrize(("count", "low", "high"), [(1, 0.99, 1.0), (16, 0.0, 0.05)])
def test_the_error_is_the_loaders_where_it_limits_and_the_steps_elsewhere(count: int, low: float, high: float) -> None:
    prediction = predict([workers(count)], known_of_gpu(probes=(look_at_loader(cpu_seconds=0.0),)))
    of_step, of_loader = error_shares(prediction)
    assert low <= of_loader[0] <= high
    assert of_step[0] == pytest.approx(1 - of_loader[0])
    assert (prediction.loader_errors[0] > prediction.step_errors[0]) == (count == 1)


def test_a_look_at_the_loader_makes_its_prediction_surer() -> None:
    guessed, traced = (predict([workers(1)], known_of_gpu(probes=probes)) for probes in ((), (look_at_loader(),)))
    assert traced.loader_errors[0] < guessed.loader_errors[0]


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
    assert alone.rates[0] == pytest.approx(32 / (0.060 + STEP))
    assert alone.limits[0] == alone.rates[0]  # every batch is waited for


def test_fewer_threads_leave_more_of_a_cpu_to_the_workers() -> None:
    loader = look_at_loader(cpu_seconds=0.02, build_seconds=(0.02,))
    observations = known(host=machine(2), probes=(loader, look_at_step(intra_op_threads=1, cpu_seconds=0.010)))
    for threads, seconds in ((1, 0.010), (2, 2 * STEP)):
        assert rate(workers(8, intra_op_threads=threads), observations) == pytest.approx(32 * 2 / (0.02 + seconds))


def test_the_cpu_time_of_an_accelerators_step_is_what_its_looks_saw() -> None:
    looks = look_at_loader(cpu_seconds=0.06), look_at_step(samples_per_second=2960.0, cpu_seconds=3 * STEP)
    observations = known_of_gpu(host=machine(2), probes=looks)
    assert rate(workers(16), observations) == pytest.approx(32 * crowded(1 / STEP, 2 / (0.06 + 3 * STEP)))


def test_threads_do_not_matter_to_an_accelerator() -> None:
    observations = known_of_gpu(probes=(look_at_loader(),))
    prediction = predict([workers(16, intra_op_threads=count) for count in (None, 1, 8)], observations)
    assert len(set(prediction.rates)) == len(set(prediction.ceilings)) == 1
    assert observations.step_key(Config(intra_op_threads=1)) == observations.step_key(Config())
    assert known().step_key(Config(intra_op_threads=1)) != known().step_key(Config())
    assert known().step_key(Config(intra_op_threads=2)) == known().step_key(Config())


def test_a_copy_from_memory_that_is_not_pinned_makes_the_host_wait() -> None:
    observations = known_of_gpu(probes=(look_at_loader(cpu_seconds=0.0, transfer_seconds=0.005, pin_seconds=0.001),))
    prediction = predict([workers(16), workers(16, pin_memory=True)], observations)
    assert prediction.rates == pytest.approx([32 / (STEP + 0.005), 32 / STEP], rel=1e-4)
    assert prediction.ceilings == pytest.approx([32 / STEP] * 2)


def test_the_thread_that_pins_memory_can_be_the_limit() -> None:
    observations = known_of_gpu(probes=(look_at_loader(cpu_seconds=0.0, pin_seconds=0.040),))
    prediction = predict([workers(16), workers(16, pin_memory=True)], observations)
    assert prediction.rates == pytest.approx([32 / STEP, 32 * crowded(1 / STEP, 1 / 0.040)])
    assert prediction.limits == pytest.approx([32 / STEP, 32 / 0.040])


def test_on_a_cpu_receiving_a_batch_adds_to_every_step() -> None:
    observations = known(host=machine(64), probes=(look_at_loader(cpu_seconds=0.0, receive_seconds=0.01),))
    assert rate(workers(16), observations) == pytest.approx(32 / (STEP + 0.01))


def test_the_starts_of_epochs_count() -> None:
    loader = look_at_loader(cpu_seconds=0.0, start_seconds=0.1)
    observations = known_of_gpu(facts=gpu_facts(dataset_length=3200), probes=(loader,))
    configs = [Config(), workers(2), workers(2, persistent_workers=True)]
    epochs = [100 * 0.060, 100 * 0.030 + 0.060 + 2 * 0.1, 100 * 0.030 + 0.060]
    assert predict(configs, observations).rates == pytest.approx([3200 / seconds for seconds in epochs])
    endless = predict(configs, replace(observations, facts=gpu_facts(dataset_length=None)))
    assert endless.rates == pytest.approx([32 / 0.060, 32 / 0.030, 32 / 0.030])


@given(st.integers(1, 100_000))
@settings(deadline=None, max_examples=20)
def test_the_shorter_the_epoch_the_more_new_workers_cost(samples: int) -> None:
    probes = (look_at_loader(start_seconds=0.5),)
    configs = [workers(4), workers(4, persistent_workers=True)]
    facts = (gpu_facts(dataset_length=length) for length in (samples, 2 * samples))
    short, long = (predict(configs, known_of_gpu(facts=each, probes=probes)).rates for each in facts)
    assert short[0] < short[1]
    assert long[0] < long[1]
    assert (short < long).all()


def test_two_looks_at_the_loader_tell_the_cost_of_a_batch_from_that_of_a_sample() -> None:
    def build(batch: int) -> float:
        return 0.02 + 0.001 * batch

    traces = tuple(
        look_at_loader(batch_size=b, build_seconds=(build(b),) * 20, inline_seconds=0.5 * build(b), cpu_seconds=0)
        for b in (32, 128)
    )
    for batch in (16, 32, 64, 100, 128, 512):
        prediction = predict([Config(batch_size=batch), workers(1, batch_size=batch)], known_of_gpu(probes=traces))
        assert prediction.rates == pytest.approx([2 * batch / build(batch), batch / build(batch)])


def test_a_larger_batch_never_takes_less_time_to_build() -> None:
    traces = tuple(look_at_loader(batch_size=b, build_seconds=(s,) * 20) for b, s in ((32, 0.1), (128, 0.3)))
    for probes in (traces, traces[:1], traces[::-1]):
        observations = known_of_gpu(probes=probes)
        seconds = [batch / rate(workers(1, batch_size=batch), observations) for batch in range(8, 600, 8)]
        assert all(small <= large * (1 + 1e-9) for small, large in pairwise(seconds))


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
    assert "1000 MiB of shared memory (/dev/shm)" in str(of(largest + 1))


def test_a_refusal_says_how_much() -> None:
    observations = known(host=machine(shm_bytes=64 * MIB), probes=(look_at_loader(batch_bytes=300 * MIB),))
    assert refusal(workers(2, 2), observations) == (
        "its batches in flight would need 1.5 GiB of 64 MiB of shared memory (/dev/shm)"
    )
    assert refusal(Config(batch_size=128), known_of_gpu()) == (
        "it would need 96.0 GiB of 80.0 GiB of device memory, of which 72.0 GiB may be used"
    )


def test_shared_memory_grows_with_the_batch_and_counts_only_where_it_is_limited() -> None:
    probes = (look_at_loader(batch_bytes=10 * MIB),)
    observations = known(
        memory_limit=ALL_OF_IT, host=machine(shm_bytes=100 * MIB, memory_bytes=1000 * GIB), probes=probes
    )
    assert refusal(workers(2, 2, batch_size=64), observations) is None
    assert "/dev/shm" in str(refusal(workers(2, 2, batch_size=65), observations))
    unlimited = replace(observations, host=machine(shm_bytes=None, memory_bytes=1000 * GIB))
    assert refusal(workers(8, 8, batch_size=128), unlimited) is None


ONE = (gpu_baseline(),)
"""A batch of 32 took 24 of 80 GiB."""
TWO = tuple(gpu_baseline(Config(batch_size=batch), peak_memory_bytes=(2 + batch // 4) * GIB) for batch in (96, 128))
"""2 GiB, and a quarter for each sample."""


@pytest.mark.parametrize(
    ("trials", "headroom", "largest"), [(ONE, 0.0, 106), (ONE, 0.1, 96), (TWO, 0.0, 312), (TWO, 0.1, 280)]
)
def test_device_memory_is_on_the_line_of_one_peak_or_two(trials: Any, headroom: float, largest: int) -> None:
    observations = known_of_gpu(memory_limit=MemoryLimit(headroom=headroom), trials=trials)
    assert refusal(Config(batch_size=largest), observations) is None
    assert "device memory" in str(refusal(Config(batch_size=largest + 1), observations))


@pytest.mark.parametrize(("headroom", "fits"), [(0.0, True), (0.1, False)])
def test_host_memory_counts_on_a_cpu(headroom: float, fits: bool) -> None:
    limit, host = MemoryLimit(headroom=headroom), machine(memory_bytes=2 * GIB)
    observations = known(memory_limit=limit, host=host)  # a batch of 32 took half a GiB
    expected = "it would need 2.0 GiB of 2.0 GiB of host memory, of which 1.8 GiB may be used"
    assert refusal(Config(batch_size=128), observations) == (None if fits else expected)
    assert refusal(Config(batch_size=64), observations) is None


@pytest.mark.parametrize("known_of", [known, known_of_gpu], ids=["cpu", "gpu"])
def test_workers_and_batches_in_flight_need_host_memory(known_of: Any) -> None:
    loader = look_at_loader(batch_bytes=10 * MIB, worker_memory_bytes=100 * MIB)
    given = {"memory_limit": ALL_OF_IT, "probes": (loader, look_at_step(host_memory_bytes=512 * MIB))}
    for count, prefetch in [(1, 1), (3, 2), (5, 4)]:
        needed = (512 + 10 * (count * prefetch + 1) + 100 * count) * MIB
        hosts = (machine(memory_bytes=needed - missing, shm_bytes=None) for missing in (0, 1))
        enough, less = (known_of(host=host, **given) for host in hosts)
        assert refusal(workers(count, prefetch), enough) is None
        assert "of host memory" in str(refusal(workers(count, prefetch), less))
        assert refusal(Config(), less) is None


def test_what_the_workers_of_a_measured_trial_took_is_not_counted_twice() -> None:
    probes = (look_at_loader(batch_bytes=10 * MIB, worker_memory_bytes=100 * MIB),)
    numbers = examples.measurement(peak_memory_bytes=1250 * MIB, host_memory_bytes=1250 * MIB)
    with_two = examples.trial(config=workers(2, 2), measurement=numbers)
    observations = known(
        memory_limit=ALL_OF_IT, trials=(with_two,), probes=probes, host=machine(memory_bytes=1250 * MIB, shm_bytes=None)
    )
    assert refusal(workers(2, 2), observations) is None
    assert refusal(workers(3, 2), observations) is not None


@pytest.mark.parametrize("observations", [known(), known_of_gpu()], ids=["cpu", "gpu"])
def test_batches_far_from_the_largest_that_ran_are_refused_whatever_the_memory(observations: Observations) -> None:
    (baseline,) = observations.trials
    tiny = replace(baseline.attempt, payload=replace(there(baseline.measurement), peak_memory_bytes=1))
    trials = (replace(baseline, attempt=tiny),)
    small = replace(observations, host=machine(memory_bytes=10**6 * GIB), trials=trials)
    assert refusal(Config(batch_size=128), small) is None
    assert refusal(Config(batch_size=129), small) == (
        "batches beyond 128 are too far from the largest that ran to know what they would need"
    )
    further = replace(small, probes=(look_at_step(64, host_memory_bytes=2, memory_limit_bytes=GIB),))
    assert (refusal(Config(batch_size=256), further) is None) == observations.on_cpu


def test_the_looks_at_the_loader_are_in_order_of_batch_size() -> None:
    probes = (look_at_loader(batch_size=128), look_at_step(), look_at_loader(batch_size=32))
    assert [trace.batch_size for trace in known(probes=probes).traces] == [32, 128]
