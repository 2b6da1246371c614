"""Tuning from where a Lightning script is: its trainer, its module, its loader.

What is timed is the module's own ``training_step`` with the optimizer of its ``configure_optimizers``, on its loader's
dataset. Trainer, module and data module stay as they are: the hooks that set them up are called on copies. Both
packages count, ``lightning`` and ``pytorch_lightning``; neither is imported here before there is a trainer of theirs.
"""

from __future__ import annotations

import copy
import inspect
import math
import warnings
from collections.abc import Iterable, Iterator
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import torch

from autotune.config import Amp
from autotune.errors import UsageError, UserCodeError
from autotune.existing import read_loader, require, tune_existing, untouched_random_state
from autotune.records import Result

__all__ = ["tune"]

PRECISION: dict[str, Amp] = {"32-true": "off", "bf16-mixed": "bf16", "16-mixed": "fp16"}
FACTS = (
    *("max_epochs", "min_epochs", "max_steps", "min_steps", "accumulate_grad_batches", "gradient_clip_val"),
    *("gradient_clip_algorithm", "precision", "log_every_n_steps", "check_val_every_n_epoch", "limit_train_batches"),
    *("world_size", "num_devices", "num_nodes", "global_rank", "local_rank", "node_rank", "is_global_zero"),
    *("default_root_dir", "fast_dev_run"),
)
"""What a module may ask its trainer for before it runs."""
BEFORE = ("on_fit_start", "on_train_start", "on_train_epoch_start")
"""Hooks that are called once before the first step, for they may make what the step uses."""
NOT_MEASURED = (
    *("on_before_batch_transfer", "transfer_batch_to_device", "on_train_batch_start", "on_before_backward"),
    *("backward", "on_after_backward", "on_before_optimizer_step", "optimizer_step", "configure_gradient_clipping"),
    *("on_before_zero_grad", "optimizer_zero_grad", "on_train_batch_end", "lr_scheduler_step"),
)
"""Hooks of every step that are not."""


def tune(trainer: Any, module: Any, datamodule_or_loader: Any = None, **options: Any) -> Result:
    """Search for the fastest configuration of what ``trainer.fit(module, datamodule_or_loader)`` would train.

    The baseline is what trainer and loader are set to: batch size, workers, precision, accumulation. The device is the
    trainer's, and gradients are clipped to its norm. Without a data module or a loader the module's own
    ``train_dataloader`` is asked. ``options`` are those of ``autotune.tune``. The arguments for a new trainer and a new
    loader are in ``autotune.export(result.config, "lightning").values``.

    Warns (``UserWarning``) of hooks that run in every step and are not part of what is measured. Raises ``UsageError``
    for what cannot be tuned from here (several devices, another strategy or kind of precision, manual optimization,
    several loaders), and what ``autotune.tune`` raises.
    """
    base = _module_class(module)
    _refuse_what_cannot_be_tuned(trainer, module, base)
    if datamodule_or_loader is None and not _overrides(module, "train_dataloader", base):
        raise UsageError("there is no training loader: pass a DataLoader or a LightningDataModule")
    with untouched_random_state():
        module = copy.deepcopy(module)
        stand_in = StandInTrainer(trainer, base)
        loader = stand_in.set_up(module, datamodule_or_loader, base)
    if unmeasured := list(_unmeasured(trainer, module, base)):
        warnings.warn(f"not part of what is measured: {', '.join(unmeasured)}", stacklevel=2)
    steps = _Steps(module, stand_in, tuple(name for name in BEFORE if _overrides(module, name, base)))
    is_norm = trainer.gradient_clip_val and trainer.gradient_clip_algorithm in (None, "norm")
    return tune_existing(
        module,
        read_loader(loader, "the training loader"),
        device=trainer.strategy.root_device,
        settings={"amp": PRECISION[trainer.precision], "accumulation_steps": trainer.accumulate_grad_batches},
        options=options,
        optimizer=steps.optimizer,
        training_step=steps.training_step,
        max_grad_norm=trainer.gradient_clip_val if is_norm else None,
    )


def _module_class(module: Any) -> type:
    """Return the ``LightningModule`` that a module derives from."""
    for parent in type(module).__mro__:
        if parent.__name__ == "LightningModule" and _package(parent) in ("lightning", "pytorch_lightning"):
            return parent
    require("lightning")
    raise UsageError(f"module is {type(module).__name__}; allowed: a LightningModule, not compiled and not wrapped")


def _refuse_what_cannot_be_tuned(trainer: Any, module: Any, base: type) -> None:
    strategy = _named(getattr(trainer, "strategy", None), "SingleDeviceStrategy")
    if not _named(trainer, "Trainer") or _package(type(trainer)) != _package(base):
        raise UsageError(f"trainer is {type(trainer).__name__}; allowed: a {_package(base)} Trainer, as the module's")
    if not strategy or trainer.num_devices * trainer.num_nodes != 1:
        raise UsageError(
            f"the trainer uses {type(trainer.strategy).__name__} on {trainer.num_devices} x {trainer.num_nodes} "
            "devices; allowed: one device. Tune with Trainer(devices=1) and a batch for one of them"
        )
    if trainer.precision not in PRECISION:
        raise UsageError(f"the trainer's precision is {trainer.precision}; allowed: {', '.join(PRECISION)}")
    for hook in ("training_step", "configure_optimizers"):
        if not _overrides(module, hook, base):
            raise UsageError(f"{type(module).__name__} has no {hook}: there is nothing to train")
    if not module.automatic_optimization:
        raise UsageError(
            f"{type(module).__name__} optimizes by itself (automatic_optimization is False): pass its step as "
            "autotune.Workload(model, dataset, training_step=...) to autotune.tune"
        )
    if "dataloader_iter" in inspect.signature(module.training_step).parameters:
        raise UsageError(f"{type(module).__name__}.training_step takes dataloader_iter; allowed: batch, batch_idx")


def _unmeasured(trainer: Any, module: Any, base: type) -> Iterator[str]:
    """Yield what runs in every step of the trainer's, and is left out."""
    name = type(module).__name__
    yield from (f"{name}.{hook}" for hook in NOT_MEASURED if _overrides(module, hook, base))
    if trainer.gradient_clip_val and trainer.gradient_clip_algorithm == "value":
        yield "clipping gradients by value"


def _overrides(module: Any, name: str, base: type) -> bool:
    """Tell whether a module has a method of its own in place of the base class's."""
    return name in vars(module) or getattr(type(module), name, None) is not getattr(base, name, None)


def _named(thing: Any, name: str) -> bool:
    return any(parent.__name__ == name for parent in type(thing).__mro__)


def _package(kind: type) -> str:
    return kind.__module__.partition(".")[0]


class StandInTrainer:
    """What a module may ask its trainer for, in a process where no trainer runs.

    Whatever else it is asked for is an ``AttributeError`` that says so.
    """

    def __init__(self, trainer: Any, base: type) -> None:
        vars(self).update({name: getattr(trainer, name) for name in FACTS})
        self.num_training_batches: float = math.inf
        self.estimated_stepping_batches: float = math.inf
        self.current_epoch = self.global_step = 0
        self.training = True
        self.sanity_checking = self.validating = self.testing = self.predicting = self.evaluating = False
        self.logger = import_module(f"{base.__module__.partition('.core.')[0]}.loggers.logger").DummyLogger()
        self.loggers = [self.logger]
        self.callbacks: list[Any] = []
        self.callback_metrics: dict[str, Any] = {}
        self.datamodule: Any = None
        self.optimizers: list[torch.optim.Optimizer] = []
        self.lr_scheduler_configs: list[Any] = []
        self.strategy = SimpleNamespace(root_device=trainer.strategy.root_device, _lightning_optimizers=[])

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"trainer.{name} is not there while autotune measures: only a running trainer has it")

    def set_up(self, module: Any, data: Any, base: type) -> Any:
        """Set up a module and a copy of its data module as ``fit`` does; return the training loader."""
        source = module
        module.trainer = self
        if hasattr(data, "train_dataloader"):
            self.datamodule = source = copy.copy(data)
            source.trainer = self
            source.prepare_data()
            source.setup("fit")
        for hook, *arguments in (("prepare_data",), ("setup", "fit"), ("configure_model",)):
            if _overrides(module, hook, base):
                getattr(module, hook)(*arguments)
        is_hook = data is None or source is not module
        loader = source.train_dataloader() if is_hook else data
        self._count_steps(loader)
        return loader

    def _count_steps(self, loader: Any) -> None:
        """Note how many steps the training is to make, where that is known."""
        try:
            batches = len(loader)
        except TypeError:  # a stream, or no loader at all
            self.estimated_stepping_batches = self.max_steps
            return
        limit = self.limit_train_batches
        self.num_training_batches = min(batches, limit) if isinstance(limit, int) else int(batches * limit)
        steps = math.ceil(self.num_training_batches / self.accumulate_grad_batches) * max(self.max_epochs or 1, 1)
        self.estimated_stepping_batches = steps if self.max_steps == -1 else min(steps, self.max_steps)

    def take(self, optimizer: torch.optim.Optimizer) -> None:
        """Note the optimizer, which a module may look up."""
        self.optimizers = self.strategy._lightning_optimizers = [optimizer]


class _Steps:
    """A module's step and optimizer as a workload takes them, in whatever process they are called."""

    def __init__(self, module: Any, trainer: StandInTrainer, before: tuple[str, ...]) -> None:
        self._module = module
        self._trainer = trainer
        self._before = before
        self._batches = 0
        parameters = inspect.signature(module.training_step).parameters.values()
        is_open = any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters)
        self._takes_index = is_open or len(parameters) > 1

    def optimizer(self, parameters: Iterable[Any]) -> torch.optim.Optimizer:
        """Return what ``configure_optimizers`` makes."""
        is_first = self._module._trainer is None
        if is_first:
            self._module.trainer = self._trainer
            self._module.log = self._module.log_dict = _nothing
        optimizer = _only_optimizer(self._module.configure_optimizers())
        self._trainer.take(optimizer)
        for hook in self._before if is_first else ():
            getattr(self._module, hook)()
        return optimizer

    def training_step(self, model: Any, batch: Any) -> torch.Tensor:
        """Return the loss of a batch that is on the device."""
        batch = model.on_after_batch_transfer(batch, 0)
        output = model.training_step(batch, self._batches) if self._takes_index else model.training_step(batch)
        self._batches += 1
        self._trainer.global_step = self._batches // self._trainer.accumulate_grad_batches
        loss = output.get("loss") if isinstance(output, dict) else output
        if not isinstance(loss, torch.Tensor):
            raise UserCodeError(
                f"training_step returned {type(output).__name__}; allowed: the loss, or a dictionary with 'loss'"
            )
        return loss


def _only_optimizer(made: Any) -> torch.optim.Optimizer:
    """Return the optimizer among what ``configure_optimizers`` may return.

    Raises ``UserCodeError`` where there is none, or more than one.
    """
    if isinstance(made, tuple) and len(made) == 2 and all(isinstance(part, (list, tuple)) for part in made):
        made = made[0]  # beside schedulers
    several = list(made) if isinstance(made, (list, tuple)) else [made]
    optimizers = [each.get("optimizer") if isinstance(each, dict) else each for each in several]
    if len(optimizers) != 1 or not isinstance(optimizers[0], torch.optim.Optimizer):
        names = ", ".join(type(each).__name__ for each in optimizers)
        raise UserCodeError(f"configure_optimizers made {names or 'nothing'}; allowed: one optimizer")
    return optimizers[0]


def _nothing(*arguments: Any, **more: Any) -> None:
    """Stand for the module's ``log``, which needs a running trainer."""
