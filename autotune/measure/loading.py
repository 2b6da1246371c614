"""The loader as a training script would build it, with its batches counted."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from autotune.config import Config
from autotune.measure.inventory import BatchStream, CountingCollate
from autotune.workload import Workload

__all__ = ["open_loader", "open_stream"]


def open_loader(workload: Workload, config: Config, counter: CountingCollate) -> DataLoader[Any]:
    """Build the loader exactly as a training script would, with counting around its collate function."""
    arguments: dict[str, Any] = {"collate_fn": counter}
    if workload.batch_sampler is not None:
        arguments["batch_sampler"] = workload.batch_sampler(config.batch_size)
    elif workload.sampler is not None:
        arguments["sampler"] = workload.sampler
    elif not isinstance(workload.dataset, IterableDataset):
        arguments["shuffle"] = True
    arguments |= _applicable(workload, config)
    return config.dataloader(workload.dataset, **arguments)


def _applicable(workload: Workload, config: Config) -> dict[str, Any]:
    """Return the workload's own DataLoader arguments but for those that cannot stand beside the others."""
    left_out = set() if config.num_workers else {"multiprocessing_context", "timeout"}
    if workload.batch_sampler is not None:
        left_out.add("drop_last")  # that is the sampler's to decide
    return {name: value for name, value in (workload.loader_options or {}).items() if name not in left_out}


def open_stream(workload: Workload, config: Config) -> BatchStream:
    """Return batches without end from such a loader; its workers start with the first."""
    is_iterable = isinstance(workload.dataset, IterableDataset)
    compares_workers = is_iterable and (config.num_workers > 1 or config.ranks > 1)
    counter = CountingCollate(workload.collate_fn, config.num_workers, compares_workers=compares_workers)
    return BatchStream(open_loader(workload, config, counter), counter)
