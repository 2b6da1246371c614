"""Tuning from where a script with ``Accelerator.prepare`` is, just before it prepares."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from autotune.errors import UsageError
from autotune.existing_loader import read_loader
from autotune.integrations.dataloader import require, tune_existing, without_loaders
from autotune.report.result import Result
from autotune.settings import Amp
from autotune.workload import COMPILING

PRECISION: dict[str, Amp] = {"no": "off", "bf16": "bf16", "fp16": "fp16"}


def tune(
    accelerator: Any,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | Callable[[Iterable[Any]], torch.optim.Optimizer],
    loader: Any,
    *,
    training_step: Callable[[torch.nn.Module, Any], torch.Tensor] | None = None,
    max_grad_norm: float | None = None,
    **options: Any,
) -> Result:
    """Search for the fastest configuration of the objects that a script passes to ``accelerator.prepare``.

    ``training_step(model, batch)`` returns the loss; without it, ``autotune.Workload`` infers the loss.
    ``max_grad_norm`` is the argument of ``accelerator.clip_grad_norm_``. Baseline and device are those of accelerator
    and loader, ``options`` those of ``autotune.tune``. The arguments for a new accelerator and a new loader are in
    ``autotune.export(result.config, "accelerate").values``.

    Raises ``UsageError`` for prepared objects and several processes, and the errors of ``autotune.tune``.
    """
    require("accelerate")
    _refuse_what_cannot_be_tuned(accelerator, model, optimizer, loader)
    with without_loaders(accelerator):
        return tune_existing(
            model,
            read_loader(loader, "the loader"),
            device=accelerator.device,
            settings={
                "amp": PRECISION[accelerator.mixed_precision],
                "accumulation_steps": accelerator.gradient_accumulation_steps,
            },
            options=options,
            optimizer=optimizer,
            training_step=training_step,
            max_grad_norm=max_grad_norm,
        )


def _refuse_what_cannot_be_tuned(accelerator: Any, *prepared: Any) -> None:
    from accelerate import Accelerator

    if not isinstance(accelerator, Accelerator):
        raise UsageError(f"accelerator is {type(accelerator).__name__}; allowed: an accelerate.Accelerator")
    kind = str(getattr(accelerator.distributed_type, "value", accelerator.distributed_type))
    if accelerator.num_processes > 1 or kind != "NO":
        raise UsageError(f"the accelerator has {accelerator.num_processes} processes of kind {kind}; allowed: one, NO")
    dynamo = accelerator.state.dynamo_plugin.backend
    if str(getattr(dynamo, "value", dynamo)).upper() != "NO":
        raise UsageError(f"the accelerator compiles ({dynamo}): tune with one that does not; {COMPILING}")
    if accelerator.mixed_precision not in PRECISION:
        raise UsageError(
            f"the accelerator's mixed_precision is {accelerator.mixed_precision}; allowed: {', '.join(PRECISION)}"
        )
    for thing in prepared:
        if type(thing).__module__.startswith("accelerate.") or hasattr(thing, "_original_forward"):
            raise UsageError(f"{type(thing).__name__} is prepared already: tune before accelerator.prepare")
