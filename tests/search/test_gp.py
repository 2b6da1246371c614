from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from autotune.search.gp import Posterior, coordinates, expected_gain, posterior
from autotune.search.predict import Prediction, predict
from autotune.settings import KNOBS
from tests import examples
from tests.search.test_predict import known, look_at_loader, look_at_step
from tests.simulated import host, space_of

Floats = NDArray[np.float64]

CONFIGS = space_of(examples.facts(), batch_size="16..1024", num_workers="0..6", threads="1,2").configs
KNOWLEDGE = known(
    facts=examples.facts(), host=host(4), trials=(examples.trial(),), probes=(look_at_loader(), look_at_step())
)
PREDICTION = predict(CONFIGS, KNOWLEDGE)
PRIOR = np.log(PREDICTION.rates)
POSITION = {config: index for index, config in enumerate(CONFIGS)}


def after(measured: Sequence[int], rates: Floats, prediction: Prediction = PREDICTION) -> Posterior:
    return posterior(CONFIGS, prediction, measured, rates, 2)


def after_factor(measured: Sequence[int], factor: float) -> Posterior:
    """What is known when every rate measured is so many times the predicted one."""
    return after(measured, PREDICTION.rates[list(measured)] * factor)


def some(count: int, seed: int = 0) -> list[int]:
    """Some configurations, each once."""
    return [int(index) for index in np.random.default_rng(seed).choice(len(CONFIGS), count, replace=False)]


def at(**knobs: object) -> int:
    return POSITION[replace(examples.BASELINE, persistent_workers=True, **knobs)]  # type: ignore[arg-type]


@settings(max_examples=20)
@given(st.sets(st.integers(0, len(CONFIGS) - 1), min_size=1, max_size=20), st.integers(0, 1000))
def test_everything_known_is_finite_and_nothing_is_certain(measured: set[int], seed: int) -> None:
    index = sorted(measured)
    noise = np.random.default_rng(seed).normal(0, 0.3, len(index))
    found = after(index, PREDICTION.rates[index] * np.exp(noise))
    assert found.means.shape == found.errors.shape == (len(CONFIGS),)
    assert np.isfinite(found.means).all()
    assert (found.errors > 0).all()


@pytest.mark.parametrize("count", [1, 3, 10, 25])
def test_a_measurement_without_noise_is_nearly_interpolated(count: int) -> None:
    index = some(count)
    truth = PRIOR[index] + 0.4 * np.sin([math.log2(CONFIGS[i].batch_size) for i in index])
    found = after(index, np.exp(truth))
    assert found.means[index] == pytest.approx(truth, abs=0.05)
    assert (found.errors[index] <= (0.04 if count < 10 else 0.02)).all()


def test_measurements_that_agree_with_the_prediction_leave_it_and_what_is_measured_is_known_better() -> None:
    index = some(8)
    assert after_factor(index, 1.0).means == pytest.approx(PRIOR, abs=1e-6)
    errors = after_factor(index, 1.1).errors
    assert errors[index].max() < np.delete(errors, index).mean()


def test_a_slow_measurement_says_more_of_its_like_than_of_what_is_far_away() -> None:
    here = at(batch_size=16, num_workers=1, prefetch_factor=2)
    near = at(batch_size=16, num_workers=1, prefetch_factor=4)
    far = at(batch_size=1024, num_workers=6, prefetch_factor=8, amp="bf16", intra_op_threads=1)
    found = after_factor([here], 0.7)
    change = found.means - PRIOR
    assert change[here] == pytest.approx(math.log(0.7), abs=0.05)
    assert change[near] < 0.5 * math.log(0.7)
    assert abs(change[far]) < 0.1 * abs(math.log(0.7))
    assert found.errors[here] < found.errors[near] < found.errors[far]


@pytest.mark.parametrize("factor", [20.0, 1 / 20])
@pytest.mark.parametrize("count", [4, 8, 16])
def test_a_prediction_that_is_wrong_by_a_factor_of_twenty_everywhere_is_unlearnt(factor: float, count: int) -> None:
    index = some(count)
    truth = PREDICTION.rates * factor
    found = after(index, truth[index])
    assert found.means[index] == pytest.approx(np.log(truth[index]), abs=0.1)
    before = np.abs(PRIOR - np.log(truth)).mean()
    assert np.abs(found.means - np.log(truth)).mean() < 0.85 * before
    assert found.errors.mean() > 3 * after_factor(index, 1.0).errors.mean()  # and what is left is very unsure


@pytest.mark.parametrize("count", [5, 10, 20])
def test_where_the_prediction_is_wrong_the_truth_lies_within_what_is_left_open(count: int) -> None:
    truth = PRIOR + [0.5 - 0.1 * math.log2(config.batch_size) for config in CONFIGS]
    inside = []
    for seed in range(8):
        index = some(count, seed)
        found = after(index, np.exp(truth[index]))
        inside.append((np.abs(found.means - truth) < 2 * found.errors).mean())
    assert min(inside) > 0.9


MEANS = st.floats(-3, 3)
ERRORS = st.floats(1e-3, 3)


@given(MEANS, ERRORS, MEANS)
def test_the_expected_gain_is_the_integral_over_what_exceeds_the_best(mean: float, error: float, best: float) -> None:
    grid = np.linspace(-9, 9, 20_001)
    density = np.exp(-(grid**2) / 2) / math.sqrt(2 * math.pi)
    expected = float(np.trapezoid(np.maximum(mean + error * grid - best, 0) * density, grid))
    gain = expected_gain(np.array([mean]), np.array([error]), best)
    assert gain[0] == pytest.approx(expected, rel=1e-4, abs=1e-6)


@given(MEANS, ERRORS, st.floats(-6, 50))
def test_the_expected_gain_is_not_below_zero_nor_the_difference(best: float, error: float, deviations: float) -> None:
    mean = best + deviations * error
    gain = float(expected_gain(np.array([mean]), np.array([error]), best)[0])
    assert gain >= max(0, (mean - best) * (1 - 1e-9))


@pytest.mark.parametrize("name", [name for name in KNOBS if name != "persistent_workers"])  # decided after the search
def test_two_configurations_that_differ_by_a_knob_are_two_points(name: str) -> None:
    config, knob = replace(examples.ANSWER, prefetch_factor=2), KNOBS[name]
    own, choices = getattr(config, knob.field), list((knob.choices or {}).values())
    usual = choices[0] if choices else own
    one, other = (replace(config, **{knob.field: value}) for value in (usual, choices[-1] if choices else 2 * own))
    rows = np.concatenate(coordinates([one, other], 2), axis=1)
    assert not np.array_equal(rows[0], rows[1])
