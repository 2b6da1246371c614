from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.config import Config
from autotune.records import Outcome, StepTime, WorkloadFacts
from autotune.search.guess import first_guesses
from autotune.search.space import Space, build_space
from tests import examples
from tests.simulated import gpu_facts, space_of


def guesses(
    *,
    facts: WorkloadFacts,
    wait: float,
    compute: float,
    cpus: int = 8,
    baseline: Config = examples.BASELINE,
    **given: Any,
) -> list[Config]:
    """First guesses after a baseline that waited and computed for so long."""
    split = StepTime(data_wait=wait, host_to_device=0.0, forward=compute, backward=0.0, optimizer=0.0, other=0.0)
    trial = examples.trial(config=baseline, measurement=examples.measurement(step_time=split))
    return first_guesses(trial, build_space(facts, cpus, baseline, given), facts, cpus)


def test_a_baseline_without_numbers_gives_no_guess() -> None:
    facts = examples.facts()
    failed = replace(examples.trial(), outcome=Outcome.DEVICE_OOM, measurement=None)
    assert first_guesses(failed, space_of(facts), facts, 8) == []


@pytest.mark.parametrize(("ratio", "workers"), [(0.5, 1), (0.9, 1), (2.6, 3), (3.5, 4), (7, 8)])
def test_workers_suffice_to_hide_the_loader_behind_the_step(ratio: float, workers: int) -> None:
    found = guesses(facts=gpu_facts(), wait=0.01 * ratio, compute=0.01)
    assert {config.num_workers for config in found} == {workers}


def test_workers_are_counted_from_those_that_are_there() -> None:
    baseline = Config(batch_size=32, num_workers=2)
    found = guesses(facts=gpu_facts(), wait=0.01, compute=0.01, baseline=baseline)
    assert {config.num_workers for config in found} == {6}  # 2 workers build in 20 ms: 4 and a spare, rounded


def test_workers_stay_when_there_is_nothing_to_wait_for() -> None:
    found = guesses(facts=gpu_facts(), wait=0.0001, compute=0.01)
    assert {config.num_workers for config in found} == {0}
    assert {config.prefetch_factor for config in found} == {None}


def test_workers_on_a_cpu_are_no_more_than_its_cores() -> None:
    found = guesses(facts=examples.facts(intra_op_threads=4), wait=1.0, compute=0.01, cpus=4)
    assert {config.num_workers for config in found} == {4}


def test_workers_and_threads_share_the_cores_of_a_cpu() -> None:
    found = guesses(facts=examples.facts(intra_op_threads=4), wait=0.018, compute=0.01, cpus=4)
    assert {config.num_workers for config in found} == {2}
    assert {config.intra_op_threads for config in found} == {2}


def test_a_larger_batch_comes_first_and_mixed_precision_is_tried_on_an_accelerator() -> None:
    found = guesses(facts=gpu_facts(), wait=0.01, compute=0.01)
    assert found[0].batch_size == 4 * examples.BASELINE.batch_size
    assert [config.amp for config in found] == ["off", "bf16", "off"]
    assert found[-1].batch_size == examples.BASELINE.batch_size


def test_memory_is_pinned_on_an_accelerator_only() -> None:
    assert all(config.pin_memory for config in guesses(facts=gpu_facts(), wait=0.01, compute=0.01))
    assert not any(config.pin_memory for config in guesses(facts=examples.facts(), wait=0.01, compute=0.01))


BOUNDS: list[dict[str, Any]] = [
    {},
    {"batch_size": 48},
    {"batch_size": "100..300"},
    {"num_workers": 0},
    {"num_workers": "5..7"},
    {"amp": "bf16"},
    {"threads": 1},
    {"persistent_workers": False},
    {"persistent_workers": True, "prefetch_factor": 8},
    {"batch_size": 512, "num_workers": 3, "amp": "bf16", "threads": "3,5"},
]


@pytest.mark.parametrize("given", BOUNDS, ids=str)
@pytest.mark.parametrize("facts", [gpu_facts(), examples.facts()], ids=["gpu", "cpu"])
@pytest.mark.parametrize("wait", [0.0, 0.02, 1.0])
def test_guesses_lie_within_the_bounds(facts: WorkloadFacts, wait: float, given: dict[str, Any]) -> None:
    space = space_of(facts, **given)
    found = guesses(facts=facts, wait=wait, compute=0.01, **given)
    assert found
    assert all(space.admits(space.point(config)) for config in found)


@given(st.floats(0, 10), st.floats(0, 10), st.integers(1, 64), st.integers(0, 16), st.booleans())
def test_guesses_are_different_points_of_the_space(
    wait: float, compute: float, cpus: int, workers: int, on_cpu: bool
) -> None:
    facts = examples.facts() if on_cpu else gpu_facts()
    baseline = Config(num_workers=workers)
    found = guesses(facts=facts, wait=wait, compute=compute, cpus=cpus, baseline=baseline)
    space: Space = build_space(facts, cpus, baseline, {})
    assert len(set(found)) == len(found) <= 3
    assert all(space.config(space.point(config)) == config for config in found)
