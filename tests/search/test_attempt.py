from __future__ import annotations

from autotune.config import Config
from autotune.records import Attempt, Outcome, Request
from autotune.search.attempt import measure_undisturbed
from tests import examples

REQUEST = Request(seconds=1.0)


def attempt(outcome: Outcome, foreign_cpus: float = 0.0) -> Attempt:
    has_numbers = outcome in (Outcome.OK, Outcome.SUSPECT)
    return Attempt(
        outcome=outcome,
        measurement=examples.measurement(conditions=examples.conditions(foreign_cpus=foreign_cpus))
        if has_numbers
        else None,
    )


class Recorded:
    """A runner that plays back what happened."""

    def __init__(self, *attempts: Attempt) -> None:
        self.attempts = list(attempts)

    def measure(self, config: Config, request: Request) -> Attempt:
        return self.attempts.pop(0)


def measured(*attempts: Attempt, has_time: bool = True) -> tuple[Attempt, int]:
    """Return what counts, and how many measurements it took."""
    runner = Recorded(*attempts)
    result = measure_undisturbed(runner, Config(), REQUEST, lambda first: has_time)
    return result, len(attempts) - len(runner.attempts)


def test_what_was_ended_without_numbers_gives_way_to_any_that_has_them() -> None:
    ended, disturbed = Attempt(outcome=Outcome.SUSPECT), attempt(Outcome.SUSPECT, 1.0)
    assert measured(ended, disturbed)[0].measurement is not None
    assert measured(disturbed, ended)[0].measurement is not None
    assert measured(ended, ended)[0].measurement is None


def test_an_undisturbed_measurement_is_not_repeated() -> None:
    good = attempt(Outcome.OK)
    assert measured(good, attempt(Outcome.OK)) == (good, 1)


def test_a_failure_is_not_repeated() -> None:
    failure = attempt(Outcome.DEVICE_OOM)
    assert measured(failure, attempt(Outcome.OK)) == (failure, 1)


def test_a_disturbed_measurement_is_not_repeated_without_time() -> None:
    disturbed = attempt(Outcome.SUSPECT, 1.0)
    assert measured(disturbed, attempt(Outcome.OK), has_time=False) == (disturbed, 1)


def test_an_undisturbed_repetition_counts() -> None:
    good = attempt(Outcome.OK, 0.4)
    assert measured(attempt(Outcome.SUSPECT, 1.0), good) == (good, 2)
    assert measured(attempt(Outcome.SUSPECT, 0.3), good) == (
        good,
        2,
    )  # its own load was less, so it had the CPUs


def test_of_two_disturbed_measurements_the_less_disturbed_counts() -> None:
    much, little = attempt(Outcome.SUSPECT, 2.0), attempt(Outcome.SUSPECT, 1.0)
    assert measured(much, little) == (little, 2)
    assert measured(little, much) == (little, 2)


def test_a_disturbed_measurement_counts_more_than_a_failed_repetition() -> None:
    disturbed = attempt(Outcome.SUSPECT, 1.0)
    assert measured(disturbed, attempt(Outcome.TIMEOUT)) == (disturbed, 2)


def test_there_is_no_third_attempt() -> None:
    disturbed = attempt(Outcome.SUSPECT, 1.0)
    assert measured(disturbed, disturbed, disturbed)[1] == 2
