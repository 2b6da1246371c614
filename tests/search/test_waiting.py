from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.search.loader_model import LEAST_BURSTS, LEAST_WINDOW, SETTLING, pipeline_rates, scaled_builds

SECONDS = st.floats(1e-4, 1.0)
BUILDS = st.lists(SECONDS, min_size=1, max_size=40)
WORKERS = st.integers(1, LEAST_WINDOW // LEAST_BURSTS)
PREFETCH = st.integers(1, 8)
HAND_OVER = st.one_of(st.just(0.0), st.floats(0, 0.3))


def one_rate(builds: Sequence[float], workers: int, prefetch: int, step: float, receive: float = 0.0) -> float:
    """Batches per second of a single configuration."""
    rates = pipeline_rates(
        np.array([builds], dtype=float),
        np.array([0]),
        np.array([workers]),
        np.array([prefetch]),
        np.array([step]),
        np.array([receive]),
    )
    assert rates.shape == (1,)
    return float(rates[0])


def hand_overs(
    builds: Sequence[float], workers: int, prefetch: int, step: float, receive: float, batches: int
) -> list[float]:
    """When each batch is handed over, batch after batch as the module's text has it."""
    built: list[float] = []
    taken: list[float] = []
    for k in range(batches):
        worker_free = built[k - workers] if k >= workers else 0.0
        place_free = taken[k - workers * prefetch] if k >= workers * prefetch else 0.0
        built.append(max(worker_free, place_free) + builds[k % len(builds)])
        trained = taken[-1] + step if taken else step
        taken.append(max(built[k], trained) + receive)
    return taken


@settings(deadline=None, max_examples=60)
@given(BUILDS, WORKERS, PREFETCH, HAND_OVER, HAND_OVER)
def test_the_rate_is_that_of_the_recursion_done_batch_after_batch(
    builds: list[float], workers: int, prefetch: int, step: float, receive: float
) -> None:
    batches = LEAST_WINDOW // workers * workers
    taken = hand_overs(builds, workers, prefetch, step, receive, SETTLING + batches)
    expected = batches / (taken[-1] - taken[SETTLING - 1])
    assert one_rate(builds, workers, prefetch, step, receive) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("workers", [1, 2, 3, 7, 16, 48])
@pytest.mark.parametrize("step", [0.001, 0.06, 0.4])
def test_the_rate_of_the_window_is_close_to_that_of_thousands_of_batches(workers: int, step: float) -> None:
    generator = random.Random(workers)
    builds = [0.4 * generator.uniform(0.5, 1.5) for _ in range(61)]
    taken = hand_overs(builds, workers, 2, step, 0.001, 8000)
    truth = 4000 / (taken[-1] - taken[-4001])
    assert one_rate(builds, workers, 2, step, 0.001) == pytest.approx(truth, rel=0.05)


@settings(deadline=None, max_examples=100)
@given(SECONDS, WORKERS, PREFETCH, HAND_OVER, HAND_OVER)
def test_equal_builds_give_the_least_of_training_workers_and_places(
    build: float, workers: int, prefetch: int, step: float, receive: float
) -> None:
    slowest = max(step + receive, build / workers, (build + receive) / (workers * prefetch))
    assert one_rate([build], workers, prefetch, step, receive) == pytest.approx(1 / slowest, rel=1e-9)


@pytest.mark.parametrize(
    ("workers", "prefetch", "step", "receive", "expected"),
    [
        (4, 2, 0.5, 0.0, 2.0),  # training
        (4, 2, 0.5, 0.3, 1.25),  # training and receiving
        (3, 2, 0.1, 0.0, 3.0),  # the workers
        (2, 1, 0.1, 0.25, 1.6),  # a place that is free only once its batch was received
    ],
)
def test_what_limits_the_rate(workers: int, prefetch: int, step: float, receive: float, expected: float) -> None:
    assert one_rate([1.0], workers, prefetch, step, receive) == pytest.approx(expected)


@settings(deadline=None, max_examples=60)
@given(SECONDS, WORKERS, PREFETCH, HAND_OVER, HAND_OVER)
def test_of_equal_builds_more_workers_or_places_are_never_slower(
    build: float, workers: int, prefetch: int, step: float, receive: float
) -> None:
    here = one_rate([build], workers, prefetch, step, receive)
    assert one_rate([build], workers + 1, prefetch, step, receive) >= here * (1 - 1e-9)
    assert one_rate([build], workers, prefetch + 1, step, receive) >= here * (1 - 1e-9)


@settings(deadline=None, max_examples=60)
@given(BUILDS, WORKERS, PREFETCH, st.floats(1e-4, 0.3), HAND_OVER)
def test_no_rate_exceeds_that_of_training_on_batches_that_are_ready(
    builds: list[float], workers: int, prefetch: int, step: float, receive: float
) -> None:
    assert one_rate(builds, workers, prefetch, step, receive) <= 1 / (step + receive) * (1 + 1e-9)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.floats(0.5, 1.5), min_size=32, max_size=32), st.sampled_from([1, 2, 4, 8, 16]))
def test_no_rate_exceeds_what_the_workers_build(builds: list[float], workers: int) -> None:
    rate = one_rate(builds, workers, 2, 1e-6)  # the window holds whole rounds of these builds
    assert rate <= workers / float(np.mean(builds)) * (1 + 1e-9)


def test_more_places_help_where_builds_differ() -> None:
    builds = [0.1] * 19 + [2.0]
    rates = [one_rate(builds, 3, prefetch, 0.07) for prefetch in (1, 2, 4)]
    assert rates[0] * 1.03 < rates[1]
    assert rates[1] * 1.03 < rates[2]


def test_hundreds_of_configurations_at_once_equal_one_at_a_time() -> None:
    generator = np.random.default_rng(0)
    count = 300
    builds = generator.lognormal(-3, 0.7, (5, 23))
    row, prefetch = generator.integers(0, 5, count), generator.integers(1, 9, count)
    workers = generator.integers(1, LEAST_WINDOW // LEAST_BURSTS + 1, count)
    step, receive = generator.uniform(0.001, 0.1, count), generator.uniform(0, 0.01, count)
    together = pipeline_rates(builds, row, workers, prefetch, step, receive)
    alone = [
        one_rate(builds[r].tolist(), w, p, s, h)
        for r, w, p, s, h in zip(row, workers, prefetch, step, receive, strict=True)
    ]
    assert together == pytest.approx(alone, rel=1e-12)


@given(BUILDS, st.floats(1e-4, 10), st.floats(1 / 64, 64))
def test_scaled_builds_have_the_mean_that_is_asked_for_and_take_time(
    builds: list[float], mean: float, share: float
) -> None:
    scaled = scaled_builds(np.array(builds), mean, share)
    assert len(scaled) == len(builds)
    assert float(scaled.mean()) == pytest.approx(mean, rel=1e-9)
    assert float(scaled.min()) > 0


@given(BUILDS, st.floats(1e-4, 10))
def test_builds_of_as_many_samples_keep_their_proportions_except_for_very_short_ones(
    builds: list[float], mean: float
) -> None:
    relative = np.array(builds) / np.mean(builds)
    scaled = scaled_builds(np.array(builds), mean, 1.0)
    if relative.min() >= 0.2:
        assert scaled == pytest.approx(relative * mean, rel=1e-9)
    assert all(np.diff(scaled[np.argsort(builds, kind="stable")]) >= -1e-9 * mean)


@pytest.mark.parametrize("share", [1.0, 4.0, 16.0, 100.0])
def test_the_relative_spread_of_a_batch_shrinks_with_the_root_of_its_samples(share: float) -> None:
    builds = np.array([0.8, 0.9, 1.0, 1.1, 1.2])
    scaled = scaled_builds(builds, 3.0, share)
    assert scaled.std() / scaled.mean() == pytest.approx(builds.std() / np.sqrt(share))
