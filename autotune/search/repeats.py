"""Looks that are taken again: a stall made them slower than all else that was measured allows. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean

from autotune.config import Config
from autotune.probes import ComputeProbe, LoaderTrace
from autotune.records import Part
from autotune.search.loader_model import NOTHING
from autotune.search.observations import Observations

MOST_LOOKS = 3
"""Most looks at the same part; the fastest counts, since nothing makes a look too fast."""
AGREEMENT = 1.25
"""Ratio up to which two looks agree, so that a third is of no use."""
WITHIN = 1.1
"""Ratio by which a step alone may be slower than training with it: processes differ."""
RELEVANT_WAIT = 0.05
"""Share of a step below which building its batch is of no interest."""
PLAUSIBLE = 2.0
"""Ratio by which looks at other batch sizes, precisions and threads, and other processes, may seem to contradict."""


def repeated_look(observations: Observations) -> tuple[Part, Config] | None:
    """Return the part and the configuration of a look to take again, or ``None``."""
    for probe in observations.probes:
        if (own := probe.attempt.compute or probe.attempt.loader) is None:
            continue  # other looks are never taken again
        looks = (each.attempt for each in observations.looks_at(probe.part, probe.config))
        alike = [_speed(found) for look in looks if (found := look.compute or look.loader)]
        is_settled = len(alike) >= MOST_LOOKS or (len(alike) == MOST_LOOKS - 1 and max(alike) <= AGREEMENT * min(alike))
        least = (
            _least_of_step(observations, probe.config, own)
            if isinstance(own, ComputeProbe)
            else _least_of_loader(observations, own)
        )
        if not is_settled and max(alike) < max(least, default=0.0):
            return probe.part, probe.config
    return None


def _speed(look: ComputeProbe | LoaderTrace) -> float:
    """Return the samples per second that a look saw, or that one worker builds."""
    if isinstance(look, ComputeProbe):
        return look.samples_per_second
    return look.batch_size / max(fmean(look.build_seconds), NOTHING)


def _least_of_step(observations: Observations, config: Config, own: ComputeProbe) -> Iterator[float]:
    """Yield the least samples per second of a step, by each measurement of training and each other look.

    A larger batch takes no less time than a smaller one; fewer threads take no longer than in proportion.
    """
    key = observations.step_key(config)
    for trial in observations.trials:
        if (measured := trial.measurement) and observations.step_key(trial.config) == key:
            yield measured.steady_samples_per_second / WITHIN
            yield measured.ceiling_samples_per_second / PLAUSIBLE
    for other, look in observations.looks:
        theirs, rate = observations.step_key(other), look.samples_per_second / PLAUSIBLE
        is_of_group = (theirs.amp, theirs.threads) == (key.amp, key.threads)
        if theirs.options != key.options or look is own:
            continue
        if is_of_group:
            yield rate * min(1.0, key.batch_size / theirs.batch_size)
        elif theirs.batch_size == key.batch_size and theirs.amp == key.amp:
            yield rate * min(1.0, (key.threads or 1) / (theirs.threads or 1))
        elif theirs._replace(amp=key.amp) == key and theirs.amp == "off":
            yield rate


def _least_of_loader(observations: Observations, own: LoaderTrace) -> Iterator[float]:
    """Yield the least samples per second of one worker, by training with the same batches and by the other trace.

    Without workers the training process builds batches itself, perhaps with all threads.
    """
    baseline = observations.baseline
    if (measured := baseline.measurement) and baseline.config.batch_size == own.batch_size:
        workers, ranks = baseline.config.num_workers, baseline.config.ranks
        yield measured.steady_samples_per_second / ranks / max(1, workers) / PLAUSIBLE
        if not workers and measured.step_time.data_wait > RELEVANT_WAIT * measured.step_time.total:
            threads = baseline.config.intra_op_threads or observations.facts.intra_op_threads
            yield own.batch_size / measured.step_time.data_wait / threads / PLAUSIBLE
    for other in observations.traces:
        if other is not own:
            yield _speed(other) / PLAUSIBLE * min(1.0, own.batch_size / other.batch_size)
