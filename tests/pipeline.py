"""A DataLoader and a training step on simulated time, so that the code that measures can be held against arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from autotune.config import Config
from autotune.measure.device import CpuDevice
from autotune.measure.step import StepMarks
from autotune.measure.timed_run import TimedRun, Window
from autotune.measure.window import WindowSummary, summarise
from autotune.records import Request
from tests.accelerator import Card, FakeAccelerator

BATCH_SIZE = 8
BATCH = torch.zeros(BATCH_SIZE, 1)

Seconds = Callable[[int], float]
"""The length of something, by the number of its batch."""


def always(seconds: float) -> Seconds:
    return lambda number: seconds


@dataclass
class SimulatedPipeline:
    """Batches that W workers build ahead of a step, all of it on a clock that only this object moves.

    Batch k is built at ``f[k] = max(y[k-K], f[k-W]) + S[k]`` and handed over at ``y[k] = max(f[k], asked)``, where K =
    workers * prefetch batches are in flight at most: the recursion of torch's DataLoader.
    """

    num_workers: int
    prefetch_factor: int
    build: Seconds
    """Seconds a worker needs for a batch."""
    compute: Seconds
    """Seconds a step needs once it has its batch."""
    now: float = 0.0
    samples: int = BATCH_SIZE
    epochs: int = 1
    epoch_batches: int | None = None
    """Batches in an epoch; ``None`` for one without end."""
    restart: float = 0.0
    synchronized: list[float] = field(default_factory=list)
    """When the device was waited for."""
    validates_every: int | None = None
    """Steps between two validations, during which the clock stands still and workers build."""
    validation: float = 0.0
    built_apart: int = 0
    passed: float = 0.0
    """Seconds of all so far."""
    steps: int = 0
    _began: float = 0.0
    _built: list[float] = field(default_factory=list)
    _given: list[float] = field(default_factory=list)

    def clock(self) -> float:
        return self.now - self.passed

    @property
    def comes_again(self) -> bool:
        return True

    def cut_epoch(self, in_flight: int) -> None:
        """Go on, as a stream without a sampler does."""

    @property
    def steps_left(self) -> int | None:
        return None if self.epoch_batches is None else self.epoch_batches - len(self._given)

    def __next__(self) -> torch.Tensor:
        if self.steps_left == 0:
            self.now += self.restart
            self._began, self._built, self._given = self.now, [], []
            self.epochs += 1
        number = len(self._given)
        if self.num_workers:
            self._build_until(number)
            self.now = max(self.now, self._built[number])
        else:
            self.now += self.build(number)
        self._given.append(self.now)
        return BATCH

    @property
    def ready(self) -> int:
        given = len(self._given)
        self._build_until(min(given + self._in_flight, self.epoch_batches or given + self._in_flight) - 1)
        return sum(built <= self.now for built in self._built[given:]) if self.num_workers else 0

    @property
    def _in_flight(self) -> int:
        return self.num_workers * self.prefetch_factor

    def _build_until(self, number: int) -> None:
        while self.num_workers and len(self._built) <= number:
            k = len(self._built)
            asked = self._given[k - self._in_flight] if k >= self._in_flight else self._began
            free = self._built[k - self.num_workers] if k >= self.num_workers else self._began
            self._built.append(max(asked, free) + self.build(k))

    def step(self, batch: Any, samples: int | None = None) -> StepMarks:
        there, seconds = self.clock(), self.compute(len(self._given) - 1)
        self.now += seconds
        end, self.steps = self.clock(), self.steps + 1
        if self.validates_every and self.steps % self.validates_every == 0:
            before = self.ready
            self.now += self.validation
            self.passed += self.validation
            self.built_apart += self.ready - before
        return there, there, there + seconds / 3, end, end, end

    @property
    def device(self) -> CpuDevice:
        return _SimulatedDevice(self)

    def run(self, request: Request | None = None) -> tuple[TimedRun, Window]:
        workers = {"num_workers": self.num_workers, "prefetch_factor": self.prefetch_factor} if self.num_workers else {}
        config = Config(batch_size=BATCH_SIZE, **workers)
        run = TimedRun(config, self.step, self, self.device, request or Request(seconds=5))
        run.wait_for_steady_stock()
        return run, run.fill()

    def measure(self, request: Request | None = None) -> WindowSummary:
        return self.summary(*self.run(request))

    def summary(self, run: TimedRun, window: Window) -> WindowSummary:
        return summarise(run.rows(window), window.ready, self.num_workers, whole_epochs=window.whole_epochs)

    def true_rate(self, steps: int = 4000) -> float:
        """Return the samples per second in the long run, from the recursion alone."""
        fresh: dict[str, Any] = {"synchronized": [], "_built": [], "_given": []}
        same = replace(self, now=0.0, epochs=1, passed=0.0, steps=0, built_apart=0, _began=0.0, **fresh)
        begin = 0.0
        for number in range(steps):
            if number == steps // 4:
                begin = same.clock()
            same.step(next(same))
        return BATCH_SIZE * (steps - steps // 4) / (same.clock() - begin)


class _SimulatedDevice(CpuDevice):
    def __init__(self, pipeline: SimulatedPipeline) -> None:
        self._pipeline = pipeline
        self.clock = pipeline.clock

    def mark(self) -> float:
        return self._pipeline.clock()

    def synchronize(self) -> None:
        self._pipeline.synchronized.append(self._pipeline.now)


class SimulatedAccelerator(FakeAccelerator):
    """A card without memory of its own, for steps of one length."""

    def __init__(self, host_seconds: float, step_seconds: float) -> None:
        """Take the seconds that the host needs to ask for a step, and those that the device needs for it."""
        self.card = Card()
        super().__init__(self.card)
        self.gpu = None
        self._host_seconds, self._step_seconds = host_seconds, step_seconds

    @property
    def now(self) -> float:
        return self.card.now

    @property
    def furthest(self) -> float:
        return self.card.furthest

    def step(self, batch: Any, samples: int | None = None) -> StepMarks:
        self.card.now += self._host_seconds
        there = self.mark()
        self.card.launch(0, self._step_seconds / 3)
        forwarded = self.mark()
        self.card.launch(0, self._step_seconds * 2 / 3)
        end = self.mark()
        return there, there, forwarded, end, end, end


class ReadyBatches:
    """Batches that are always there, in epochs of a known length."""

    ready = built_apart = 0
    comes_again = True
    samples = BATCH_SIZE

    def __init__(self, epoch_batches: int) -> None:
        self.epoch_batches = epoch_batches
        self._given = 0

    def cut_epoch(self, in_flight: int) -> None:
        """Go on, as a stream without a sampler does."""

    def __next__(self) -> torch.Tensor:
        self._given += 1
        return BATCH

    @property
    def epochs(self) -> int:
        return -(-self._given // self.epoch_batches)

    @property
    def steps_left(self) -> int:
        return self.epochs * self.epoch_batches - self._given


class LongerEpochs(ReadyBatches):
    """Epochs that are longer than they are said to be; asking what is left for ever is an error."""

    def __init__(self, said: int, real: int) -> None:
        super().__init__(said)
        self._real = real
        self._asked = 0

    @property
    def epochs(self) -> int:
        return -(-self._given // self._real)

    @property
    def steps_left(self) -> int:
        self._asked += 1
        assert self._asked < 100_000, "asked without end"
        return self.epoch_batches - (self._given - (self.epochs - 1) * self._real)
