"""Which short look to take next: at the loader, or at the step on a ladder of batch sizes.

A pure function of what is known, so that a resumed study continues where it stood.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import fmean

from autotune.config import Config
from autotune.records import Outcome, Part, Probe
from autotune.search.compute import MemoryModel
from autotune.search.knowledge import Knowledge
from autotune.search.space import Space

__all__ = ["next_probe", "next_rung"]

MAX_RUNGS = 6
"""Most batch sizes that are looked at for one precision."""
LARGEST_STEP = 4
"""A rung is at most so many times as large as the one before: memory is not always a line."""
AGREEMENT = 0.05
"""Relative difference up to which two slopes of memory over batch size count as one line."""
SIGNIFICANT_SLOPE = 0.2
"""Share of the peak that must grow with the batch; where it is less the line may not have begun."""
FLAT = 1.02
"""A larger batch that is not faster than this ratio ends the ladder."""
RELEVANT_BUILD = 0.02
"""Share of the step below which building a batch is of no interest."""
OTHER_BATCH = 4
"""Ratio of the batch sizes of the two looks at the loader, which tell cost per sample from cost per batch."""


def next_probe(knowledge: Knowledge, space: Space) -> tuple[Part, Config] | None:
    """Return what to look at next and with which configuration, or ``None`` when nothing more is worth it.

    First the loader, then the steps of the baseline's precision and threads over batch sizes, then what other
    precisions and threads do at the best of them, and both together.
    """
    start = _start(knowledge, space)
    if not _seen(knowledge, "loader"):
        return "loader", start
    group = _next_on_ladder(knowledge, space, start)
    if group is not None:
        return "compute", group
    other = _second_trace(knowledge, space, start)
    if other is not None:
        return "loader", other
    for config in _other_groups(knowledge, space, start):
        found = _next_on_ladder(knowledge, space, config) if config.amp != start.amp else _unseen(knowledge, config)
        if found is not None:
            return "compute", found
    beside = _beside_the_fastest(knowledge, space)
    return None if beside is None else ("compute", beside)


def next_rung(
    peaks: Mapping[int, int], failed: Sequence[int], allowed: Sequence[int], start: int, limit: float
) -> int | None:
    """Return the batch size to try next on the way up, or ``None`` at the top.

    ``peaks`` maps batch sizes that ran to their peak memory in bytes, ``failed`` holds those that did not fit,
    ``allowed`` the candidates in order, ``limit`` the bytes that may be used. Where memory is ``a + c * batch`` with
    ``a >= 0`` no rung exceeds the limit.
    """
    if len(peaks) + len(failed) >= MAX_RUNGS:
        return None
    if not peaks:
        return max(
            (batch for batch in allowed if batch <= start and batch < min(failed, default=batch + 1)), default=None
        )
    largest = max(peaks)
    safe = min(_safe_batch(peaks, limit), LARGEST_STEP * largest, min(failed, default=allowed[-1] + 1) - 1)
    larger = [batch for batch in allowed if batch > largest]
    if len(peaks) == 1 and larger and larger[0] > safe and not failed:
        return max((batch for batch in allowed if batch < largest), default=None)  # how much is it for each sample?
    return max((batch for batch in larger if batch <= safe), default=None)


def _safe_batch(peaks: Mapping[int, int], limit: float) -> float:
    """Return the largest batch that is sure to fit: in proportion to the last peak, or on a line.

    A line through two points is followed to the double batch at most, one that was seen twice as far as it goes.
    """
    batches = sorted(peaks)
    last, slope = batches[-1], MemoryModel({batch: peaks[batch] for batch in batches}).slope
    in_proportion = last * limit / max(1, peaks[last])
    if slope is None:
        return in_proportion
    on_line = last + (limit - peaks[last]) / (slope * (1 + AGREEMENT)) if slope else math.inf
    slopes = [(peaks[high] - peaks[low]) / (high - low) for low, high in pairwise(batches[-3:])]
    is_clear = slopes[-1] * last > SIGNIFICANT_SLOPE * peaks[last] and abs(slopes[0] / slopes[-1] - 1) <= AGREEMENT
    return max(in_proportion, on_line if len(slopes) == 2 and is_clear else min(on_line, 2 * last))


def _start(knowledge: Knowledge, space: Space) -> Config:
    """Return where the looks begin: the baseline, brought within the bounds, without a loader."""
    base = space.base
    allowed = space.allowed
    batch = max((b for b in allowed["batch_size"] if b <= base.batch_size), default=allowed["batch_size"][0])
    return replace(
        base,
        batch_size=batch,
        num_workers=0,
        prefetch_factor=None,
        persistent_workers=False,
        pin_memory=False,
        amp=base.amp if base.amp in allowed["amp"] else allowed["amp"][0],
        intra_op_threads=base.intra_op_threads
        if base.intra_op_threads in allowed["threads"]
        else allowed["threads"][-1],
    )


def _seen(knowledge: Knowledge, part: Part) -> list[Probe]:
    return [probe for probe in knowledge.probes if probe.part == part]


def _unseen(knowledge: Knowledge, config: Config) -> Config | None:
    cell = knowledge.cell(config)
    return None if any(knowledge.cell(probe.config) == cell for probe in _seen(knowledge, "compute")) else config


def _of_group(knowledge: Knowledge, config: Config) -> list[Probe]:
    """Return the looks at steps of one precision and number of threads."""
    cell = knowledge.cell(config)
    return [probe for probe in _seen(knowledge, "compute") if knowledge.cell(probe.config)[1:] == cell[1:]]


def _next_on_ladder(knowledge: Knowledge, space: Space, config: Config) -> Config | None:
    """Return the next rung for a precision, or a smaller batch where larger ones do not pay."""
    probes = _of_group(knowledge, config)
    peaks = {p.config.batch_size: p.compute.peak_memory_bytes for p in probes if p.compute}
    rates = {p.config.batch_size: p.compute.samples_per_second for p in probes if p.compute}
    failed = [p.config.batch_size for p in probes if not p.compute]
    if failed and not all(p.outcome in (Outcome.DEVICE_OOM, Outcome.HOST_OOM) for p in probes if not p.compute):
        return None  # it fails for another reason than its size
    limit = _memory_limit(knowledge, probes)
    if _still_pays(rates):
        rung = next_rung(peaks, failed, space.allowed["batch_size"], config.batch_size, limit)
        return None if rung is None else replace(config, batch_size=rung)
    smallest = min(space.allowed["batch_size"])
    if len(rates) == 2 and smallest < min(rates):
        return replace(config, batch_size=smallest)
    return None


def _still_pays(rates: Mapping[int, float]) -> bool:
    """Tell whether the largest batch looked at was faster than the one before."""
    batches = sorted(rates)
    return len(batches) < 2 or rates[batches[-1]] > FLAT * rates[batches[-2]]


def _memory_limit(knowledge: Knowledge, probes: Sequence[Probe]) -> float:
    limits = [probe.compute.memory_limit_bytes for probe in probes if probe.compute]
    return (1 - knowledge.headroom) * min(limits, default=0)


def _second_trace(knowledge: Knowledge, space: Space, start: Config) -> Config | None:
    """Return another batch size at which to look at the loader, where loading matters and it was not done."""
    traces = knowledge.traces
    if len(_seen(knowledge, "loader")) != 1 or not traces or len(space.allowed["batch_size"]) == 1:
        return None
    trace = traces[0]
    rates = [p.compute.samples_per_second for p in _seen(knowledge, "compute") if p.compute]
    builds = fmean(trace.build_seconds) / trace.batch_size
    if not rates or builds * max(rates) < RELEVANT_BUILD:
        return None
    largest = max(p.config.batch_size for p in _seen(knowledge, "compute") if p.compute)
    allowed = [b for b in space.allowed["batch_size"] if b <= max(largest, start.batch_size)]
    wanted = min(OTHER_BATCH * trace.batch_size, max(allowed))
    if wanted == trace.batch_size:
        wanted = min(allowed)
    batch = min(allowed, key=lambda b: abs(b - wanted))
    return None if batch == trace.batch_size else replace(start, batch_size=batch)


def _other_groups(knowledge: Knowledge, space: Space, start: Config) -> list[Config]:
    """Return where to look at other precisions and threads: at the best batch size so far, and at the best of both."""
    own = [p for p in _of_group(knowledge, start) if p.compute]
    best = _fastest(own)
    if best is None:
        return []
    amps = [amp for amp in space.allowed["amp"] if amp != start.amp]
    threads = (
        [count for count in space.allowed["threads"] if count != start.intra_op_threads] if knowledge.on_cpu else []
    )
    configs = [replace(start, amp=amp) for amp in amps]
    configs += [replace(start, batch_size=best, intra_op_threads=count) for count in threads]
    tried = [p for p in _seen(knowledge, "compute") if p.compute]
    fastest = max(tried, key=lambda p: p.compute.samples_per_second if p.compute else 0.0)
    if threads and amps:
        others = [p for p in tried if p.config.amp == start.amp and p.config.batch_size == best]
        count = max(others, key=lambda p: p.compute.samples_per_second if p.compute else 0.0).config.intra_op_threads
        configs.append(replace(fastest.config, intra_op_threads=count))
    return configs


def _beside_the_fastest(knowledge: Knowledge, space: Space) -> Config | None:
    """Return a batch size next to the fastest step's that was not looked at: the highest ceiling is not guessed."""
    probes = [p for p in _seen(knowledge, "compute") if p.compute]
    if not probes:
        return None
    fastest = max(probes, key=lambda p: p.compute.samples_per_second if p.compute else 0.0).config
    group = [p for p in _of_group(knowledge, fastest) if p.compute]
    peaks = {p.config.batch_size: p.compute.peak_memory_bytes for p in group if p.compute}
    model, allowed = MemoryModel(dict(sorted(peaks.items()))), space.allowed["batch_size"]
    here = allowed.index(fastest.batch_size)
    for index in (here - 1, here + 1):
        if 0 <= index < len(allowed) and model.at(allowed[index]) <= _memory_limit(knowledge, group):
            found = _unseen(knowledge, replace(fastest, batch_size=allowed[index]))
            if found is not None and len(_of_group(knowledge, fastest)) < MAX_RUNGS:
                return found
    return None


def _fastest(probes: Sequence[Probe]) -> int | None:
    rates = {p.config.batch_size: p.compute.samples_per_second for p in probes if p.compute}
    return max(rates, key=lambda batch: rates[batch]) if rates else None
