from __future__ import annotations

import os

import psutil
import pytest

from autotune.config import Config
from autotune.outcome import Outcome
from autotune.records import Attempt, Request
from autotune.runner.local import ProcessRunner, Usage, busiest, cpu_usage, own_processes, suspended_seconds
from autotune.workload import describe
from tests import examples

REQUEST = Request(seconds=1.0)


def test_the_processes_that_used_most_are_named_and_ones_own_are_not() -> None:
    before = {1: Usage("init", 5.0), 2: Usage("burn", 10.0), 3: Usage("own", 0.0), 4: Usage("idle", 7.0)}
    after = before | {2: Usage("burn", 19.0), 3: Usage("own", 10.0), 4: Usage("idle", 7.5), 5: Usage("new", 3.0)}
    named, cpus = busiest(before, after, {3}, 10.0)
    assert named == ("burn (pid 2) 0.9", "new (pid 5) 0.3")
    assert cpus == pytest.approx(1.2)
    assert busiest(before, before, {3}, 10.0) == ((), 0)


def test_no_more_than_three_are_named() -> None:
    after = {number: Usage(f"p{number}", float(number)) for number in range(1, 9)}
    assert busiest({}, after, set(), 8.0)[0] == ("p8 (pid 8) 1.0", "p7 (pid 7) 0.9", "p6 (pid 6) 0.8")


def test_this_process_is_seen_and_is_its_own_and_a_machine_that_does_not_sleep_has_not_slept() -> None:
    own = cpu_usage()[os.getpid()]
    assert own.seconds > 0
    assert own.name == psutil.Process().name()
    assert os.getpid() in own_processes()
    assert suspended_seconds() - suspended_seconds() == pytest.approx(0.0, abs=0.5)


class Answered(ProcessRunner):
    def __init__(self, attempt: Attempt) -> None:
        super().__init__(describe("tests.workloads:small"), "cpu")
        self.attempt = attempt

    def _ask_to_measure(self, config: Config, request: Request) -> Attempt:
        return self.attempt


def test_a_measurement_during_which_the_machine_slept_gives_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    slept = iter([100.0, 112.0, 112.0, 112.5])
    monkeypatch.setattr("autotune.runner.local.suspended_seconds", lambda: next(slept))
    runner = Answered(Attempt(outcome=Outcome.OK, payload=examples.measurement()))
    found = runner.measure(Config(), REQUEST)
    assert (found.outcome, found.measurement) == (Outcome.SUSPECT, None)
    assert found.message == "the machine was suspended for 12 s during the measurement"
    assert runner.measure(Config(), REQUEST).outcome is Outcome.OK


@pytest.mark.parametrize(("foreign", "how"), [(0.9, "most of it"), (1.5, "most of it"), (2.0, "among them")])
def test_who_took_the_cpus_is_named_where_they_were_missed(
    monkeypatch: pytest.MonkeyPatch, foreign: float, how: str
) -> None:
    monkeypatch.setattr("autotune.runner.local.busiest", lambda *given: (("burn (pid 2) 0.9",), 0.9))
    conditions = examples.conditions(is_crowded=True, foreign_cpus=foreign, allocator_retries=2)
    busy = examples.measurement(conditions=conditions)
    message = "; ".join(("a note", *conditions.disturbances))
    found = Answered(Attempt(outcome=Outcome.SUSPECT, payload=busy, message=message)).measure(Config(), REQUEST)
    assert f"of {conditions.cpus} CPUs meanwhile, {how} burn (pid 2) 0.9; device memory" in found.message
    assert found.measurement is not None
    assert found.measurement.conditions.neighbours == ("burn (pid 2) 0.9",)
    quiet = Answered(Attempt(outcome=Outcome.OK, payload=examples.measurement())).measure(Config(), REQUEST)
    assert quiet.message == ""
