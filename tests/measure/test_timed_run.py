"""The window of a run against the recursion of a DataLoader, all of it on simulated time."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from autotune.config import Config
from autotune.measure.timed_run import AHEAD_SECONDS, LEAST_AHEAD, TimedRun
from autotune.measure.window import WindowSummary, summarise
from autotune.records import Request
from tests.pipeline import BATCH_SIZE, LongerEpochs, ReadyBatches, SimulatedAccelerator, SimulatedPipeline, always

COMPUTE = {"loader-bound": 0.0025, "compute-bound": 0.03, "balanced": 0.01}
"""Seconds of a step, where the workers need 0.01 for a batch together."""
FEW = [(0, 1), (1, 2), (2, 8), (4, 1), (8, 2), (8, 32)]
DISTURBANCES: dict[str, dict[int, float]] = {
    "none": {},
    "a first step of 3 s": {0: 3.0},
    "a stall of 2 s": {3: 2.0},
    "five slow steps": dict.fromkeys(range(5), 0.2),
}  # what single steps take longer


def delayed(seconds: float, delays: dict[int, float]) -> Callable[[int], float]:
    return lambda number: seconds + delays.get(number, 0.0)


def resembling(seed: int, count: int, phi: float, spread: float) -> list[float]:
    """Step times around 10 ms that forget the share ``1 - phi`` of their deviation with each step."""
    generator = random.Random(seed)
    values, deviation = [], generator.gauss(0, 1)
    for _ in range(count):
        values.append(0.01 * max(0.05, 1 + spread * deviation))
        deviation = phi * deviation + math.sqrt(1 - phi * phi) * generator.gauss(0, 1)
    return values


@pytest.mark.parametrize("disturbance", DISTURBANCES)
@pytest.mark.parametrize("balance", COMPUTE)
@pytest.mark.parametrize(("workers", "prefetch"), FEW)
def test_the_rate_is_the_long_run_rate(workers: int, prefetch: int, balance: str, disturbance: str) -> None:
    build, compute = always(0.01 * max(1, workers)), COMPUTE[balance]
    truth = SimulatedPipeline(workers, prefetch, build, always(compute)).true_rate(1500)
    machine = SimulatedPipeline(workers, prefetch, build, delayed(compute, DISTURBANCES[disturbance]))
    tolerance = 0.015 if disturbance == "five slow steps" else 0.01  # then the window begins at the last of them
    assert machine.measure().samples_per_second == pytest.approx(truth, rel=tolerance)


@pytest.mark.parametrize("step", [0.0025, 0.03, 0.01, 0.009, 0.0103])
@pytest.mark.parametrize(("workers", "prefetch"), FEW)
def test_the_rate_is_that_of_the_long_run_after_a_pause_and_where_build_times_vary(
    workers: int, prefetch: int, step: float
) -> None:
    generator = random.Random(0)
    builds = [0.01 * max(1, workers) * max(0.1, generator.gauss(1, 0.1)) for _ in range(6000)]
    machine = SimulatedPipeline(workers, prefetch, builds.__getitem__, always(step), now=5.0)
    summary = machine.measure()
    tolerance = max(0.03, summary.relative_half_width)  # a few bursts vary by chance
    assert summary.samples_per_second == pytest.approx(machine.true_rate(), rel=tolerance)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("workers", "prefetch"), [(0, 1), (1, 2), (2, 2), (4, 2), (8, 2), (4, 8), (8, 8)])
def test_rare_slow_batches_count_as_what_they_cost(workers: int, prefetch: int, seed: int) -> None:
    generator = random.Random(seed)
    builds = [0.8 if generator.random() < 0.05 else 0.04 for _ in range(10_000)]
    machine = SimulatedPipeline(workers, prefetch, builds.__getitem__, always(0.005))
    run, window = machine.run(Request(seconds=20))
    summary = machine.summary(run, window)
    first = window.first + summary.dropped_steps
    its_own = replace(machine, build=lambda number: builds[first + number % summary.steps])
    assert summary.samples_per_second == pytest.approx(its_own.true_rate(8 * summary.steps), rel=0.06)


def measured_with(seed: int, workers: int, build: float, phi: float, spread: float) -> WindowSummary:
    """What is said of a pipeline whose step times are noisy."""
    steps = resembling(seed, 1000, phi, spread)
    return SimulatedPipeline(workers, 2, always(build), steps.__getitem__).measure(Request(seconds=2))


@pytest.mark.parametrize("workers", [0, 4])
@pytest.mark.parametrize(("phi", "spread"), [(0.0, 0.03), (0.8, 0.1)])
def test_intervals_cover_the_truth_as_often_as_promised(phi: float, spread: float, workers: int) -> None:
    covered = 0
    for seed in range(100):
        summary = measured_with(seed, workers, 0.002 if workers else 0.0, phi, spread)
        error = abs(summary.samples_per_second - BATCH_SIZE / 0.01)
        covered += error <= summary.relative_half_width * summary.samples_per_second
    assert covered >= 0.9 * 100


@pytest.mark.parametrize(("workers", "spread"), [(0, 0.3), (4, 0.03)])
def test_noise_alone_is_steady(spread: float, workers: int) -> None:
    assert sum(measured_with(seed, workers, 0.0, 0.0, spread).is_steady for seed in range(100)) >= 0.95 * 100


@pytest.mark.parametrize("prefetch", [1, 2, 8])
@pytest.mark.parametrize("workers", [2, 3, 8])
@pytest.mark.parametrize("seconds", [0.7, 5.0])
def test_a_window_that_waits_for_data_does_not_cut_bursts(workers: int, prefetch: int, seconds: float) -> None:
    machine = SimulatedPipeline(workers, prefetch, always(0.04 * workers), always(0.001))
    run, window = machine.run(Request(seconds=seconds))
    assert (len(run.log.ends) - window.first) % workers == 0


def test_a_window_of_slow_steps_ends_at_any_of_them_where_data_is_there() -> None:
    machine = SimulatedPipeline(8, 2, always(0.1), always(3.0))
    run, window = machine.run(Request(seconds=5))
    assert machine.now < 20
    assert (len(run.log.ends) - window.first) % 8 != 0
    assert machine.summary(run, window).samples_per_second == pytest.approx(BATCH_SIZE / 3.0)


@pytest.mark.parametrize("seconds", [0.5, 5.0])
@pytest.mark.parametrize("step", [0.001, 0.01, 0.05, 0.3, 2.0])
@pytest.mark.parametrize("workers", [0, 4])
def test_a_window_has_sixty_steps_or_the_length_that_was_asked_for(workers: int, step: float, seconds: float) -> None:
    machine = SimulatedPipeline(workers, 2, always(step / 10), always(step))
    run, window = machine.run(Request(seconds=seconds))
    length = run.log.ends[-1] - window.clock
    assert len(run.log.ends) - window.first >= 60 or length >= seconds
    assert length <= max(1.5 * seconds + 2 * step, 5.6 * step)  # five that begin with loading have an interval


@pytest.mark.parametrize("step", [0.01, 0.03, 0.1])
@pytest.mark.parametrize(("excess", "steps"), [(1.0, 10), (0.3, 30)])
@pytest.mark.parametrize("workers", [0, 2, 8])
def test_a_decaying_step_time_is_waited_for_or_told(workers: int, excess: float, steps: int, step: float) -> None:
    machine = SimulatedPipeline(workers, 2, always(0.0), lambda number: step * (1 + excess * math.exp(-number / steps)))
    summary = machine.measure()
    assert summary.samples_per_second == pytest.approx(BATCH_SIZE / step, rel=0.03) or not summary.is_steady


@pytest.mark.parametrize("prefetch", [8, 32])
def test_a_window_outlasts_the_batches_that_were_built_before_it(prefetch: int) -> None:
    machine = SimulatedPipeline(4, prefetch, always(0.004), always(0.01))
    run, window = machine.run(Request(seconds=5))
    assert len(run.log.marks) - window.first >= 2 * 4 * prefetch


def run_on(device: SimulatedAccelerator, batches: ReadyBatches, request: Request, **workers: int) -> TimedRun:
    config = Config(batch_size=BATCH_SIZE, **workers)
    return TimedRun(config, device.step, batches, device, request)


def measured_on(run: TimedRun) -> WindowSummary:
    run.wait_for_steady_stock()
    window = run.fill()
    workers = run.config.num_workers
    return summarise(run.rows(window), window.ready, workers, whole_epochs=window.whole_epochs)


@pytest.mark.parametrize("epoch_batches", [400, 1000, 100_000])
@pytest.mark.parametrize(("host", "step"), [(0.0005, 0.01), (0.0005, 0.3), (0.02, 0.01)])
def test_a_window_ends_in_time_although_the_host_runs_ahead(host: float, step: float, epoch_batches: int) -> None:
    device = SimulatedAccelerator(host, step)
    summary = measured_on(run_on(device, ReadyBatches(epoch_batches), Request(seconds=3)))
    ahead = max(LEAST_AHEAD * step, AHEAD_SECONDS)
    assert summary.seconds <= 3 + ahead + 2 * step
    assert device.furthest <= ahead + 3 * step
    assert summary.samples_per_second == pytest.approx(BATCH_SIZE / max(host, step), rel=0.01)
    assert summary.waiting_share == pytest.approx(max(0.0, 1 - step / host), abs=0.01)


def test_an_epoch_that_is_longer_than_it_is_said_to_be_does_not_stop_the_run() -> None:
    device, batches = SimulatedAccelerator(0.001, 0.01), LongerEpochs(10, 14)
    run = run_on(device, batches, Request(seconds=3))
    run.advance(12)
    run.wait_for_steady_stock()
    assert batches.steps_left < 0
    rows = run.rows(run.fill())
    assert device.now < 10
    assert rows[-1].end == pytest.approx(0.01 * len(rows), rel=0.01)


@pytest.mark.parametrize("epoch_batches", [20, 60, 1000])
def test_slow_steps_near_the_end_of_a_long_epoch_do_not_cost_the_whole_epoch(epoch_batches: int) -> None:
    device = SimulatedAccelerator(0.001, 2.0)
    run = run_on(device, ReadyBatches(epoch_batches), Request(seconds=5), num_workers=8, prefetch_factor=8)
    summary = measured_on(run)
    assert device.now < 30
    assert summary.samples_per_second == pytest.approx(BATCH_SIZE / 2.0, rel=0.01)


@pytest.mark.parametrize("loader", FEW)
@pytest.mark.parametrize("balance", COMPUTE)
def test_the_shares_of_the_step_are_its_parts_and_the_device_is_waited_for_at_both_ends_alone(
    loader: tuple[int, int], balance: str
) -> None:
    machine = SimulatedPipeline(*loader, always(0.01 * max(1, loader[0])), always(COMPUTE[balance]))
    run, window = machine.run(Request(seconds=1))
    assert machine.synchronized == [window.clock, run.log.ends[-1]]
    summary = machine.summary(run, window)
    step = summary.seconds / summary.steps
    assert summary.step_time.data_wait == pytest.approx(summary.waiting_share * step, rel=1e-9)
    assert summary.step_time.forward + summary.step_time.backward == pytest.approx(COMPUTE[balance], rel=1e-9)
    if balance == "loader-bound" and loader[0]:
        assert summary.waiting_share == pytest.approx(0.75, abs=0.03)


# --- stalls, bursts and short epochs ---

SHARD, SHARD_SECONDS, SAMPLE_SECONDS = 200, 1.0, 0.0005


def shards(workers: int, batch_size: int = 32) -> Callable[[int], float]:
    """Seconds to build a batch where each worker fetches shards of 200 samples as a whole, then has them at once."""

    def build(number: int) -> float:
        own = number // max(1, workers)  # batches that the same worker has built before
        opened = math.ceil((own + 1) * batch_size / SHARD) - math.ceil(own * batch_size / SHARD)
        return opened * SHARD_SECONDS + batch_size * SAMPLE_SECONDS

    return build


@pytest.mark.parametrize("seconds", [1.5, 3.0, 5.0])
@pytest.mark.parametrize("workers", [0, 1, 4])
@pytest.mark.parametrize("now", [0.0, 0.4, 0.8])
def test_stalls_longer_than_a_step_count_as_often_as_they_come(workers: int, seconds: float, now: float) -> None:
    machine = SimulatedPipeline(workers, 2, shards(workers), always(0.003), now=now)
    summary = machine.measure(Request(seconds=seconds))
    assert summary.samples_per_second == pytest.approx(machine.true_rate(), rel=0.03)
    assert summary.relative_half_width < 0.3
    assert summary.seconds <= 3 * seconds + 3


@pytest.mark.parametrize("seconds", [1.5, 3.0])
@pytest.mark.parametrize("seed", range(10))
def test_large_batches_in_bursts_and_short_epochs_are_measured_over_whole_ones(seed: int, seconds: float) -> None:
    """Two workers take a second for a batch of 512, an epoch has twelve."""
    generator = random.Random(seed)
    builds = [1.024 * generator.uniform(0.98, 1.02) for _ in range(12)]
    machine = SimulatedPipeline(2, 2, builds.__getitem__, always(0.01), epoch_batches=12, restart=0.05)
    summary = machine.measure(Request(seconds=seconds))
    assert summary.steps % 12 == 0
    assert summary.samples_per_second == pytest.approx(machine.true_rate(1200), rel=0.02)
    assert machine.now < 21


@pytest.mark.parametrize("every", [10, 30, 200])
@pytest.mark.parametrize(("workers", "prefetch"), [(0, 1), (2, 2), (3, 4)])
@pytest.mark.parametrize("balance", COMPUTE)
def test_what_validation_lets_workers_build_counts_as_often_as_it_comes(
    balance: str, workers: int, prefetch: int, every: int
) -> None:
    machine = SimulatedPipeline(
        workers,
        prefetch,
        always(0.01 * max(1, workers)),
        always(COMPUTE[balance]),
        validates_every=every,
        validation=0.5,
    )
    assert machine.measure().samples_per_second == pytest.approx(machine.true_rate(3000), rel=0.06)


@pytest.mark.parametrize("pause", [0.0, 0.3, 2.0])
@pytest.mark.parametrize(("workers", "prefetch"), [(2, 1), (2, 4), (4, 1), (4, 4)])
@pytest.mark.parametrize("epoch_batches", [4, 6, 8])
def test_the_last_batches_of_a_short_epoch_say_nothing_of_the_workers(
    epoch_batches: int, workers: int, prefetch: int, pause: float
) -> None:
    """A worker takes 0.45 s for a batch and a step 0.05 s; the loop begins so many seconds after the first batch."""
    machine = SimulatedPipeline(workers, prefetch, always(0.45), always(0.05), epoch_batches=epoch_batches)
    truth = machine.true_rate(60 * epoch_batches)
    config = Config(batch_size=BATCH_SIZE, num_workers=workers, prefetch_factor=prefetch)
    run = TimedRun(config, machine.step, machine, machine.device, Request(seconds=1.0))
    run.advance(1)
    machine.now += pause
    run.wait_for_steady_stock()
    assert machine.summary(run, run.fill()).samples_per_second == pytest.approx(truth, rel=0.1)


@pytest.mark.parametrize("epoch_batches", [7, 24, 100, 1000])
@pytest.mark.parametrize(("workers", "prefetch"), [(0, 1), (1, 16), (2, 2), (4, 1), (4, 16)])
@pytest.mark.parametrize("balance", COMPUTE)
def test_an_epoch_of_any_length_is_measured_as_it_is(
    balance: str, workers: int, prefetch: int, epoch_batches: int
) -> None:
    build = always(0.04 * max(1, workers))
    machine = SimulatedPipeline(workers, prefetch, build, always(4 * COMPUTE[balance]), epoch_batches=epoch_batches)
    summary = machine.measure(Request(seconds=1.5))
    assert summary.samples_per_second == pytest.approx(machine.true_rate(8 * epoch_batches), rel=0.06)
    assert summary.relative_half_width < 0.5
    assert machine.now < 24
