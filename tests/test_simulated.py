"""The simulated machine: neighbours slow what they disturb and are seen, stalls are not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autotune.config import Config
from autotune.outcome import Outcome
from autotune.records import Attempt, Request
from studies.neighbours.machines import place
from studies.neighbours.neighbours import run
from tests.examples import BASELINE
from tests.simulated import SimulatedMachine, StepCost

ONE = replace(BASELINE, intra_op_threads=1)
TRAINING = Request(seconds=2.0)


def two_threads(config: Config) -> StepCost:
    """A hundred samples a second, whatever the threads."""
    return StepCost(compute=config.batch_size / 100, cpus=config.intra_op_threads or 2)


def rate(attempt: Attempt) -> float:
    assert attempt.measurement is not None
    return attempt.measurement.samples_per_second


@pytest.mark.parametrize(
    ("config", "share", "expected", "outcome"),
    [
        (ONE, 1.0, 85, Outcome.SUSPECT),
        (ONE, 0.5, 92.5, Outcome.OK),  # a quarter of the CPUs is idle
        (BASELINE, 1.0, 55, Outcome.SUSPECT),
        (BASELINE, 0.5, 77.5, Outcome.SUSPECT),
    ],
)
def test_a_neighbour_on_half_of_the_cpus_slows_several_threads_three_times_as_much(
    config: Config, share: float, expected: float, outcome: Outcome
) -> None:
    machine = SimulatedMachine(cost=two_threads, neighbour=lambda time: 1.0 if time < 2.0 * share else 0.0)
    attempt = machine.measure(config, TRAINING)
    assert rate(attempt) == pytest.approx(expected)
    assert attempt.outcome is outcome
    assert attempt.measurement is not None
    assert attempt.measurement.conditions.foreign_cpus == pytest.approx(share)
    assert ("other processes used" in attempt.message) == (outcome is Outcome.SUSPECT)
    quiet = machine.measure(config, TRAINING)
    assert rate(quiet) == pytest.approx(100)
    assert quiet.outcome is Outcome.OK


def test_a_look_at_the_step_beside_a_neighbour_or_the_loader_is_slow_and_suspect() -> None:
    def cost(config: Config) -> StepCost:
        return StepCost(wait=0.1, compute=0.32, cpus=2)

    machine = SimulatedMachine(cost=cost, neighbour=lambda time: 1.0)
    step, loader = (machine.measure(BASELINE, Request(seconds=1.5, part=part)) for part in ("compute", "loader"))
    assert (step.outcome, loader.outcome) == (Outcome.SUSPECT, Outcome.SUSPECT)
    assert step.compute is not None
    assert step.compute.samples_per_second == pytest.approx(55)
    assert loader.loader is not None
    assert loader.loader.build_seconds[0] == pytest.approx(0.1 / 0.85)


@pytest.mark.parametrize("part", ["neighbours", "quiet", "stalled"])
def test_a_run_of_the_study_says_what_it_told_and_what_is_true(part: str) -> None:
    row = run((part, 1))
    assert row["verdict"] in ("faster", "no gain", "undecided")
    assert row == run((part, 1))
    assert 0 < float(str(row["true"])) <= float(str(row["best"])) == pytest.approx(1 + place(1).gain, rel=1e-4)
