"""A short look at the loader alone: what building, receiving and moving a batch takes."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from statistics import fmean, median
from typing import Any

from autotune.config import Config
from autotune.measure.conditions import conditions_between, snapshot
from autotune.measure.device import Device
from autotune.measure.loader import BatchStream, open_stream
from autotune.measure.process_memory import cpu_seconds, open_segments, sample_memory
from autotune.measure.step import move, tensor_bytes, tensors_in
from autotune.probes import LoaderTrace
from autotune.workload import Workload

PREFETCH = 4
"""Batches that the one worker is asked for ahead, where shared memory holds them: it never waits, and some are ready
at once after a pause."""
SHARED_SHARE = 0.9
"""Share of what is free in /dev/shm that they may take."""
LEAST_BATCHES = 4
"""Batches of a trace, however long they take."""
LONGEST = 3
"""How many times its length a look may take where batches are slow."""
INLINE_SHARE = 0.3
"""Share of a look that goes to building batches without workers."""
RECEIVE_SHARE = 0.15
"""Share of a look that goes to taking batches that are ready."""
COPIES = 3
POLL_SECONDS = 0.0005


def look_at_loader(
    workload: Workload, batch_size: int, device: Device, seconds: float, ranks: int = 1, place: float = 0.0
) -> LoaderTrace:
    """Trace the loader for about so many seconds: without workers, then with one that nothing holds up.

    Both begin at a ``place`` of the order, a share of it. Of several ``ranks`` each does so at the same time, and takes
    its share of the shared memory.
    """
    inline, batch = _build_inline(workload, batch_size, INLINE_SHARE * seconds, place)
    prefetch = _prefetch(ranks * tensor_bytes(batch))
    config = Config(batch_size=batch_size, num_workers=1, prefetch_factor=prefetch, persistent_workers=True)
    stream = open_stream(workload, config, place)
    known = open_segments(os.getpid())
    try:
        next(stream)
        arrived = time.perf_counter()
        receives = _receives(stream, prefetch, seconds)
        before, own, used, built = snapshot(), time.process_time(), cpu_seconds(), stream.produced
        if receives:
            for _ in range(max(0, stream.ready) + 1):  # what is ready, and the batch that is being built
                next(stream)
            arrived = time.perf_counter()
        builds = _trace(stream, batch_size, arrived, seconds)
        used, own, built = cpu_seconds() - used, time.process_time() - own, stream.produced - built
        storage = conditions_between(before, snapshot()).storage_share
        memory = sample_memory(stream.produced, known, stream.workers)
        batch_bytes, start = stream.batch_bytes, stream.start_seconds[0]
        order = stream.order_seconds[0] if stream.order_seconds else 0.0
    finally:
        stream.close()
    return LoaderTrace(
        batch_size=batch_size,
        build_seconds=tuple(builds),
        inline_seconds=inline,
        receive_seconds=median(receives) if receives else 0.0,
        pin_seconds=_pin_seconds(batch) if device.is_asynchronous else 0.0,
        transfer_seconds=_transfer_seconds(batch, device) if device.is_asynchronous else 0.0,
        cpu_seconds=max(0.0, used - own) / max(1, built),
        batch_bytes=batch_bytes,
        start_seconds=max(0.0, start - order - median(builds)),
        worker_memory_bytes=sum(memory.private.values()),
        storage_share=storage,
        order_seconds=order,
        batch_tensors=len(list(tensors_in(batch))),
    )


def _build_inline(workload: Workload, batch_size: int, seconds: float, place: float) -> tuple[float, Any]:
    """Return the mean time of a batch without workers, and the last one; the first warms up and does not count."""
    stream = open_stream(workload, Config(batch_size=batch_size), place)
    times: list[float] = []
    limit = time.perf_counter() + seconds
    while True:
        begin = time.perf_counter()
        batch = next(stream)
        times.append((time.perf_counter() - begin) * max(1, batch_size / stream.samples))
        if len(times) > 1 and time.perf_counter() > limit:
            return fmean(times[1:]), batch


def _prefetch(batch_bytes: int) -> int:
    """Return how many batches the worker is asked for: shared memory must hold them, and the one that is received."""
    with suppress(OSError):
        batches = int(SHARED_SHARE * shutil.disk_usage("/dev/shm").free / max(1, batch_bytes))
        return max(1, min(PREFETCH, batches - 1))
    return PREFETCH


def _receives(stream: BatchStream, prefetch: int, seconds: float) -> list[float]:
    """Return what taking a batch that is ready costs, the worker building others meanwhile: it answers more slowly."""
    found: list[float] = []
    limit = time.perf_counter() + RECEIVE_SHARE * seconds
    while True:
        wanted, patience = min(prefetch, (stream.epoch_batches or prefetch) - 1), time.perf_counter() + seconds
        while stream.ready < wanted and time.perf_counter() < patience:
            time.sleep(POLL_SECONDS)
        taken = [_seconds(lambda: next(stream)) for _ in range(min(prefetch - 1, stream.ready))]
        found += taken
        if not taken or time.perf_counter() > limit:
            return found


def _trace(stream: BatchStream, batch_size: int, previous: float, seconds: float) -> list[float]:
    """Return the times between batches that one worker delivers without a pause, the last of them at ``previous``.

    A short batch counts as its share of a full one; what lies between two epochs counts where there is nothing else.
    """
    begin = time.perf_counter()
    inside: list[float] = []
    between: list[float] = []
    while True:
        epochs = stream.epochs
        next(stream)
        now = time.perf_counter()
        times = inside if stream.epochs == epochs else between
        times.append((now - previous) * max(1, batch_size / stream.samples))
        previous = now
        enough = len(inside) >= LEAST_BATCHES and now - begin > seconds
        if enough or now - begin > LONGEST * seconds:
            return inside or between


def _pin_seconds(batch: Any) -> float:
    """Return what copying a batch into pinned memory takes, once that memory was allocated."""

    def pin() -> None:
        for tensor in tensors_in(batch):
            tensor.pin_memory()

    return min(_seconds(pin) for _ in range(COPIES))


def _transfer_seconds(batch: Any, device: Device) -> float:
    """Return what copying a batch to the device takes from memory that is not pinned."""

    def copy() -> None:
        move(batch, device.torch_device, non_blocking=False)
        device.synchronize()

    device.synchronize()
    return min(_seconds(copy) for _ in range(COPIES))


def _seconds(do: Callable[[], object]) -> float:
    begin = time.perf_counter()
    do()
    return time.perf_counter() - begin
