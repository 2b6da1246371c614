"""A script that already trains: its DataLoader as a workload's data, its settings as the baseline.

Of a loader only attributes are read: nothing is drawn from it, its sampler or its dataset.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from operator import index
from typing import Any

import numpy as np
import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, Sampler, default_collate

from autotune.api import tune
from autotune.config import Config
from autotune.errors import UsageError
from autotune.result import Result
from autotune.workload import Workload

__all__ = ["ExistingLoader", "read_loader", "require", "tune_existing", "untouched_random_state", "without_loaders"]

INSTEAD = "describe it with autotune.Workload(model, dataset, ...) and call autotune.tune"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExistingLoader:
    """What a DataLoader says."""

    data: Mapping[str, Any]
    """Arguments of ``Workload``: the dataset, how it is read, and the DataLoader's other arguments."""
    present: Mapping[str, Any]
    """Arguments of ``Config``: what is used today."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Knobs that cannot vary with this loader."""


def tune_existing(
    model: torch.nn.Module,
    loader: ExistingLoader,
    *,
    device: torch.device,
    settings: Mapping[str, Any],
    options: Mapping[str, Any],
    optimizer: Callable[[Any], torch.optim.Optimizer] | torch.optim.Optimizer,
    training_step: Callable[[torch.nn.Module, Any], torch.Tensor] | None,
    max_grad_norm: float | None = None,
    epoch_batches: int | float | None = None,
) -> Result:
    """Tune a model on an existing loader's data, with the settings of the loader and ``settings`` as the baseline.

    ``settings`` are arguments of ``Config``, ``options`` those of ``autotune.tune``, and win. Raises as
    ``tune``, and ``UsageError`` for a knob fixed by the loader at another value.
    """
    if options.get("ranks", 1) != 1:
        raise UsageError(
            f"ranks={options['ranks']}: from a trainer one process is measured; for several pass a Workload, or "
            "--model on the command line, with --ranks"
        )
    for knob, value in loader.fixed.items():
        if options.get(knob) not in (None, value):
            raise UsageError(f"{knob}={options[knob]!r}: the loader's batch sampler makes batches of {value}")
    present = dict(loader.present)
    if device.type == "cpu":
        present["pin_memory"] = False  # torch itself ignores it there
    workload = Workload(
        model,
        **loader.data,
        optimizer=optimizer,
        training_step=training_step,
        max_grad_norm=max_grad_norm,
        epoch_batches=epoch_batches,
    )
    baseline = Config(**present, intra_op_threads=torch.get_num_threads(), **settings)
    defaults: dict[str, Any] = {"device": str(device), "baseline": baseline}
    return tune(workload, **(defaults | dict(options) | dict(loader.fixed)))


def read_loader(loader: Any, origin: str) -> ExistingLoader:
    """Take a DataLoader apart; ``origin`` names it in errors.

    Raises ``UsageError`` for other objects, and loaders that iterate in their own way or leave batches to the dataset.
    """
    if not isinstance(loader, DataLoader):
        raise UsageError(f"{origin} is {type(loader).__name__}; allowed: one torch DataLoader. Else {INSTEAD}")
    if type(loader).__iter__ is not DataLoader.__iter__:
        raise UsageError(f"{origin} is {type(loader).__name__}, which is iterated in its own way: {INSTEAD}")
    if loader.batch_size is None and loader.batch_sampler is None:
        raise UsageError(f"{origin} has no batch size, its dataset makes the batches: {INSTEAD}")
    order, batch_size, fixed = _order(loader, origin)
    collate: Any = loader.collate_fn
    data = {
        "dataset": loader.dataset,
        "collate_fn": None if collate is default_collate else collate,
        **order,
        "loader_options": _options(loader) or None,
    }
    present: dict[str, Any] = {"batch_size": batch_size, "num_workers": loader.num_workers}
    present["pin_memory"] = bool(loader.pin_memory)
    if loader.num_workers:
        present |= {"prefetch_factor": loader.prefetch_factor, "persistent_workers": loader.persistent_workers}
    return ExistingLoader(data=data, present=present, fixed=fixed)


def _order(loader: DataLoader[Any], origin: str) -> tuple[dict[str, Any], int, dict[str, Any]]:
    """Return the order of samples as arguments of ``Workload``, the batch size, and which knob it fixes."""
    if loader.batch_size is not None:
        sampler: Any = loader.sampler
        dataset: Any = loader.dataset
        is_shuffling = type(sampler) is RandomSampler and not sampler.replacement  # as shuffle=True makes it
        is_plain = isinstance(dataset, IterableDataset) or (
            is_shuffling and sampler.num_samples == len(sampler.data_source) == len(dataset)
        )
        return ({} if is_plain else {"sampler": loader.sampler}), index(loader.batch_size), {}
    given: Any = loader.batch_sampler
    batch_size = getattr(given, "batch_size", None)
    if not isinstance(batch_size, int):
        raise UsageError(f"{origin}: its batch sampler, {type(given).__name__}, has no batch_size: {INSTEAD}")
    if type(given) is BatchSampler:
        return {"batch_sampler": partial(_batches, given.sampler, given.drop_last)}, batch_size, {}
    return {"batch_sampler": partial(_as_it_is, given)}, batch_size, {"batch_size": batch_size}


def _options(loader: DataLoader[Any]) -> dict[str, Any]:
    """Return the arguments that differ from a DataLoader's defaults; a generator's state is left alone."""
    context = loader.multiprocessing_context
    options = {
        "worker_init_fn": loader.worker_init_fn,
        "drop_last": loader.batch_size is not None and loader.drop_last,
        "timeout": loader.timeout,
        "multiprocessing_context": context.get_start_method() if context else None,
    }
    found = {name: value for name, value in options.items() if value}
    return found if getattr(loader, "in_order", True) else {**found, "in_order": False}


def _batches(sampler: Any, drop_last: bool, batch_size: int) -> BatchSampler:
    return BatchSampler(sampler, batch_size, drop_last)


def _as_it_is(sampler: Sampler[list[int]], batch_size: int) -> Sampler[list[int]]:
    """Return a sampler of which nobody knows how it would make batches of another size."""
    return sampler


def require(*packages: str) -> None:
    """Raise ``UsageError`` with the line that installs the packages where one is missing."""
    for package in packages:
        if find_spec(package) is None:
            raise UsageError(f"{package} is not installed: pip install {' '.join(packages)}")


@contextmanager
def without_loaders(accelerator: Any) -> Iterator[None]:
    """Hide an accelerator's weak references to loaders, also to those of earlier training, which cannot be pickled."""
    state = accelerator.gradient_state
    references, state.dataloader_references = state.dataloader_references, [None]
    try:
        yield
    finally:
        state.dataloader_references = references


@contextmanager
def untouched_random_state() -> Iterator[None]:
    """Bring the random state of Python, NumPy and torch back at the end, whatever was drawn meanwhile."""
    own, numpys = random.getstate(), np.random.get_state()
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with torch.random.fork_rng(devices):
        try:
            yield
        finally:
            random.setstate(own)
            np.random.set_state(numpys)
