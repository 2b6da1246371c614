"""A fake accelerator: a card of numbers behind the real ``AcceleratorDevice``, and training jobs made of arithmetic.

A device clock runs behind the host's, launches queue, copies have rates, an allocator keeps what it has had, and others
hold memory too. Nothing waits in real time: a second on the card's clock costs none.
"""

from __future__ import annotations

import math
import random
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch.utils.data import Dataset

from autotune import Workload
from autotune.config import Config
from autotune.machine.nvml import NvmlGpu
from autotune.measure import benchmark, numerics_probe, session, step_probe
from autotune.measure.conditions import Snapshot
from autotune.measure.device import AcceleratorDevice
from autotune.probes import LoaderTrace
from tests import examples

GIB = 2**30
BLOCK = 2 * 2**20
"""Bytes in which the allocator takes memory."""
MOST_ORDERED = 20_000
"""Samples of the dataset that is read in truth; ordering more takes real time."""
QUEUE = 1000
"""Launches that a device takes before it makes the host wait."""


def full_speed(seconds: float) -> float:
    return 1.0


@dataclass(kw_only=True)
class Card:
    """An accelerator and its driver; it stands where ``torch.cuda`` does."""

    total: int = 80 * GIB
    context: int = GIB // 2
    """Bytes that a process takes before its first tensor."""
    pageable: float = 6e9
    """Bytes per second of copies from memory that is not pinned."""
    pinned: float = 25e9
    launch_seconds: float = 5e-6
    has_bf16: bool = True
    neighbour: Callable[[float], int] = lambda seconds: 0
    """Bytes that other processes hold, by the time."""
    spread: float = 0.0
    """Standard deviation of the logarithm of its pace from one process to the next, and of a batch's build time."""
    seed: int = 0
    speed: Callable[[float], float] = full_speed
    """The share of its clock that the card runs at, by the time; below 1 it is too hot."""
    now: float = 0.0
    cpu: float = 0.0
    done: float = 0.0
    """When the device has done all that it was asked for."""
    busy: float = 0.0
    """Seconds for which it has worked so far."""
    hot: float = 0.0
    """Seconds of these at less than its clock."""
    furthest: float = 0.0
    """How far the host was ahead of the device at most."""
    allocated: int = 0
    reserved: int = 0
    retries: int = 0
    pace: float = 1.0
    """How long the process's kernels take, as a share."""
    _queue: deque[tuple[float, int]] = field(default_factory=deque)
    _peaks: list[int] = field(default_factory=lambda: [0, 0])

    def __post_init__(self) -> None:
        self._generator = random.Random(self.seed)

    def chance(self) -> float:
        return math.exp(self._generator.gauss(0.0, self.spread))

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    # --- work ---

    def compute(self, seconds: float) -> None:
        """Let the host compute; while it waits for the device it sleeps."""
        self.now += seconds
        self.cpu += seconds

    def launch(self, kernels: int, seconds: float) -> None:
        """Ask for kernels that take the device so many seconds together."""
        while self._queue and (self._queue[0][0] <= self.now or sum(n for _, n in self._queue) + kernels > QUEUE):
            self.now = max(self.now, self._queue.popleft()[0])
        first, speed = self.now + self.launch_seconds, self.speed(max(self.now, self.done))
        self.compute(kernels * self.launch_seconds)
        self.done = max(first, self.done)  # it begins with the first, and ends after the last was asked for
        seconds *= self.pace / speed
        self._work(seconds)
        self.done = max(self.done, self.now + seconds / max(1, kernels))
        self.hot += seconds if speed < 1 else 0.0
        self._queue.append((self.done, kernels))
        self.furthest = max(self.furthest, self.done - self.now)

    def copy(self, size: int, *, is_pinned: bool, non_blocking: bool) -> None:
        """Copy bytes to the device, on the stream of the kernels."""
        self.done = max(self.now, self.done)
        self._work(size / (self.pinned if is_pinned else self.pageable))
        if not (is_pinned and non_blocking):
            self.now = max(self.now, self.done)

    def _work(self, seconds: float) -> None:
        self.done += seconds
        self.busy += seconds

    # --- memory ---

    def allocate(self, size: int) -> None:
        """Take memory as the caching allocator does."""
        wanted = self.allocated + BLOCK * math.ceil(size / BLOCK)
        if wanted > self.reserved + self.free and self.reserved > self.allocated:
            self.reserved, self.retries = self.allocated, self.retries + 1
        if wanted > self.reserved + self.free:
            raise torch.OutOfMemoryError(
                f"CUDA out of memory. Tried to allocate {size / GIB:.2f} GiB. GPU 0 has a total capacity of "
                f"{self.total / GIB:.2f} GiB of which {self.free / GIB:.2f} GiB is free."
            )
        self.allocated, self.reserved = wanted, max(self.reserved, wanted)
        self._peaks = [max(self._peaks[0], wanted), max(self._peaks[1], self.reserved)]

    def release(self, size: int) -> None:
        self.allocated -= BLOCK * math.ceil(size / BLOCK)

    def end_process(self) -> None:
        self.allocated = self.reserved = self.retries = 0
        self.pace = self.chance()
        self.done = min(self.done, self.now)
        self._queue.clear()

    @property
    def free(self) -> int:
        return max(0, self.total - self.context - self.neighbour(self.now) - self.reserved)

    # --- what torch's module has ---

    def Event(self, *, enable_timing: bool, blocking: bool) -> Event:
        assert enable_timing
        assert blocking, "a host that spins takes a CPU from the loader workers"
        return Event(self)

    def synchronize(self) -> None:
        self.now = max(self.now, self.done)

    def mem_get_info(self, device: Any = None) -> tuple[int, int]:
        return self.free, self.total

    def memory_reserved(self, device: Any = None) -> int:
        return self.reserved

    def max_memory_allocated(self) -> int:
        return self._peaks[0]

    def max_memory_reserved(self) -> int:
        return self._peaks[1]

    def empty_cache(self) -> None:
        self.reserved = self.allocated

    def reset_peak_memory_stats(self) -> None:
        self._peaks = [self.allocated, self.reserved]

    def memory_stats(self) -> dict[str, int]:
        return {"num_alloc_retries": self.retries}

    def host_memory_stats(self) -> dict[str, int]:
        return {"allocated_bytes.peak": 0}

    def is_bf16_supported(self, including_emulation: bool = True) -> bool:
        return self.has_bf16

    def get_device_name(self, device: Any = None) -> str:
        return "Fake Accelerator"


class Event:
    """A point in a card's work; its time is known once the device has come to it."""

    def __init__(self, card: Card) -> None:
        self._card = card
        self.time = math.nan

    def record(self) -> None:
        self.time = max(self._card.now, self._card.done)

    def query(self) -> bool:
        return self.time <= self._card.now

    def synchronize(self) -> None:
        self._card.now = max(self._card.now, self.time)

    def elapsed_time(self, later: Event) -> float:
        assert max(self.time, later.time) <= self._card.now, "the device has not come to that event"
        return 1000 * (later.time - self.time)


class FakeAccelerator(AcceleratorDevice):
    """The device of a card: every method is the real one."""

    def __init__(self, card: Card) -> None:
        super().__init__(torch.device("cpu:0"), card)
        self.clock = card.clock
        self.uuid = "GPU-fake"
        self.gpu = NvmlGpu(nvml_of(card), "GPU-fake")


def nvml_of(card: Card) -> Any:
    """Return NVML's answers about a card; reasons for a slowdown hold while steps are on their way."""

    def reasons(handle: str) -> int:
        return 0x20 if card.speed(card.now) < 1 and card.done > card.now else 0

    return SimpleNamespace(
        NVML_CLOCK_SM=1,
        NVML_PERF_POLICY_THERMAL=1,
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(used=card.total - card.free, free=card.free),
        nvmlDeviceGetUtilizationRates=lambda handle: SimpleNamespace(gpu=100 if card.done > card.now else 0),
        nvmlDeviceGetClockInfo=lambda handle, kind: round(1980 * card.speed(card.now)),
        nvmlDeviceGetComputeRunningProcesses=lambda handle: [],
        nvmlDeviceGetCurrentClocksEventReasons=reasons,
        nvmlDeviceGetViolationStatus=lambda handle, policy: SimpleNamespace(violationTime=round(1e9 * card.hot)),
    )


# --- training jobs ---


@dataclass(frozen=True, kw_only=True)
class Job:
    """A training job: its costs on a card and on the host."""

    fixed: float = 0.0
    """Device seconds of a step beside those of its samples."""
    sample: float = 0.0
    """Device seconds of a sample in fp32."""
    half: float = 1.0
    """The same in half precision, as a share."""
    kernels: int = 300
    diverges: bool = False
    """Whether the loss becomes NaN in half precision."""
    waits: bool = False
    """Whether the step reads its loss, so that the host waits for the device."""
    sample_bytes: int = 0
    weights: int = 0
    """Bytes of weights, and as many of the optimizer's state."""
    activations: int = 0
    """Bytes of a sample in fp32 until backward is over; half of them in half precision."""
    workspace: int = 0
    """Bytes that the first step takes to find its kernels."""
    build: float = 0.0
    """Seconds of a CPU to build a sample."""
    cpu_share: float = 1.0
    """Share of it that computes; the rest waits."""
    pinning: float = 8e9
    """Bytes per second that the pinning thread copies."""
    receive: float = 1e-4
    cpus: float = 16.0
    """CPUs that workers and the training process share."""
    samples: int = 1_281_167

    def device_seconds(self, batch: int, amp: str = "off") -> float:
        """Return the device's time for a step on a batch that is there."""
        return self.fixed + batch * self.sample * (1.0 if amp == "off" else self.half)

    def host_seconds(self, card: Card) -> float:
        return self.kernels * card.launch_seconds

    def step_seconds(self, card: Card, batch: int, amp: str = "off") -> float:
        if self.waits:
            return self.host_seconds(card) / 3 + self.device_seconds(batch, amp)
        return max(self.host_seconds(card), self.device_seconds(batch, amp))

    def peak(self, batch: int, amp: str = "off") -> int:
        return self.weights * 2 + round(batch * self.activations * (1.0 if amp == "off" else 0.5))

    def builds(self, config: Config) -> float:
        crowd = max(1.0, (config.num_workers + 0.3) / self.cpus) if config.num_workers else 1.0
        return self.build * config.batch_size * crowd

    def rate(self, card: Card, config: Config) -> float:
        """Return the true samples per second, from the times of each part in the long run."""
        batch, size = config.batch_size, config.batch_size * self.sample_bytes
        copy = size / (card.pinned if config.pin_memory else card.pageable)
        pin, host = size / self.pinning if config.pin_memory else 0.0, self.host_seconds(card)
        device = self.device_seconds(batch, config.amp)
        own = host + (self.receive if config.num_workers else self.builds(config) + pin)
        period = max(own, device + copy) if config.pin_memory else max(own, device) + copy
        if config.num_workers:
            period = max(period, self.builds(config) / config.num_workers, pin)
        return batch / period


class Rows(torch.Tensor):
    """A batch: moving it to the device takes the card's time."""

    def __deepcopy__(self, memo: Any) -> Rows:
        return self

    def to(self, device: Any, non_blocking: bool = False) -> Any:  # type: ignore[override]
        card, size, is_pinned = getattr(self, "made_for", (None, 0, False))
        if card is None:  # it is there
            return self
        card.copy(size, is_pinned=is_pinned, non_blocking=non_blocking)
        return self.as_subclass(torch.Tensor).as_subclass(Rows)


class _Backward(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, loss: torch.Tensor, do: Callable[[], None]) -> torch.Tensor:
        context.do = do
        return loss.clone()

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
        context.do()
        return gradient, None


class _Samples(Dataset[torch.Tensor]):
    def __init__(self, card: Card, job: Job) -> None:
        self._card, self._job = card, job

    def __len__(self) -> int:
        return min(self._job.samples, MOST_ORDERED)

    def __getitem__(self, index: int) -> torch.Tensor:
        self._card.compute(self._job.build)
        return torch.zeros(1)


def rows(card: Card, job: Job, samples: int, *, is_pinned: bool = False) -> Rows:
    found = torch.zeros(samples, 1).as_subclass(Rows)
    found.made_for = (card, samples * job.sample_bytes, is_pinned)  # type: ignore[attr-defined]
    return found


def workload_of(card: Card, job: Job) -> Workload:
    """Return a job as a workload: a small model whose step asks the card for the job's work."""
    model = nn.Linear(1, 1)
    for parameter in model.parameters():
        nn.init.ones_(parameter)
    is_first, share = [True], [0.0]

    def training_step(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        amp = "bf16" if torch.is_autocast_enabled("cpu") else "off"
        samples, kernels = len(batch), job.kernels // 3
        share[0] = seconds = job.device_seconds(samples, amp) / 3
        kept = round(samples * job.activations * (1.0 if amp == "off" else 0.5))
        if is_first:
            is_first.clear()
            card.allocate(job.weights)
        card.allocate(kept)
        card.launch(kernels, seconds)

        def backward() -> None:
            card.launch(kernels, seconds)
            card.release(kept)

        loss: torch.Tensor = _Backward.apply(model(torch.ones(1, 1)).square().sum(), backward)  # type: ignore[no-untyped-call]
        if job.waits:
            card.synchronize()
        return loss * math.nan if job.diverges and amp != "off" else loss

    class Optimizer(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            if not self.state.get("taken"):
                self.state["taken"] = True  # type: ignore[index]
                card.allocate(job.workspace)
                card.release(job.workspace)
                card.allocate(job.weights)
                weakref.finalize(self, card.release, job.weights)
            super().step()
            card.launch(job.kernels - 2 * (job.kernels // 3), share[0])

    def optimizer(parameters: Any) -> torch.optim.Optimizer:
        return Optimizer(parameters, lr=1e-3)

    def collate(samples: list[torch.Tensor]) -> Rows:
        return rows(card, job, len(samples))

    return Workload(model, _Samples(card, job), training_step=training_step, optimizer=optimizer, collate_fn=collate)


# --- the loader ---


@dataclass
class FakeStream:
    """Batches as torch's loader hands them out, on the card's clock: workers, then the pinning thread.

    Batch k is built at ``f[k] = max(y[k-K], f[k-W]) + build``, pinned after that and after batch k-1, and handed over
    at ``y[k]``; K = workers * prefetch batches are in flight at most.
    """

    card: Card
    job: Job
    config: Config
    samples: int = 0
    epochs: int = 1
    position: int = 0
    built_apart: int = 0
    consumed: int = 0
    _began: float = 0.0
    _built: list[float] = field(default_factory=list)
    _ready: list[float] = field(default_factory=list)
    _given: list[float] = field(default_factory=list)

    batch_tensors, digests, workers, unique_share, idle_workers = 1, (), (), 1.0, 0
    is_uneven = False
    digests_of_others: tuple[Any, ...] = ()
    misstated_batches, freezes_epoch, dataset, epoch_samples = None, False, None, None

    def __post_init__(self) -> None:
        self._began = self.card.now
        self.start_seconds = [self.job.builds(self.config)]
        self.order_seconds = [0.0]
        self.epoch_batches = -(-self.job.samples // self.config.batch_size)
        self.batch_bytes = self.config.batch_size * self.job.sample_bytes

    def __next__(self) -> Rows:
        card, config, number = self.card, self.config, len(self._given)
        if self.position == self.epoch_batches:
            self.epochs, self.position = self.epochs + 1, 0
            self.start_seconds.append(self.job.builds(config))
        pin = self.batch_bytes / self.job.pinning if config.pin_memory else 0.0
        if config.num_workers:
            self._build_until(number)
            card.now = max(card.now, self._ready[number]) + self.job.receive
        else:
            card.compute(self.job.builds(config) + pin)
        self._given.append(card.now)
        self.samples, self.position, self.consumed = config.batch_size, self.position + 1, self.consumed + 1
        return rows(card, self.job, config.batch_size, is_pinned=config.pin_memory)

    def _build_until(self, number: int) -> None:
        workers, in_flight = self.config.num_workers, self.config.num_workers * (self.config.prefetch_factor or 2)
        pin = self.batch_bytes / self.job.pinning if self.config.pin_memory else 0.0
        while len(self._built) <= number:
            k = len(self._built)
            asked = self._given[k - in_flight] if k >= in_flight else self._began
            free = self._built[k - workers] if k >= workers else self._began
            self._built.append(max(asked, free) + self.job.builds(self.config) * self.card.chance())
            self._ready.append(max(self._built[k], self._ready[k - 1] if k else 0.0) + pin)

    @property
    def ready(self) -> int:
        given = len(self._given)
        if not self.config.num_workers:
            return 0
        self._build_until(given + self.config.num_workers * (self.config.prefetch_factor or 2) - 1)
        return sum(ready <= self.card.now for ready in self._built[given:])

    @property
    def produced(self) -> int:
        return len(self._given) + self.ready

    @property
    def steps_left(self) -> int:
        return self.epoch_batches - self.position

    @property
    def comes_again(self) -> bool:
        return True

    def cut_epoch(self, in_flight: int) -> None:
        """Go on, as a stream without a sampler does."""

    def close(self) -> None:
        """Do nothing: there are no processes."""


def trace_of(card: Card, job: Job, config: Config, seconds: float) -> LoaderTrace:
    """Return a probe of a job's loader, and let its time pass."""
    one, size = replace(config, num_workers=1), config.batch_size * job.sample_bytes
    build = job.builds(one)
    card.now += max(seconds, 4 * build)
    return examples.loader_trace(
        batch_size=config.batch_size,
        build_seconds=(build,) * 20,
        receive_seconds=job.receive,
        pin_seconds=size / job.pinning,
        transfer_seconds=size / card.pageable,
        pinned_transfer_seconds=size / card.pinned,
        inline_pin_seconds=size / job.pinning,
        cpu_seconds=build * job.cpu_share,
        batch_bytes=size,
    )


def counters_of(card: Card) -> Callable[..., Snapshot]:
    def counters(root: Any = None, job: Any = None, gpu: Any = None) -> Snapshot:
        lost, foreign = ({"heat": gpu.heat_seconds()}, gpu.foreign_use(())) if gpu else ({}, None)
        cpu = card.cpu
        return Snapshot(clock=card.now, own=cpu, busy=cpu, lost=lost, read={}, threads={}, foreign=foreign)

    return counters


@contextmanager
def on_card(card: Card, job: Job) -> Iterator[None]:
    """Let the code that measures read the card's clock, and the job's loader in place of processes."""
    read = step_probe.open_reader

    def inline(workload: Workload, config: Config, place: float | None = 0.0) -> Any:
        return read(workload, Config(batch_size=config.batch_size), place)

    threads, counters = torch.get_num_threads(), counters_of(card)
    with (
        patch.object(step_probe, "open_reader", inline),
        patch.object(numerics_probe, "open_reader", inline),
        patch.object(benchmark, "open_stream", lambda workload, config, place, **_: FakeStream(card, job, config)),
        patch.object(
            session,
            "look_at_loader",
            lambda workload, config, device, seconds, place: trace_of(card, job, config, seconds),
        ),
        patch.object(step_probe, "snapshot", counters),
        patch.object(benchmark, "snapshot", counters),
    ):
        yield
    torch.set_num_threads(threads)
