"""The next probe: of the loader, or of the step on a ladder of batch sizes.

A pure function of the observations, so that a resumed study continues where it stood.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import fmean

from autotune.config import Config
from autotune.outcome import Outcome
from autotune.probes import ComputeProbe
from autotune.records import Part
from autotune.search.feasibility import Fitting
from autotune.search.observations import Observations
from autotune.search.option_looks import option_looks
from autotune.search.predict import loader_model
from autotune.search.repeats import repeated_look
from autotune.search.space import Space
from autotune.search.step_model import LARGEST_STEP, MemoryModel
from autotune.settings import Amp

NUMERICS_SECONDS = 4.0
"""Seconds of a probe of the losses, which takes four runs of up to twenty steps."""
MAX_RUNGS = 6
"""Most batch sizes that are probed for one precision."""
AGREEMENT = 0.05
"""Relative difference up to which two slopes of memory over batch size count as one line."""
SIGNIFICANT_SLOPE = 0.2
"""Share of the peak that must grow with the batch; where it is less the line may not have begun."""
FLAT = 1.02
"""A larger batch that is not faster than this ratio ends the ladder."""
RIVAL = 0.9
"""Share of the fastest precision's rate at the baseline's batch size from which another is probed over batch sizes."""
RELEVANT_BUILD = 0.02
"""Share of the step below which building a batch is of no interest."""
HALF: tuple[Amp, ...] = ("bf16", "fp16")
"""Half precisions, the one that needs no scaling of the loss first."""
PREFETCH = 4
"""Batches that a probe of the loader prefetches, where memory and open files allow it."""
OTHER_BATCH = 4
"""Ratio of the batch sizes of the two probes of the loader, which tell cost per sample from cost per batch."""


def next_probe(observations: Observations, space: Space) -> tuple[Part, Config] | None:
    """Return the next part to probe and its configuration, or ``None`` when no probe is worth it.

    A look that contradicts what else was measured is taken again at once. First the loader, then the step at the
    baseline's batch size: in its own precision, then in half precision. The faster of these then climbs over batch
    sizes, and the other where it is nearly as fast. After that come other precisions and threads at the best of them,
    and both together. Before the first step in another precision its losses are compared with those in fp32. Last come
    further options, at the fastest step.
    """
    return next(((part, config) for part, config in _looks(observations, space) if config is not None), None)


def _looks(observations: Observations, space: Space) -> Iterator[tuple[Part, Config | None]]:
    """Yield the probes in order; those that were taken, or would be of no use, without a configuration."""
    if again := repeated_look(observations):
        yield again
    start = _start(observations, space)
    if not any(probe.part == "loader" for probe in observations.probes):
        yield "loader", _with_one_worker(observations, start)
    groups = [start, *_half_precision(observations, space, start)]
    for config in groups:
        if observations.is_unchecked(config.amp):
            yield "numerics", _compared(observations, space, config)
        if observations.distrust(config.amp):
            return  # the only one that may be used
        yield "compute", None if _looks_of_group(observations, config) else _next_on_ladder(observations, space, config)
    yield from (("compute", config) for config in _climbs(observations, space, groups))
    yield "loader", _second_trace(observations, space, start)
    yield "compute", _other_threads(observations, space)
    for amp in space.allowed["amp"]:
        config = replace(start, amp=amp)
        if amp not in {group.amp for group in groups} and observations.looks:
            if observations.is_unchecked(amp):
                yield "numerics", _compared(observations, space, config)
            yield "compute", None if observations.distrust(amp) else _next_on_ladder(observations, space, config)
    yield from option_looks(observations, space)


def _climbs(observations: Observations, space: Space, groups: Sequence[Config]) -> Iterator[Config | None]:
    looks = [_looks_of_group(observations, group).get(group.batch_size) for group in groups]
    rates = [look.samples_per_second if look else 0.0 for look in looks]
    for rate, config in sorted(zip(rates, groups, strict=True), key=lambda pair: -pair[0]):
        if rate >= RIVAL * max(rates):  # a slower one borrows the curve of the faster
            yield _next_on_ladder(observations, space, config)
    if within := observations.looks_within(space):
        yield _next_on_ladder(observations, space, replace(groups[0], amp=_fastest(within).amp))
    yield _beside_the_fastest(observations, space)
    yield _in_half_precision(observations, space, groups)


def _compared(observations: Observations, space: Space, config: Config) -> Config | None:
    """Return the step whose losses are compared with those in fp32: of a smaller batch where that did not fit."""
    halvings = observations.halvings(config.amp)
    fitting = [batch for batch in space.allowed["batch_size"] if batch <= config.batch_size >> halvings]
    return space.with_batch_size(config, fitting[-1]) if fitting else None


def _half_precision(observations: Observations, space: Space, start: Config) -> list[Config]:
    allowed = [amp for amp in HALF if start.amp == "off" and amp in space.allowed["amp"]]
    usable = [amp for amp in allowed if not observations.distrust(amp) or observations.is_unchecked(amp)]
    return [replace(start, amp=amp) for amp in usable[:1]]


def untried_precision(observations: Observations, space: Space) -> str | None:
    """Return the half precision beside the baseline's that there was no time or memory to try, or ``None``."""
    allowed = [amp for amp in HALF if amp in space.allowed["amp"] and amp != observations.baseline.config.amp]
    tried = (amp for amp in allowed if observations.is_untried(amp) or not observations.distrust(amp))
    found = next(tried, None)
    return found if found and observations.is_untried(found) else None


def _with_one_worker(observations: Observations, config: Config) -> Config | None:
    fitting = Fitting(observations, loader_model(observations))
    asked = [replace(config, num_workers=1, prefetch_factor=ahead) for ahead in range(PREFETCH, 0, -1)]
    return next((each for each in asked if fitting.refusal(each) is None), None)


def next_rung(
    peaks: Mapping[int, int], failed: Sequence[int], allowed: Sequence[int], start: int, limit: float
) -> int | None:
    """Return the batch size to try next on the way up, or ``None`` at the top.

    ``peaks`` maps measured batch sizes to their peak memory in bytes, ``failed`` holds batch sizes that did not fit,
    ``allowed`` the candidates in order, ``limit`` the usable bytes. Where memory is ``a + c * batch`` with ``a >= 0``
    no rung exceeds the limit.
    """
    if len(peaks) + len(failed) >= MAX_RUNGS:
        return None
    if not peaks:
        most = min(start, min(failed, default=start + 1) - 1)
        return max((batch for batch in allowed if batch <= most), default=None)
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


def _start(observations: Observations, space: Space) -> Config:
    base, allowed = space.base, space.allowed
    batch = max((b for b in allowed["batch_size"] if b <= base.batch_size), default=allowed["batch_size"][0])
    amps = [amp for amp in allowed["amp"] if not observations.distrust(amp) or observations.is_unchecked(amp)]
    amp = base.amp if base.amp in allowed["amp"] else next(iter(amps), allowed["amp"][0])
    threads = base.intra_op_threads if base.intra_op_threads in allowed["threads"] else allowed["threads"][-1]
    return replace(space.with_batch_size(base.without_loader, batch), amp=amp, intra_op_threads=threads)


def _unseen(observations: Observations, config: Config) -> Config | None:
    return None if observations.step_probe(config) else config


def _is_of_group(observations: Observations, config: Config, other: Config) -> bool:
    one, two = observations.step_key(config), observations.step_key(other)
    return (one.amp, one.threads, one.options) == (two.amp, two.threads, two.options)


def _looks_of_group(observations: Observations, config: Config) -> dict[int, ComputeProbe]:
    looks = {own.batch_size: look for own, look in observations.looks if _is_of_group(observations, own, config)}
    return dict(sorted(looks.items()))


def _failed_of_group(observations: Observations, config: Config) -> dict[int, Outcome]:
    """Return outcomes of steps without numbers, by batch; of others' memory until a later probe has numbers."""
    failed: dict[int, Outcome] = {}
    for probe in observations.step_probes:
        if _is_of_group(observations, probe.config, config):
            if probe.attempt.compute:
                failed = {batch: outcome for batch, outcome in failed.items() if outcome is not Outcome.SUSPECT}
            else:
                failed[probe.config.batch_size] = probe.attempt.outcome
    return failed


def _next_on_ladder(observations: Observations, space: Space, config: Config) -> Config | None:
    """Return the next rung for a precision, or a smaller batch where larger ones do not pay."""
    looks, failed = _looks_of_group(observations, config), _failed_of_group(observations, config)
    if not set(failed.values()) <= {Outcome.DEVICE_OOM, Outcome.HOST_OOM, Outcome.SUSPECT}:
        return None  # it fails for another reason than its size
    rates = [look.samples_per_second for look in looks.values()]
    if len(rates) < 2 or rates[-1] > FLAT * rates[-2]:  # the largest batch was faster than the one before
        peaks, limit = _memory(observations, looks)
        rung = next_rung(peaks, list(failed), space.allowed["batch_size"], config.batch_size, limit)
        return None if rung is None else space.with_batch_size(config, rung)
    return None


def _memory(observations: Observations, looks: Mapping[int, ComputeProbe]) -> tuple[dict[int, int], float]:
    limit = observations.device_limit or min((look.memory_limit_bytes for look in looks.values()), default=0)
    return {batch: look.peak_memory_bytes for batch, look in looks.items()}, observations.memory_limit.of(limit)


def _second_trace(observations: Observations, space: Space, start: Config) -> Config | None:
    """Return another batch size at which to probe the loader, where loading matters and it was not done."""
    tried, allowed = sum(probe.part == "loader" for probe in observations.probes), space.allowed["batch_size"]
    if tried != 1 or not observations.traces or not observations.looks or len(allowed) == 1:
        return None
    trace = observations.traces[0]
    build = fmean(trace.build_seconds) / (trace.batch_size * start.ranks)
    if build * max(look.samples_per_second for _, look in observations.looks) < RELEVANT_BUILD:
        return None
    largest = max(start.batch_size, *(config.batch_size for config, _ in observations.looks))
    own, others = trace.batch_size, [batch for batch in allowed if batch <= largest and batch != trace.batch_size]
    others.sort(key=lambda b: (b < own, abs(b - OTHER_BATCH * own) if b > own else abs(b - own / OTHER_BATCH)))
    configs = (_with_one_worker(observations, space.with_batch_size(start, batch)) for batch in others)
    return next(filter(None, configs), None)


def _other_threads(observations: Observations, space: Space) -> Config | None:
    """Return the fastest step with the next number of threads, fewer first, while these are nearly as fast."""
    looks = observations.looks_within(space)
    if not looks or not observations.on_cpu:
        return None
    first = observations.threads(looks[0][0])
    fastest, best = max(
        ((config, look.samples_per_second) for config, look in looks if observations.threads(config) == first),
        key=lambda pair: pair[1],
    )
    others = [replace(fastest, intra_op_threads=count) for count in space.allowed["threads"]]
    others.sort(key=observations.threads)
    fewer = [each for each in reversed(others) if observations.threads(each) < first]
    for way in (fewer, [each for each in others if observations.threads(each) > first]):
        for config in way:
            probe = observations.step_probe(config)
            if probe is None:
                return config
            if probe.attempt.compute is None or probe.attempt.compute.samples_per_second < RIVAL * best:
                break
    return None


def _beside_the_fastest(observations: Observations, space: Space) -> Config | None:
    """Return an unprobed batch size next to the fastest step's: the highest ceiling is not guessed."""
    within = observations.looks_within(space)
    if not within:
        return None
    fastest = _fastest(within)
    looks = _looks_of_group(observations, fastest)
    if len(looks) + len(_failed_of_group(observations, fastest)) >= MAX_RUNGS:
        return None
    (peaks, limit), allowed = _memory(observations, looks), space.allowed["batch_size"]
    here = allowed.index(fastest.batch_size)
    near = [
        batch
        for batch in allowed[max(0, here - 1) : here + 2]
        if batch >= space.base.batch_size and MemoryModel(peaks).at(batch) <= limit
    ]
    return next(filter(None, (_unseen(observations, space.with_batch_size(fastest, b)) for b in near)), None)


def _in_half_precision(observations: Observations, space: Space, groups: Sequence[Config]) -> Config | None:
    """Return the fastest step in half precision, which fits wherever fp32 did, and may fit where that does not."""
    within = observations.looks_within(space)
    running = [group.amp for group in groups if group.amp != "off" and _looks_of_group(observations, group)]
    others = (_unseen(observations, replace(_fastest(within), amp=amp)) for amp in running if within)
    return next(filter(None, others), None)


def _fastest(looks: Sequence[tuple[Config, ComputeProbe]]) -> Config:
    return max(looks, key=lambda pair: pair[1].samples_per_second)[0]
