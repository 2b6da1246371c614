"""Datasets of every kind through the real measurement, on loaders with real worker processes."""

from __future__ import annotations

import math
import mmap
import time
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
from torch import nn
from torch.utils import data

from autotune.config import Config
from autotune.measure.benchmark import measure
from autotune.measure.device import CpuDevice
from autotune.measure.step_probe import open_step
from autotune.records import Measurement, Request
from autotune.workload import Workload
from tests.datasets import CountingUp, Divided, Shards, SlowToOpen, Squares
from tests.measure.doing import MANY, Doing
from tests.measure.test_step_probe import Training

pytestmark = pytest.mark.machine

WITHOUT_AND_WITH_WORKERS = pytest.mark.parametrize("loader", [{}, {"num_workers": 2}], ids=["alone", "workers"])
LOADERS = pytest.mark.parametrize(
    "loader", [{"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}], ids=["workers", "kept workers"]
)
QUICK = Request(seconds=0.8, target=0.5)
WHOLE = Request(seconds=2.0, target=0.5)
"""Epochs of up to half of it are measured whole: those here take a tenth of that, and have room on a busy machine."""
OPENING = 0.2  # seconds until a process has opened the dataset


@pytest.fixture(autouse=True)
def warm_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten steps are enough here: these tests are not about how fast the model is."""
    monkeypatch.setattr("autotune.measure.step_probe.WARM_SECONDS", 0.0)


def measured(
    dataset: Any, loader: dict[str, Any], batch_size: int = 8, request: Request = QUICK, **options: Any
) -> Measurement:
    training = options.setdefault("training_step", Training())
    workload, device = Workload(nn.Linear(1, 1), dataset, **options), CpuDevice()
    config = Config(batch_size=batch_size, **loader)
    warm = open_step(workload, config, device)
    training.batches.clear()
    return measure(workload, config, warm, device, request)


def notes_with(words: str, found: Measurement) -> list[str]:
    return [note for note in found.notes if words in note]


# --- epochs ---


@WITHOUT_AND_WITH_WORKERS
def test_a_dataset_smaller_than_a_batch_is_one_batch(loader: dict[str, Any]) -> None:
    found = measured(Squares(10), loader, batch_size=32)
    assert (found.samples, found.epoch_samples) == (10 * found.steps, 10)


@LOADERS
@pytest.mark.parametrize(("dataset", "samples", "batches"), [(Squares(37), 37, 5), (Divided(61), 61, 8)])
def test_whole_epochs_count_what_a_short_last_batch_holds_and_the_time_of_every_start(
    dataset: Any, samples: int, batches: int, loader: dict[str, Any]
) -> None:
    found = measured(dataset, loader, request=WHOLE, training_step=(training := Training()))
    assert found.samples == training.samples(found.steps)
    assert (found.samples % samples, found.steps % batches, found.epoch_samples) == (0, 0, samples)
    assert found.beginning_samples is None
    assert found.persistence_gain is not None
    if "persistent_workers" not in loader:  # what ends with its epoch does not tell the memory at the end
        assert found.epoch_host_memory_bytes is None
    assert found.samples_per_second == pytest.approx(found.samples / found.seconds)
    assert found.restart_seconds is not None
    assert found.steady_samples_per_second >= found.samples_per_second


def test_an_epoch_that_never_fills_the_queue_is_measured_whole_and_says_so() -> None:
    found = measured(Squares(80), {"num_workers": 2, "prefetch_factor": 32})
    assert notes_with("prefetches 64 batches, but an epoch has only 10", found)
    assert notes_with("no steady state is reached", found)
    assert found.samples % 80 == 0
    assert found.restart_seconds is not None
    assert found.samples_per_second < found.steady_samples_per_second


def test_of_a_long_epoch_a_part_is_measured_its_start_is_spread_over_all_and_its_memory_is_told() -> None:
    found = measured(Squares(MANY), {"num_workers": 2})
    assert not notes_with("no steady state is reached", found)
    assert (found.epoch_samples, found.restart_seconds) == (MANY, None)
    assert found.samples < found.seen_samples < MANY
    assert found.first_batch_seconds > 0
    whole_epoch = MANY / found.steady_samples_per_second + found.first_batch_seconds
    assert found.samples_per_second == pytest.approx(MANY / whole_epoch)
    assert 0 <= found.ready_batches <= 4
    assert found.worker_growth_bytes_per_sample is not None
    assert found.worker_growth_bytes_per_sample >= 0
    assert found.epoch_host_memory_bytes is not None
    assert found.epoch_host_memory_bytes >= found.host_memory_bytes


@pytest.mark.parametrize(("most", "is_told"), [(100, False), (MANY, True)])
def test_what_workers_keep_is_told_only_where_a_second_look_finds_that_it_goes_on(most: int, is_told: bool) -> None:
    kept: list[mmap.mmap] = []

    def keep(index: int) -> None:
        time.sleep(0.001)
        if len(kept) < most:
            kept.append(mmap.mmap(-1, 2**18, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
            kept[-1].write(b"x" * 2**18)

    found = measured(Doing(keep), {"num_workers": 2})
    assert bool(notes_with("the loader workers' memory grew by ", found)) is is_told
    assert found.epoch_host_memory_bytes is not None
    assert found.epoch_host_memory_bytes < 4 * 2**30  # an epoch of it would be 24 GiB


def test_workers_that_are_kept_open_the_dataset_once_and_new_ones_for_each_epoch() -> None:
    dataset = SlowToOpen(32, OPENING)
    anew, kept = (measured(dataset, {"num_workers": 2, "persistent_workers": keeps}) for keeps in (False, True))
    assert min(anew.first_batch_seconds, kept.first_batch_seconds) >= OPENING
    assert (kept.restart_seconds or 0.0) < (anew.restart_seconds or 0.0) >= OPENING
    assert anew.samples_per_second < kept.samples_per_second < kept.steady_samples_per_second
    assert min(anew.persistence_gain or 0.0, kept.persistence_gain or 0.0) > 0.5


# --- samplers ---


class Sorting(data.SequentialSampler):
    def __iter__(self) -> Iterator[int]:
        time.sleep(OPENING)
        return super().__iter__()


@pytest.mark.parametrize("length", [37, MANY], ids=["whole epochs", "part of one"])
@WITHOUT_AND_WITH_WORKERS
def test_each_epoch_has_the_time_that_the_sampler_takes_to_order_it(loader: dict[str, Any], length: int) -> None:
    found = measured(Squares(length), loader, request=WHOLE, sampler=Sorting(range(length)))
    assert found.order_seconds is not None
    assert found.order_seconds >= OPENING
    most = length / (length / found.steady_samples_per_second + OPENING)
    assert found.samples_per_second <= most * (1 + 1e-9)


# --- iterable datasets ---


@pytest.mark.parametrize(
    ("dataset", "loader"),
    [(Divided(MANY), {"num_workers": 2}), (CountingUp(MANY), {"num_workers": 1}), (CountingUp(MANY), {})],
    ids=["divided", "one worker", "alone"],
)
def test_samples_that_no_other_worker_yields_count_in_full_and_an_unknown_end_is_told(
    dataset: CountingUp, loader: dict[str, Any]
) -> None:
    found = measured(dataset, loader)
    assert found.samples_per_second == found.steady_samples_per_second
    assert not notes_with("samples are counted", found)
    assert (found.idle_workers, found.is_uneven) == (0, False)
    assert found.beginning_samples is not None
    assert found.samples <= found.beginning_samples < MANY
    assert (found.epoch_samples, found.persistence_gain, found.epoch_host_memory_bytes) == (None, None, None)


def test_a_measurement_of_the_beginning_knows_workers_that_got_different_amounts() -> None:
    idle, uneven = measured(Shards(MANY, MANY), {"num_workers": 4}), measured(Shards(MANY, 16), {"num_workers": 2})
    assert None not in (idle.beginning_samples, uneven.beginning_samples)
    assert (idle.idle_workers, idle.is_uneven) == (2, True)
    assert (uneven.idle_workers, uneven.is_uneven) == (0, True)


def test_samples_that_both_workers_yield_count_once() -> None:
    found = measured(CountingUp(MANY), {"num_workers": 2})
    assert found.samples_per_second == pytest.approx(found.steady_samples_per_second / 2)
    assert notes_with("only 50 % of the samples are counted", found)


@pytest.mark.filterwarnings("ignore::UserWarning")  # there is nothing to pin memory for
def test_how_batches_are_copied_is_the_loaders_choice_and_not_that_of_the_first_in_the_cell() -> None:
    workload, device = Workload(nn.Linear(1, 1), Squares(MANY), training_step=Training()), CpuDevice()
    warm = open_step(workload, Config(batch_size=8), device)
    for pins in (True, False):
        measure(workload, Config(batch_size=8, pin_memory=pins), warm, device, Request(seconds=0.1))
        assert warm.step.non_blocking is pins


# --- what else a measurement says ---


@WITHOUT_AND_WITH_WORKERS
def test_the_numbers_of_a_measurement_fit_together(loader: dict[str, Any]) -> None:
    request = Request(seconds=1.5, target=0.0)  # a slow machine too starts enough epochs in it for an interval
    found = measured(Squares(37), loader, request=request, training_step=(training := Training()))
    assert found.settling_steps + found.steps == len(training.batches)
    assert found.settling_steps >= 5
    assert found.seconds >= request.seconds
    assert found.step_time.total == pytest.approx(found.seconds / found.steps)
    assert found.loss is not None
    assert math.isfinite(found.loss)
    assert found.ci95 is not None
    assert found.ci95[0] <= found.samples_per_second <= found.ci95[1]
    assert (found.memory, found.peak_allocated_bytes, found.device_idle_share) == ("host", None, None)
    assert 2**20 < found.peak_memory_bytes == found.host_memory_bytes <= found.memory_limit_bytes


def test_only_workers_build_ahead_grow_and_fill_shared_memory() -> None:
    found = measured(Squares(MANY), {})
    assert (found.ready_batches, found.shared_memory_bytes, found.worker_growth_bytes_per_sample) == (0, 0, None)
    assert found.epoch_host_memory_bytes is None


def raise_at_600(index: int) -> None:
    if index == 600:
        raise ValueError(f"item {index} is broken")


@WITHOUT_AND_WITH_WORKERS
def test_an_item_that_raises_after_many_good_ones_gives_its_message_and_no_rate(loader: dict[str, Any]) -> None:
    dataset, training, before = Doing(raise_at_600, 1000), Training(), set(psutil.Process().children())
    endless = Request(seconds=600.0, target=0.0, seed=0)  # from the start, however long that item takes to come
    with pytest.raises(ValueError, match="item 600 is broken"):
        measured(dataset, loader, request=endless, sampler=data.SequentialSampler(dataset), training_step=training)
    assert training.batches[-1][0].max() == 600 - 1
    assert set(psutil.Process().children()) <= before
