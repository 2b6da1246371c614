"""The limits of a measured configuration, by the time of each part.

A step slower than on a resident batch lost the time somewhere: waiting for data, copying, between the phases, to
workers on its CPUs, at the start of epochs. The part that takes the most is the limit, if it takes a tenth of the
time; otherwise the step itself is. Where a part has several causes, the probes of loader and code say which.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from autotune.config import Config
from autotune.diagnosis.findings import (
    FASTER,
    LEAST_SHARE,
    Cause,
    Evidence,
    Finding,
    limit,
    ms,
    peak_figure,
    percent,
    phase_figures,
)
from autotune.diagnosis.habits import habits
from autotune.diagnosis.loader import late_loader, quota
from autotune.records import Measurement, to_divide

LAUNCHING = 0.8
"""Host time of a step, as a share of it, from which an accelerator waits for its host; unless it is as busy as this."""
BUSY_GPU = 0.9
OWN_STEP = 0.95
"""Share of the rate on resident batches from which no loader could make training much faster."""
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
    if foreign >= TAKEN:
        limits = [_neighbours(evidence)]
    found = [*limits, *habits(evidence)]
    causes = dict.fromkeys(finding.cause for finding in found)
    return tuple(_together([finding for finding in found if finding.cause is cause]) for cause in causes)


def _together(alike: Sequence[Finding]) -> Finding:
    """Return several findings of one cause as one: the first, with the time of all limits among them."""
    shares = [finding.share for finding in alike if finding.is_limit and finding.share is not None]
    return replace(alike[0], share=min(1.0, sum(shares)) if shares else None)


def _limits(evidence: Evidence) -> Iterator[Finding]:
    """Yield the parts beside the step that take a tenth of the time or more.

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
    lost: list[tuple[float, Callable[[Evidence, float], Finding]]] = [
        (_waited(measured), late_loader),
        (split.host_to_device, _slow_copy),
        (split.communication, _communication),
        (split.other, _slow_loop),
        (max(0.0, computing - alone) if evidence.config.num_workers else 0.0, _slowed_step),
        (between - ordering, _restarts),
        (ordering, _slow_sampler),
        (same, _same_samples),
    ]
    total = max(total, sum(seconds for seconds, _ in lost))  # where they were not measured in the same steps
    for seconds, finder in lost:
        if seconds >= LEAST_SHARE * total:
            yield finder(evidence, seconds / total)


def _step_limit(evidence: Evidence) -> Finding:
    """Return why the step itself takes so long."""
    measured, conditions = evidence.measurement, evidence.measurement.conditions
    if conditions.gpu_slowdowns:
        return limit(
            Cause.HEAT,
            "the accelerator runs slower than it can",
            conditions.gpu_slowdowns,
            "check its cooling and its power supply (nvidia-smi -q -d PERFORMANCE)",
        )
    if conditions.allocator_retries:
        return limit(
            Cause.MEMORY,
            "device memory is full: the allocator frees memory and takes it again while training",
            (f"{conditions.allocator_retries} times in {measured.steps} steps", peak_figure(measured)),
            "take a smaller batch, amp, or activation checkpointing",
        )
    if conditions.is_throttled and not evidence.is_asynchronous:
        return quota(evidence, None)
    return _launch_limit(evidence) or _compute_limit(evidence)


def _launch_limit(evidence: Evidence) -> Finding | None:
    """Return the finding of an accelerator that waits for the host's next operator, where it does."""
    compute, utilisation = evidence.compute, evidence.measurement.conditions.gpu_utilisation
    if not evidence.is_asynchronous or compute is None or (utilisation or 0.0) >= BUSY_GPU:
        return None
    step = evidence.config.samples_per_step / compute.samples_per_second
    if compute.host_seconds < LAUNCHING * step:
        return None
    figures = [f"the host takes {ms(compute.host_seconds)} to launch a step of {ms(step)}"]
    if evidence.anatomy:
        figures.append(f"{evidence.anatomy.operators_per_step} operators per step")
    if utilisation is not None:
        figures.append(f"the GPU was in use {percent(utilisation)} of the time")
    return limit(
        Cause.LAUNCH,
        "the host launches operators more slowly than the accelerator runs them",
        tuple(figures),
        "take larger batches, torch.compile (mode='reduce-overhead' uses CUDA graphs), or a fused optimizer",
    )


def _compute_limit(evidence: Evidence) -> Finding:
    measured, config, modes = evidence.measurement, evidence.config, evidence.facts.amp_modes
    share = min(1.0, measured.samples_per_second / measured.ceiling_samples_per_second)
    step = f"batches of {config.batch_size} in {config.precision}"
    may_amp = config.amp == "off" and len(modes) > 1 and _may_pay(evidence, lambda other: other.amp != "off")
    may_grow = _may_pay(evidence, lambda other: other.amp == config.amp and other.batch_size > config.batch_size)
    first = " and ".join([*(["amp"] if may_amp else []), *(["larger batches"] if may_grow else [])])
    return limit(
        Cause.COMPUTE,
        f"the model's own compute: no data loader could make training with {step} much faster"
        if share >= OWN_STEP
        else f"the model's own compute, with {step}; nothing else takes a tenth of the time",
        (f"{percent(share)} of the rate on batches already on the device", *phase_figures(measured)),
        (f"{first} first, then " if first else "")
        + "torch.compile, channels_last, a fused optimizer, or a smaller model",
        share,
    )


def _may_pay(evidence: Evidence, is_meant: Callable[[Config], bool]) -> bool:
    """Return whether a meant configuration, or its step, was measured to be faster, or none was measured."""
    rates = [trial.rate for trial in evidence.trials if trial.rate is not None and is_meant(trial.config)]
    for look in evidence.looks:  # its step alone is faster than it would train
        if look.attempt.compute and is_meant(look.config) and look.config.batch_size >= evidence.config.batch_size:
            rates.append(look.attempt.compute.samples_per_second)
    return not rates or max(rates) > FASTER * evidence.measurement.samples_per_second


def _slow_copy(evidence: Evidence, share: float) -> Finding:
    config, split = evidence.config, evidence.measurement.step_time
    pinned = "pinned" if config.pin_memory else "not pinned"
    size = evidence.measurement.batch_bytes
    bytes_text = f", {size / 2**20:.3g} MiB" if size else ""
    advice = "send smaller types (uint8 images) and turn them into floats on the device"
    return limit(
        Cause.COPY,
        "copying batches to the device holds up training",
        (f"{ms(split.host_to_device)} a step{bytes_text}, memory {pinned}",),
        advice if config.pin_memory else f"pin_memory=True, with non_blocking copies; {advice}",
        share,
    )


def _communication(evidence: Evidence, share: float) -> Finding:
    measured = evidence.measurement
    return limit(
        Cause.COMMUNICATION,
        "synchronising gradients between ranks takes time that backward does not hide",
        (f"{ms(measured.step_time.communication)} a step in the slowest of {len(measured.ranks)} ranks",),
        "take larger batches per rank, or accumulate several (--global-batch-size): gradients are synchronised once "
        "per optimizer step",
        share,
    )


def _slow_loop(evidence: Evidence, share: float) -> Finding:
    return limit(
        Cause.LOOP,
        "the training loop itself takes time between the phases of a step",
        (f"{ms(evidence.measurement.step_time.other)} a step",),
        "take larger batches; log and compute metrics only every so many steps",
        share,
    )


def _slowed_step(evidence: Evidence, share: float) -> Finding:
    """Return why the step takes longer than on a resident batch: on a CPU, the loader has taken its place."""
    measured, conditions = evidence.measurement, evidence.measurement.conditions
    if conditions.is_throttled:
        return quota(evidence, share)
    alone = measured.samples / measured.steps / measured.ceiling_samples_per_second
    split = measured.step_time
    computing = split.forward + split.backward + split.communication + split.optimizer
    if conditions.gpu_slowdowns or conditions.allocator_retries:
        return _step_limit(evidence)
    return limit(
        Cause.CPUS,
        "the step is slower beside the data loader than alone: they compete for the CPUs",
        (
            f"{ms(computing)} with the data loader, {ms(alone)} alone",
            f"{conditions.own_cpus:.1f} of {conditions.cpus} CPUs in use",
        ),
        f"{_either(_fewer_workers(evidence), 'fewer threads for training (--threads)')}; do less for each sample",
        share,
    )


def _restarts(evidence: Evidence, share: float) -> Finding:
    measured, anatomy = evidence.measurement, evidence.anatomy
    seconds = measured.restart_seconds or measured.first_batch_seconds
    figures = [f"{seconds:.3g} s until the first batch of an epoch"]
    if anatomy and anatomy.start_method != "fork":
        figures.append(f"workers start by {anatomy.start_method}")
    keep = "persistent_workers=True" if evidence.should_keep_workers else ""
    longer = "longer epochs (a sampler that goes through the data several times)"
    return limit(
        Cause.RESTARTS,
        "epochs are short, and each starts the data loader anew",
        tuple(figures),
        _either(keep, _fewer_workers(evidence), longer),
        share,
    )


def _fewer_workers(evidence: Evidence) -> str:
    """Return the advice to take fewer workers, where training does not wait for them and none were measured slower."""
    measured, workers = evidence.measurement, evidence.config.num_workers
    is_late = _waited(measured) * measured.samples_per_second >= LEAST_SHARE * measured.samples / measured.steps
    is_slower = evidence.is_no_faster(lambda other: other.num_workers < workers)
    return "fewer workers" if workers > 1 and not is_late and not is_slower else ""


def _either(*ways: str) -> str:
    """Return the ways without empty texts: ``a, b, or c``."""
    *others, last = filter(None, ways)
    return f"{', '.join(others)}, or {last}" if others else last


def _waited(measured: Measurement) -> float:
    """Return for how long an average step waits for data, the rate inside an epoch taken into account."""
    split, samples = measured.step_time, measured.samples / measured.steps
    return max(0.0, split.data_wait + samples / measured.steady_samples_per_second - split.total)


def _slow_sampler(evidence: Evidence, share: float) -> Finding:
    measured = evidence.measurement
    return limit(
        Cause.SAMPLER,
        "training waits while the sampler orders each epoch; workers do not help, it runs in the training process",
        (f"{measured.order_seconds or 0.0:.3g} s for each epoch of {measured.epoch_samples or 0:,} samples",),
        "let the sampler sort once and only shuffle for each epoch, or make longer epochs",
        share,
    )


def _same_samples(evidence: Evidence, share: float) -> Finding:
    ranks = "" if evidence.config.ranks == 1 else "ranks or "
    return limit(
        Cause.SAME_SAMPLES,
        f"the {ranks}workers of the iterable dataset yield the same samples",
        (f"only {percent(evidence.measurement.unique_share)} of the samples differ",),
        to_divide(evidence.config.ranks),
        share,
    )


def _neighbours(evidence: Evidence) -> Finding:
    """Return the finding of others that take the CPUs; where they take most, no other finding can be trusted."""
    conditions = evidence.measurement.conditions
    rest = ": no other finding can be trusted" if conditions.taken_share >= TAKEN else ""
    return limit(
        Cause.NEIGHBOURS,
        "other processes take CPUs that training could use",
        (f"{conditions.foreign_cpus:.1f} of {conditions.cpus} CPUs used by others",),
        f"stop other programs, and measure again{rest}",
    )
