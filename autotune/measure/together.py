"""What several ranks have measured, as one measurement. Pure.

Rates are those of all ranks together; times and memory are those of one rank, the one that counts: the slowest for the
split of a step, the fullest for memory. Host memory, which all ranks of a host share, is divided among them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from autotune.probes import ComputeProbe, LoaderTrace
from autotune.records import Attempt, Conditions, Measurement, Outcome, RankShare

__all__ = ["as_one"]


def as_one(attempts: Sequence[Attempt]) -> Attempt:
    """Return what the attempts of all ranks, in their order, come to; the first that went wrong decides."""
    worst = next((rank for rank, attempt in enumerate(attempts) if not attempt.found), None)
    if worst is not None:
        return replace(attempts[worst], message=f"rank {worst}: {attempts[worst].message}")
    first = attempts[0]
    suspect = [attempt for attempt in attempts if attempt.outcome is Outcome.SUSPECT]
    measured = [attempt.measurement for attempt in attempts if attempt.measurement]
    steps = [attempt.compute for attempt in attempts if attempt.compute]
    traces = [attempt.loader for attempt in attempts if attempt.loader]
    return replace(
        suspect[0] if suspect else first,
        measurement=_measurement(measured) if measured else None,
        compute=_step(steps) if steps else None,
        loader=max(traces, key=_build_seconds) if traces else None,
        message=_together([attempt.message for attempt in attempts]),
    )


def _build_seconds(trace: LoaderTrace) -> float:
    return fmean(trace.build_seconds)


def _measurement(ranks: Sequence[Measurement]) -> Measurement:
    """Return one measurement of all ranks.

    They make their steps together, so each rank's share of what counts (restarts, batches built before the window) is
    that of the rank with the least.
    """
    shares = tuple(_share(number, measured) for number, measured in enumerate(ranks))
    slowest = ranks[max(shares, key=lambda share: share.own_seconds).rank]
    passed = sum(measured.samples / measured.seconds for measured in ranks)
    counted = min(measured.samples_per_second * measured.seconds / measured.samples for measured in ranks)
    steady = min(measured.steady_samples_per_second * measured.seconds / measured.samples for measured in ranks)
    rate, width = passed * counted, max(map(_relative_half_width, ranks))
    fullest = max(ranks, key=lambda measured: measured.epoch_peak_bytes)
    host_limit = fullest.memory_limit_bytes // (len(ranks) if fullest.memory == "host" else 1)
    epoch_samples = [measured.epoch_samples for measured in ranks]
    losses = [measured.loss for measured in ranks]
    return replace(
        slowest,
        samples_per_second=rate,
        ci95=None if width == float("inf") else (rate * (1 - width), rate * (1 + width)),
        steady_samples_per_second=passed * steady,
        ceiling_samples_per_second=sum(measured.ceiling_samples_per_second for measured in ranks),
        samples=round(passed * slowest.seconds),
        epoch_samples=sum(count for count in epoch_samples if count) if all(epoch_samples) else None,
        first_batch_seconds=max(measured.first_batch_seconds for measured in ranks),
        peak_memory_bytes=fullest.peak_memory_bytes,
        memory_limit_bytes=host_limit,
        peak_allocated_bytes=fullest.peak_allocated_bytes,
        host_memory_bytes=max(measured.host_memory_bytes for measured in ranks),
        shared_memory_bytes=max(measured.shared_memory_bytes for measured in ranks),
        worker_growth_bytes_per_sample=fullest.worker_growth_bytes_per_sample,
        epoch_host_memory_bytes=fullest.epoch_host_memory_bytes,
        conditions=_conditions(slowest.conditions, [measured.conditions for measured in ranks]),
        loss=next((loss for loss in losses if loss is None or loss != loss or abs(loss) == float("inf")), losses[0]),
        stopped_early=any(measured.stopped_early for measured in ranks),
        ranks=shares,
        notes=tuple(dict.fromkeys(note for measured in ranks for note in measured.notes)),
    )


def _share(number: int, measured: Measurement) -> RankShare:
    split = measured.step_time
    return RankShare(
        rank=number,
        own_seconds=split.total - split.communication,
        communication_seconds=split.communication,
        data_wait_seconds=split.data_wait,
        peak_memory_bytes=measured.epoch_peak_bytes,
    )


def _relative_half_width(measured: Measurement) -> float:
    if measured.ci95 is None:
        return float("inf")
    return (measured.ci95[1] - measured.ci95[0]) / 2 / measured.samples_per_second


def _conditions(own: Conditions, all_of_them: Sequence[Conditions]) -> Conditions:
    """Return what the machine did: what slowed any rank has slowed all."""
    slowdowns = dict.fromkeys(words for conditions in all_of_them for words in conditions.gpu_slowdowns)
    return replace(
        own,
        is_crowded=any(conditions.is_crowded for conditions in all_of_them),
        gpu_slowdowns=tuple(slowdowns),
        allocator_retries=max(conditions.allocator_retries for conditions in all_of_them),
    )


def _step(ranks: Sequence[ComputeProbe]) -> ComputeProbe:
    fullest = max(ranks, key=lambda probe: probe.peak_memory_bytes)
    return replace(
        fullest,
        samples_per_second=sum(probe.samples_per_second for probe in ranks),
        first_step_seconds=max(probe.first_step_seconds for probe in ranks),
        host_seconds=max(probe.host_seconds for probe in ranks),
        cpu_seconds=fmean(probe.cpu_seconds for probe in ranks),
        memory_limit_bytes=fullest.memory_limit_bytes // (len(ranks) if fullest.memory == "host" else 1),
        host_memory_bytes=max(probe.host_memory_bytes for probe in ranks),
    )


def _together(messages: Sequence[str]) -> str:
    return "; ".join(dict.fromkeys(filter(None, messages)))
