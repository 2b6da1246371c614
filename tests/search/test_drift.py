"""Equal configurations, confirmed on a machine that gets slower or faster meanwhile."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autotune.config import Config
from autotune.records import Attempt, Request
from autotune.search.confirm import Confirmation, confirm
from tests import examples
from tests.simulated import SimulatedMachine, equal_everywhere


class Drifting:
    """A machine that gets slower, or faster, by a share of its rate from the first to the sixteenth measurement."""

    def __init__(self, drift: float, noise: float, seed: int) -> None:
        self._machine = SimulatedMachine(cost=equal_everywhere, noise=noise, seed=seed)
        self._drift = drift

    def measure(self, config: Config, request: Request) -> Attempt:
        factor = 1 + self._drift * len(self._machine.calls) / 16
        attempt = self._machine.measure(config, request)
        assert attempt.measurement is not None
        rate = attempt.measurement.samples_per_second * factor
        return replace(attempt, payload=replace(attempt.measurement, samples_per_second=rate))


def confirmed(drift: float, noise: float, seed: int) -> Confirmation:
    runner, request = Drifting(drift, noise, seed), Request(seconds=1.0, fresh=True)
    found = confirm(
        runner,
        examples.BASELINE,
        (examples.ANSWER,),
        lambda: request,
        has_time=lambda measurements, rounds: True,
        seed=seed,
    )
    assert found is not None
    return found


@pytest.mark.parametrize("noise", [0.001, 0.01])
@pytest.mark.parametrize("drift", [0.0, -0.05, 0.05])
def test_equal_configurations_are_rarely_called_faster_even_while_the_machine_drifts(
    drift: float, noise: float
) -> None:
    found = [confirmed(drift, noise, seed) for seed in range(200)]
    assert sum(each.answer is not None and each.is_proven(each.answer) for each in found) <= 10


@pytest.mark.parametrize("noise", [0.001, 0.01])
def test_the_interval_of_equal_configurations_holds_equality_as_often_as_promised(noise: float) -> None:
    intervals = [confirmed(0.0, noise, seed).interval(0) for seed in range(400)]
    covering = sum(low <= 1 <= high for low, high in filter(None, intervals))
    assert covering >= 0.95 * 400
