"""The limits of a measured configuration, by the time of each part.

A step slower than on a resident batch lost the time somewhere: waiting for data, copying, between the phases, to
workers on its CPUs, at the start of epochs. The part that takes the most is the limit, if it takes a tenth of the
time; otherwise the step itself is. A step that the host launches too slowly counts beside them. Where a part has
several causes, the probes of loader and code say which.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from autotune.config import Config
from autotune.diagnosis.findings import FASTER, LEAST_SHARE, Cause, Evidence, Finding, before_all, limit, ms
from autotune.diagnosis.habits import habits, lost_cpus
from autotune.diagnosis.loader import late_loader, quota
from autotune.limits import percent
from autotune.outcome import Outcome
from autotune.records import Measurement, to_divide

LAUNCHING = 0.85
"""Host time of a step, as a share of the step on the device, from which an accelerator waits for its host."""
BUSY_GPU = 0.9
"""Utilisation of a GPU from which it does not wait, where the host's time may hold its own waits for the device."""
OWN_STEP = 0.95
"""Share of the rate on resident batches from which no loader could make training much faster."""
FULL = 0.85
"""Share of a process's CPUs in use from which more would make training faster."""
TAKEN = 0.5
"""Share of the CPUs that others use from which no other claim is made, and only a proven gain is the answer."""


def find(evidence: Evidence) -> tuple[Finding, ...]:
    """Return the limits of the rate, the most expensive first, then other facts worth knowing."""
    foreign = evidence.measurement.conditions.taken_share
    limits = sorted(_limits(evidence), key=lambda finding: -(finding.share or 0.0))
    larger = [finding for finding in limits if not foreign or (finding.share or 0.0) > foreign]
    limits = limits or [_step_limit(evidence)]
    if foreign:
        limits = [*larger, _neighbours(evidence), *limits[len(larger) :]]
    limits = [_neighbours(evidence)] if foreign >= TAKEN else [*_masked(evidence), *limits]
    found = [*limits, *habits(evidence)]
    causes = dict.fromkeys(finding.cause for finding in found)
    return tuple(_together([finding for finding in found if finding.cause is cause]) for cause in causes)


def _together(alike: Sequence[Finding]) -> Finding:
    """Return several findings of one cause as one: the first, with the time of all limits among them."""
    shares = [finding.share for finding in alike if finding.is_limit and finding.share is not None]
    return replace(alike[0], share=min(1.0, sum(shares)) if shares else None)


def _masked(evidence: Evidence) -> list[Finding]:
    """Return the finding of lost CPUs where those that are left are in full use: whatever waits, waits for them."""
    conditions = evidence.measurement.conditions
    return [*lost_cpus(evidence)] if conditions.own_cpus > FULL * conditions.cpus else []


def _limits(evidence: Evidence) -> Iterator[Finding]:
    """Yield the parts beside the step that take a tenth of the time or more, and the step where the host delays it.

    The loop may have waited less than in the long run, while a queue drained, or more, at the start of an epoch. The
    rate inside an epoch says which.
    """
    measured = evidence.measurement
    split, samples = measured.step_time, measured.samples / measured.steps
    computing = split.forward + split.backward + split.communication + split.optimizer
    alone = samples / measured.ceiling_samples_per_second
    # the average step, inside epochs and in all: restarts and samples that do not count included
    steady, total = samples / measured.steady_samples_per_second, samples / measured.samples_per_second
    same = total * (1 - measured.unique_share)
    between = max(0.0, total - same - steady)
    ordering = min(between, samples * (measured.order_seconds or 0.0) / (measured.epoch_samples or float("inf")))
    slowed = max(0.0, computing - alone) if evidence.config.num_workers else 0.0
    in_ranks = f"{ms(split.communication)} a step in the slowest of {len(measured.ranks)} ranks"
    sorting = f"{measured.order_seconds or 0.0:.3g} s for each epoch of {measured.epoch_samples or 0:,} samples"
    lost: list[tuple[float, Callable[[], Finding]]] = [
        (_waited(measured), lambda: late_loader(evidence)),
        (split.host_to_device, lambda: _slow_copy(evidence)),
        (split.communication, lambda: limit(Cause.COMMUNICATION, in_ranks)),
        (split.other, lambda: limit(Cause.LOOP, f"{ms(split.other)} a step")),
        (slowed, lambda: _slowed_step(evidence, computing, alone)),
        (between - ordering, lambda: _restarts(evidence)),
        (ordering, lambda: limit(Cause.SAMPLER, sorting)),
        (same, lambda: _same_samples(evidence)),
    ]
    if (step := _step_limit(evidence)).cause is Cause.LAUNCH:
        lost.append((max(0.0, computing - split.communication - slowed), lambda: step))
    total = max(total, sum(seconds for seconds, _ in lost))  # where they were not measured in the same steps
    for seconds, find_out in lost:
        if seconds >= LEAST_SHARE * total:
            yield replace(find_out(), share=seconds / total)


def _step_limit(evidence: Evidence) -> Finding:
    measured, conditions = evidence.measurement, evidence.measurement.conditions
    if conditions.gpu_slowdowns:
        return limit(Cause.HEAT, *conditions.gpu_slowdowns)
    if conditions.allocator_retries:
        used = f"{measured.peak_memory_bytes / 2**30:.1f} of {measured.memory_limit_bytes / 2**30:.1f} GiB used"
        retries = f"{conditions.allocator_retries} times in {measured.steps} steps"
        return limit(Cause.MEMORY, retries, used)
    if conditions.is_throttled and not evidence.is_asynchronous:
        return quota(evidence)
    return _launch_limit(evidence) or _compute_limit(evidence)


def _launch_limit(evidence: Evidence) -> Finding | None:
    """Return the finding of an accelerator that waits for the host's next operator, where it does.

    The host's time of a step that waits for the device, and does not only launch it, says nothing: there utilisation
    decides. fp16 waits too, because its scaler reads back whether gradients are finite.
    """
    compute, anatomy, config = evidence.compute, evidence.anatomy, evidence.config
    if not evidence.is_asynchronous or compute is None:
        return None
    step = config.samples_per_step / compute.samples_per_second
    waits = config.amp == "fp16" or bool(anatomy and anatomy.synchronisations)
    utilisation = evidence.measurement.conditions.gpu_utilisation
    is_busy = waits if utilisation is None else utilisation >= BUSY_GPU
    if compute.host_seconds < LAUNCHING * step or (is_busy and (waits or anatomy is None)):
        return None
    figures = [f"the host takes {ms(compute.host_seconds)} to launch a step of {ms(step)}"]
    if anatomy:
        figures.append(f"{anatomy.operators_per_step} operators per step")
    if utilisation is not None:
        figures.append(f"the GPU was in use {percent(utilisation)} of the time")
    return limit(Cause.LAUNCH, *figures)


def _compute_limit(evidence: Evidence) -> Finding:
    measured, config = evidence.measurement, evidence.config
    share = min(1.0, measured.samples_per_second / measured.ceiling_samples_per_second)
    step = f"batches of {config.batch_size} in {config.precision}"
    modes = {*evidence.facts.amp_modes} - {"off"} - _refused_modes(evidence)
    may_amp = config.amp == "off" and bool(modes) and _may_pay(evidence, lambda other: other.amp in modes)
    may_grow = _may_pay(evidence, lambda other: other.amp == config.amp and other.batch_size > config.batch_size)
    first = " and ".join([*(["amp"] if may_amp else []), *(["larger batches"] if may_grow else [])])
    reach = f": no data loader could make training with {step} much faster"
    if share < OWN_STEP:
        reach = f", with {step}; nothing else takes a tenth of the time"
    figure = f"{percent(share)} of the rate on batches already on the device"
    split = measured.step_time
    parts = {"forward": split.forward, "backward": split.backward, "optimizer": split.optimizer}
    phases = ", ".join(f"{name} {percent(seconds / split.total)}" for name, seconds in parts.items())
    words = {"reach": reach, "first": f"{first} first, then " if first else ""}
    return replace(limit(Cause.COMPUTE, figure, phases, **words), share=share)


def _refused_modes(evidence: Evidence) -> set[str]:
    """Return the precisions that were compared with fp32 and train otherwise, or fail in the user's own code."""
    compared = [look for look in evidence.looks if look.part == "numerics" and not look.config.options]
    decided = [look for look in compared if look.attempt.outcome in (Outcome.OK, Outcome.USER_ERROR)]
    return {look.config.amp for look in decided if look.attempt.message}


def _may_pay(evidence: Evidence, is_meant: Callable[[Config], bool]) -> bool:
    """Return whether a meant configuration, or its step, was measured to be faster, or none was measured."""
    rates = [trial.rate for trial in evidence.trials if trial.rate is not None and is_meant(trial.config)]
    for look in evidence.looks:  # its step alone is faster than it would train
        if look.attempt.compute and is_meant(look.config) and look.config.batch_size >= evidence.config.batch_size:
            rates.append(look.attempt.compute.samples_per_second)
    return not rates or max(rates) > FASTER * evidence.measurement.samples_per_second


def _slow_copy(evidence: Evidence) -> Finding:
    seconds, size = evidence.measurement.step_time.host_to_device, evidence.measurement.batch_bytes
    size_text = f", {size / 2**20:.3g} MiB" if size else ""
    is_pinned = evidence.config.pin_memory
    return limit(
        Cause.COPY,
        f"{ms(seconds)} a step{size_text}, memory {'pinned' if is_pinned else 'not pinned'}",
        first="" if is_pinned else "pin_memory=True, with non_blocking copies; ",
    )


def _slowed_step(evidence: Evidence, computing: float, alone: float) -> Finding:
    """Return why the step takes longer than on a resident batch: on a CPU, the loader has taken its place."""
    conditions = evidence.measurement.conditions
    if conditions.is_throttled:
        return quota(evidence)
    if conditions.gpu_slowdowns or conditions.allocator_retries:
        return _step_limit(evidence)
    return limit(
        Cause.CPUS,
        f"{ms(computing)} with the data loader, {ms(alone)} alone",
        f"{conditions.own_cpus:.1f} of {conditions.cpus} CPUs in use",
        state="the step is slower beside the data loader than alone",
        ways=before_all(_either(_fewer_workers(evidence), evidence.fewer_threads)),
    )


def _restarts(evidence: Evidence) -> Finding:
    measured, anatomy = evidence.measurement, evidence.anatomy
    figures = [f"{measured.restart_seconds or measured.first_batch_seconds:.3g} s until the first batch of an epoch"]
    if anatomy and anatomy.start_method != "fork":
        figures.append(f"workers start by {anatomy.start_method}")
    keep = "persistent_workers=True" if evidence.should_keep_workers else ""
    longer = "longer epochs (a sampler that goes through the data several times)"
    return limit(Cause.RESTARTS, *figures, ways=_either(keep, _fewer_workers(evidence), longer))


def _fewer_workers(evidence: Evidence) -> str:
    """Return the advice to take fewer workers, where training does not wait and fewer were not tried in vain."""
    measured, workers = evidence.measurement, evidence.config.num_workers
    is_late = _waited(measured) * measured.samples_per_second >= LEAST_SHARE * measured.samples / measured.steps
    is_slower = evidence.was_in_vain(lambda config: config.num_workers < workers)
    return "fewer workers" if workers > 1 and not is_late and not is_slower else ""


def _either(*ways: str) -> str:
    *others, last = [*filter(None, ways)] or [""]
    return f"{', '.join(others)}, or {last}" if others else last


def _waited(measured: Measurement) -> float:
    """Return for how long an average step waits for data, the rate inside an epoch taken into account."""
    split, samples = measured.step_time, measured.samples / measured.steps
    return max(0.0, split.data_wait + samples / measured.steady_samples_per_second - split.total)


def _same_samples(evidence: Evidence) -> Finding:
    ranks, share = evidence.config.ranks, percent(evidence.measurement.unique_share)
    words = {"those": "" if ranks == 1 else "ranks or ", "divide": to_divide(ranks)}
    return limit(Cause.SAME_SAMPLES, f"only {share} of the samples differ", **words)


def _neighbours(evidence: Evidence) -> Finding:
    """Return the finding of others that take the CPUs or the GPU; if they take most, no other is told."""
    conditions = evidence.measurement.conditions
    rest = ": what else limits training is not known while they run" if conditions.taken_share >= TAKEN else ""
    if conditions.shares_gpu and not conditions.is_crowded:
        return limit(Cause.SHARED_GPU, conditions.crowd_text, rest=rest)
    used = f"{conditions.foreign_cpus:.1f} of {conditions.cpus} CPUs used by others"
    return limit(Cause.NEIGHBOURS, used, rest=rest)
