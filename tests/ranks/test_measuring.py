"""Two ranks are measured at the rate that arithmetic gives, and what they cost each other is named."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

import pytest

from autotune.config import Config
from autotune.machine.host import inspect_host
from autotune.outcome import Outcome
from autotune.records import Measurement, Request
from autotune.runner.local import ProcessRunner
from autotune.workload import describe
from tests.ranks.workloads import CLOCK, SAMPLE, SLOWER, STEP, SYNC
from tests.sharing import shared_processes

__all__ = ["shared_processes"]

pytestmark = [pytest.mark.machine, pytest.mark.usefixtures("shared_processes")]

BATCH = 8
PLAIN = Config(batch_size=BATCH, ranks=2)
BUILD = BATCH * SAMPLE


def runner_of(workload: str) -> ProcessRunner:
    return ProcessRunner(describe(f"tests.ranks.workloads:{workload}"), "cpu")


def measured(workload: str, config: Config) -> Measurement:
    with runner_of(workload) as runner:
        runner.inspect(PLAIN)
        attempt = runner.measure(config, Request(seconds=3.0))
    assert attempt.outcome in (Outcome.OK, Outcome.SUSPECT), attempt
    assert attempt.measurement is not None
    return attempt.measurement


def forwards(file: Path, steps: int) -> tuple[float, float]:
    """Return seconds between beginnings of a rank's last forwards, and those that a forward took, by its own clock."""
    times = [tuple(map(float, line.split())) for line in file.read_text("utf-8").splitlines()][-steps:]
    return (times[-1][0] - times[0][0]) / (len(times) - 1), fmean(end - begin for begin, end in times)


@pytest.mark.timed
def test_the_rate_of_all_ranks_is_that_of_the_slowest_which_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CLOCK, str(tmp_path / "rank"))
    found = measured("unequal", PLAIN)
    step, own = forwards(tmp_path / "rank1", found.steps)
    _, first = forwards(tmp_path / "rank0", found.steps)
    assert found.samples_per_second <= 2 * BATCH / (BUILD + STEP + SLOWER) * 1.005  # no sleep is too short
    assert found.samples_per_second == pytest.approx(2 * BATCH / step, rel=0.05)
    assert found.step_time.total == pytest.approx(step, rel=0.05)
    assert [share.rank for share in found.ranks] == [0, 1]
    assert found.slowest_rank is found.ranks[1]
    assert found.rank_spread == pytest.approx((own - first) / step, rel=0.25)
    assert found.step_time.communication < SLOWER / 4
    assert found.epoch_samples == 4096


def test_synchronising_gradients_is_a_part_of_the_step() -> None:
    found = measured("synchronising", PLAIN)
    assert found.step_time.communication >= SYNC
    assert found.ceiling_samples_per_second <= 2 * BATCH / (STEP + SYNC)


def test_samples_that_every_rank_yields_count_once() -> None:
    found = measured("undivided", Config(batch_size=BATCH, ranks=2))
    assert found.unique_share == 0.5
    assert found.samples_per_second == pytest.approx(BATCH / found.step_time.total, rel=0.1)
    assert any("yield the same" in note for note in found.notes)


def test_every_rank_has_its_share_of_the_samples() -> None:
    found = measured("small", Config(batch_size=5, ranks=2))
    assert (found.epoch_samples, found.restart_seconds is None) == (60, False)


def test_looks_at_parts_are_taken_by_the_ranks_together() -> None:
    with runner_of("unequal") as runner:
        facts = runner.inspect(PLAIN)
        step = runner.measure(PLAIN, Request(seconds=1.0, part="compute")).compute
        loader = runner.measure(PLAIN, Request(seconds=1.0, part="loader")).loader
        numerics = runner.measure(PLAIN, Request(seconds=4.0, part="numerics")).numerics
    assert facts.intra_op_threads == 1  # as torchrun gives each of several
    assert step is not None
    assert step.samples_per_second <= 2 * BATCH / (STEP + SLOWER)
    assert loader is not None
    assert sum(loader.build_seconds) >= 0.95 * len(loader.build_seconds) * BUILD
    assert numerics is not None
    assert numerics.losses == pytest.approx(numerics.reference_losses)


def test_a_model_that_lies_in_pieces_is_measured_with_every_batch_size() -> None:
    training, numerics = Request(seconds=1.0), Request(seconds=2.0, part="numerics")
    with runner_of("shards") as runner:
        runner.inspect(PLAIN)
        for size, request in ((8, training), (16, training), (8, numerics), (8, training)):
            attempt = runner.measure(Config(batch_size=size, ranks=2), request)
            assert attempt.found, attempt


@pytest.mark.parametrize(
    ("workload", "message"),
    [
        ("shards_with_an_optimizer", "the optimizer has none of the model's parameters"),
        ("partial", "Workload(parallelize=lambda model: DistributedDataParallel(model, find_unused_parameters=True))"),
        ("leaving", "the user's code ended the process (0)"),
    ],
)
def test_what_does_not_work_in_ranks_is_said_with_the_way_out(workload: str, message: str) -> None:
    with runner_of(workload) as runner:
        runner.inspect(PLAIN)
        attempt = runner.measure(PLAIN, Request(seconds=1.0, time_limit=60.0))
    assert attempt.outcome is Outcome.USER_ERROR
    assert message in attempt.message


def test_more_ranks_than_cpus_may_be_asked_for() -> None:
    config = Config(batch_size=4, ranks=(count := inspect_host().cpus + 1))
    with ProcessRunner(describe("tests.ranks.workloads:small"), "cpu", oversubscribe_ranks=True) as runner:
        runner.inspect(config)
        attempt = runner.measure(config, Request(seconds=0.3, time_limit=60))
    assert attempt.measurement is not None
    assert len(attempt.measurement.ranks) == count


def test_ranks_take_a_model_out_of_data_parallel() -> None:
    with runner_of("data_parallel") as runner:
        facts = runner.inspect(Config(batch_size=BATCH))
        attempt = runner.measure(PLAIN, Request(seconds=1.0))
    assert facts.data_parallel_devices == 0
    assert attempt.measurement is not None
    assert len(attempt.measurement.ranks) == 2
