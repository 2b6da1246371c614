"""Measurements on a fake accelerator against the arithmetic that it is made of."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from autotune.config import Config
from autotune.measure.benchmark import measure
from autotune.measure.step_probe import WarmStep, open_step
from autotune.records import Measurement, Request
from tests.accelerator import GIB, Card, FakeAccelerator, Job, on_card, workload_of

FED = Config(batch_size=32, num_workers=8, prefetch_factor=4, pin_memory=True)
STEPS = (0.0003, 0.003, 0.03, 0.4, 5.0)
"""Seconds of a step."""


def warm(card: Card, job: Job, config: Config) -> tuple[WarmStep, FakeAccelerator]:
    device = FakeAccelerator(card)
    device.forget_peaks()
    return open_step(workload_of(card, job), config, device), device


def measured(card: Card, job: Job, config: Config, seconds: float = 3.0) -> tuple[Measurement, WarmStep]:
    with on_card(card, job):
        step, device = warm(card, job, config)
        return measure(workload_of(card, job), config, step, device, Request(seconds=seconds, seed=0)), step


def of_compute(seconds: float) -> Job:
    return Job(sample=seconds / 32, kernels=round(min(300, 0.5 * seconds / 5e-6)))


def of_launches(seconds: float) -> Job:
    return Job(sample=seconds / 320, kernels=round(seconds / 5e-6))


def of_copies(seconds: float) -> Job:
    return Job(sample=seconds / 640, kernels=3, sample_bytes=round(0.95 * seconds / 32 * 25e9), pinning=1e15)


def of_loader(seconds: float) -> Job:
    return Job(sample=seconds / 320, kernels=3, build=8 * seconds / 32)


KINDS = (of_compute, of_launches, of_copies, of_loader)


@pytest.mark.parametrize("seconds", STEPS)
@pytest.mark.parametrize("kind", KINDS)
def test_rates_are_those_of_arithmetic(kind: Any, seconds: float) -> None:
    card, job = Card(), kind(seconds)
    found, step = measured(card, job, FED)
    assert found.samples_per_second == pytest.approx(job.rate(card, FED), rel=0.02)
    assert step.compute.samples_per_second == pytest.approx(32 / job.step_seconds(card, 32), rel=0.02)


@pytest.mark.parametrize("pin_memory", [False, True])
@pytest.mark.parametrize("num_workers", [0, 4])
def test_every_kind_of_copy_costs_its_time(num_workers: int, pin_memory: bool) -> None:
    card, job = Card(), Job(sample=2e-4, sample_bytes=2**20, build=1e-4, pinning=4e9)
    workers = {"num_workers": num_workers, "prefetch_factor": 2} if num_workers else {}
    config = Config(batch_size=64, pin_memory=pin_memory, **workers)
    assert measured(card, job, config)[0].samples_per_second == pytest.approx(job.rate(card, config), rel=0.02)


@pytest.mark.parametrize("seconds", [0.3, 2.0])
def test_a_warm_up_takes_a_few_steps_however_long_they_are(seconds: float) -> None:
    card = Card()
    with on_card(card, job := Job(sample=seconds / 32)):
        warm(card, job, Config(batch_size=32))
    assert card.now <= max(6 * seconds, 4.0 + 3 * seconds) + 0.01
    assert card.furthest <= 3.1 * seconds


@pytest.mark.parametrize("kernels", [60, 600, 3000])
def test_the_host_s_time_is_that_of_launching_however_many_kernels_a_step_has(kernels: int) -> None:
    card, job = Card(), Job(sample=1e-3, kernels=kernels)
    with on_card(card, job):
        step, _ = warm(card, job, Config(batch_size=32))
    blocked = max(0.0, job.device_seconds(32) / kernels * (kernels - 1000))
    assert step.compute.host_seconds == pytest.approx(kernels * card.launch_seconds, abs=blocked + 1e-4)


def test_a_step_that_reads_its_loss_holds_the_host_up_for_as_long() -> None:
    card, job = Card(), Job(sample=1e-3, kernels=300, waits=True)
    with on_card(card, job):
        times = [warm(card, job, Config(batch_size=batch))[0].compute.host_seconds for batch in (8, 32)]
    assert times[1] - times[0] == pytest.approx(24 * 1e-3 / 3, rel=0.05)  # a third of a step is forward


def test_a_slow_dataset_costs_a_large_batch_of_the_warm_up_no_more_than_small_ones() -> None:
    card, job = Card(), Job(sample=1e-5, build=0.008)
    with on_card(card, job):
        step, _ = warm(card, job, Config(batch_size=1024))
        assert card.now < 2.5
    assert step.compute.samples_per_second == pytest.approx(1e5, rel=0.02)


@pytest.mark.parametrize(("batch", "amp"), [(32, "off"), (512, "off"), (512, "bf16")])
def test_peaks_are_those_of_arithmetic_without_what_the_choice_of_kernels_took(batch: int, amp: Any) -> None:
    card, job = Card(), Job(sample=1e-4, weights=GIB, activations=50 * 2**20, workspace=40 * GIB)
    config = replace(FED, batch_size=batch, amp=amp)
    found, step = measured(card, job, config, seconds=1.0)
    assert found.peak_memory_bytes == pytest.approx(job.peak(batch, amp), rel=0.02)
    assert step.compute.peak_memory_bytes == pytest.approx(job.peak(batch, amp), rel=0.02)


def test_the_limit_is_the_memory_that_can_be_had() -> None:
    card = Card(total=8 * GIB, neighbour=lambda seconds: GIB)
    found, _ = measured(card, Job(sample=1e-4, weights=GIB), FED, seconds=1.0)
    assert found.memory_limit_bytes == 8 * GIB - GIB - card.context


def test_heat_is_seen_and_a_cool_card_is_not_called_hot() -> None:
    hot, _ = measured(Card(speed=lambda seconds: 0.7), of_compute(0.01), FED)
    cool, _ = measured(Card(), of_compute(0.01), FED)
    assert hot.conditions.gpu_slowdowns
    assert not cool.conditions.gpu_slowdowns
    assert cool.conditions.gpu_utilisation == 1.0  # read while it works, not after
