"""The step alone: what it costs on a resident batch, in time and in memory."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, SequentialSampler

from autotune.config import Config
from autotune.measure.batch import tensors_in
from autotune.measure.device import CpuDevice
from autotune.measure.step_probe import RESIDENT, WarmStep, ceiling, open_step
from autotune.workload import Workload
from tests.datasets import CountingUp, Squares
from tests.measure.doing import Doing, spin

pytestmark = pytest.mark.machine

STEP_SECONDS = 0.03
MIB = 2**20


def training(model: nn.Module, batch: Any) -> torch.Tensor:
    loss: torch.Tensor = model(torch.zeros(1, 1)).sum()
    return loss


def sum_of(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = model(batch).sum()
    return loss


class FourNumbers(Dataset[torch.Tensor]):
    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((4,), float(index))


class Training:
    def __init__(self, seconds: float = 0.0) -> None:
        self.batches: list[Any] = []
        self.took: list[float] = []
        self._seconds = seconds

    def __call__(self, model: nn.Module, batch: Any) -> torch.Tensor:
        self.batches.append(batch)
        began = time.perf_counter()
        time.sleep(self._seconds)
        self.took.append(time.perf_counter() - began)
        return training(model, batch)

    def samples(self, steps: int) -> int:
        """Samples in the last batches."""
        return sum(len(next(tensors_in(batch))) for batch in self.batches[-steps:])

    @property
    def others(self) -> list[Any]:
        """The batches that differ from the resident one."""
        first = list(tensors_in(self.batches[0]))
        return [batch for batch in self.batches if not all(map(torch.equal, tensors_in(batch), first))]


def opened(dataset: Any, batch_size: int = 8, training_step: Any = training, **options: Any) -> WarmStep:
    device = CpuDevice()
    device.forget_peaks()
    workload = Workload(nn.Linear(1, 1), dataset, training_step=training_step, **options)
    return open_step(workload, Config(batch_size=batch_size), device)


def opened_at_once(*given: Any, **options: Any) -> WarmStep:
    """The same after ten steps on one batch, which are enough where how fast the model is does not matter."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("autotune.measure.step_probe.RESIDENT", 1)
        patch.setattr("autotune.measure.step_probe.WARM_SECONDS", 0.0)
        return opened(*given, **options)


# --- what a step costs ---


def test_the_ceiling_is_the_rate_of_the_step_on_a_batch_that_is_there() -> None:
    """Where loading counted, a step took 7 times as long; no neighbour makes the mean step longer than the longest."""
    step = Training(STEP_SECONDS)
    compute = opened(Doing(lambda index: time.sleep(0.05), 100), 4, step).compute
    assert STEP_SECONDS <= compute.host_seconds <= 2 * max(step.took)
    assert 4 / (2 * max(step.took)) <= compute.samples_per_second <= 4 / STEP_SECONDS


def test_a_batch_that_the_dataset_cannot_fill_counts_what_it_holds() -> None:
    compute = opened(Squares(10), 32, Training(STEP_SECONDS)).compute
    assert compute.samples_per_second <= 10 / STEP_SECONDS


class Sleeping(Training):
    """A step of 20 ms, and 1 ms more for each of the largest index in the batch."""

    @staticmethod
    def seconds(batch: Any) -> float:
        return 0.020 + float(batch[0].max()) / 1000

    def __call__(self, model: nn.Module, batch: Any) -> torch.Tensor:
        self._seconds = self.seconds(batch)
        return super().__call__(model, batch)


def test_where_batches_differ_the_ceiling_is_that_of_all_their_samples_in_the_time_of_all() -> None:
    """A batch takes 27 to 79 ms: no single one tells what an epoch takes."""
    step = Sleeping()
    warm = opened(Squares(60), 8, step, sampler=SequentialSampler(range(60)))
    kept = step.batches[:RESIDENT]
    assert sorted(len(batch[0]) for batch in kept) == [4] + [8] * (RESIDENT - 1)
    truth = sum(len(batch[0]) for batch in kept) / sum(map(Sleeping.seconds, kept))
    own = step.samples(len(step.took)) / sum(step.took)
    assert 0.8 * own <= warm.compute.samples_per_second <= truth
    assert 0.05 < warm.compute.spread < 0.4


def test_batches_that_take_the_same_time_have_no_spread_and_those_that_differ_the_error_of_their_mean() -> None:
    assert ceiling([2.0, 1.0, 1.0, 1.0, 1.0, 1.0], [8]) == (8.0, 0.0)
    assert ceiling([1.0] * 9, [8] * 4) == (8.0, 0.0)
    rate, spread = ceiling([1.0, 3.0] * 10, [8, 8])
    assert (rate, spread) == (4.0, pytest.approx(12.706 / 2 / 2, rel=1e-3))  # of two batches, Student's t is wide
    assert ceiling([1.0, 0.5] * 10, [8, 4]) == (8.0, pytest.approx(0.0))
    few = [1.0, 2.0, 1.0, 2.0, 1.0, 2.0, 1.0, 2.0]
    assert ceiling(few, [8] * 8)[1] < spread / 4


def test_noise_within_a_batch_is_no_difference_between_batches() -> None:
    assert ceiling([1.0, 1.1, 0.9, 1.0, 0.95, 1.05, 1.1, 0.9] * 6, [8] * 3)[1] < 0.01


def test_the_first_steps_do_not_count_where_batches_take_turns() -> None:
    assert ceiling([5.0, 4.0, 2.0, 4.0, *[1.0, 2.0] * 8], [8, 8])[0] == pytest.approx(16 / 3)


def test_of_batches_that_fill_the_memory_one_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autotune.measure.step_probe.RESIDENT_SHARE", 0.0)
    opened(Squares(100), 8, step := Training(STEP_SECONDS))
    assert not step.others


def test_a_last_batch_of_one_sample_is_not_trained_on() -> None:
    opened(Squares(17), 8, step := Training())
    assert {len(batch[0]) for batch in step.batches} == {8}


@pytest.mark.parametrize(("length", "options"), [(17, {}), (18, {}), (17, {"drop_last": True})])
def test_a_last_batch_of_one_sample_fails_with_batch_normalisation_as_training_would(
    length: int, options: dict[str, Any]
) -> None:
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 1))
    workload = Workload(model, FourNumbers(length), training_step=sum_of, loader_options=options)
    if length % 8 == 1 and not options:
        with pytest.raises(ValueError, match="more than 1 value per channel"):
            open_step(workload, Config(batch_size=8), CpuDevice())
    else:
        open_step(workload, Config(batch_size=8), CpuDevice())


def test_a_last_batch_of_one_image_is_no_trouble_for_batch_normalisation() -> None:
    model = nn.Sequential(nn.Unflatten(1, (1, 2, 2)), nn.BatchNorm2d(1), nn.Flatten(), nn.Linear(4, 1))
    open_step(Workload(model, FourNumbers(17), training_step=sum_of), Config(batch_size=8), CpuDevice())


class OnAnAccelerator(CpuDevice):
    torch_device = torch.device("meta")


class Taking:
    """The step of a script: it takes batches as they come."""

    scale, loss, non_blocking = 1.0, None, False

    def __init__(self, device: CpuDevice) -> None:
        self._mark = device.mark
        self.places: set[str] = set()

    def __call__(self, batch: Any, samples: int | None = None) -> Any:
        self.places |= {str(each.device) for each in tensors_in(batch)}
        time.sleep(0.002)
        return (self._mark(),) * 6

    def flush(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


def test_a_scripts_batches_lie_where_its_loader_puts_them_and_not_on_the_accelerator() -> None:
    device = OnAnAccelerator()
    step = Taking(device)
    open_step(Workload(nn.Linear(4, 1), FourNumbers(64)), Config(batch_size=8), device, step=step)
    assert step.places == {"cpu"}


class Compiled(Training):
    def __call__(self, model: nn.Module, batch: Any) -> torch.Tensor:
        time.sleep(0.0 if self.batches else 0.3)
        return super().__call__(model, batch)


def test_the_first_step_is_told_apart() -> None:
    compute = opened(Squares(100), 8, Compiled(STEP_SECONDS)).compute
    assert compute.first_step_seconds >= 0.3 > compute.host_seconds


def test_the_cpu_time_of_a_step_is_what_it_computes_and_not_what_it_waits() -> None:
    def compute(model: nn.Module, batch: Any) -> torch.Tensor:
        spin(STEP_SECONDS)
        return training(model, batch)

    assert opened(Squares(100), 8, compute).compute.cpu_seconds >= STEP_SECONDS
    assert 0 < opened(Squares(100), 8, Training(STEP_SECONDS)).compute.cpu_seconds < STEP_SECONDS


def test_slow_steps_are_made_three_times(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("ROUND_SECONDS", "WARM_CAP_SECONDS"):
        monkeypatch.setattr(f"autotune.measure.step_probe.{limit}", 0.0)
    opened(Squares(100), 8, step := Training(STEP_SECONDS))
    assert len(step.batches) == 3


# --- memory ---


class Rows(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.ones(MIB // 16)


def test_a_larger_batch_needs_more_memory_of_the_host_by_as_much_as_it_is_larger() -> None:
    small, large = (opened_at_once(Rows(), batch_size).compute for batch_size in (4, 132))
    grown = large.peak_memory_bytes - small.peak_memory_bytes
    assert 1.1 * grown >= 32 * MIB
    assert grown < 3 * 32 * MIB  # the samples and the batch made of them
    assert small.memory == "host"
    assert MIB < small.peak_memory_bytes == small.host_memory_bytes <= small.memory_limit_bytes


def test_the_optimizers_state_is_there_however_many_batches_make_a_step() -> None:
    workload = Workload(nn.Linear(1, 1), CountingUp(64), training_step=training)
    warm = open_step(workload, Config(batch_size=1, accumulation_steps=10_000), CpuDevice())
    assert warm.step.accumulator.optimizer.state_dict()["state"]


class Compiling(nn.Linear):
    compiled = 0

    def compile(self, *args: Any, **kwargs: Any) -> None:
        self.compiled += 1


@pytest.mark.parametrize(
    ("length", "options", "last"), [(20, ("compile",), 4), (20, (), 8), (24, ("compile",), 8), (17, ("compile",), 8)]
)
def test_a_compiled_step_has_seen_the_last_batch_of_an_epoch(
    length: int, options: Any, last: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autotune.measure.step_probe.WARM_SECONDS", 0.0)
    workload = Workload(model := Compiling(1, 1), Squares(length), training_step=(step := Training()))
    open_step(workload, Config(batch_size=8, options=options), CpuDevice())
    assert (model.compiled, len(step.batches[-1][0])) == (len(options), last)
