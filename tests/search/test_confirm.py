from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from autotune.config import Config
from autotune.records import Attempt, Outcome, Request
from autotune.search.confirm import MAX_ROUNDS, Confirmation, confirm
from tests import examples
from tests.simulated import SimulatedMachine, StepCost

BASELINE, CANDIDATE = examples.BASELINE, examples.ANSWER
REQUEST = Request(seconds=1.0, fresh=True)


def always(rounds: int) -> bool:
    return True


def machine(gain: float, **options: Any) -> SimulatedMachine:
    """The candidate is faster by ``gain``, as a share."""

    def cost(config: Config) -> StepCost:
        return StepCost(compute=config.batch_size / (1000 * (1 + gain) if config == CANDIDATE else 1000))

    return SimulatedMachine(cost=cost, **options)


def confirmed(
    runner: SimulatedMachine | Scripted, has_time: Callable[[int], bool] = always, **options: Any
) -> Confirmation | None:
    return confirm(runner, BASELINE, CANDIDATE, lambda: REQUEST, has_time=has_time, **options)


@dataclass
class Scripted:
    """A runner that plays back what happens to each configuration, then succeeds forever."""

    baseline: list[Outcome] = field(default_factory=list)
    candidate: list[Outcome] = field(default_factory=list)
    calls: int = 0

    def measure(self, config: Config, request: Request) -> Attempt:
        self.calls += 1
        script, rate = (self.candidate, 1200.0) if config == CANDIDATE else (self.baseline, 1000.0)
        outcome = script.pop(0) if script else Outcome.OK
        has_numbers = outcome in (Outcome.OK, Outcome.SUSPECT)
        rate *= 1 + 0.001 * self.calls  # pairs are never exactly equal
        return Attempt(
            outcome=outcome,
            measurement=examples.measurement(samples_per_second=rate) if has_numbers else None,
        )


def test_every_round_measures_both_once_and_in_a_fresh_process() -> None:
    runner = machine(0.1, noise=0.2)
    found = confirmed(runner)
    assert found is not None
    assert found.rounds == MAX_ROUNDS
    assert len(runner.calls) == 2 * MAX_ROUNDS
    rounds = [runner.calls[index : index + 2] for index in range(0, len(runner.calls), 2)]
    assert all({config for config, _ in pair} == {BASELINE, CANDIDATE} for pair in rounds)
    assert all(request.fresh for _, request in runner.calls)


def test_the_order_within_rounds_is_random_and_repeatable() -> None:
    def first_of_rounds(seed: int) -> list[Config]:
        runner = machine(0.1, noise=0.2)
        confirmed(runner, seed=seed)
        return [config for config, _ in runner.calls[::2]]

    firsts = [config for seed in range(20) for config in first_of_rounds(seed)]
    assert 0.3 <= firsts.count(BASELINE) / len(firsts) <= 0.7
    assert first_of_rounds(3) == first_of_rounds(3)


def test_it_stops_as_soon_as_the_answer_is_clear() -> None:
    runner = machine(0.1, noise=0.001)
    found = confirmed(runner)
    assert found is not None
    assert (found.rounds, len(runner.calls)) == (3, 6)


@pytest.mark.parametrize("rounds", [0, 1, 2])
def test_it_stops_when_the_time_is_over(rounds: int) -> None:
    runner = machine(0.1, noise=0.05)
    found = confirmed(runner, lambda tried: tried < rounds)
    assert len(runner.calls) == 2 * rounds
    assert (found.rounds if found else 0) == rounds


def test_rates_and_typical_measurements_belong_to_baseline_and_candidate() -> None:
    found = confirmed(machine(0.5))
    assert found is not None
    assert found.rate(0)[0] == pytest.approx(1000)
    assert found.rate(1)[0] == pytest.approx(1500)
    assert [found.typical(index).samples_per_second for index in (0, 1)] == pytest.approx([1000, 1500])
    assert found.speedup == pytest.approx(1.5)


@pytest.mark.parametrize("side", ["baseline", "candidate"])
def test_a_round_that_stays_disturbed_does_not_count(side: str) -> None:
    runner = Scripted(**{side: [Outcome.OK, Outcome.SUSPECT, Outcome.SUSPECT]})
    found = confirmed(runner)
    assert found is not None
    assert (found.rounds, runner.calls) == (3, 2 + 3 + 2 + 2)


@pytest.mark.parametrize("side", ["baseline", "candidate"])
def test_a_disturbed_measurement_is_repeated_within_its_round(side: str) -> None:
    runner = Scripted(**{side: [Outcome.OK, Outcome.SUSPECT]})
    found = confirmed(runner)
    assert found is not None
    assert (found.rounds, runner.calls) == (3, 2 + 3 + 2)


def test_a_machine_that_is_always_disturbed_claims_nothing_and_ends_with_the_time() -> None:
    runner = Scripted(candidate=[Outcome.SUSPECT] * 100)
    assert confirmed(runner, lambda tried: tried < 4) is None
    assert runner.calls <= 4 * 3


@pytest.mark.parametrize("outcome", [Outcome.DEVICE_OOM, Outcome.CRASHED, Outcome.TIMEOUT, Outcome.NUMERICS])
@pytest.mark.parametrize("before", [0, 1, 2])
def test_a_candidate_that_fails_in_a_fresh_process_gives_no_claim(outcome: Outcome, before: int) -> None:
    runner = Scripted(candidate=[Outcome.OK] * before + [outcome])
    assert confirmed(runner) is None
    assert runner.calls in (2 * before + 1, 2 * before + 2)  # nothing is measured after it


def test_a_baseline_that_fails_ends_the_rounds_that_were_complete() -> None:
    found = confirmed(Scripted(baseline=[Outcome.OK, Outcome.OK, Outcome.HOST_OOM]))
    assert found is not None
    assert found.rounds == 2


def test_one_round_proves_nothing() -> None:
    found = confirmed(machine(5.0), lambda tried: tried < 1)
    assert found is not None
    assert found.speedup == pytest.approx(6.0)
    assert found.speedup_ci95 is None
    assert found.verdict == "no proven gain"


def test_a_certain_gain_below_two_percent_is_not_claimed() -> None:
    found = confirmed(machine(0.015, noise=1e-5))
    assert found is not None
    assert found.speedup_ci95 is not None
    assert found.speedup_ci95[0] > 1.01
    assert found.verdict == "no proven gain"


def test_a_certain_loss_is_not_claimed() -> None:
    found = confirmed(machine(-0.2, noise=0.001))
    assert found is not None
    assert found.verdict == "no proven gain"


def test_equal_configurations_are_rarely_called_faster() -> None:
    verdicts = [_verdict(0.0, seed, noise=0.03, drift=0.2) for seed in range(200)]
    assert verdicts.count("faster") <= 10


def test_a_gain_of_ten_percent_is_found_through_noise_and_drift() -> None:
    verdicts = [_verdict(0.1, seed, noise=0.01, drift=0.2) for seed in range(100)]
    assert verdicts.count("faster") >= 95


def _verdict(gain: float, seed: int, **options: float) -> str:
    found = confirmed(machine(gain, seed=seed, **options), seed=seed)
    assert found is not None
    return found.verdict


def test_every_attempt_is_reported_as_it_happens() -> None:
    seen: list[tuple[Config, Outcome]] = []
    runner = Scripted(candidate=[Outcome.OK, Outcome.CRASHED])
    confirmed(runner, on_attempt=lambda config, attempt: seen.append((config, attempt.outcome)))
    assert len(seen) == runner.calls
    assert (CANDIDATE, Outcome.CRASHED) in seen
