"""A probe of the loader alone: the times of building, receiving and moving a batch."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import fmean, median
from typing import Any, NamedTuple

import torch

from autotune.config import Config
from autotune.measure.batch import move, tensors_in
from autotune.measure.conditions import conditions_between, snapshot
from autotune.measure.device import Device
from autotune.measure.loader import BatchStream, open_stream
from autotune.measure.process_memory import cpu_seconds, open_segments, sample_memory
from autotune.probes import KEPT_HERE, LoaderTrace, is_kept
from autotune.workload import Workload

PREFETCH = 4
"""Batches that the one worker is asked for ahead, unless the configuration asks for fewer: it never waits, and some are
ready at once after a pause."""
LEAST_BATCHES = 4
"""Batches of a trace, however long they take."""
LONGEST = 3
"""How many times its length a probe may take where batches are slow."""
LEAST_PAIRS = 2
"""Batches that must have been built twice for the second time to tell of a cache."""
RECEIVE_SHARE = 0.15
"""Share of a probe that goes to receiving ready batches."""
MOST_ELSEWHERE = 6
"""Batches that another worker builds once more."""
COPIES = 3
POLL_SECONDS = 0.0005


def look_at_loader(
    workload: Workload, config: Config, device: Device, seconds: float, place: float = 0.0
) -> LoaderTrace:
    """Trace a loader with one worker for about so many seconds, while nothing holds it up.

    It begins at ``place``, a share of the order, and builds each batch twice: so a dataset with a cache shows. Several
    ranks do so at the same time.
    """
    batch_size, prefetch = config.batch_size, min(PREFETCH, config.prefetch_factor or PREFETCH)
    single = Config(batch_size=batch_size, num_workers=1, prefetch_factor=prefetch, persistent_workers=True)
    stream = open_stream(workload, single, place, twice=True)
    known = open_segments(os.getpid())
    try:
        batch = next(stream)
        arrived = time.perf_counter()
        receives = _receives(stream, prefetch, seconds)
        before, own, used, built = snapshot(), time.process_time(), cpu_seconds(), stream.produced
        if receives:
            for _ in range(stream.ready + 1):  # what is ready, and the batch that is being built
                next(stream)
            arrived = time.perf_counter()
        times = _trace(stream, 1 if workload.own_batches else batch_size, arrived, seconds)
        builds, busy = times.counted, fmean(times.counted) / fmean([*times.first, *times.again])
        used, own, built = cpu_seconds() - used, time.process_time() - own, stream.produced - built
        conditions = conditions_between(before, snapshot())
        memory = sample_memory(stream.produced, known, stream.workers)
        batch_bytes, start = stream.batch_bytes, stream.start_seconds[0]
        order, units = stream.order_seconds[0] if stream.order_seconds else 0.0, stream.units
    finally:
        stream.close()
    return LoaderTrace(
        batch_size=batch_size,
        build_seconds=tuple(builds),
        again_seconds=times.again_seconds,
        elsewhere_seconds=_elsewhere_seconds(workload, single, units) if times.are_faster_again else None,
        receive_seconds=median(receives) if receives else 0.0,
        **(_copies(batch, device) if device.is_asynchronous else {"pin_seconds": 0.0, "transfer_seconds": 0.0}),
        cpu_seconds=busy * max(0.0, used - own) / max(1, built),
        batch_bytes=batch_bytes,
        start_seconds=max(0.0, start - order - median(builds)),
        worker_memory_bytes=sum(memory.private.values()),
        storage_share=conditions.storage_share,
        taken_share=conditions.taken_share,
        order_seconds=order,
        batch_tensors=stream.batch_tensors,
    )


def _receives(stream: BatchStream, prefetch: int, seconds: float) -> list[float]:
    """Return the seconds to receive a ready batch; the worker builds others meanwhile, so it answers more slowly."""
    found: list[float] = []
    limit = time.perf_counter() + RECEIVE_SHARE * seconds
    while True:
        wanted, patience = min(prefetch, (stream.epoch_batches or prefetch) - 1), time.perf_counter() + seconds
        while stream.ready < wanted and time.perf_counter() < patience:
            time.sleep(POLL_SECONDS)
        taken = [_seconds(lambda: next(stream)) for _ in range(min(max(1, prefetch - 1), stream.ready))]
        found += taken
        if not taken or time.perf_counter() > limit:
            return found


class _Builds(NamedTuple):
    """Times between batches that one worker delivers without a pause, in seconds."""

    first: list[float]
    """Of batches of new samples."""
    again: list[float]
    """Of the same batches right after that; empty where batches come once."""

    @property
    def are_faster_again(self) -> bool:
        """Whether dataset or system keep samples once read."""
        return bool(self.again) and is_kept(fmean(self.first), fmean(self.again), KEPT_HERE)

    @property
    def counted(self) -> list[float]:
        return self.first if self.are_faster_again else [*self.first, *self.again]

    @property
    def again_seconds(self) -> float | None:
        """Mean of the second times; ``None`` where there are too few."""
        return fmean(self.again) if min(map(len, self)) >= LEAST_PAIRS else None


def _trace(stream: BatchStream, batch_size: int, previous: float, seconds: float) -> _Builds:
    """Return the times between batches, the last of them at ``previous``, over so many seconds.

    A short batch counts as its share of a full one; the time between two epochs counts only without others.
    """
    begin = time.perf_counter()
    inside, between = _Builds([], []), list[float]()
    while True:
        epochs = stream.epochs
        next(stream)
        now = time.perf_counter()
        is_again = stream.is_twice and stream.position % 2 == 0
        times = between if stream.epochs != epochs else inside.again if is_again else inside.first
        times.append((now - previous) * max(1, batch_size / stream.samples))
        previous = now
        enough = sum(map(len, inside)) >= LEAST_BATCHES and now - begin > seconds
        if enough or now - begin > LONGEST * seconds:
            return inside if inside.first else _Builds(inside.again or between, [])


def _elsewhere_seconds(workload: Workload, config: Config, units: Sequence[list[Any]]) -> float | None:
    """Return the mean seconds in which another worker builds batches that were built before; ``None`` for too few.

    The system keeps files for all processes; a dataset that keeps samples itself has none in a new one.
    """
    again = units[: 1 + MOST_ELSEWHERE]
    if workload.beside or len(again) <= LEAST_PAIRS:
        return None
    order = [index for unit in again for index in unit]
    of_batches = workload.batch_sampler is not None
    given: dict[str, Any] = {"batch_sampler": lambda batch_size: order} if of_batches else {"sampler": order}
    stream = open_stream(replace(workload, **given), config)
    try:
        next(stream)  # it starts the worker
        return fmean(_seconds(lambda: next(stream)) for _ in again[1:])
    finally:
        stream.close()


def _copies(batch: Any, device: Device) -> dict[str, float]:
    """Return the seconds of pinning a batch and of copying it to the device, by the trace's fields."""

    def copy(batch: Any, *, non_blocking: bool) -> None:
        move(batch, device.torch_device, non_blocking=non_blocking)
        device.synchronize()

    def pin() -> None:
        for tensor in tensors_in(batch):
            tensor.pin_memory()  # its memory is there from the time before

    def pin_alone() -> None:
        torch.set_num_threads(1)  # as torch's pinning thread does; it is this thread's own
        alone.append(_least_seconds(pin))

    device.synchronize()
    transfer = _least_seconds(lambda: copy(batch, non_blocking=False))
    if device.torch_device.type == "mps":  # nothing is pinned for it
        return {"pin_seconds": 0.0, "transfer_seconds": transfer}
    pinned = [tensor.pin_memory() for tensor in tensors_in(batch)]
    alone, threads = list[float](), torch.get_num_threads()
    thread = threading.Thread(target=pin_alone)
    thread.start()
    thread.join()
    torch.set_num_threads(threads)  # of threads that begin later
    return {
        "pin_seconds": alone[0],
        "inline_pin_seconds": _least_seconds(pin),
        "transfer_seconds": transfer,
        "pinned_transfer_seconds": _least_seconds(lambda: copy(pinned, non_blocking=True)),
    }


def _least_seconds(do: Callable[[], object]) -> float:
    return min(_seconds(do) for _ in range(COPIES))


def _seconds(do: Callable[[], object]) -> float:
    begin = time.perf_counter()
    do()
    return time.perf_counter() - begin
