"""Tuning from where a script with a Hugging Face ``Trainer`` is.

What is timed is the Trainer's own ``compute_loss`` with the optimizer that it creates, on the dataset, collator and
sampler of its training loader. Trainer, model and arguments stay as they are.
"""

from __future__ import annotations

import copy
import dataclasses
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from autotune.config import Amp, Config
from autotune.errors import UsageError
from autotune.existing import read_loader, require, tune_existing, untouched_random_state
from autotune.exporting.transformers import training_arguments
from autotune.records import Result

if TYPE_CHECKING:
    from transformers import TrainingArguments

__all__ = ["search", "tune", "updated"]

SET = (
    *("per_device_train_batch_size", "gradient_accumulation_steps", "bf16", "fp16"),
    *("dataloader_num_workers", "dataloader_prefetch_factor", "dataloader_pin_memory"),
    "dataloader_persistent_workers",
)
"""What a configuration always sets; the rest only where its option was explored."""
CHANGED_BY = {
    "tf32": ("tf32",),
    "fused_optimizer": ("optim",),
    "checkpointing": ("gradient_checkpointing", "gradient_checkpointing_kwargs"),
    "compile": ("torch_compile",),
}
"""Arguments that an option sets."""
RENAMED = {
    "gradient_checkpointing": "activation_checkpointing",
    "gradient_checkpointing_kwargs": "activation_checkpointing_kwargs",
}
"""What later versions call arguments; a copy takes their new names only."""


def tune(trainer: Any, *, output: str | Path | None = None, **options: Any) -> TrainingArguments:
    """Return a copy of a Trainer's arguments with the fastest configuration that was proven; see ``search``.

    The configuration with its evidence is written to ``output``, a YAML or JSON file, if one is named.
    """
    config = search(trainer, **options).config
    if output is not None:
        config.save(output)
    return updated(trainer.args, config)


def search(trainer: Any, **options: Any) -> Result:
    """Search for the fastest configuration of what ``trainer.train()`` would train.

    The baseline is what the Trainer's arguments say: batch size, accumulation, workers, precision. The device is
    theirs, and so are the optimizer and the norm that gradients are clipped to. Threads stay at this process's, for
    which there is no argument. ``options`` are those of ``autotune.tune``.

    Warns (``UserWarning``) of arguments that change the step and are not part of what is measured. Raises
    ``UsageError`` for what cannot be tuned from here (several devices, a model that was trained by this Trainer
    already, a dataset or loader of another kind), and what ``autotune.tune`` raises.
    """
    require("transformers", "accelerate")
    _refuse_what_cannot_be_tuned(trainer)
    with untouched_random_state():
        loader = _training_loader(trainer)
    if unmeasured := list(_unmeasured(trainer.args)):
        warnings.warn(f"not part of what is measured: {', '.join(unmeasured)}", stacklevel=2)
    arguments = trainer.args
    steps = _Steps(trainer)
    threads = torch.get_num_threads()
    amp: Amp = "bf16" if arguments.bf16 else "fp16" if arguments.fp16 else "off"
    return tune_existing(
        trainer.model,
        read_loader(loader, "the training loader"),
        device=arguments.device,
        settings={
            "amp": amp,
            "accumulation_steps": arguments.gradient_accumulation_steps,
            "intra_op_threads": threads,
        },
        options={"threads": threads, **options},
        optimizer=steps.optimizer if trainer.optimizer is None else trainer.optimizer,
        training_step=steps.training_step,
        max_grad_norm=arguments.max_grad_norm or None,
    )


def updated(arguments: TrainingArguments, config: Config) -> TrainingArguments:
    """Return a copy of ``TrainingArguments`` with a configuration's settings; everything else is kept."""
    exported = training_arguments(config)
    changes = {name: exported[name] for name in SET}
    known = {field.name for field in dataclasses.fields(arguments)}
    for option, names in CHANGED_BY.items():
        if option in config.options:
            changes |= {RENAMED[name] if RENAMED.get(name) in known else name: exported[name] for name in names}
    if config.pin_memory:  # else pinning gains nothing
        present: Any = arguments.accelerator_config
        changes["accelerator_config"] = present.to_dict() | exported["accelerator_config"]
    return dataclasses.replace(arguments, **changes)


def _refuse_what_cannot_be_tuned(trainer: Any) -> None:
    from transformers import Trainer

    if not isinstance(trainer, Trainer):
        raise UsageError(f"trainer is {type(trainer).__name__}; allowed: a transformers.Trainer")
    arguments = trainer.args
    if arguments.world_size > 1 or arguments.n_gpu > 1:
        raise UsageError(
            f"the Trainer uses {max(arguments.world_size, arguments.n_gpu)} devices; allowed: one. Set "
            "CUDA_VISIBLE_DEVICES to one of them, and tune a batch for it"
        )
    if trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled:
        raise UsageError("the Trainer uses DeepSpeed or FSDP; allowed: plain training on one device")
    if trainer.train_dataset is None:
        raise UsageError("the Trainer has no train_dataset: there is nothing to train on")
    if hasattr(trainer.model, "_original_forward") or trainer.model_wrapped is not trainer.model:
        raise UsageError("the Trainer has trained its model already; make a new model and a new Trainer")


def _training_loader(trainer: Any) -> Any:
    """Return the Trainer's own training loader, before anything is done to it for a device."""
    shadow = copy.copy(trainer)
    shadow.accelerator = _Unprepared(trainer.accelerator)
    return shadow.get_train_dataloader()


class _Unprepared:
    """An ``Accelerator`` that leaves what it is to prepare as it is."""

    def __init__(self, accelerator: Any) -> None:
        self._accelerator = accelerator

    def __getattr__(self, name: str) -> Any:
        return getattr(self._accelerator, name)

    def prepare(self, *things: Any, **options: Any) -> Any:
        """Return what was given."""
        return things[0] if len(things) == 1 else things


def _unmeasured(arguments: Any) -> Iterator[str]:
    """Yield what changes the step and is left out."""
    if arguments.neftune_noise_alpha is not None:
        yield "neftune_noise_alpha"
    if arguments.use_liger_kernel:
        yield "use_liger_kernel"


class _Steps:
    """A Trainer's step and optimizer as a workload takes them, in whatever process they are called."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = copy.copy(trainer)
        self._trainer.callback_handler = self._trainer.eval_dataset = self._trainer.compute_metrics = None
        self._trainer.lr_scheduler = None
        self._is_set_up = False

    def optimizer(self, parameters: Iterable[Any]) -> torch.optim.Optimizer:
        """Return what the Trainer creates."""
        self._set_up()
        self._trainer.optimizer = None
        optimizer: torch.optim.Optimizer = self._trainer.create_optimizer()
        return optimizer

    def training_step(self, model: Any, batch: Any) -> torch.Tensor:
        """Return the loss of a batch that is on the device."""
        self._set_up()
        inputs = {**batch} if isinstance(batch, Mapping) else batch  # the Trainer takes labels out
        loss: torch.Tensor = self._trainer.compute_loss(model, inputs)
        return loss

    def _set_up(self) -> None:
        """Do once to the model, and to the process, what the Trainer does before it trains."""
        if self._is_set_up:
            return
        self._is_set_up = True
        arguments, model = self._trainer.args, self._trainer.model
        if arguments.gradient_checkpointing:
            model.gradient_checkpointing_enable(arguments.gradient_checkpointing_kwargs)
        if arguments.tf32:
            torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
        if arguments.torch_compile:
            model.compile(backend=arguments.torch_compile_backend, mode=arguments.torch_compile_mode)
