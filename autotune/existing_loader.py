"""A DataLoader that exists already, as a workload's data and the settings of today.

Only attributes are read: nothing is drawn from a loader, its sampler or its dataset.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from operator import index
from typing import Any

from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    Sampler,
    default_collate,
    default_convert,
)

from autotune.errors import UsageError

INSTEAD = "describe it with autotune.Workload(model, dataset, ...) and call autotune.tune"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExistingLoader:
    """What a DataLoader says."""

    data: Mapping[str, Any]
    """Arguments of ``Workload``: the dataset, how it is read, and the DataLoader's other arguments."""
    present: Mapping[str, Any]
    """Arguments of ``Config``: what is used today, but for the batch size where none makes the batches."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Knobs that cannot vary with this loader."""


def read_loader(loader: Any, origin: str) -> ExistingLoader:
    """Take a DataLoader apart; ``origin`` names it in errors.

    Raises ``UsageError`` for other objects, and loaders that iterate in their own way.
    """
    if not isinstance(loader, DataLoader):
        raise UsageError(f"{origin} is {type(loader).__name__}; allowed: one torch DataLoader. Else {INSTEAD}")
    if type(loader).__iter__ is not DataLoader.__iter__:
        raise UsageError(f"{origin} is {type(loader).__name__}, which is iterated in its own way: {INSTEAD}")
    return take_apart(loader)


def take_apart(loader: Any) -> ExistingLoader:
    """Take any DataLoader apart, however it iterates."""
    order, sizes, fixed = _order(loader)
    collate: Any = loader.collate_fn
    is_usual = collate is (default_convert if order.get("own_batches") == "dataset" else default_collate)
    data = {
        "dataset": loader.dataset,
        "collate_fn": None if is_usual else collate,
        **order,
        "loader_options": _options(loader) or None,
    }
    present = {**sizes, "num_workers": loader.num_workers, "pin_memory": bool(loader.pin_memory)}
    if loader.num_workers:
        present |= {"prefetch_factor": loader.prefetch_factor, "persistent_workers": loader.persistent_workers}
        if context := loader.multiprocessing_context:
            present["multiprocessing_context"] = context.get_start_method()
    return ExistingLoader(data=data, present=present, fixed=fixed)


def _order(loader: DataLoader[Any]) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return the order of samples as arguments of ``Workload``, the batch size where there is one, and the fixed knob.

    A sampler that passes over the first batches of another one does so in one epoch: the other one counts.
    """
    sampler: Any = loader.sampler
    dataset: Any = loader.dataset
    if loader.batch_size is not None:
        is_shuffling = type(sampler) is RandomSampler and not sampler.replacement  # as shuffle=True makes it
        is_plain = isinstance(dataset, IterableDataset) or (
            is_shuffling and sampler.num_samples == len(sampler.data_source) == len(dataset)
        )
        return ({} if is_plain else {"sampler": sampler}), {"batch_size": index(loader.batch_size)}, {}
    given: Any = loader.batch_sampler
    if given is None:
        own = {} if isinstance(dataset, IterableDataset) else {"sampler": sampler}
        return {**own, "own_batches": "dataset"}, {}, {}
    while hasattr(given, "skip_batches"):  # of Accelerate
        given = given.batch_sampler
    batch_size = getattr(given, "batch_size", None)
    is_shard = type(given).__name__ == "BatchSamplerShard" and not given.split_batches  # of Accelerate, for a rank
    if type(given.batch_sampler if is_shard else given) is BatchSampler:
        make = partial(_shard, given) if is_shard else partial(_batches, given.sampler, given.drop_last)
        return {"batch_sampler": make}, {"batch_size": batch_size}, {}
    order: dict[str, Any] = {"batch_sampler": partial(_as_it_is, given)}
    if not isinstance(batch_size, int):
        return {**order, "own_batches": "sampler"}, {}, {}
    return order, {"batch_size": batch_size}, {"batch_size": batch_size}


def _options(loader: DataLoader[Any]) -> dict[str, Any]:
    """Return the arguments that differ from a DataLoader's defaults; a generator's state is left alone."""
    options = {
        "worker_init_fn": loader.worker_init_fn,
        "drop_last": loader.batch_size is not None and loader.drop_last,
        "timeout": loader.timeout,
    }
    found = {name: value for name, value in options.items() if value}
    return found if getattr(loader, "in_order", True) else {**found, "in_order": False}


def _batches(sampler: Any, drop_last: bool, batch_size: int) -> BatchSampler:
    return BatchSampler(sampler, batch_size, drop_last)


def _shard(shard: Any, batch_size: int) -> Any:
    whole = _batches(shard.batch_sampler.sampler, shard.drop_last, batch_size)
    return type(shard)(whole, shard.num_processes, shard.process_index, even_batches=shard.even_batches)


def _as_it_is(sampler: Sampler[list[int]], batch_size: int) -> Sampler[list[int]]:
    """Return a sampler of which nobody knows how it would make batches of another size."""
    return sampler
