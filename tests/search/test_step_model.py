from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from autotune.search.step_model import ComputeModel, MemoryModel, StepPoint

BATCHES = st.integers(1, 8192)
GROUPS = st.tuples(st.sampled_from(["off", "bf16", "fp16"]), st.sampled_from([1, 2, 4]))
CURVES = st.dictionaries(BATCHES, st.floats(1e-4, 10), min_size=1, max_size=6)
MEASURED = st.sets(st.integers(1, 1024), min_size=2, max_size=6)
LADDER = (32, 64, 128, 256)
MIB = 2**20


def model(curve: dict[int, float], amp: str = "off", threads: int = 2) -> ComputeModel:
    return ComputeModel(StepPoint(batch, amp, threads, seconds) for batch, seconds in curve.items())


def separable(amp: str, threads: int, batch: int) -> float:
    """Seconds of a step whose precision and threads are factors of their own."""
    return {"off": 3.0, "bf16": 1.0}[amp] * {1: 4.0, 4: 1.0}[threads] * (0.004 + 1e-4 * batch)


def separate(*others: tuple[int, str, int]) -> ComputeModel:
    """A whole curve of one precision and number of threads, and these steps."""
    asked = [*((batch, "off", 4) for batch in LADDER), *others]
    return ComputeModel(StepPoint(*step, separable(step[1], step[2], step[0])) for step in asked)


@given(st.dictionaries(GROUPS, CURVES, min_size=1, max_size=4))
def test_measured_steps_are_returned_as_they_were_measured(curves: dict[tuple[str, int], dict[int, float]]) -> None:
    points = [StepPoint(batch, *group, seconds) for group, curve in curves.items() for batch, seconds in curve.items()]
    found = ComputeModel(points)
    for batch, amp, threads, seconds, *_ in points:
        assert found.estimate(batch, amp, threads).seconds == pytest.approx(seconds, rel=1e-9)


def test_a_model_needs_a_measured_step_and_repeated_ones_count_by_their_geometric_mean() -> None:
    with pytest.raises(ValueError, match="no step was measured"):
        ComputeModel([])
    found = ComputeModel([StepPoint(32, "off", 2, 0.01), StepPoint(32, "off", 2, 0.04)])
    assert found.estimate(32, "off", 2).seconds == pytest.approx(0.02)


@given(CURVES, BATCHES)
def test_between_two_neighbours_a_step_takes_a_time_between_theirs(curve: dict[int, float], batch: int) -> None:
    assume(min(curve) <= batch <= max(curve))
    below, above = max(known for known in curve if known <= batch), min(known for known in curve if known >= batch)
    seconds = model(curve).estimate(batch, "off", 2).seconds
    ends = sorted((curve[below], curve[above]))
    assert ends[0] * (1 - 1e-9) <= seconds <= ends[1] * (1 + 1e-9)


@given(st.floats(0, 1), st.floats(1e-5, 0.1), st.sets(st.integers(16, 1024), min_size=2, max_size=5), BATCHES)
def test_steps_on_a_line_are_predicted_everywhere(fixed: float, each: float, measured: set[int], batch: int) -> None:
    found = model({known: fixed + each * known for known in measured}).estimate(batch, "off", 2)
    assert found.seconds == pytest.approx(fixed + each * batch, rel=1e-6)


@given(st.integers(1, 1024), st.floats(1e-4, 1), BATCHES)
def test_a_single_step_is_carried_on_in_proportion(measured: int, seconds: float, batch: int) -> None:
    found = model({measured: seconds}).estimate(batch, "off", 2)
    assert found.seconds == pytest.approx(seconds * batch / measured)


@given(CURVES, st.integers(1, 6), st.sampled_from([1, -1]))
def test_beyond_what_was_measured_larger_batches_are_slower(curve: dict[int, float], doublings: int, sign: int) -> None:
    start = max(curve) if sign > 0 else min(curve)
    batches = sorted(max(1, round(start * 2.0 ** (sign * index))) for index in range(doublings + 1))
    times = [model(curve).estimate(batch, "off", 2).seconds for batch in batches]
    assert all(small <= large * (1 + 1e-9) for small, large in pairwise(times))
    assert min(times) > 0


def test_a_smaller_batch_is_never_better_per_sample_than_the_smallest_measured() -> None:
    assert model({64: 0.010, 128: 0.040}).estimate(32, "off", 2).seconds == pytest.approx(0.005)


@pytest.mark.parametrize("curve", [{64: 0.01}, {64: 0.01, 128: 0.015}, {16: 0.01, 64: 0.02, 256: 0.06}])
def test_errors_grow_with_the_distance_from_what_was_measured(curve: dict[int, float]) -> None:
    found = model(curve)
    up = [found.estimate(max(curve) * 2**doublings, "off", 2).error for doublings in range(6)]
    down = [found.estimate(min(curve) / 2**doublings, "off", 2).error for doublings in range(4)]
    assert all(near < far for errors in (up, down) for near, far in pairwise(errors))


def test_precision_and_threads_that_were_each_measured_alone_are_composed() -> None:
    found = separate((64, "bf16", 4), (128, "off", 1))
    for batch in LADDER:
        composed = found.estimate(batch, "bf16", 1)
        assert composed.seconds == pytest.approx(separable("bf16", 1, batch))
        assert composed.error > found.estimate(batch, "bf16", 4).error


@given(st.tuples(GROUPS, CURVES), st.tuples(GROUPS, CURVES), BATCHES, GROUPS)
def test_every_estimate_is_a_time_with_an_error(one: Any, other: Any, batch: int, asked: tuple[str, int]) -> None:
    points = [StepPoint(known, *group, time) for group, curve in (one, other) for known, time in curve.items()]
    estimate = ComputeModel(points).estimate(batch, *asked)
    assert 0 < estimate.seconds < math.inf
    assert 0 < estimate.error < 5


@given(st.integers(0, 10_000 * MIB), st.integers(0, 10 * MIB), MEASURED, BATCHES)
def test_memory_on_a_line_is_predicted_from_two_points(fixed: int, each: int, measured: set[int], batch: int) -> None:
    peaks = {known: fixed + each * known for known in sorted(measured)}
    expected = fixed + each * max(batch, min(measured))
    assert MemoryModel(peaks).at(batch) == pytest.approx(expected, rel=1e-9)
    assert MemoryModel(peaks).slope == pytest.approx(each)


@given(st.integers(1, 1024), st.integers(1, 2**40), st.integers(1, 8192))
def test_from_one_peak_only_larger_batches_need_memory_in_proportion(measured: int, peak: int, batch: int) -> None:
    found = MemoryModel({measured: peak})
    assert found.slope is None
    assert found.at(batch) == pytest.approx(peak * max(1.0, batch / measured))


@given(st.dictionaries(st.integers(1, 512), st.integers(1, 2**40), min_size=1, max_size=6), st.integers(1, 4096))
def test_measured_peaks_are_returned_and_beyond_them_memory_never_shrinks(peaks: dict[int, int], more: int) -> None:
    found = MemoryModel(dict(sorted(peaks.items())))
    assert [found.at(batch) for batch in peaks] == pytest.approx(list(peaks.values()), abs=1)
    assert found.at(max(peaks) + more) >= peaks[max(peaks)]


def test_neither_one_jump_of_the_curve_nor_a_flat_start_sets_the_slope() -> None:
    workspace = 500 * MIB
    for jump in (32, 64, 128):
        peaks = {batch: MIB * batch + (workspace if batch >= jump else 0) for batch in (16, 32, 64, 128)}
        assert MemoryModel(peaks).slope == pytest.approx(MIB)
        assert MemoryModel(peaks).at(256) == pytest.approx(256 * MIB + workspace)
    flat = {batch: max(64, 2 * batch) * MIB for batch in (1, 2, 4, 8, 16, 32, 64, 128, 256)}
    assert MemoryModel(flat).at(1024) == pytest.approx(2048 * MIB)


@given(st.sampled_from([16, 64, 256]), st.floats(0.5, 2.0), st.integers(-4 * MIB, 4 * MIB))
def test_with_options_time_and_memory_have_the_known_curve_moved_to_a_single_point(
    measured: int, factor: float, change: int
) -> None:
    times, plain = {16: 0.02, 64: 0.05, 256: 0.2}, MemoryModel({16: 8 * MIB, 64: 16 * MIB, 256: 64 * MIB})
    points = [StepPoint(batch, "bf16", 2, seconds) for batch, seconds in times.items()]
    own = StepPoint(measured, "bf16", 2, factor * times[measured], options=("compile",))
    found = ComputeModel([*points, own])
    moved = MemoryModel({measured: int(plain.at(measured)) + change}).moved(plain)
    assert moved.at(measured) == plain.at(measured) + change
    for batch, seconds in times.items():
        assert found.estimate(batch, "bf16", 2, ("compile",)).seconds == pytest.approx(factor * seconds)
        assert found.estimate(batch, "bf16", 2).seconds == pytest.approx(seconds)
        assert moved.at(batch) >= plain.at(batch) + min(change, 0)
