"""Scripts that no DataLoader feeds: measured by the steps of their optimizer where that is allowed, else refused."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.config import Config
from autotune.errors import ScriptEndsError, UserCodeError
from autotune.measure.script_loaders import STEPS_WITHOUT_BATCHES
from autotune.measure.script_losses import STEPS
from autotune.records import Measurement, WorkloadFacts
from autotune.workload import Script
from tests.processes import known_time
from tests.scripts.looping import REQUEST, Loops, per_second, place, started

pytestmark = [
    pytest.mark.machine,
    pytest.mark.skipif(sys.platform != "linux", reason="scripts are measured in forks"),
]

SAMPLES, ENDLESS = 12, "1000000"
LONG = 6.0
"""Seconds of a window in which a round of five steps more or less does not matter."""
EVALUATION = 25
"""Milliseconds of every fifth step that are no training."""


@pytest.fixture(scope="module")
def clock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("clock") / "clock"


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory, clock: Path) -> Iterator[Loops]:
    """A runner of scripts whose sleeps take the time that they are asked to, and no other."""
    folder = tmp_path_factory.mktemp("project") / "loops"
    with started(folder, CLOCK=str(clock), **known_time(folder)) as loops:
        yield loops


@contextmanager
def counting(
    runner: Loops, name: str, *arguments: str, samples: int | None = SAMPLES, ranks: int = 1
) -> Iterator[WorkloadFacts]:
    """Run a script up to the first step that counts, and end its session afterwards."""
    runner.turn_to(Script.of((f"{name}.py", *arguments), allow_writes=True, samples_per_step=samples))
    try:
        yield runner.inspect(Config(ranks=ranks))
    finally:
        runner.end_session()


def measured(runner: Loops, seconds: float = REQUEST.seconds, *, fresh: bool = False) -> Measurement:
    assert runner.script is not None
    attempt = runner.measure(runner.script.present, replace(REQUEST, seconds=seconds, target=0.0, fresh=fresh))
    assert attempt.measurement is not None, attempt
    return attempt.measurement


def own_rate(clock: Path, steps: int) -> float:
    """Return the steps per second of a script by its own clock, over the last ones."""
    times = [*map(float, clock.read_text("utf-8").splitlines())][-steps - 1 :]
    return (len(times) - 1) / (times[-1] - times[0])


@pytest.mark.parametrize("source", ["array", "loader"])
def test_steps_count_at_the_rate_of_the_scripts_own_clock(source: str, runner: Loops, clock: Path) -> None:
    rates = list[float]()
    for milliseconds in (20, 21):
        with counting(runner, "steps", str(milliseconds), ENDLESS, source) as facts:
            for fresh in (False, True):
                found = measured(runner, LONG, fresh=fresh)
                rate = found.samples_per_second / SAMPLES
                assert rate == pytest.approx(own_rate(clock, found.steps), rel=0.02)
                assert rate < per_second(1, milliseconds)
                assert found.step_time.data_wait < 0.001
        assert (facts.loader_call, facts.loader_site, facts.epoch_samples) == (None, None, None)
        rates.append(rate)
    assert 1 < rates[0] / rates[1] < 1.1


def test_the_settings_are_the_samples_of_a_step_and_the_place_is_told(
    runner: Loops, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = list[str]()
    monkeypatch.setattr(runner, "_on_wait", told.append)
    with counting(runner, "steps", "20", ENDLESS, "array"):
        assert runner.script is not None
        assert (runner.script.present, runner.script.is_batch_fixed) == (Config(batch_size=SAMPLES), True)
    assert any(f"steps of {place('steps', 'optimizer.step()')}" in line for line in told)


def test_evaluation_is_part_of_the_time_between_two_steps(runner: Loops) -> None:
    with counting(runner, "steps", "5", ENDLESS, "array"):
        found = measured(runner)
    assert found.samples_per_second < 1.1 * per_second(5 * SAMPLES, 5 * 5, EVALUATION)


def test_a_fresh_session_counts_from_the_first_step(runner: Loops, clock: Path) -> None:
    with counting(runner, "steps", "60", ENDLESS, "loader"):
        begun = len(clock.read_text("utf-8").splitlines())
        measured(runner, fresh=True)
    assert begun == STEPS_WITHOUT_BATCHES
    assert len(clock.read_text("utf-8").splitlines()) < STEPS_WITHOUT_BATCHES


def test_a_script_that_ends_is_started_again(runner: Loops) -> None:
    with counting(runner, "steps", "20", "25", "array"):
        assert measured(runner).samples_per_second < per_second(SAMPLES, 20)
    with (
        counting(runner, "steps", "20", "15", "array"),
        pytest.raises(ScriptEndsError, match=r"steps.py ends after 15 steps of an optimizer: that is too short"),
    ):
        measured(runner)
    with (
        pytest.raises(UserCodeError, match=r"steps.py ended after 25 steps of an optimizer: its loop is too short"),
        counting(runner, "steps", "20", "25", "loader"),
    ):
        pass


def test_of_several_optimizers_one_counts(runner: Loops) -> None:
    with counting(runner, "steps_of_two"):
        for fresh in (False, True):
            rate = measured(runner, fresh=fresh).samples_per_second
            assert 0.9 * per_second(SAMPLES, 2 * 15) < rate < per_second(SAMPLES, 2 * 15)
    with counting(runner, "steps_of_two", "10"):
        attempt = runner.measure(Config(batch_size=SAMPLES), REQUEST)
    assert "goes on with another optimizer" in attempt.message


def test_compiled_steps_count(runner: Loops) -> None:
    with counting(runner, "steps_compiled"):
        assert measured(runner).samples_per_second < per_second(SAMPLES, 20)


def test_each_rank_counts_its_own_steps(runner: Loops, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "_oversubscribe_ranks", True)
    with counting(runner, "steps_in_ranks", ranks=2):
        for fresh in (False, True):
            found = runner.measure(Config(batch_size=SAMPLES, ranks=2), replace(REQUEST, fresh=fresh)).measurement
            assert found is not None
            assert per_second(SAMPLES, 20) < found.samples_per_second < 2 * per_second(SAMPLES, 20)
            assert (found.unique_share, [each.rank for each in found.ranks]) == (1.0, [0, 1])


def test_the_first_losses_are_read(runner: Loops) -> None:
    with counting(runner, "steps", "20", ENDLESS, "array"):
        assert runner.script is not None
        first, again = (runner.losses(runner.script.present, 30.0) for _ in range(2))
    assert first == again
    assert len(first) == STEPS


def test_batches_count_where_a_loader_feeds_the_steps(runner: Loops) -> None:
    with counting(runner, "accumulates") as facts:
        assert runner.script is not None
        assert runner.script.present.batch_size == 8
    assert facts.loader_site is not None


@pytest.mark.parametrize(("source", "said"), [("array", "has no DataLoader"), ("loader", "batches that it keeps")])
def test_a_script_that_is_refused_is_told_to_count_its_steps(source: str, said: str, runner: Loops) -> None:
    way = "; python -m autotune compare 'steps.py' 'steps.py --other' counts its steps"
    with (
        pytest.raises(UserCodeError, match=f"{said}.*{way}$"),
        counting(runner, "steps", "1", ENDLESS, source, samples=None),
    ):
        pass
