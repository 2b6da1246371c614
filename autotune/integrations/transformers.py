"""Tuning from where a script with a Hugging Face ``Trainer`` is.

What is timed is the Trainer's own ``compute_loss`` with the optimizer that it creates, on the dataset, collator and
sampler of its training loader. Trainer, model and arguments stay as they are.
"""

from __future__ import annotations

import copy
import dataclasses
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from autotune.config import Config
from autotune.configfile import CONFIG
from autotune.errors import UsageError
from autotune.existing_loader import read_loader
from autotune.exports.transformers import OF_TRAINER, OPTIONS, training_arguments
from autotune.integrations.dataloader import (
    log_nothing,
    require,
    tune_existing,
    untouched_random_state,
    without_loaders,
)
from autotune.output import Output
from autotune.report.result import Result
from autotune.settings import Amp

if TYPE_CHECKING:
    from transformers import TrainingArguments

DECISIVE = (
    *("optim", "optim_args", "learning_rate", "weight_decay", "adam_beta1", "adam_beta2", "label_smoothing_factor"),
    *("gradient_checkpointing", "gradient_checkpointing_kwargs", "tf32", "torch_compile", "torch_compile_backend"),
    *("torch_compile_mode", "train_sampling_strategy", "remove_unused_columns"),
)
"""Arguments that change the step or its data, and are no knobs."""
PRECISION: dict[str, Amp] = {"no": "off", "bf16": "bf16", "fp16": "fp16"}
STEPS = 1000
"""How many steps a training is said to have that counts epochs."""
RENAMED = {
    "gradient_checkpointing": "activation_checkpointing",
    "gradient_checkpointing_kwargs": "activation_checkpointing_kwargs",
}
"""What later versions call arguments; a copy takes their new names only."""


def tune(trainer: Any, *, output: str | Path | None = None, **options: Any) -> TrainingArguments:
    """Return a copy of a Trainer's arguments with the fastest configuration that was found; see ``search``.

    The configuration with its evidence is written to ``output``, a YAML or JSON file, if one is named. Raises
    ``ConfigFileError`` before the search where that is a file that autotune did not write.
    """
    file = None if output is None else Output(flag="output", path=Path(output), kind=CONFIG, force=None)
    if file:
        file.require()
    config = search(trainer, **options).config
    if file:
        file.require()
        config.save(file.path)
    return updated(trainer.args, config)


def search(trainer: Any, **options: Any) -> Result:
    """Search for the fastest configuration of ``trainer.train()``.

    The baseline is the batch size, accumulation, workers and precision of the Trainer's arguments. Device, optimizer
    and gradient clipping are the Trainer's. Threads stay as they are, since there is no argument for them. ``options``
    are those of ``autotune.tune``.

    Warns (``UserWarning``) of arguments and methods that change the step and are not measured. Raises ``UsageError``
    for several devices, a Trainer that has trained, and another kind of dataset or loader, and the errors of
    ``autotune.tune``.
    """
    require("transformers", "accelerate")
    _refuse_what_cannot_be_tuned(trainer)
    with untouched_random_state():
        shadow = copy.copy(trainer)
        shadow.accelerator = _Unprepared(trainer.accelerator)
        loader = shadow.get_train_dataloader()
    if unmeasured := list(_unmeasured(trainer)):
        warnings.warn(f"not measured: {', '.join(unmeasured)}", stacklevel=2)
    arguments, amp = trainer.args, PRECISION[trainer.accelerator.mixed_precision]
    steps = _Steps(trainer, loader)
    fixed: dict[str, Any] = {"threads": torch.get_num_threads()}
    if amp != "off" and not (arguments.bf16 or arguments.fp16):
        fixed["amp"] = amp  # the environment's, which no argument takes back
    with without_loaders(trainer.accelerator):
        return tune_existing(
            trainer.model,
            read_loader(loader, "the training loader"),
            device=arguments.device,
            settings={"amp": amp, "accumulation_steps": arguments.gradient_accumulation_steps},
            options={**fixed, **options},
            optimizer=steps.optimizer if trainer.optimizer is None else trainer.optimizer,
            training_step=steps.training_step,
            max_grad_norm=arguments.max_grad_norm or None,
        )


def updated(arguments: TrainingArguments, config: Config) -> TrainingArguments:
    """Return a copy of ``TrainingArguments`` with a configuration's settings; everything else is kept.

    Warns (``UserWarning``) of options that have no argument.
    """
    exported = training_arguments(config)
    always = ("gradient_accumulation_steps", "bf16", "fp16", *OF_TRAINER.values())
    changes = {name: exported[name] for name in always}  # the rest only where its option was explored
    known = {field.name for field in dataclasses.fields(arguments)}
    is_adamw = str(getattr(arguments.optim, "value", arguments.optim)) in ("adamw_torch", "adamw_torch_fused")
    for option in config.options:
        given = OPTIONS.get(option, {})
        changes |= {RENAMED[name] if RENAMED.get(name) in known else name: value for name, value in given.items()}
    others = [option for option in config.options if option not in (*OPTIONS, "fused_optimizer")]
    if "fused_optimizer" in config.options and is_adamw:
        changes["optim"] = exported["optim"]
    elif "fused_optimizer" in config.options:
        others.append("fused_optimizer")
    if others:
        warnings.warn(f"TrainingArguments have nothing for {', '.join(others)}: apply it yourself", stacklevel=2)
    if arguments.device.type == "cpu":
        changes["use_cpu"] = True  # else a precision is refused
    if config.pin_memory:  # else pinning gains nothing
        present: Any = arguments.accelerator_config
        changes["accelerator_config"] = present.to_dict() | exported["accelerator_config"]
    return dataclasses.replace(arguments, **changes)


def _refuse_what_cannot_be_tuned(trainer: Any) -> None:
    from transformers import Trainer

    if not isinstance(trainer, Trainer):
        raise UsageError(f"trainer is {type(trainer).__name__}; allowed: a transformers.Trainer")
    arguments = trainer.args
    if arguments.n_gpu > 1:
        raise UsageError(
            f"the Trainer trains on {arguments.n_gpu} devices by DataParallel, slower than ranks: measure it with "
            f"python -m autotune run --ranks {arguments.n_gpu} train.py, or set CUDA_VISIBLE_DEVICES to one"
        )
    if trainer.is_model_parallel:
        raise UsageError("the Trainer's model is spread over several devices; allowed: one")
    if trainer.accelerator.mixed_precision not in PRECISION:
        mode = trainer.accelerator.mixed_precision
        raise UsageError(f"the Trainer's precision is {mode}; allowed: {', '.join(PRECISION)}")
    if trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled:
        raise UsageError("the Trainer uses DeepSpeed or FSDP; allowed: plain training on one device")
    if trainer.train_dataset is None:
        raise UsageError("the Trainer has no train_dataset: there is nothing to train on")
    if trainer.state.global_step or trainer.model_wrapped is not trainer.model:
        raise UsageError("the Trainer has trained its model already; make a new model and a new Trainer")


class _Unprepared:
    def __init__(self, accelerator: Any) -> None:
        self._accelerator = accelerator

    def __getattr__(self, name: str) -> Any:
        return getattr(self._accelerator, name)

    def prepare(self, *things: Any, **options: Any) -> Any:
        return things[0] if len(things) == 1 else things


def _unmeasured(trainer: Any) -> Iterator[str]:
    from transformers import Trainer

    arguments, kind = trainer.args, type(trainer)
    for name in ("training_step", "_prepare_inputs", "get_batch_samples"):
        if getattr(kind, name, None) is not getattr(Trainer, name, None):
            yield f"{kind.__name__}.{name}"
    if arguments.neftune_noise_alpha is not None:
        yield "neftune_noise_alpha"
    if arguments.use_liger_kernel:
        yield "use_liger_kernel"
    if arguments.torch_empty_cache_steps:
        yield "torch_empty_cache_steps"


class _Steps:
    """A Trainer's step and optimizer as a workload takes them, in whatever process they are called."""

    def __init__(self, trainer: Any, loader: Any) -> None:
        self._trainer = copy.copy(trainer)
        self._trainer.callback_handler = self._trainer.eval_dataset = self._trainer.compute_metrics = None
        self._trainer.lr_scheduler = None
        self._trainer.state = copy.copy(trainer.state)
        self._trainer.state.max_steps = trainer.args.max_steps if trainer.args.max_steps > 0 else STEPS
        self._trainer.log = log_nothing
        if getattr(loader, "dataset", None) is not trainer.train_dataset:
            self._trainer.train_dataset = None  # what is trained on is a copy with fewer columns
        self._is_set_up = False
        decisive = repr([(name, str(getattr(trainer.args, name, None))) for name in DECISIVE])
        self.depends_on = (type(trainer), trainer.compute_loss_func, trainer.data_collator, decisive)
        """What makes it another workload."""

    def optimizer(self, parameters: Iterable[Any]) -> torch.optim.Optimizer:
        self._set_up()
        self._trainer.optimizer = None
        optimizer: torch.optim.Optimizer = self._trainer.create_optimizer()
        self._trainer.lr_scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0)
        return optimizer

    def training_step(self, model: Any, batch: Any) -> torch.Tensor:
        self._set_up()
        items = self._trainer._get_num_items_in_batch([batch], self._trainer.args.device)
        counted = {} if items is None else {"num_items_in_batch": items}
        loss: torch.Tensor = self._trainer.compute_loss(model, copy.copy(batch), **counted)  # which takes labels out
        return loss

    def _set_up(self) -> None:
        if self._is_set_up:
            return
        self._is_set_up = True
        arguments, model = self._trainer.args, self._trainer.model
        if arguments.gradient_checkpointing:
            _enable_checkpointing(model, dict(arguments.gradient_checkpointing_kwargs or {}))
        if arguments.tf32:
            torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
        if arguments.torch_compile:
            model.compile(backend=arguments.torch_compile_backend, mode=arguments.torch_compile_mode)


def _enable_checkpointing(model: Any, settings: dict[str, Any]) -> None:
    ours = {name: settings.pop(name) for name in ("every_n_layers", "offload") if name in settings}
    if hasattr(model, "activation_checkpointing_enable"):
        model.activation_checkpointing_enable(activation_checkpointing_kwargs=settings or None, **ours)
    else:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=settings or None, **ours)
