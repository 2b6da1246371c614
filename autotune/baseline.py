"""The baseline: what the user runs today, as a configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from autotune.config import Config
from autotune.errors import UsageError
from autotune.records import WorkloadFacts

__all__ = ["as_baseline", "fitted", "samples_of_rank"]


def as_baseline(
    given: Config | Mapping[str, Any] | None, global_batch_size: int | None = None, ranks: int | None = None
) -> Config:
    """Return the baseline as a configuration; batch size 32, no workers and fp32 where nothing is said.

    Where the samples of one step of the optimizer are fixed, it accumulates as many batches as they take, and without a
    batch size of its own has the largest up to 32 that divides them. Raises ``UsageError`` for an unknown field, for a
    batch size that does not, and for other ``ranks`` than are measured.
    """
    config = _in_ranks(given if isinstance(given, Config) else _config_of(given), ranks)
    if global_batch_size is None:
        return config
    whole = samples_of_rank(global_batch_size, config.ranks)
    if not isinstance(given, Config) and "batch_size" not in (given or {}):
        if whole % config.accumulation_steps == 0 and config.accumulation_steps > 1:
            return replace(config, batch_size=whole // config.accumulation_steps)
        divisors = (size for size in range(config.batch_size, 0, -1) if whole % size == 0)
        config = replace(config, batch_size=next(divisors))
    steps, rest = divmod(whole, config.batch_size)
    if rest or config.accumulation_steps not in (1, steps):
        of_ranks = f" in each of {config.ranks} ranks" if config.ranks > 1 else ""
        raise UsageError(
            f"--global-batch-size {global_batch_size}: the baseline takes {config.batch_size} samples times "
            f"{config.accumulation_steps}{of_ranks}; pass --baseline batch_size=N with a divisor of {whole}"
        )
    return replace(config, accumulation_steps=steps)


def samples_of_rank(global_batch_size: int, ranks: int) -> int:
    """Return each rank's samples of one step of the optimizer. Raises ``UsageError`` where they are not alike."""
    is_whole = isinstance(global_batch_size, int) and not isinstance(global_batch_size, bool)
    if not is_whole or global_batch_size < 1:
        raise UsageError(f"--global-batch-size {global_batch_size}: allowed: whole numbers from 1")
    samples, rest = divmod(global_batch_size, ranks)
    if rest:
        raise UsageError(f"--global-batch-size {global_batch_size}: no multiple of --ranks {ranks}")
    return samples


def _in_ranks(config: Config, ranks: int | None) -> Config:
    """Return the baseline in so many ranks; where nothing is said, in its own."""
    if ranks is None:
        return config
    if isinstance(ranks, bool) or not isinstance(ranks, int) or ranks < 1:
        raise UsageError(f"--ranks {ranks}: allowed: whole numbers from 1")
    if config.ranks not in (1, ranks):
        raise UsageError(f"--ranks {ranks}: the baseline has {config.ranks}; both train with as many processes")
    return replace(config, ranks=ranks)


def _config_of(given: Mapping[str, Any] | None) -> Config:
    fields = dict(given or {})
    if "threads" in fields:
        fields["intra_op_threads"] = fields.pop("threads")
    try:
        return Config(**fields)
    except TypeError:
        known = [name for name in asdict(Config()) if name not in ("measured", "made_on", "unknown")]
        unknown = ", ".join(name for name in fields if name not in known)
        raise UsageError(f"--baseline {unknown}: unknown; allowed: {', '.join([*known, 'threads'])}") from None


def fitted(baseline: Config, facts: WorkloadFacts, global_batch_size: int | None) -> Config:
    """Return the baseline with a batch that the dataset can fill."""
    if facts.dataset_length is not None and facts.dataset_length < baseline.ranks:
        raise UsageError(f"--ranks {baseline.ranks}: the dataset has only {facts.dataset_length} samples")
    most = (facts.dataset_length or 0) // baseline.ranks
    if not most or baseline.batch_size <= most:
        return baseline
    if not global_batch_size:
        return replace(baseline, batch_size=most)
    whole = samples_of_rank(global_batch_size, baseline.ranks)
    size = next(size for size in range(most, 0, -1) if whole % size == 0)
    return replace(baseline, batch_size=size, accumulation_steps=whole // size)
