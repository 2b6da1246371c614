"""Notes on an answer: reasons to trust its rate less, and changes that it asks of training."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import fmean

from autotune.config import Config
from autotune.diagnosis.findings import ms
from autotune.host import Host
from autotune.probes import LoaderTrace
from autotune.records import Conditions, Measurement, Outcome, Trial, WorkloadFacts

UNEVEN = 1.25
"""Ratio of the highest rate to the lowest from which it is said that rates depend on the place in the epoch."""


def crowded_in(trials: Sequence[Trial]) -> list[Conditions]:
    """Return the conditions of measurements while others took the CPUs or the GPU."""
    measured = [trial.measurement.conditions for trial in trials if trial.measurement]
    return [conditions for conditions in measured if conditions.is_crowded or conditions.shares_gpu]


def on_disturbances(trials: Sequence[Trial], *, has_answer: bool) -> Iterator[str]:
    """Yield what others did to confirming measurements, and why some gave no rate."""
    if crowded := crowded_in(trials):
        yield (
            f"other processes disturbed {len(crowded)} of {len(trials)} confirming measurements "
            f"({crowded[-1].crowd_text}), which makes the interval wider"
        )
    failed = [trial for trial in trials if trial.measurement is None]
    without = [trial.attempt.message for trial in failed if trial.outcome is Outcome.SUSPECT]
    if without:
        yield f"{len(without)} confirming measurements gave no rate ({without[-1]}): their rounds do not count"
    if trials and not has_answer:
        why = f"{failed[-1].outcome}: {failed[-1].attempt.message}" if failed else "it took too long or too much memory"
        yield f"no finalist ran beside your settings in a fresh process ({why})"


def on_places(baselines: Sequence[Measurement]) -> Iterator[str]:
    """Yield how much the baseline's rate depends on the place in the epoch."""
    rates = [each.samples_per_second for each in baselines]
    is_placed = all(each.beginning_samples is None for each in baselines)
    if is_placed and max(rates) >= UNEVEN * min(rates):
        yield (
            f"the baseline's rate depends on the place in the epoch: {min(rates):,.0f} to {max(rates):,.0f} samples/s; "
            "the rates are means over the places measured"
        )


def on_other_batch(config: Config, old: Config, facts: WorkloadFacts) -> Iterator[str]:
    """Yield what a batch of another size changes for training."""
    whole, old_whole = (each.samples_per_step * each.accumulation_steps for each in (config, old))
    if whole != old_whole:
        yield (
            f"the batch size changes from {old_whole} to {whole}: adapt the learning rate (linear or square-root "
            "rule), or keep the batch size with --batch-size or --global-batch-size"
        )
    elif config.batch_size != old.batch_size and facts.has_batch_norm:
        yield (
            f"an optimizer step keeps its {whole} samples, but batch normalisation now sees {config.batch_size} at a "
            f"time, not {old.batch_size}"
        )


def on_unseen_samples(typical: Measurement, measured: Sequence[Measurement], facts: WorkloadFacts) -> Iterator[str]:
    """Yield which samples were not seen, and that larger batches may come where sizes may differ."""
    epoch = typical.epoch_samples
    if (seen := typical.beginning_samples) is not None:
        share = f"{min(1.0, seen / epoch):.0%} of an epoch" if epoch else "without an end of an epoch"
        yield f"the iterable dataset was measured on its first {seen:,} samples only, {share}"
    counts, epoch = [each.seen_samples or each.samples for each in measured], epoch or facts.epoch_samples
    seen = sum(counts)
    if epoch is not None:  # each measurement sees samples from another part of another order
        seen = round(epoch * (1 - math.prod(1 - min(1.0, count / epoch) for count in counts)))
    sizes_may_differ = {"collate_fn", "batch_sampler"} & set(facts.loader_arguments)
    if sizes_may_differ and (epoch is None or seen < epoch):
        peak = max(each.epoch_peak_bytes for each in (typical, *measured))
        of = "" if epoch is None else f" of an epoch's {epoch:,}"
        yield (
            f"the answer was measured on about {seen:,}{of} samples, with up to {peak / 2**30:.2g} GiB of "
            f"{typical.memory} memory: a batch with a larger sample takes more"
        )


def on_caches(trace: LoaderTrace | None) -> Iterator[str]:
    """Yield that later epochs may be faster, where the dataset keeps its samples."""
    if trace and trace.again_seconds is not None and trace.keeps_samples:
        yield (
            f"building a batch took {ms(fmean(trace.build_seconds))}, and the same batch again "
            f"{ms(trace.again_seconds)}: the rates are those of the first epoch, and later epochs may be faster"
        )


def on_data_parallel(config: Config, facts: WorkloadFacts, host: Host) -> Iterator[str]:
    """Yield advice on a model that copies itself to every device in every step."""
    if facts.data_parallel_devices is None or config.ranks > 1:
        return
    ranks = min(2, host.cpus) if facts.device == "cpu" else facts.data_parallel_devices
    advice = "with one device it does nothing; take it out"
    if ranks >= 2:
        advice = f"take it out, pass --ranks {ranks}, and train with torchrun"
    yield f"the model is in nn.DataParallel, one process for all devices: {advice}"
