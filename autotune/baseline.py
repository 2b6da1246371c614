"""The baseline: what the user runs today, as a configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from autotune.config import Config
from autotune.errors import UsageError
from autotune.records import WorkloadFacts

__all__ = ["as_baseline", "fitted"]


def as_baseline(given: Config | Mapping[str, Any] | None, global_batch_size: int | None = None) -> Config:
    """Return the baseline as a configuration; batch size 32, no workers and fp32 where nothing is said.

    Where the samples of one step of the optimizer are fixed, it accumulates as many batches as they take, and without a
    batch size of its own has the largest up to 32 that divides them. Raises ``UsageError`` for an unknown field, and
    for a batch size that does not.
    """
    config = given if isinstance(given, Config) else _config_of(given)
    if global_batch_size is None:
        return config
    if isinstance(global_batch_size, bool) or not isinstance(global_batch_size, int) or global_batch_size < 1:
        raise UsageError(f"--global-batch-size {global_batch_size}: allowed: whole numbers from 1")
    if not isinstance(given, Config) and "batch_size" not in (given or {}):
        if global_batch_size % config.accumulation_steps == 0 and config.accumulation_steps > 1:
            return replace(config, batch_size=global_batch_size // config.accumulation_steps)
        divisors = (size for size in range(config.batch_size, 0, -1) if global_batch_size % size == 0)
        config = replace(config, batch_size=next(divisors))
    steps, rest = divmod(global_batch_size, config.batch_size)
    if rest or config.accumulation_steps not in (1, steps):
        raise UsageError(
            f"--global-batch-size {global_batch_size}: the baseline takes {config.batch_size} samples times "
            f"{config.accumulation_steps}; pass --baseline batch_size=N with a divisor of {global_batch_size}"
        )
    return replace(config, accumulation_steps=steps)


def _config_of(given: Mapping[str, Any] | None) -> Config:
    fields = dict(given or {})
    if "threads" in fields:
        fields["intra_op_threads"] = fields.pop("threads")
    try:
        return Config(**fields)
    except TypeError:
        known = [name for name in asdict(Config()) if name not in ("measured", "made_on")]
        unknown = ", ".join(name for name in fields if name not in known)
        raise UsageError(f"--baseline {unknown}: unknown; allowed: {', '.join([*known, 'threads'])}") from None


def fitted(baseline: Config, facts: WorkloadFacts, global_batch_size: int | None) -> Config:
    """Return the baseline with a batch that the dataset can fill."""
    most = facts.dataset_length
    if not most or baseline.batch_size <= most:
        return baseline
    if not global_batch_size:
        return replace(baseline, batch_size=most)
    size = next(size for size in range(most, 0, -1) if global_batch_size % size == 0)
    return replace(baseline, batch_size=size, accumulation_steps=global_batch_size // size)
