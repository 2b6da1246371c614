"""The step alone: what it costs on a resident batch, and that the largest samples were trained on."""

from __future__ import annotations

import time
import weakref
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import BatchSampler, Dataset, SequentialSampler, SubsetRandomSampler

from autotune.config import Config
from autotune.measure.device import CpuDevice
from autotune.measure.step import tensors_in
from autotune.measure.step_probe import LARGEST_STEPS, WarmStep, open_step
from autotune.workload import Workload
from tests.datasets import CountingUp, Ragged, Squares
from tests.quiet import undisturbed

pytestmark = [pytest.mark.machine, pytest.mark.timed]

STEP_SECONDS = 0.03
MIB = 2**20
LONGEST = 17
"""Length of the longest sequence of ``Ragged``."""


def training(model: nn.Module, batch: Any) -> torch.Tensor:
    loss: torch.Tensor = model(torch.zeros(1, 1)).sum()
    return loss


class Training:
    """A training step that remembers the batches it was given, and sleeps."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.batches: list[Any] = []
        self._seconds = seconds

    def __call__(self, model: nn.Module, batch: Any) -> torch.Tensor:
        self.batches.append(batch)
        time.sleep(self._seconds)
        return training(model, batch)

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


def is_near(warm: WarmStep, samples: int) -> bool:
    """Whether the ceiling is that of so many samples in a sleep; none can be above it."""
    assert warm.ceiling <= samples / STEP_SECONDS
    return warm.ceiling >= 0.85 * samples / STEP_SECONDS


def opened_near(samples: int, dataset: Any, batch_size: int, training: type[Training] = Training) -> WarmStep:
    return undisturbed(lambda: opened(dataset, batch_size, training(STEP_SECONDS)), lambda warm: is_near(warm, samples))


def pad(samples: list[torch.Tensor]) -> torch.Tensor:
    return pad_sequence(samples, batch_first=True)


def in_order(batch_size: int) -> BatchSampler:
    return BatchSampler(SequentialSampler(range(100)), batch_size, drop_last=False)


@pytest.fixture
def warm_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten steps are enough where how fast the model is does not matter."""
    monkeypatch.setattr("autotune.measure.step_probe.WARM_SECONDS", 0.0)


# --- what a step costs ---


@pytest.mark.parametrize("batch_size", [1, 8])
def test_the_ceiling_is_the_rate_of_the_step_on_a_batch_that_is_there(batch_size: int) -> None:
    warm = opened_near(batch_size, Squares(100), batch_size)
    assert is_near(warm, batch_size)
    assert warm.ceiling == warm.compute.samples_per_second


def test_a_batch_that_the_dataset_cannot_fill_counts_what_it_holds() -> None:
    assert is_near(opened_near(10, Squares(10), 32), 10)


def test_loading_is_no_part_of_it() -> None:
    class Slow(Squares):
        def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
            time.sleep(0.05)
            return super().__getitem__(index)

    assert is_near(opened_near(4, Slow(100), 4), 4)


def test_steps_that_were_slow_at_first_do_not_count() -> None:
    class Warming(Training):
        def __call__(self, model: nn.Module, batch: Any) -> torch.Tensor:
            time.sleep(0.1 if len(self.batches) < 3 else 0.0)
            return super().__call__(model, batch)

    assert is_near(opened_near(8, Squares(100), 8, Warming), 8)


def test_on_a_cpu_the_host_is_busy_for_the_whole_step() -> None:
    def is_right(warm: WarmStep) -> bool:
        assert warm.compute.host_seconds >= STEP_SECONDS
        return warm.compute.host_seconds <= 1.2 * STEP_SECONDS

    assert is_right(undisturbed(lambda: opened(Squares(100), 8, Training(STEP_SECONDS)), is_right))


def test_the_cpu_time_of_a_step_is_what_it_computes_and_not_what_it_waits() -> None:
    def compute(model: nn.Module, batch: Any) -> torch.Tensor:
        end = time.thread_time() + STEP_SECONDS
        while time.thread_time() < end:
            pass
        return training(model, batch)

    computing = opened(Squares(100), 8, compute).compute.cpu_seconds
    waiting = opened(Squares(100), 8, Training(STEP_SECONDS)).compute.cpu_seconds
    assert STEP_SECONDS <= computing < 1.5 * STEP_SECONDS
    assert 0 < waiting < 0.5 * STEP_SECONDS


def test_slow_steps_are_made_three_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autotune.measure.step_probe.WARM_CAP_SECONDS", 0.0)
    opened(Squares(100), 8, step := Training(STEP_SECONDS))
    assert len(step.batches) == 3


def test_what_is_timed_is_the_users_own_training_and_it_trains() -> None:
    model = nn.Linear(1, 1)
    before = model.weight.detach().clone()
    open_step(Workload(model, Squares(100)), Config(batch_size=8), CpuDevice())
    assert not torch.equal(model.weight, before)


# --- memory ---


class Rows(Dataset[torch.Tensor]):
    """Samples of 256 KiB."""

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.ones(MIB // 16)


@pytest.mark.usefixtures("warm_at_once")
def test_a_larger_batch_needs_more_memory_by_as_much_as_it_is_larger() -> None:
    small, large = (opened(Rows(), batch_size).compute for batch_size in (4, 132))
    grown = large.peak_memory_bytes - small.peak_memory_bytes
    assert 1.1 * grown >= 32 * MIB
    assert grown < 3 * 32 * MIB  # the samples and the batch made of them


@pytest.mark.usefixtures("warm_at_once")
def test_on_a_cpu_memory_is_the_hosts() -> None:
    compute = opened(Squares(100)).compute
    assert compute.memory == "host"
    assert compute.peak_memory_bytes == compute.host_memory_bytes
    assert MIB < compute.peak_memory_bytes <= compute.memory_limit_bytes


class HasOneLarge(Dataset[torch.Tensor]):
    """Samples of 4 bytes, and one of 64 MiB."""

    def __init__(self, large: int) -> None:
        self._large = large

    def __len__(self) -> int:
        return 31

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.ones(self._large if index == 20 else 1)


@pytest.mark.usefixtures("warm_at_once")
def test_the_peak_is_that_of_a_batch_with_the_largest_sample() -> None:
    small, large = (opened(HasOneLarge(count), 2, collate_fn=pad).compute for count in (2, 16 * MIB))
    assert large.peak_memory_bytes - small.peak_memory_bytes >= 2 * 64 * MIB


# --- the largest samples ---


@pytest.mark.usefixtures("warm_at_once")
def test_where_samples_differ_in_size_the_largest_is_trained_on() -> None:
    opened(Ragged(), training_step=(step := Training()), collate_fn=pad)
    assert step.others
    assert {tuple(batch.shape) for batch in step.others} == {(8, LONGEST)}
    assert step.batches[-1].sum() < 8 * LONGEST


@pytest.mark.usefixtures("warm_at_once")
def test_of_a_sampler_the_largest_of_the_samples_that_it_draws_is_taken() -> None:
    sampler = SubsetRandomSampler(range(12))
    opened(Ragged(), training_step=(step := Training()), collate_fn=pad, sampler=sampler)
    assert [tuple(batch.shape) for batch in step.batches[-LARGEST_STEPS:]] == [(8, 12)] * LARGEST_STEPS


@pytest.mark.usefixtures("warm_at_once")
def test_of_a_batch_sampler_the_largest_of_its_own_batches_is_taken() -> None:
    dataset = Ragged()
    opened(dataset, training_step=(step := Training()), collate_fn=pad, batch_sampler=in_order)
    largest = max(pad([dataset[index] for index in batch]).numel() for batch in in_order(8))
    assert [batch.numel() for batch in step.batches[-LARGEST_STEPS:]] == [largest] * LARGEST_STEPS


@pytest.mark.usefixtures("warm_at_once")
def test_a_batch_of_one_is_the_largest_sample() -> None:
    opened(Ragged(), 1, step := Training(), collate_fn=pad)
    assert [tuple(batch.shape) for batch in step.batches[-LARGEST_STEPS:]] == [(1, LONGEST)] * LARGEST_STEPS


@pytest.mark.usefixtures("warm_at_once")
def test_no_more_samples_are_held_than_a_batch_has() -> None:
    """Held samples would count as memory that training needs."""
    alive: weakref.WeakSet[torch.Tensor] = weakref.WeakSet()
    most = 0

    def counting(samples: list[torch.Tensor]) -> torch.Tensor:
        nonlocal most
        most = max(most, len(alive))
        return pad(samples)

    class Watched(Ragged):
        def __getitem__(self, index: int) -> torch.Tensor:
            sample = super().__getitem__(index)
            alive.add(sample)
            return sample

    opened(Watched(), 8, Training(), collate_fn=counting)
    assert 8 <= most <= 10  # a batch, the largest, and the one that is looked at


class Lists(Ragged):
    """The same as lists, which have no bytes before they are collated."""

    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index).tolist()


@pytest.mark.usefixtures("warm_at_once")
def test_samples_that_only_the_collate_function_turns_into_tensors_have_their_size_too() -> None:
    def collate(samples: list[list[float]]) -> torch.Tensor:
        return pad([torch.tensor(sample) for sample in samples])

    opened(Lists(), training_step=(step := Training()), collate_fn=collate)
    assert {tuple(batch.shape) for batch in step.others} == {(8, LONGEST)}


class Counting(Squares):
    """Counts what was drawn of it."""

    def __init__(self, length: int, seconds: float = 0.0) -> None:
        super().__init__(length)
        self.drawn: list[int] = []
        self._seconds = seconds

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        self.drawn.append(index)
        time.sleep(self._seconds)
        return super().__getitem__(index)


@pytest.mark.usefixtures("warm_at_once")
@pytest.mark.parametrize(("length", "looked_at"), [(10, 10), (33, 32), (10_000, 32)])
def test_of_samples_of_equal_size_a_few_from_all_over_are_drawn_and_not_trained_on(length: int, looked_at: int) -> None:
    dataset = Counting(length)
    opened(dataset, training_step=(step := Training()))
    drawn = dataset.drawn[8:]
    assert len(drawn) == len(set(drawn)) == looked_at
    assert max(drawn) >= 0.9 * (length - 1)
    assert not step.others


@pytest.mark.usefixtures("warm_at_once")
def test_samples_that_are_slow_to_load_are_looked_at_for_a_moment_only() -> None:
    dataset = Counting(10_000, seconds=0.1)
    opened(dataset, 1)
    assert 2 <= len(dataset.drawn) <= 1 + 4


@pytest.mark.usefixtures("warm_at_once")
def test_where_a_sampler_says_what_may_be_drawn_nothing_else_is() -> None:
    dataset = Counting(1000)
    opened(dataset, sampler=SubsetRandomSampler(range(50, 87)))
    assert set(dataset.drawn) <= set(range(50, 87))


@pytest.mark.usefixtures("warm_at_once")
def test_of_an_iterable_dataset_one_batch_is_read() -> None:
    opened(CountingUp(100), training_step=(step := Training()))
    assert not step.others
    assert step.batches[0].flatten().tolist() == list(range(8))


def test_the_optimizers_state_is_there_however_many_batches_make_a_step() -> None:
    device = CpuDevice()
    workload = Workload(nn.Linear(1, 1), CountingUp(64), training_step=training)
    warm = open_step(workload, Config(batch_size=1, accumulation_steps=10_000), device)
    assert warm.step.accumulator.optimizer.state_dict()["state"]


class Compiling(nn.Linear):
    """Remembers that it was compiled, and is not."""

    compiled = 0

    def compile(self, *args: Any, **kwargs: Any) -> None:
        self.compiled += 1


@pytest.mark.usefixtures("warm_at_once")
@pytest.mark.parametrize(
    ("length", "options", "last"), [(20, ("compile",), 4), (20, (), 8), (24, ("compile",), 8), (17, ("compile",), 8)]
)
def test_a_compiled_step_has_seen_the_last_batch_of_an_epoch(length: int, options: Any, last: int) -> None:
    model, step = Compiling(1, 1), Training()
    workload = Workload(model, Squares(length), training_step=step)
    open_step(workload, Config(batch_size=8, options=options), CpuDevice())
    assert model.compiled == len(options)
    assert len(step.batches[-1][0]) == last


def test_the_first_step_is_told_apart() -> None:
    class Compiled(Training):
        def __call__(self, model: nn.Module, batch: Any) -> torch.Tensor:
            time.sleep(0.0 if self.batches else 0.3)
            return super().__call__(model, batch)

    compute = opened(Squares(100), 8, Compiled(STEP_SECONDS)).compute
    assert compute.first_step_seconds >= 0.3
    assert compute.host_seconds < 0.1
