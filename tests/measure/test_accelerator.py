"""Measurements on a fake accelerator against the arithmetic that it is made of."""

from __future__ import annotations

import itertools
import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from autotune import Workload
from autotune.config import Config
from autotune.machine.host import MemoryMeter
from autotune.measure.batch import move
from autotune.measure.benchmark import measure
from autotune.measure.device import CpuDevice, event_maker
from autotune.measure.loader_probe import look_at_loader
from autotune.measure.step_probe import WarmStep, open_step
from autotune.records import Measurement, Request
from tests.accelerator import GIB, Card, FakeAccelerator, Job, on_card, workload_of
from tests.datasets import Squares

FED = Config(batch_size=32, num_workers=8, prefetch_factor=4, pin_memory=True)
STEPS = (0.03, 0.4, 5.0)


def warm(card: Card, job: Job, config: Config) -> tuple[WarmStep, FakeAccelerator]:
    device = FakeAccelerator(card)
    device.forget_peaks()
    return open_step(workload_of(card, job), config, device), device


def measured(card: Card, job: Job, config: Config, seconds: float = 3.0) -> tuple[Measurement, WarmStep]:
    with on_card(card, job):
        step, device = warm(card, job, config)
        return measure(workload_of(card, job), config, step, device, Request(seconds=seconds, seed=0)), step


def test_time_that_is_passed_over_is_in_no_mark_and_not_on_the_clock() -> None:
    card = Card()
    device = FakeAccelerator(card)
    first = device.mark()
    card.launch(0, 2.0)
    begin, passed = device.mark(), card.now
    card.launch(0, 5.0)
    device.pass_over(begin)
    card.launch(0, 3.0)
    last = device.mark()
    device.synchronize()
    assert device.seconds(first, last) == pytest.approx(5.0, abs=1e-3)
    assert card.now - passed > 9.0
    assert device.passed == pytest.approx(5.0, abs=1e-3)


def of_compute(seconds: float) -> Job:
    return Job(sample=seconds / 32, kernels=round(min(300, 0.5 * seconds / 5e-6)))


def of_launches(seconds: float) -> Job:
    return Job(sample=seconds / 320, kernels=round(seconds / 5e-6))


def of_copies(seconds: float) -> Job:
    return Job(sample=seconds / 640, kernels=3, sample_bytes=round(0.95 * seconds / 32 * 25e9), pinning=1e15)


def of_loader(seconds: float) -> Job:
    return Job(sample=seconds / 320, kernels=3, build=8 * seconds / 32)


KINDS = (of_compute, of_launches, of_copies, of_loader)
MANY = [(of_compute, 0.0003), (of_launches, 0.0003), *((kind, 0.003) for kind in KINDS)]
"""Those that take thousands of steps."""


@pytest.mark.parametrize(
    ("kind", "seconds"),
    [*itertools.product(KINDS, STEPS), *(pytest.param(*each, marks=pytest.mark.machine) for each in MANY)],
)
def test_rates_are_those_of_arithmetic(kind: Any, seconds: float) -> None:
    card, job = Card(), kind(seconds)
    found, step = measured(card, job, FED, seconds=1.0 if seconds < min(STEPS) else 3.0)
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


def test_a_collate_function_that_wants_whole_batches_gets_them() -> None:
    card, job = Card(), Job(sample=1e-4, build=0.001)
    plain = workload_of(card, job)

    def collate(samples: list[Any]) -> Any:
        assert len(samples) == 64
        return plain.collate_fn(samples)

    with on_card(card, job):
        step = open_step(replace(plain, collate_fn=collate), Config(batch_size=64), FakeAccelerator(card))
    assert step.compute.samples_per_second == pytest.approx(1e4, rel=0.02)


# --- the device's own parts ---


@pytest.mark.parametrize("is_integrated", [False, True])
def test_a_device_that_shares_the_host_s_memory_can_have_its_page_cache_too(
    monkeypatch: pytest.MonkeyPatch, is_integrated: bool
) -> None:
    monkeypatch.setattr(MemoryMeter, "available", lambda meter: 100 * GIB)
    properties = SimpleNamespace(is_integrated=is_integrated)
    monkeypatch.setattr(Card, "get_device_properties", lambda card, device: properties, raising=False)
    assert FakeAccelerator(Card(total=8 * GIB, context=0)).memory_limit == (100 if is_integrated else 8) * GIB


def of_cuda(*, enable_timing: bool, blocking: bool = False) -> str:
    return "asleep" if blocking else "spinning"


def of_xpu(*, enable_timing: bool) -> str:
    return "spinning"


def test_events_are_waited_for_asleep_where_they_can_be_and_torch_s_own_where_a_module_has_none() -> None:
    makers = {"cuda": of_cuda, "xpu": of_xpu, "mps": of_cuda}
    made = [event_maker(SimpleNamespace(Event=make), torch.device(kind))() for kind, make in makers.items()]
    assert made == ["asleep", "spinning", "spinning"]
    assert event_maker(SimpleNamespace(), torch.device("cpu")).func is torch.Event  # type: ignore[attr-defined]


class Encoding:
    asked: Any = None

    def to(self, device: Any, *, non_blocking: bool = False) -> Encoding:
        self.asked = non_blocking
        return self


def test_an_object_that_moves_itself_is_not_waited_for_either() -> None:
    batch = Encoding()
    move([batch], torch.device("cpu"), non_blocking=True)
    assert batch.asked is True


def test_the_optimizer_has_its_state_before_memory_is_counted_also_where_fp16_skips_its_first_steps() -> None:
    def overflowing(model: nn.Module, batch: Any) -> torch.Tensor:
        loss: torch.Tensor = model(torch.ones(1, 1)).sum() * 1e36
        return loss

    workload = Workload(nn.Linear(1, 1), Squares(64), training_step=overflowing)
    warm = open_step(workload, Config(batch_size=8, amp="fp16"), CpuDevice())
    assert warm.step.accumulator.optimizer.state  # type: ignore[attr-defined]
    assert warm.step.scale < 65536


def test_pinning_is_timed_in_a_thread_that_computes_alone_and_in_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: dict[str, set[int]] = {}

    def pin(tensor: torch.Tensor) -> torch.Tensor:
        kind = "loop" if threading.current_thread() is threading.main_thread() else "thread"
        threads.setdefault(kind, set()).add(torch.get_num_threads())
        return tensor

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    before = torch.get_num_threads()
    trace = look_at_loader(Workload(nn.Linear(1, 1), Squares(64)), Config(batch_size=8), FakeAccelerator(Card()), 0.2)
    assert threads == {"thread": {1}, "loop": {before}}
    assert min(trace.pin_seconds, trace.inline_pin_seconds) > 0


def test_pinned_memory_counts_as_the_host_s(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, _ = measured(Card(), of_compute(0.003), FED)
    monkeypatch.setattr(Card, "host_memory_stats", lambda card: {"allocated_bytes.peak": 64 * GIB})
    pinned, step = measured(Card(), of_compute(0.003), FED)
    assert pinned.host_memory_bytes - plain.host_memory_bytes == pytest.approx(64 * GIB, rel=0.01)
    assert step.compute.host_memory_bytes > 64 * GIB
