"""Scripts that train with workers: those that end are started again, and loaders that feed steps have the same."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest

from autotune.config import Config
from autotune.errors import ScriptEndsError
from autotune.report.terminal import script_text
from tests.scripts.looping import REQUEST, Loops, per_second, place, started
from tests.search.there import there

pytestmark = [
    pytest.mark.machine,
    pytest.mark.skipif(sys.platform != "linux", reason="scripts are measured in forks"),
]


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loops]:
    with started(tmp_path_factory.mktemp("project") / "loops") as loops:
        yield loops


ENDS_RATE = per_second(8, 8, 2)
"""What ``ends.py`` trains at where no sleep lasts longer than it says."""


@pytest.mark.parametrize(
    ("steps", "way"),
    [(150, "break"), (215, "return"), (80, "schedule"), (500, "break"), (150, "resume")],
    ids=lambda each: str(each),
)
def test_a_script_of_so_many_steps_is_started_again_and_measured_on(steps: int, way: str, runner: Loops) -> None:
    with runner.started("ends", str(steps), way):
        for workers in (0, 1):
            config = Config(batch_size=8, num_workers=workers)
            attempt = runner.measure(config, replace(REQUEST, seconds=2.0, target=0.0))
            assert attempt.measurement is not None, attempt.message
            most = per_second(8, 8) if workers else ENDS_RATE
            assert attempt.measurement.samples_per_second < 1.02 * most
            assert attempt.measurement.ceiling_samples_per_second < per_second(8, 2)


def test_a_script_that_ends_within_a_few_steps_is_refused_with_every_setting(runner: Loops) -> None:
    with (
        runner.started("ends", "15", "break"),
        pytest.raises(ScriptEndsError, match=r"ends.py ends after 15 steps of an optimizer: that is too short"),
    ):
        runner.measure(Config(batch_size=8, num_workers=2), REQUEST)


@pytest.mark.timed
def test_loaders_that_feed_the_steps_together_have_the_same_workers(runner: Loops) -> None:
    with runner.started("together", "3") as facts:
        found = there(runner.measure(Config(batch_size=2, num_workers=2), replace(REQUEST, seconds=3.0)).measurement)
        one_alone, both = per_second(2, 3 * 50), 1.02 * per_second(2, 3 * 30)
        assert 1.02 * one_alone < found.samples_per_second < both
        assert 0.95 * found.samples_per_second <= found.ceiling_samples_per_second < both
        assert runner.script is not None
        assert (runner.script.is_batch_fixed, runner.script.present.batch_size) == (True, 2)
    assert facts.loader_call == f"{place('together', 'labelled = DataLoader')}: DataLoader"
    assert facts.other_loader_calls == (f"{place('together', 'unlabelled = DataLoader')}: DataLoader",)


@pytest.mark.parametrize("name", ["gan", "by_turns_in_a_list"])
def test_several_loaders_are_found_again_in_another_session(name: str, runner: Loops) -> None:
    with runner.started(name):
        runner.end_session()
        attempt = runner.measure(Config(batch_size=2, num_workers=1), REQUEST)
        assert attempt.measurement is not None, attempt.message


@pytest.mark.timed
@pytest.mark.parametrize(("name", "samples"), [("episodes", 10), ("stream_of_batches", 16), ("dataset_of_batches", 16)])
def test_batches_that_no_batch_size_makes_stay_as_they_are(name: str, samples: int, runner: Loops) -> None:
    with runner.started(name) as facts:
        assert runner.script is not None
        present = runner.script.present
        assert facts.batch_samples == present.batch_size == samples
        assert runner.script.is_batch_fixed
        attempt = runner.measure(replace(present, num_workers=2), replace(REQUEST, seconds=2.0))
        assert attempt.measurement is not None, attempt.message
        assert per_second(samples, 40) < attempt.measurement.samples_per_second < 1.02 * per_second(samples, 20)
    assert f"Would keep: batches of {samples} samples, as they come" in script_text(facts, present, is_fixed=True)
