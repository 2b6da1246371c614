"""The early end of windows whose rate is of no interest, on simulated time."""

from __future__ import annotations

import pytest

from autotune.measure.timed_run import TimedRun, Window
from autotune.measure.window import WindowSummary
from autotune.records import Request
from tests.measure.test_timed_run import measured_on, resembling, run_on
from tests.pipeline import BATCH_SIZE, ReadyBatches, SimulatedAccelerator, SimulatedPipeline, always

COMPUTE = {"loader-bound": 0.002, "balanced": 0.01, "draining slowly": 0.009, "compute-bound": 0.03}
"""Seconds of a step, where the workers need 0.01 for a batch together."""
SECONDS = 2.0
TRUTH = BATCH_SIZE / 0.01  # samples per second of a noisy pipeline in the long run
PAUSE = 60.0  # seconds in which every queue is full
SEEDS = 40


def pipeline(workers: int, prefetch: int, balance: str) -> SimulatedPipeline:
    build = always(0.01 * max(1, workers))
    return SimulatedPipeline(workers, prefetch, build, always(COMPUTE[balance]), now=PAUSE)


def noisy(workers: int, prefetch: int, phi: float, spread: float, seed: int) -> SimulatedPipeline:
    """A pipeline of known rate whose slower part forgets the share ``1 - phi`` of its deviation with each batch."""
    times = resembling(seed, 4000, phi, spread)
    if workers == 0:
        return SimulatedPipeline(0, 1, always(0.0), times.__getitem__)
    return SimulatedPipeline(workers, prefetch, lambda number: workers * times[number], always(0.002), now=PAUSE)


def measured(machine: SimulatedPipeline, least_rate: float | None) -> tuple[TimedRun, Window, WindowSummary]:
    run, window = machine.run(Request(seconds=SECONDS, least_rate=least_rate))
    return run, window, machine.summary(run, window)


def length(run: TimedRun, window: Window) -> float:
    return run.log.ends[-1] - window.clock


@pytest.mark.parametrize("balance", COMPUTE)
@pytest.mark.parametrize(("workers", "prefetch"), [(0, 1), (1, 2), (2, 2), (1, 32), (2, 16), (4, 2), (8, 2), (8, 8)])
def test_a_pipeline_that_is_just_fast_enough_is_measured_to_the_end_and_one_that_is_too_slow_is_ended_early(
    workers: int, prefetch: int, balance: str
) -> None:
    truth = pipeline(workers, prefetch, balance).true_rate(1500)
    full, window, _ = measured(pipeline(workers, prefetch, balance), None)
    run, same, _ = measured(pipeline(workers, prefetch, balance), truth / 1.02)
    assert not full.stopped_early
    assert not run.stopped_early
    assert (run.log.ends, same) == (full.log.ends, window)
    if balance != "draining slowly":
        run, same, summary = measured(pipeline(workers, prefetch, balance), truth / 0.9)
        assert run.stopped_early
        assert length(run, same) < length(full, window)
        assert same == window
        assert summary.samples_per_second == pytest.approx(truth, rel=0.03)


@pytest.mark.parametrize("phi", [0.0, 0.8])
@pytest.mark.parametrize(("workers", "prefetch"), [(0, 1), (1, 8), (8, 8)])
def test_noise_hardly_ever_ends_a_pipeline_that_is_fast_enough(workers: int, prefetch: int, phi: float) -> None:
    machines = [noisy(workers, prefetch, phi, 0.1, seed) for seed in range(SEEDS)]
    assert sum(measured(machine, TRUTH / 1.05)[0].stopped_early for machine in machines) <= 0.05 * SEEDS


@pytest.mark.parametrize(("workers", "prefetch"), [(0, 1), (1, 8), (8, 8)])
def test_a_noisy_pipeline_that_is_too_slow_is_ended_early_nearly_always(workers: int, prefetch: int) -> None:
    ended, covered, spent = 0, 0, 0.0
    for seed in range(SEEDS):
        run, window, summary = measured(noisy(workers, prefetch, 0.5, 0.05, seed), TRUTH / 0.9)
        ended += run.stopped_early
        spent += length(run, window)
        covered += summary.samples_per_second == pytest.approx(TRUTH, rel=0.1)
    assert ended >= 0.95 * SEEDS
    assert spent < 0.5 * SECONDS * SEEDS
    assert covered >= 0.95 * SEEDS


@pytest.mark.parametrize("least_rate", [0.5, 0.9, 0.999])
@pytest.mark.parametrize(("workers", "prefetch"), [(1, 2), (1, 32), (2, 16)])
def test_batches_from_before_the_window_do_not_hide_that_a_loader_is_too_slow_nor_make_it_so(
    workers: int, prefetch: int, least_rate: float
) -> None:
    """A queue that was filled in a pause is ten times as fast as the workers."""
    machine = SimulatedPipeline(workers, prefetch, always(0.05 * workers), always(0.005), now=PAUSE)
    truth = machine.true_rate(1500)
    assert not measured(machine, least_rate * truth)[0].stopped_early


def test_a_window_that_is_ended_early_has_blocks_enough_for_an_interval() -> None:
    run, window, summary = measured(noisy(0, 1, 0.0, 0.05, seed=3), 100 * TRUTH)
    assert run.stopped_early
    assert len(run.log.ends) - window.first >= 15
    assert 0 < summary.relative_half_width < 1


def test_a_slow_beginning_alone_does_not_end_a_window() -> None:
    machine = SimulatedPipeline(0, 1, always(0.0), lambda number: 0.03 if number < 12 else 0.01)
    assert not measured(machine, TRUTH / 1.1)[0].stopped_early


def on_accelerator(step: float, least_rate: float, epoch_batches: int) -> tuple[TimedRun, WindowSummary]:
    request = Request(seconds=3, least_rate=least_rate)
    run = run_on(SimulatedAccelerator(0.0005, step), ReadyBatches(epoch_batches), request)
    summary = measured_on(run)
    assert len(run.log.ends) == len(run.log.marks)
    return run, summary


@pytest.mark.parametrize("epoch_batches", [20, 100_000], ids=["whole epochs", "part of one"])
@pytest.mark.parametrize("step", [0.005, 0.05])
def test_on_an_accelerator_windows_end_early_although_the_host_runs_ahead(step: float, epoch_batches: int) -> None:
    slow, summary = on_accelerator(step, BATCH_SIZE / step / 0.9, epoch_batches)
    fast, full = on_accelerator(step, BATCH_SIZE / step / 1.02, epoch_batches)
    assert slow.stopped_early
    assert not fast.stopped_early
    assert summary.seconds < full.seconds
    assert summary.samples_per_second == pytest.approx(BATCH_SIZE / step, rel=0.01)
    assert full.samples_per_second == pytest.approx(BATCH_SIZE / step, rel=0.01)
    if epoch_batches == 20:  # and still consist of whole epochs
        run, summary = on_accelerator(step, 2 * BATCH_SIZE / step, epoch_batches)
        assert (run.stopped_early, summary.steps % 20) == (True, 0)
