from __future__ import annotations

from autotune.config import Config
from autotune.outcome import Outcome
from autotune.records import Attempt, Request
from autotune.search.attempt import measure_once_more
from tests import examples

GOOD = Attempt(outcome=Outcome.OK, payload=examples.measurement(), seconds=2.0)
DISTURBED = Attempt(outcome=Outcome.SUSPECT, payload=examples.measurement(), seconds=3.0)
ENDED = Attempt(outcome=Outcome.SUSPECT, seconds=5.0)
"""What others left no memory for."""
FAILED = Attempt(outcome=Outcome.DEVICE_OOM)


class Recorded(list[Attempt]):
    def measure(self, config: Config, request: Request) -> Attempt:
        return self.pop(0)


def measured(*attempts: Attempt, has_time: bool = True, **options: bool) -> tuple[Attempt, int]:
    runner = Recorded(attempts)
    result = measure_once_more(runner, Config(), Request(seconds=1.0), lambda first: has_time, **options)
    return result, len(attempts) - len(runner)


def test_what_gives_numbers_or_fails_by_itself_is_not_repeated() -> None:
    for first in (GOOD, DISTURBED, FAILED):
        assert measured(first, GOOD) == (first, 1)


def test_what_others_ended_is_measured_once_more_where_there_is_time_and_costs_both_times() -> None:
    result, count = measured(ENDED, GOOD)
    assert (result.measurement, result.seconds, count) == (GOOD.measurement, 7.0, 2)
    assert measured(ENDED, ENDED, GOOD)[1] == 2
    assert measured(ENDED, GOOD, has_time=False) == (ENDED, 1)


def test_where_much_hangs_on_it_what_was_disturbed_is_measured_once_more() -> None:
    assert measured(DISTURBED, GOOD, if_disturbed=True)[0].outcome is Outcome.OK
    assert measured(DISTURBED, FAILED, if_disturbed=True)[0].measurement is DISTURBED.measurement
    assert measured(DISTURBED, DISTURBED, GOOD, if_disturbed=True)[1] == 2
    assert measured(GOOD, DISTURBED, if_disturbed=True) == (GOOD, 1)
