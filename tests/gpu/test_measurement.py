from __future__ import annotations

import functools
import math
from contextlib import contextmanager
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from autotune.config import Config
from autotune.measure.benchmark import measure
from autotune.measure.device import AcceleratorDevice
from autotune.measure.loader import BatchStream, CountingCollate, open_loader
from autotune.measure.step import TrainingStep
from autotune.measure.step_probe import open_step
from autotune.measure.timed_run import TimedRun
from autotune.outcome import Outcome
from autotune.records import Attempt, Measurement, Request
from autotune.runner.local import ProcessRunner
from autotune.workload import Workload, describe
from tests.gpu.workloads import (
    GIBIBYTE,
    PAUSE,
    Rows,
    classifier,
    heavy,
    spinning,
    starving,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BATCH_SIZE = 8
PLAIN = Config(batch_size=BATCH_SIZE)
PINNED = Config(batch_size=BATCH_SIZE, pin_memory=True)
QUICK = Request(seconds=0.3, time_limit=60)
SGD = functools.partial(torch.optim.SGD, lr=0.1)
LIBRARIES = 2**29
"""Bytes of working memory that cuBLAS may take."""


def settled(workload: Workload, config: Config, device: AcceleratorDevice) -> TimedRun:
    counter = CountingCollate(workload.collate_fn, config.num_workers)
    stream = BatchStream(open_loader(workload, config, counter), counter)
    run = TimedRun(config, open_step(workload, config, device).step, stream, device, Request(seconds=1.0))
    run.wait_for_steady_stock()
    return run


def measured_here(workload: Workload, config: Config, device: AcceleratorDevice) -> Measurement:
    return measure(workload, config, open_step(workload, config, device), device, Request(seconds=1.5))


def measured(attempt: Attempt) -> Measurement:
    """The numbers; heat or a busy neighbour makes them suspect, but is no failure."""
    assert attempt.outcome in (Outcome.OK, Outcome.SUSPECT), (attempt.outcome, attempt.message, attempt.details)
    assert attempt.measurement is not None
    return attempt.measurement


def runner_of(name: str) -> ProcessRunner:
    accelerator = torch.accelerator.current_accelerator()
    return ProcessRunner(describe(f"tests.gpu.workloads:{name}"), accelerator.type)


# --- time ---


@pytest.mark.parametrize("config", [PLAIN, PINNED], ids=["pageable", "pinned"])
def test_a_heavy_step_leaves_the_device_no_time_to_wait(device: AcceleratorDevice, config: Config) -> None:
    found = measured_here(heavy(), config, device)
    split = found.step_time
    assert found.device_idle_share < 0.1
    assert split.forward + split.backward + split.optimizer > 0.9 * found.seconds / found.steps
    assert found.samples_per_second == pytest.approx(BATCH_SIZE / split.total, rel=0.02)


def test_a_loader_that_sleeps_shows_as_waiting_between_events(device: AcceleratorDevice) -> None:
    found = measured_here(starving(), PLAIN, device)
    assert found.step_time.data_wait == pytest.approx(PAUSE, rel=0.05)
    assert 0.8 < found.device_idle_share <= 1
    assert 0.95 * BATCH_SIZE / PAUSE <= found.samples_per_second <= BATCH_SIZE / PAUSE
    assert found.ceiling_samples_per_second > 4 * found.samples_per_second


@pytest.mark.parametrize("config", [PLAIN, PINNED], ids=["pageable", "pinned"])
def test_each_phase_is_charged_what_it_takes_on_the_device(cuda: AcceleratorDevice, config: Config) -> None:
    split = measured_here(spinning(10), config, cuda).step_time
    assert split.backward / split.forward == pytest.approx(2, rel=0.1)
    assert split.optimizer / split.forward == pytest.approx(3, rel=0.1)
    assert split.forward / split.total == pytest.approx(1 / 6, rel=0.1)


# --- synchronisation ---


@contextmanager
def synchronising_is_an_error() -> Iterator[None]:
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("make", [heavy, classifier])
def test_no_step_on_pinned_batches_synchronises(cuda: AcceleratorDevice, make: Callable[[], Workload]) -> None:
    run = settled(make(), PINNED, cuda)
    with synchronising_is_an_error():
        run.advance(20)
    assert len(run.log.marks) >= 20


def test_what_else_synchronises_is_found_out(cuda: AcceleratorDevice) -> None:
    def step(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = model(batch).mean()
        loss.item()
        return loss

    reading = settled(Workload(nn.Linear(1, 1), Rows(), training_step=step), PINNED, cuda)
    pageable = settled(heavy(), PLAIN, cuda)
    for run in (reading, pageable):
        with synchronising_is_an_error(), pytest.raises(RuntimeError, match="synchronizing CUDA operation"):
            run.advance(1)


# --- precision ---


class Noting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(16, 4)
        self.dtype = torch.float64
        self.gradient = math.nan

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.linear(x)
        self.dtype = output.dtype
        output.register_hook(self._note)
        return output

    def _note(self, gradient: torch.Tensor) -> None:
        self.gradient = float(gradient.abs().max())


def one_step(amp: Any, device: AcceleratorDevice) -> tuple[Noting, torch.Tensor, torch.Tensor]:
    """Return the model after one step, how far its parameters went, and the loss."""
    if amp not in device.amp_modes:
        pytest.skip(f"{device.name} has no {amp} units")
    model = Noting()
    before = deepcopy(model.linear)
    step = TrainingStep(Workload(model, Rows(), optimizer=SGD), Config(amp=amp), device)
    generator = torch.Generator().manual_seed(1)
    step([0.1 * torch.randn(8, 16, generator=generator), torch.arange(8) % 4])
    assert step.loss is not None
    pairs = zip(model.linear.parameters(), before.parameters(), strict=True)
    moved = torch.cat([(now.detach().cpu() - old.detach()).flatten() for now, old in pairs])
    return model, moved, step.loss.cpu()


@pytest.mark.parametrize(("amp", "dtype"), [("off", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_forward_runs_in_the_precision_asked_for_and_the_loss_in_fp32(
    device: AcceleratorDevice, amp: str, dtype: torch.dtype
) -> None:
    model, _, loss = one_step(amp, device)
    assert model.dtype == dtype
    assert loss.dtype == torch.float32
    assert loss.isfinite()
    assert all(parameter.dtype == torch.float32 for parameter in model.parameters())


@pytest.mark.parametrize("amp", ["bf16", "fp16"])
def test_half_precision_takes_the_same_step_within_its_precision(device: AcceleratorDevice, amp: str) -> None:
    reference = one_step("off", device)[1]
    error = one_step(amp, device)[1] - reference
    assert reference.norm() > 0.01
    assert error.norm() < 0.02 * reference.norm()


def test_fp16_scales_its_loss_and_bf16_does_not(device: AcceleratorDevice) -> None:
    plain = one_step("off", device)[0].gradient
    assert one_step("fp16", device)[0].gradient > 1000 * plain > 0
    assert one_step("bf16", device)[0].gradient == pytest.approx(plain, rel=0.05)


# --- pinned memory ---


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("is_pinned", [True, False])
def test_batches_come_pinned_where_that_is_asked_for(
    cuda: AcceleratorDevice, num_workers: int, is_pinned: bool
) -> None:
    config = Config(batch_size=BATCH_SIZE, num_workers=num_workers, pin_memory=is_pinned)
    counter = CountingCollate(None, num_workers)
    stream = BatchStream(open_loader(classifier(), config, counter), counter)
    try:
        batches = [next(stream) for _ in range(3)]
    finally:
        stream.close()
    assert {tensor.is_pinned() for batch in batches for tensor in batch} == {is_pinned}


# --- in a process of its own ---


@pytest.fixture(scope="module")
def runner() -> Iterator[ProcessRunner]:
    with runner_of("classifier") as runner:
        yield runner


def test_facts_name_the_accelerator(runner: ProcessRunner, device: AcceleratorDevice) -> None:
    facts = runner.inspect(PLAIN)
    assert facts.device == str(device.torch_device)
    assert facts.device_name == device.name != ""
    assert facts.amp_modes == device.amp_modes
    assert facts.dataset_length == 4096
    assert ("driver" in facts.versions) == (device.gpu is not None)


def test_workers_and_pinned_memory_are_measured_together(runner: ProcessRunner, cuda: AcceleratorDevice) -> None:
    config = Config(batch_size=BATCH_SIZE, num_workers=2, pin_memory=True, persistent_workers=True)
    found = measured(runner.measure(config, QUICK))
    assert 0 < found.samples_per_second <= 1.25 * found.ceiling_samples_per_second
    assert 0 <= found.device_idle_share <= 1


@pytest.fixture(scope="module")
def holding() -> Measurement:
    with runner_of("holding_a_gibibyte") as runner:
        return measured(runner.measure(PLAIN, QUICK))


def test_the_peak_is_that_of_the_device_and_holds_every_activation(
    cuda: AcceleratorDevice, holding: Measurement
) -> None:
    assert holding.memory == "device"
    assert holding.memory_limit_bytes == pytest.approx(cuda.memory_limit, rel=0.05)
    assert GIBIBYTE <= holding.peak_allocated_bytes < GIBIBYTE + LIBRARIES
    assert holding.peak_allocated_bytes <= holding.peak_memory_bytes < 2 * GIBIBYTE
