"""A trainer that already trains: its DataLoader as a workload's data, its settings as the baseline."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch

from autotune.api import tune
from autotune.config import Config
from autotune.errors import UsageError
from autotune.existing_loader import ExistingLoader
from autotune.knobs import require_free
from autotune.machine.launcher import Launch
from autotune.report.result import Result
from autotune.settings import parse_knobs
from autotune.workload import Workload


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
    require_free(parse_knobs({name: options.get(name) for name in loader.fixed}), loader.fixed)
    present = {"batch_size": 1, **loader.present}  # where the loader has no size, that of its batches takes its place
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
    is_alone = options.get("ranks") in (None, 1)
    baseline = Config(**present, intra_op_threads=torch.get_num_threads() if is_alone else None, **settings)
    defaults: dict[str, Any] = {"device": str(device) if is_alone else device.type, "baseline": baseline}
    if not {"batch_size", "global_batch_size"} & options.keys():
        defaults["objective"] = "same-batch"
    return tune(workload, **(defaults | dict(options) | dict(loader.fixed)))


def require(*packages: str) -> None:
    """Raise ``UsageError`` where a package is missing, and in a rank of a launcher, with the line to use."""
    if launch := Launch.of_environment():
        count = launch.ranks
        way = f"start one, with tune(..., ranks={count}), or python -m autotune run --ranks {count} train.py"
        raise UsageError(launch.refusal or f"a launcher has started {count} of these: {way}")
    for package in packages:
        if find_spec(package) is None:
            raise UsageError(f"{package} is not installed: pip install {' '.join(packages)}")


def log_nothing(*arguments: Any, **more: Any) -> None:
    """Stand for the ``log`` of a trainer or a module, which needs a trainer that runs."""


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
