from __future__ import annotations

import random
from collections.abc import Sequence
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.config import Config
from autotune.probes import LoaderTrace
from autotune.search.loader_model import (
    LEAST_BURSTS,
    LEAST_WINDOW,
    SETTLING,
    LoaderModel,
    pipeline_rates,
    scaled_builds,
)
from tests import examples

SECONDS = st.floats(1e-4, 1.0)
BUILDS = st.lists(SECONDS, min_size=1, max_size=40)


def trace(batch_size: int, seconds: float, **changes: object) -> LoaderTrace:
    alike = {"build_seconds": (seconds,) * 20, "inline_seconds": seconds, "cpu_seconds": seconds}
    return examples.loader_trace(**{"batch_size": batch_size, **alike, **changes})


def mean_build(model: LoaderModel, batch_size: int) -> float:
    return fmean(model.trace(batch_size).build_seconds)


def rate(model: LoaderModel, config: Config, step: float) -> float:
    return float(model.rates([config], np.array([step]))[0])


@given(SECONDS, SECONDS)
def test_a_trace_is_what_it_was_where_it_was_taken(one: float, other: float) -> None:
    traces = [trace(128, other), trace(32, one)]
    model = LoaderModel(traces, None)
    assert [model.trace(128), model.trace(32)] == traces


@given(SECONDS, st.floats(1, 4), st.sampled_from((16, 31, 32, 33, 64, 100, 128, 129, 256)))
def test_between_two_traces_the_time_of_a_build_lies_on_a_line(low: float, ratio: float, batch: int) -> None:
    model = LoaderModel([trace(32, low), trace(128, low * ratio)], None)
    line = low + (ratio * low - low) * (batch - 32) / 96
    is_on_it = 32 <= batch <= 128 or ratio > 1  # beyond, what does not grow with the batch follows from the two
    assert mean_build(model, batch) == pytest.approx(line if is_on_it else low)


@settings(max_examples=50)
@given(BUILDS, BUILDS)
def test_the_time_of_a_build_has_no_jump_over_batch_sizes(small: list[float], large: list[float]) -> None:
    model = LoaderModel([trace(1000, 0, build_seconds=tuple(small)), trace(4000, 0, build_seconds=tuple(large))], None)
    for batch in (999, 1000, 1999, 2000, 2001, 3999, 4000):
        here, there = mean_build(model, batch), mean_build(model, batch + 1)
        assert there == pytest.approx(here, abs=0.003 * max(fmean(small), fmean(large)))


@settings(max_examples=50)
@given(st.lists(st.floats(0.001, 0.1), min_size=1, max_size=2), st.floats(0, 0.1))
def test_twice_the_batch_never_costs_less_than_one_nor_more_than_two(costs: Sequence[float], fixed: float) -> None:
    model = LoaderModel([trace(b, fixed + costs[0] * b) for b in (32, 128)[: len(costs)]], None)
    for batch in (8, 16, 32, 64, 128, 256):
        one, two = mean_build(model, batch), mean_build(model, 2 * batch)
        assert one <= two * (1 + 1e-9)
        assert two <= 2 * one * (1 + 1e-9)


def test_a_fixed_part_within_the_noise_of_two_traces_is_left_out() -> None:
    def fixed(noise: float, builds: int = 16, part: float = 0.004) -> float:
        factors = [1 + noise * (-1) ** k for k in range(builds)]
        traces = [trace(b, 0, build_seconds=tuple((0.001 * b + part) * each for each in factors)) for b in (32, 128)]
        model = LoaderModel(traces, None)
        return 2 * mean_build(model, 128) - mean_build(model, 256)

    assert fixed(0.0) == pytest.approx(0.004)
    assert 0 < fixed(0.1) < 0.004
    assert fixed(0.9) == pytest.approx(0.0, abs=1e-9)
    assert fixed(0.0, builds=1, part=0.02) == pytest.approx(0.0, abs=1e-9)  # single builds say nothing of it


@given(SECONDS, SECONDS)
def test_on_a_cpu_without_workers_a_batch_is_built_between_two_steps(build: float, step: float) -> None:
    model = LoaderModel([trace(32, 9.0, inline_seconds=build, pin_seconds=5.0, transfer_seconds=5.0)], None)
    assert rate(model, Config(), step) == pytest.approx(1 / (build + step))


HOST, PIN, ALONE, COPY, PINNED_COPY, RECEIVE = 0.002, 0.003, 0.006, 0.005, 0.002, 0.001


def accelerator(build: float) -> LoaderModel:
    seconds = {"pin_seconds": ALONE, "inline_pin_seconds": PIN, "transfer_seconds": COPY, "receive_seconds": RECEIVE}
    return LoaderModel([trace(32, build, pinned_transfer_seconds=PINNED_COPY, **seconds)], {8: HOST, 4096: 100 * HOST})


@pytest.mark.parametrize("step", [0.001, 0.030, 0.2])
@pytest.mark.parametrize("build", [0.0, 0.020, 0.1])
def test_an_accelerator_trains_while_the_host_builds(step: float, build: float) -> None:
    model = accelerator(build)
    assert rate(model, Config(pin_memory=True), step) == pytest.approx(1 / max(build + PIN + HOST, step + PINNED_COPY))
    assert rate(model, Config(), step) == pytest.approx(1 / (max(build + HOST, step) + COPY))


@pytest.mark.parametrize("step", [0.001, 0.030, 0.2])
@pytest.mark.parametrize("workers", [1, 2, 8])
def test_an_accelerator_waits_for_workers_for_the_host_or_for_its_own_steps(step: float, workers: int) -> None:
    pinned, own = max(step + PINNED_COPY, HOST + RECEIVE), max(step, HOST + RECEIVE)
    for pins, least in ((True, pinned), (False, own + COPY)):
        found = rate(accelerator(0.040), Config(num_workers=workers, pin_memory=pins), step)
        assert found == pytest.approx(1 / max(0.040 / workers, least))


@given(st.integers(1, 16), st.integers(1, 8), st.sampled_from([16, 32, 64]))
def test_memory_is_that_of_workers_and_of_batches_ahead_and_one_more(workers: int, prefetch: int, batch: int) -> None:
    model = LoaderModel([trace(32, 0.1, batch_bytes=1000, worker_memory_bytes=7)], None)
    config = Config(batch_size=batch, num_workers=workers, prefetch_factor=prefetch)
    assert model.shared_memory(config) == (workers * prefetch + 1) * 1000 * batch // 32
    assert model.memory(config) == model.shared_memory(config) + 7 * workers
    assert model.shared_memory(Config(batch_size=batch)) == model.memory(Config(batch_size=batch)) == 0


@given(st.lists(st.tuples(st.sampled_from([32, 128]), BUILDS), min_size=1, max_size=2, unique_by=lambda each: each[0]))
def test_no_build_takes_no_time_whatever_the_traces(found: list[tuple[int, list[float]]]) -> None:
    model = LoaderModel([trace(batch, 0, build_seconds=tuple(builds)) for batch, builds in found], None)
    assert min(min(model.trace(batch).build_seconds) for batch in (1, 8, 32, 64, 128, 1024)) > 0


@pytest.mark.parametrize(("tensors", "at_double"), [(3, 3), (63, 63), (64, 128), (130, 260)])
def test_a_batch_has_as_many_tensors_at_every_size_unless_each_sample_has_one(tensors: int, at_double: int) -> None:
    assert LoaderModel([trace(64, 0.1, batch_tensors=tensors)], None).trace(128).batch_tensors == at_double


# Waiting for workers.


HAND_OVER = st.one_of(st.just(0.0), st.floats(0, 0.3))
Loader = tuple[int, int, float, float]
"""Workers, prefetch, and the seconds of a step and of receiving a batch."""


def one_rate(builds: Sequence[float], *loader: float) -> float:
    """Batches per second of a single configuration."""
    workers, prefetch, step, receive = loader
    ints, floats = (np.array([workers]), np.array([prefetch])), (np.array([step]), np.array([receive]))
    rates = pipeline_rates(np.array([builds], dtype=float), np.array([0]), *ints, *floats)
    assert rates.shape == (1,)
    return float(rates[0])


def hand_overs(builds: Sequence[float], loader: Loader, batches: int) -> list[float]:
    """When each batch is handed over, batch after batch as the module's text has it."""
    workers, prefetch, step, receive = loader
    built: list[float] = []
    taken: list[float] = []
    for k in range(batches):
        worker_free = built[k - workers] if k >= workers else 0.0
        place_free = taken[k - workers * prefetch] if k >= workers * prefetch else 0.0
        built.append(max(worker_free, place_free) + builds[k % len(builds)])
        trained = taken[-1] + step if taken else step
        taken.append(max(built[k], trained) + receive)
    return taken


@settings(max_examples=60)
@given(BUILDS, st.tuples(st.integers(1, LEAST_WINDOW // LEAST_BURSTS), st.integers(1, 8), HAND_OVER, HAND_OVER))
def test_the_rate_is_that_of_the_recursion_done_batch_after_batch(builds: list[float], loader: Loader) -> None:
    batches = LEAST_WINDOW // loader[0] * loader[0]
    taken = hand_overs(builds, loader, SETTLING + batches)
    assert one_rate(builds, *loader) == pytest.approx(batches / (taken[-1] - taken[SETTLING - 1]), rel=1e-9)


@pytest.mark.parametrize("workers", [1, 2, 3, 7, 16, 48])
@pytest.mark.parametrize("step", [0.001, 0.06, 0.4])
def test_the_rate_of_the_window_is_close_to_that_of_thousands_of_batches(workers: int, step: float) -> None:
    generator = random.Random(workers)
    builds = [0.4 * generator.uniform(0.5, 1.5) for _ in range(61)]
    taken = hand_overs(builds, (workers, 2, step, 0.001), 8000)
    truth = 4000 / (taken[-1] - taken[-4001])
    assert one_rate(builds, workers, 2, step, 0.001) == pytest.approx(truth, rel=0.05)


@given(BUILDS, st.floats(1e-4, 10), st.floats(1 / 64, 64))
def test_scaled_builds_have_the_mean_that_is_asked_for(builds: list[float], mean: float, share: float) -> None:
    scaled = scaled_builds(np.array(builds), mean, share)
    assert len(scaled) == len(builds)
    assert float(scaled.mean()) == pytest.approx(mean, rel=1e-9)
    assert float(scaled.min()) > 0


@pytest.mark.parametrize("share", [1.0, 4.0, 16.0, 100.0])
def test_the_relative_spread_of_a_batch_shrinks_with_the_root_of_its_samples(share: float) -> None:
    builds = np.array([0.8, 0.9, 1.0, 1.1, 1.2])
    scaled = scaled_builds(builds, 3.0, share)
    assert scaled.std() / scaled.mean() == pytest.approx(builds.std() / np.sqrt(share))
