"""Notes on an answer: reasons to trust its rate less, and changes that it asks of training."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Literal

from autotune.config import Config
from autotune.diagnosis.findings import ms
from autotune.limits import percent
from autotune.machine.host import Host
from autotune.outcome import Outcome
from autotune.probes import LoaderTrace
from autotune.records import Conditions, Measurement, Trial, WorkloadFacts

UNEVEN = 1.25
"""Ratio of the highest rate to the lowest from which it is said that they varied."""
MUCH = 0.5
"""Share of the memory from which a validation pass may have too little."""
HEAVY = 0.5
"""Share of the confirming measurements from which a machine counts as disturbed."""
FILLED = 2.0
"""Ratio of later rates to the first from which the trials themselves filled a cache."""


def crowded_in(trials: Sequence[Trial]) -> list[Conditions]:
    """Return the conditions of measurements while others took the CPUs or the GPU."""
    measured = [trial.measurement.conditions for trial in trials if trial.measurement]
    return [conditions for conditions in measured if conditions.is_crowded or conditions.shares_gpu]


def busy_text(trials: Sequence[Trial]) -> str:
    """Return who took the CPUs or the GPU during half of the measurements or more; empty where nobody did."""
    crowded = crowded_in(trials)
    return crowded[-1].crowd_text if crowded and len(crowded) >= HEAVY * len(trials) else ""


def on_disturbances(trials: Sequence[Trial], *, has_answer: bool, is_new: bool) -> Iterator[str]:
    """Yield what others did to confirming measurements, and why some gave no rate.

    ``is_new`` says that the answer is another configuration than the baseline.
    """
    crowded = crowded_in(trials)
    if is_new and crowded and len(crowded) == sum(trial.measurement is not None for trial in trials):
        yield (
            f"others were there during every confirming measurement ({crowded[-1].crowd_text}): the answer is for a "
            "machine that is shared like this; tune again when it is not"
        )
    elif crowded:
        yield (
            f"other processes disturbed {len(crowded)} of {len(trials)} confirming measurements "
            f"({crowded[-1].crowd_text}), which makes the interval wider"
        )
    failed = [trial for trial in trials if trial.measurement is None]
    without = [trial.attempt.message for trial in failed if trial.outcome is Outcome.SUSPECT]
    if without:
        yield f"{len(without)} confirming measurements gave no rate ({without[-1]}): their rounds do not count"
    if not has_answer and any(trial.entry is not None for trial in trials):
        why = f"{failed[-1].outcome}: {failed[-1].attempt.message}" if failed else "it took too long or too much memory"
        yield f"no finalist ran beside your settings in a fresh process ({why})"


def on_places(rounds: Sequence[Sequence[Measurement]]) -> Iterator[str]:
    """Yield how the rate of the baseline varied from round to round, and with what where its measurements tell."""
    rates = [each.samples_per_second for one in rounds for each in one]
    varied, what = max(rates) / min(rates), f"{min(rates):,.0f} to {max(rates):,.0f} samples/s"
    cause = cause_of_unevenness(rounds)
    if cause == "place":
        yield f"the baseline's rate depends on the place in the epoch: {what}; the rates are means over those measured"
    elif cause == "machine":
        yield f"the machine's speed varied during the confirmation: the baseline ran at {what}, {varied:.1f} times"
    elif cause == "unknown":
        yield f"the baseline's rate varied by {varied:.1f} times during the confirmation, {what}; no cause was seen"


def cause_of_unevenness(rounds: Sequence[Sequence[Measurement]]) -> Literal["place", "machine", "unknown"] | None:
    """Return the cause of unlike rates of the baseline in rounds, as its measurements tell it; ``None`` if alike."""
    found = [each for one in rounds for each in one]
    rates = [each.samples_per_second for each in found]
    limit = math.sqrt(varied := max(rates) / min(rates))
    if varied < UNEVEN or any(each.beginning_samples is not None for each in found):
        return None
    # The step on resident batches is as fast at every place; where the loader is as fast, its rate is not known.
    steps = [each.ceiling_samples_per_second for each in found]
    is_seen = all(step > each.steady_samples_per_second for step, each in zip(steps, found, strict=True))
    if is_seen and max(steps) < limit * min(steps) and _repeats(rounds, limit):
        return "place"
    is_of_machine = is_seen and max(steps) >= limit * min(steps)
    return "machine" if is_of_machine or any(each.conditions.disturbances for each in found) else "unknown"


def _repeats(rounds: Sequence[Sequence[Measurement]], limit: float) -> bool:
    """Return whether quiet rounds repeat the rate of their place, and others differ by more than their windows do."""
    quiet = [one for one in rounds if not any(each.conditions.disturbances for each in one)]
    found = sorted((each for one in quiet for each in one), key=lambda each: each.samples_per_second)
    if len(quiet) < 2 or found[0].ci95 is None or found[-1].ci95 is None:
        return False
    rates = [[each.samples_per_second for each in one] for one in quiet]
    return found[0].ci95[1] * UNEVEN <= found[-1].ci95[0] and all(max(one) < limit * min(one) for one in rates)


def on_other_batch(config: Config, old: Config, facts: WorkloadFacts) -> Iterator[str]:
    """Yield what a batch of another size changes for training."""
    keeps_step = config.samples_per_update == old.samples_per_update
    if keeps_step and config.batch_size != old.batch_size and facts.has_batch_norm:
        yield (
            f"an optimizer step keeps its {old.samples_per_update} samples, but batch normalisation now sees "
            f"{config.batch_size} at a time, not {old.batch_size}"
        )


def on_unseen_samples(typical: Measurement, measured: Sequence[Measurement], facts: WorkloadFacts) -> Iterator[str]:
    """Yield which samples were not seen, and that larger batches may come where sizes may differ."""
    epoch = typical.epoch_samples
    if (seen := typical.beginning_samples) is not None:
        share = f"{percent(min(1.0, seen / epoch))} of an epoch" if epoch else "without an end of an epoch"
        yield f"the iterable dataset was measured on its first {seen:,} samples only, {share}"
    counts, epoch = [each.seen_samples or each.samples for each in measured], epoch or facts.epoch_samples
    seen = sum(counts)
    if epoch is not None:  # each measurement sees samples from another part of another order
        seen = round(epoch * (1 - math.prod(1 - min(1.0, count / epoch) for count in counts)))
    sizes_may_differ = {"collate_fn", "batch_sampler", "batch_size"} & set(facts.loader_arguments)
    if sizes_may_differ and (epoch is None or seen < epoch):
        peak = max(each.epoch_peak_bytes for each in (typical, *measured))
        of = "" if epoch is None else f" of an epoch's {epoch:,}"
        yield (
            f"the answer was measured on about {seen:,}{of} samples, with up to {peak / 2**30:.2g} GiB of "
            f"{typical.memory} memory: a batch with a larger sample takes more"
        )


def on_uneven_workers(trial: Trial) -> Iterator[str]:
    """Yield that workers get different amounts of a stream: its beginning does not tell the rate of an epoch."""
    assert trial.measurement
    workers, idle = f"of {trial.config.num_workers} loader workers", trial.measurement.idle_workers
    seen = f"{idle} {workers} got no data" if idle else f"one {workers} had no data left while others went on"
    yield f"{seen}: fewer and fewer may build batches until an epoch ends, and only its beginning was measured"


def on_validation(typical: Measurement, before: Measurement) -> Iterator[str]:
    """Yield that validation has a peak of memory of its own, where the answer takes more than before, and much."""
    share = typical.epoch_peak_bytes / typical.memory_limit_bytes
    if share >= MUCH and typical.epoch_peak_bytes > before.epoch_peak_bytes:
        taken = f"training takes up to {percent(share)} of the {typical.memory} memory"
        yield f"{taken}: a validation pass in the same process has its own peak, which was not measured"


def on_caches(trace: LoaderTrace | None, measured: Sequence[Measurement]) -> Iterator[str]:
    """Yield that later epochs are faster, where the dataset keeps samples or the trials filled a cache.

    ``measured`` are the measurements of one configuration in the order of time.
    """
    if trace and trace.is_own_cache and trace.keeps_samples:
        yield (
            "the dataset keeps the samples that a process has read: the rates are those of later epochs, in which "
            "workers that begin anew read them anew"
        )
        return
    first, *rates = [each.samples_per_second for each in measured] or [0.0]
    later = rates[len(rates) // 2 :]
    is_quiet = not any(each.conditions.disturbances for each in measured)
    is_filled = len(later) >= 2 and FILLED * first < min(later) and first <= min(rates)
    if is_filled and is_quiet and max(later) < UNEVEN * min(later):
        yield (
            f"the first epoch may run at {first:,.0f} samples/s, later ones at {fmean(later):,.0f}: "
            "the trials filled a cache"
        )
    elif trace and trace.again_seconds is not None and trace.keeps_samples:
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


def on_half_precision(facts: WorkloadFacts) -> Iterator[str]:
    """Yield the way to bf16 for a script that enters no autocast, where the device has fast arithmetic for it."""
    if facts.loader_site and not facts.autocast_call and "bf16" in facts.amp_modes:
        yield "the script trains in fp32, without autocast: --amp off,bf16 compares losses and rate with those in bf16"


def on_losses(own: Sequence[float], answered: Sequence[float], again: Sequence[float] | None = None) -> str:
    """Return how the first losses with an answer compare with those of the script's own settings.

    ``again`` are those of one more start with its own settings, where the first two differ.
    """
    if own == answered:
        return f"The first {len(own)} losses are those of your settings, in every digit."
    if again not in (None, own):
        return "The first losses differ from start to start, with your settings too: seed the script to compare them."
    pairs = list(zip(own, answered, strict=False))
    step = max(range(len(pairs)), key=lambda number: abs(pairs[number][0] - pairs[number][1]), default=0)
    mine, other = pairs[step] if pairs else (math.nan, math.nan)
    return (
        f"Of the first {len(pairs)} losses, the largest difference is at step {step + 1}: {other:.4g}, with your "
        f"settings {mine:.4g}. Loader workers draw random numbers of their own."
    )
