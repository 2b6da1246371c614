from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.config import Config
from autotune.probes import LoaderTrace
from autotune.records import StepTime
from autotune.search.loader_model import FILES_PER_WORKER, OWN_FILES, LoaderModel, _sequence, trace_from_baseline
from tests import examples

SECONDS = st.floats(1e-4, 1.0)
BUILDS = st.lists(SECONDS, min_size=1, max_size=40)
BATCHES = (16, 31, 32, 33, 64, 100, 128, 129, 256)


def trace(batch_size: int, seconds: float, **changes: object) -> LoaderTrace:
    return examples.loader_trace(
        **{
            "batch_size": batch_size,
            "build_seconds": (seconds,) * 20,
            "inline_seconds": seconds,
            "cpu_seconds": seconds,
            **changes,
        }
    )


def mean_build(model: LoaderModel, batch_size: int) -> float:
    return fmean(model.trace(batch_size).build_seconds)


def rate(model: LoaderModel, config: Config, step: float) -> float:
    return float(model.rates([config], np.array([step]))[0])


@given(SECONDS, SECONDS)
def test_a_trace_is_what_it_was_where_it_was_taken(one: float, other: float) -> None:
    traces = [trace(128, other), trace(32, one)]
    model = LoaderModel(traces, None)
    assert model.trace(32) == traces[1]
    assert model.trace(128) == traces[0]


@given(SECONDS, st.floats(1, 4), st.sampled_from(BATCHES))
def test_between_two_traces_the_time_of_a_build_lies_on_a_line(low: float, ratio: float, batch: int) -> None:
    model = LoaderModel([trace(32, low), trace(128, low * ratio)], None)
    line = low + (ratio * low - low) * (batch - 32) / 96
    if 32 <= batch <= 128:
        assert mean_build(model, batch) == pytest.approx(line)
    else:  # what does not grow with the batch follows from the two
        assert mean_build(model, batch) == pytest.approx(line if ratio > 1 else low)


@settings(deadline=None, max_examples=50)
@given(BUILDS, BUILDS)
def test_the_time_of_a_build_has_no_jump_over_batch_sizes(small: list[float], large: list[float]) -> None:
    model = LoaderModel([trace(1000, 0, build_seconds=tuple(small)), trace(4000, 0, build_seconds=tuple(large))], None)
    for batch in (999, 1000, 1999, 2000, 2001, 3999, 4000):
        here, there = mean_build(model, batch), mean_build(model, batch + 1)
        assert there == pytest.approx(here, abs=0.003 * max(fmean(small), fmean(large)))


@settings(deadline=None, max_examples=50)
@given(st.lists(st.floats(0.001, 0.1), min_size=1, max_size=2), st.floats(0, 0.1))
def test_a_batch_never_costs_more_in_two_halves_than_twice_and_never_less_than_one(
    costs: Sequence[float], fixed: float
) -> None:
    model = LoaderModel([trace(b, fixed + costs[0] * b) for b in (32, 128)[: len(costs)]], None)
    for batch in (8, 16, 32, 64, 128, 256):
        assert mean_build(model, batch) <= mean_build(model, 2 * batch) * (1 + 1e-9)
        assert mean_build(model, 2 * batch) <= 2 * mean_build(model, batch) * (1 + 1e-9)


def test_a_single_trace_is_carried_on_in_proportion() -> None:
    model = LoaderModel(
        [trace(32, 0.06, pin_seconds=0.001, transfer_seconds=0.002, receive_seconds=0.003, start_seconds=0.5)], None
    )
    at = model.trace(96)
    assert (at.batch_size, at.batch_bytes) == (96, 3 * 2**20)
    assert fmean(at.build_seconds) == pytest.approx(0.18)
    assert (at.inline_seconds, at.cpu_seconds) == (pytest.approx(0.18), pytest.approx(0.18))
    assert (at.pin_seconds, at.transfer_seconds) == (pytest.approx(0.003), pytest.approx(0.006))
    assert (at.receive_seconds, at.start_seconds, at.worker_memory_bytes) == (0.003, 0.5, 2**24)


def test_a_fixed_part_within_the_noise_of_two_traces_is_left_out() -> None:
    def fixed(noise: float) -> float:
        traces = [
            trace(b, 0, build_seconds=tuple((0.001 * b + 0.004) * (1 + noise * (-1) ** k) for k in range(16)))
            for b in (32, 128)
        ]
        return 2 * mean_build(LoaderModel(traces, None), 128) - mean_build(LoaderModel(traces, None), 256)

    assert fixed(0.0) == pytest.approx(0.004)
    assert 0 < fixed(0.1) < 0.004
    assert fixed(0.9) == pytest.approx(0.0, abs=1e-9)


def test_two_single_builds_say_nothing_of_what_is_fixed() -> None:
    model = LoaderModel([trace(b, 0, build_seconds=(0.02 + 0.001 * b,)) for b in (32, 128)], None)
    assert mean_build(model, 256) == pytest.approx(2 * mean_build(model, 128))


@settings(deadline=None, max_examples=60)
@given(BUILDS)
def test_a_sequence_holds_a_traces_builds_over_and_over_and_keeps_their_mean(builds: list[float]) -> None:
    sequence = _sequence(tuple(builds))
    assert float(sequence.mean()) == pytest.approx(fmean(builds), rel=1e-9)
    factors = sequence[: len(builds)] / np.array(sorted(builds))[np.argsort(np.argsort(sequence[: len(builds)]))]
    assert factors == pytest.approx(np.full(len(builds), factors[0]))


def test_a_sequence_deals_workers_other_builds_each_time() -> None:
    sequence = _sequence((1.0, 2.0, 3.0, 4.0))
    dealt = Counter(np.round(sequence[::4] / sequence.min(), 3).tolist())  # to the first of four workers
    assert len(dealt) == 4
    assert min(dealt.values()) > len(sequence) / 4 / 8


def test_of_no_configurations_there_are_no_rates() -> None:
    assert len(LoaderModel([trace(32, 0.1)], None).rates([], np.array([]))) == 0


def test_configurations_are_rated_alike_alone_and_together_and_in_their_order() -> None:
    model = LoaderModel([trace(32, 0, build_seconds=tuple(np.linspace(0.01, 0.1, 15)))], None)
    configs = [Config(num_workers=w, batch_size=b) for w in (0, 1, 3, 0) for b in (64, 16)]
    steps = np.linspace(0.01, 0.03, len(configs))
    together = model.rates(configs, steps)
    assert together == pytest.approx([rate(model, c, s) for c, s in zip(configs, steps, strict=True)])
    assert len(set(together.tolist())) == len(configs)


@settings(deadline=None)
@given(SECONDS, SECONDS)
def test_on_a_cpu_without_workers_a_batch_is_built_between_two_steps(build: float, step: float) -> None:
    model = LoaderModel([trace(32, 9.0, inline_seconds=build, pin_seconds=5.0, transfer_seconds=5.0)], None)
    assert rate(model, Config(), step) == pytest.approx(1 / (build + step))


HOST, PIN, COPY, RECEIVE = 0.002, 0.003, 0.005, 0.001


def accelerator(build: float) -> LoaderModel:
    seconds = {"pin_seconds": PIN, "transfer_seconds": COPY, "receive_seconds": RECEIVE}
    return LoaderModel([trace(32, build, **seconds)], HOST)


@pytest.mark.parametrize("step", [0.001, 0.030, 0.2])
@pytest.mark.parametrize("build", [0.0, 0.020, 0.1])
def test_an_accelerator_trains_while_the_host_builds(step: float, build: float) -> None:
    model = accelerator(build)
    assert rate(model, Config(pin_memory=True), step) == pytest.approx(1 / max(build + PIN + HOST, step))
    assert rate(model, Config(), step) == pytest.approx(1 / (max(build + HOST, step) + COPY))


@pytest.mark.parametrize("step", [0.001, 0.030, 0.2])
@pytest.mark.parametrize("workers", [1, 2, 8])
def test_an_accelerator_with_workers_waits_for_them_for_the_host_or_for_its_own_steps(
    step: float, workers: int
) -> None:
    model, build = accelerator(0.040), 0.040
    own = max(step, HOST + RECEIVE)
    pinned = rate(model, Config(num_workers=workers, pin_memory=True), step)
    unpinned = rate(model, Config(num_workers=workers), step)
    assert pinned == pytest.approx(1 / max(build / workers, own))
    assert unpinned == pytest.approx(1 / max(build / workers, own + COPY))


def test_the_thread_that_pins_limits_only_loaders_with_workers() -> None:
    model = accelerator(0.01)
    assert model.pin_rate(Config(num_workers=1, pin_memory=True)) == pytest.approx(1 / PIN)
    assert model.pin_rate(Config(num_workers=1, pin_memory=True, batch_size=64)) == pytest.approx(0.5 / PIN)
    for config in (Config(num_workers=1), Config(pin_memory=True)):
        assert model.pin_rate(config) > 1e6


@given(st.integers(1, 16), st.integers(1, 8), st.sampled_from([16, 32, 64]))
def test_memory_is_that_of_workers_and_of_the_batches_asked_for_ahead_and_one_more(
    workers: int, prefetch: int, batch: int
) -> None:
    model = LoaderModel([trace(32, 0.1, batch_bytes=1000, worker_memory_bytes=7)], None)
    config = Config(batch_size=batch, num_workers=workers, prefetch_factor=prefetch)
    assert model.shared_memory(config) == (workers * prefetch + 1) * 1000 * batch // 32
    assert model.memory(config) == model.shared_memory(config) + 7 * workers
    assert model.shared_memory(Config(batch_size=batch)) == model.memory(Config(batch_size=batch)) == 0


def test_the_start_of_an_epoch_costs_its_first_batch_and_new_workers() -> None:
    model = LoaderModel([trace(32, 0.1, start_seconds=0.5)], None)
    assert model.start_seconds(Config()) == 0.0
    assert model.start_seconds(Config(num_workers=3)) == pytest.approx(0.1 + 3 * 0.5)
    assert model.start_seconds(Config(num_workers=3, persistent_workers=True)) == pytest.approx(0.1)
    assert model.start_seconds(Config(num_workers=3, persistent_workers=True, batch_size=64)) == pytest.approx(0.2)


@pytest.mark.parametrize("workers", [0, 1, 4])
def test_the_loader_that_a_baselines_own_measurement_speaks_of_gives_its_rate(workers: int) -> None:
    compute, wait = 0.010, 0.090
    split = StepTime(data_wait=wait, host_to_device=0.0, forward=compute, backward=0.0, optimizer=0.0, other=0.0)
    config = Config(num_workers=workers)
    found = trace_from_baseline(config, examples.measurement(step_time=split), 1000)
    assert found.batch_bytes == 32_000
    assert rate(LoaderModel([found], None), config, compute) == pytest.approx(1 / split.total)
    assert math.isfinite(mean_build(LoaderModel([found], 0.001), 1024))


@given(st.lists(st.tuples(st.sampled_from([32, 128]), BUILDS), min_size=1, max_size=2, unique_by=lambda each: each[0]))
def test_no_build_takes_no_time_whatever_the_traces(found: list[tuple[int, list[float]]]) -> None:
    model = LoaderModel([trace(batch, 0, build_seconds=tuple(builds)) for batch, builds in found], None)
    for low, high in pairwise((1, 8, 32, 64, 128, 1024)):
        assert min(model.trace(low).build_seconds) > 0
        assert min(model.trace(high).build_seconds) > 0


@pytest.mark.parametrize(("tensors", "at_double"), [(3, 3), (63, 63), (64, 128), (130, 260)])
def test_a_batch_has_as_many_tensors_at_every_size_unless_there_is_one_for_each_sample(
    tensors: int, at_double: int
) -> None:
    model = LoaderModel([trace(64, 0.1, batch_tensors=tensors)], None)
    assert model.trace(128).batch_tensors == at_double


def test_open_files_are_those_of_every_batch_in_flight_and_of_every_worker() -> None:
    model = LoaderModel([trace(64, 0.1, batch_tensors=10)], None)
    few, many = (model.open_files(Config(batch_size=64, num_workers=n, prefetch_factor=2)) for n in (1, 5))
    assert many - few == 4 * FILES_PER_WORKER + 4 * 2 * 10
    assert model.open_files(Config(batch_size=64)) == OWN_FILES
