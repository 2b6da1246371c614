"""First guesses from what the baseline's split of time says.

Pure: no clock, no torch, no I/O.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from autotune.config import Config
from autotune.records import Measurement, Trial, WorkloadFacts
from autotune.search.space import Space

__all__ = ["first_guesses"]

LOADER_SHARE = 0.05
"""Share of the step spent waiting for data below which workers cannot help."""
SPARE = 1.1
"""Workers beyond the bare ratio of building to training, for batches that take longer than the average."""


def first_guesses(baseline: Trial, space: Space, facts: WorkloadFacts, cpus: int) -> list[Config]:
    """Return configurations worth measuring first, the likeliest first.

    The loader needs about ``build time / rest of the step`` workers to hide behind the step; on a CPU workers
    and operator threads share the cores.
    """
    measured = baseline.measurement
    if measured is None:
        return []
    on_cpu = facts.device == "cpu"
    start = _within_bounds(baseline.config, space)
    larger = _closest(space.allowed["batch_size"], 4 * baseline.config.batch_size)
    workers = _workers_needed(baseline.config, measured)
    most = cpus if on_cpu else 2 * cpus
    guesses = []
    for batch_size in (start.batch_size, larger):
        count = _closest(space.allowed["num_workers"], min(most, workers))
        config = _with_workers(replace(start, batch_size=batch_size), count, space)
        guesses.append(_sharing_cores(config, space, facts, cpus) if on_cpu else config)
    if not on_cpu and "bf16" in space.allowed["amp"]:
        guesses.append(replace(guesses[-1], amp="bf16"))
    return list(dict.fromkeys(guesses[1:] + guesses[:1]))


def _within_bounds(config: Config, space: Space) -> Config:
    """Bring what the guesses leave alone to what the user admits, or none of them could be run."""
    amp, threads = space.allowed["amp"], space.allowed["threads"]
    return replace(
        config,
        batch_size=_closest(space.allowed["batch_size"], config.batch_size),
        amp=config.amp if config.amp in amp else amp[0],
        intra_op_threads=config.intra_op_threads if config.intra_op_threads in threads else threads[-1],
    )


def _workers_needed(config: Config, measured: Measurement) -> int:
    split = measured.step_time
    if split.data_wait < LOADER_SHARE * split.total:
        return config.num_workers
    rest = split.total - split.data_wait
    build = split.total * config.num_workers if config.num_workers else split.data_wait
    return max(1, math.ceil(SPARE * build / rest)) if rest > 0 else 1


def _with_workers(config: Config, count: int, space: Space) -> Config:
    return replace(
        config,
        num_workers=count,
        prefetch_factor=min(space.allowed["prefetch_factor"]) if count else None,
        persistent_workers=count > 0 and True in space.allowed["persistent_workers"],
        pin_memory=True in space.allowed["pin_memory"],
    )


def _sharing_cores(config: Config, space: Space, facts: WorkloadFacts, cpus: int) -> Config:
    """Leave the cores that the workers need to the workers."""
    counts = {facts.intra_op_threads if count is None else count: count for count in space.allowed["threads"]}
    wanted = _closest(list(counts), max(1, cpus - config.num_workers))
    return replace(config, intra_op_threads=counts[wanted])


def _closest(values: Sequence[int], wanted: int) -> int:
    return min(values, key=lambda value: abs(math.log((value + 0.5) / (wanted + 0.5))))
