"""The reasons why training waits for data."""

from __future__ import annotations

import math
from statistics import fmean

from autotune.diagnosis.findings import (
    Cause,
    Evidence,
    Finding,
    before_all,
    code_figures,
    limit,
    loader_figures,
    ms,
    workers_text,
)
from autotune.limits import percent
from autotune.outcome import Outcome

FULL_CPUS = 0.9
"""Share of the CPUs in use from which more workers gain nothing."""
BLOCKED = 0.5
"""CPU time of building a batch, as a share of its duration, below which it waits for no CPU."""
FROM_STORAGE = 0.3
"""Share of the bytes read from storage, from which building a batch waits for storage."""
BELIEVED = 1.5
"""Every step waits at least until its batch is received: a probe that says much more met a busy worker."""
LEAST_BUSY = 0.1
"""Least share of a CPU that a worker is taken to use, where more workers are advised."""
ONE_READER = 1.15
"""Rate of several workers over that of one alone, up to which they are served one at a time."""
BELOW_STEP = 0.9
"""Rate of several workers over that of the step alone, above which the step holds them up."""
AT_ONCE = 2e-5
"""Seconds of a sample below which nothing in it is decoded or augmented."""
LOOK_INSIDE = "; python -m autotune diagnose tells which code takes the time"
"""Advice where nobody has looked into the code that builds batches."""
MENDING = {
    Outcome.TIMEOUT: "create threads, locks and connections of the dataset in the worker, on first use, or start "
    "workers by spawn (multiprocessing_context)",
    Outcome.SHM: "give it more shared memory or open files, or take smaller batches",
    Outcome.HOST_OOM: "free memory, or take smaller batches",
}
"""The way out after failures of workers; for other outcomes the message has it."""


def late_loader(evidence: Evidence) -> Finding:
    """Return why training waits for data: the first cause that fits."""
    conditions, config = evidence.measurement.conditions, evidence.config
    is_full = conditions.own_cpus + conditions.foreign_cpus >= FULL_CPUS * conditions.cpus
    if conditions.is_throttled:
        return quota(evidence)
    if is_full and (conditions.worker_threads or 1) > 1:
        threads = f"{conditions.worker_threads} threads in a worker"
        figure = f"{threads}, {config.num_workers} workers, {conditions.cpus} CPUs"
        return limit(Cause.WORKER_THREADS, figure, overload=": together they overload the CPUs")
    if found := _slow_pinning(evidence) or _slow_receive(evidence) or _one_reader(evidence):
        return found
    if is_full and config.num_workers:
        return limit(
            Cause.CPUS,
            f"{conditions.own_cpus:.1f} of {conditions.cpus} CPUs in use",
            *loader_figures(evidence),
            *code_figures(evidence),
            state="every CPU is busy",
            ways=before_all(evidence.fewer_threads),
        )
    return _slow_dataset(evidence)


def _slow_dataset(evidence: Evidence) -> Finding:
    blocked, loader = evidence.blocked_share, evidence.loader
    is_blocked = blocked >= 1 - BLOCKED if blocked is not None else _looks_idle(evidence)
    figures, workers = loader_figures(evidence), _workers_advice(evidence)
    if not is_blocked:
        was_looked_at = any(look.part == "anatomy" for look in evidence.looks)
        look = "" if was_looked_at else LOOK_INSIDE
        return limit(_cause_inside(evidence), *figures, *code_figures(evidence), workers=workers, look=look)
    shares = (loader.storage_share if loader else None, evidence.measurement.conditions.storage_share)
    storage = max((share for share in shares if share is not None), default=None)
    if storage is None or storage < FROM_STORAGE:
        return limit(Cause.WAITING, *figures, workers=workers, storage="storage, " if storage is None else "")
    read = f"{percent(storage)} of the bytes read came from storage, not from the page cache"
    return limit(Cause.STORAGE, *figures, read, workers=workers)


def _cause_inside(evidence: Evidence) -> Cause:
    """Return the part of building a batch that takes its CPU time, where a look into the code tells.

    Nothing is decoded where the samples are there in no time, or joining them into a batch takes longer.
    """
    if (inside := evidence.anatomy) is None:
        return Cause.BUILDING
    decodes = inside.sample_seconds >= max(AT_ONCE, inside.collate_seconds / evidence.config.batch_size)
    return Cause.DECODING if decodes else Cause.COLLATING


def _one_reader(evidence: Evidence) -> Finding | None:
    """Return the finding of several workers that are no faster than one, though they need no CPU.

    It is concluded from windows without pauses and without others, and refuted by any.
    """
    loader, config, measured = evidence.loader, evidence.config, evidence.measurement
    if loader is None or (evidence.blocked_share or 0.0) < 1 - BLOCKED:
        return None
    one = config.ranks * loader.batch_size / fmean(loader.build_seconds)
    rates = {**evidence.rates, config: measured.steady_samples_per_second}
    fastest = max((rate for each, rate in rates.items() if each.num_workers > 1), default=0.0)
    several = max((each for each in evidence.even if each.num_workers > 1), key=lambda each: rates[each], default=None)
    if several is None or fastest > min(ONE_READER * one, BELOW_STEP * measured.ceiling_samples_per_second):
        return None
    count = workers_text(several.num_workers)
    figure = f"one worker alone {one:,.0f} samples/s, {count} {rates[several]:,.0f}"
    return limit(Cause.ONE_READER, *loader_figures(evidence), figure, count=count)


def _looks_idle(evidence: Evidence) -> bool:
    """Return, without a probe of the loader, whether its processes hardly used a CPU while training waited."""
    split, conditions = evidence.measurement.step_time, evidence.measurement.conditions
    threads = 1 if evidence.is_asynchronous else evidence.config.intra_op_threads or evidence.facts.intra_op_threads
    step = threads * (split.total - split.data_wait) / split.total
    builders = evidence.config.num_workers or split.data_wait / split.total
    own = conditions.own_cpus / evidence.config.ranks
    return max(0.0, own - step) < BLOCKED * builders


def _slow_pinning(evidence: Evidence) -> Finding | None:
    loader, step = evidence.loader, evidence.measurement.step_time.total
    if loader is None or not evidence.config.pin_memory or not evidence.config.num_workers:
        return None
    pin, receive = (
        seconds * evidence.config.batch_size / loader.batch_size
        for seconds in (loader.pin_seconds, loader.receive_seconds)
    )
    if pin < receive or pin + receive < FULL_CPUS * step:
        return None
    return limit(Cause.PINNING, f"receiving a batch takes {ms(receive)} and pinning it {ms(pin)}, a step {ms(step)}")


def _slow_receive(evidence: Evidence) -> Finding | None:
    loader, measured = evidence.loader, evidence.measurement
    if loader is None or not evidence.config.num_workers or measured.ready_batches < 1:
        return None
    receive = loader.receive_seconds * evidence.config.batch_size / loader.batch_size
    waited = measured.step_time.data_wait
    if not waited / 2 <= receive <= BELIEVED * waited:
        return None
    figures = [
        f"receiving a ready batch takes {ms(receive)} of the {ms(waited)} that training waits",
        f"{measured.ready_batches:.1f} batches were ready on average",
    ]
    if evidence.anatomy:
        figures.append(f"a batch consists of {evidence.anatomy.batch_tensors} tensors")
    was_tried = evidence.was_in_vain(lambda config: not config.num_workers)
    return limit(Cause.RECEIVE, *figures, or_none="" if was_tried else "; no workers at all may be faster")


def _workers_advice(evidence: Evidence) -> str:
    """Return advice on the number of workers; they wait at the same time, but compute only on so many CPUs.

    None are proposed that were measured and are no faster, got no data, failed, or are not expected to gain.
    """
    workers, busy = evidence.config.num_workers, 1 - (evidence.blocked_share or 0.0)
    if evidence.are_more_idle:
        return ""
    if any(lost(lambda other: other.num_workers > workers) for lost in (evidence.is_no_faster, evidence.lost_clearly)):
        return ""
    if failed := _failed_workers(evidence):
        return failed
    if evidence.refusal_of_more_workers:
        return f"{'more' if workers else 'loader'} workers would not fit ({evidence.refusal_of_more_workers}); "
    if evidence.are_workers_vain:
        return ""
    if not workers:
        return "use loader workers (num_workers); "
    has_room = workers < math.ceil(evidence.host.cpus / max(LEAST_BUSY, busy))
    return "more workers; " if has_room and (evidence.measurement.conditions.worker_threads or 1) < 2 else ""


def _failed_workers(evidence: Evidence) -> str:
    config = evidence.config
    if not config.num_workers and any(other.num_workers for other in evidence.rates):
        return ""
    for count, batch_size, attempt in evidence.failures:
        may_fit = attempt.outcome.is_want_of_memory and batch_size > config.batch_size
        if count > config.num_workers and not may_fit:
            why = " ".join(attempt.message.split()) or str(attempt.outcome)
            has_way = attempt.outcome.is_want_of_memory and "; " in why
            way = "" if has_way else f": {MENDING.get(attempt.outcome, 'fix that first')}"
            return f"{workers_text(count)} failed here ({why}){way}; "
    return ""


def quota(evidence: Evidence) -> Finding:
    """Return the finding of a CPU quota that stops the processes."""
    host, stopped = evidence.host, evidence.measurement.conditions.throttled_share or 0.0
    allowed = "" if host.quota_cpus is None else f", the quota is {host.quota_cpus:g} of {host.affinity_cpus} CPUs"
    return limit(Cause.QUOTA, f"stopped for {percent(stopped)} of the time{allowed}")
