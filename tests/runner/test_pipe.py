"""Whatever comes through the pipe is an outcome of the request that it was for, and the next one is right."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from autotune.config import Config
from autotune.outcome import Outcome
from autotune.records import Attempt, Request
from autotune.runner.local import ProcessRunner
from autotune.runner.process import MeasuringProcess
from autotune.workload import describe
from tests.corrupting import SPOILT

pytestmark = pytest.mark.machine

SPOILT_REPLIES = {
    "write to low descriptors": (Outcome.OK, ""),
    "write to all descriptors": (Outcome.CRASHED, r"the reply could not be read \(bad message length\): .*descriptors"),
    "cut and kill": (Outcome.CRASHED, "the reply could not be read"),
}


def measured(runner: ProcessRunner, batch_size: int) -> Attempt:
    return runner.measure(Config(batch_size=batch_size), Request(seconds=0.1, time_limit=60))


@pytest.fixture(scope="module")
def runner() -> Iterator[ProcessRunner]:
    with ProcessRunner(describe("tests.corrupting:corrupting"), "cpu") as runner:
        runner.inspect(Config(batch_size=8))
        yield runner


@pytest.mark.parametrize("how", SPOILT_REPLIES)
def test_what_is_no_reply_is_the_outcome_of_its_request_and_the_next_is_right(how: str, runner: ProcessRunner) -> None:
    outcome, message = SPOILT_REPLIES[how]
    spoilt, following = measured(runner, SPOILT[how]), measured(runner, 8)
    assert spoilt.outcome in (outcome, Outcome.SUSPECT if outcome is Outcome.OK else outcome), spoilt
    assert re.match(message, spoilt.message), spoilt
    assert following.measurement is not None, following
    assert following.measurement.loss == 8


def test_a_second_reply_is_not_taken_for_that_to_the_next_request(runner: ProcessRunner) -> None:
    first, second, third = (measured(runner, size) for size in (SPOILT["twice"], 8, 8))
    assert first.measurement is not None
    assert first.measurement.loss == SPOILT["twice"]
    assert second.outcome is Outcome.CRASHED
    assert second.message.startswith("the reply was to request")
    assert third.measurement is not None
    assert third.measurement.loss == 8


def test_requests_without_a_session_end_the_conversation() -> None:
    process = MeasuringProcess({})
    try:
        process.open()
        assert process.close()
        with pytest.raises(Exception, match="exit code 0"):
            process.ask({"op": "measure"}, 10.0)
    finally:
        process.stop()
