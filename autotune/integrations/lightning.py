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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from autotune.errors import UsageError, UserCodeError
from autotune.existing_loader import read_loader
from autotune.integrations.dataloader import log_nothing, require, tune_existing, untouched_random_state
from autotune.report.result import Result
from autotune.settings import Amp
from autotune.workload import COMPILING

PRECISION: dict[str, Amp] = {"32-true": "off", "bf16-mixed": "bf16", "16-mixed": "fp16"}
BEFORE = ("on_fit_start", "on_train_start", "on_train_epoch_start")
"""Hooks that are called once before the first step, for they may make what the step uses."""
BATCH_HOOKS = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")
"""Hooks of a batch, a data module's before the module's; but for the first they are part of the step."""
NOT_MEASURED = (
    *("on_train_batch_start", "on_before_backward", "backward", "on_after_backward", "on_before_optimizer_step"),
    *("optimizer_step", "configure_gradient_clipping", "on_before_zero_grad", "optimizer_zero_grad"),
    *("on_train_batch_end", "lr_scheduler_step"),
)
"""Hooks of every step that are not."""
HARMLESS = {
    *("ProgressBar", "ModelSummary", "Checkpoint", "EarlyStopping", "LearningRateMonitor", "Timer"),
    *("ThroughputMonitor", "DeviceStatsMonitor"),
}
"""Callbacks that leave the step as it is."""
WARM_UP = 0.01
"""Share of the learning rate used where a schedule begins at zero, so weights do change."""
FACTS = (
    *("max_epochs", "min_epochs", "max_steps", "min_steps", "accumulate_grad_batches", "gradient_clip_val"),
    *("gradient_clip_algorithm", "precision", "log_every_n_steps", "check_val_every_n_epoch", "limit_train_batches"),
    *("world_size", "num_devices", "num_nodes", "global_rank", "local_rank", "node_rank", "is_global_zero"),
    *("default_root_dir", "fast_dev_run"),
)
"""What is known before a trainer runs."""
PLAIN = (bool, int, float, str, list, tuple, dict, type(None))


def tune(trainer: Any, module: Any, datamodule_or_loader: Any = None, **options: Any) -> Result:
    """Search for the fastest configuration of ``trainer.fit(module, datamodule_or_loader)``.

    The baseline is the present batch size, workers, precision and accumulation of trainer and loader. Device, ranks
    and gradient clipping are the trainer's. Without a data module or a loader, the module's ``train_dataloader`` gives
    the loader. ``options`` are those of ``autotune.tune``. The arguments for a new trainer and a new loader are in
    ``autotune.export(result.config, "lightning").values``.

    Warns (``UserWarning``) of hooks that run in every step and are not measured. Raises ``UsageError`` for several
    hosts or loaders, another strategy than ddp, another kind of precision and manual optimization, and the errors of
    ``autotune.tune``.
    """
    base = _module_class(module)
    _refuse_what_cannot_be_tuned(trainer, module, base)
    if datamodule_or_loader is None and not overrides(module, "train_dataloader", base):
        raise UsageError("there is no training loader: pass a DataLoader or a LightningDataModule")
    with untouched_random_state():
        module = copy.deepcopy(module)
        stand_in = StandInTrainer(trainer, base)
        loader = stand_in.set_up(module, datamodule_or_loader, base)
    hooks = dict(_batch_hooks(module, stand_in.datamodule, base))
    if unmeasured := list(_unmeasured(trainer, module, hooks, base)):
        warnings.warn(f"not measured: {', '.join(unmeasured)}", stacklevel=2)
    before = [name for name in BEFORE if overrides(module, name, base)]
    steps = _Steps(module, stand_in, before, [hook for name, hook in hooks.items() if name != BATCH_HOOKS[0]])
    is_norm = trainer.gradient_clip_val and trainer.gradient_clip_algorithm in (None, "norm")
    return tune_existing(
        module,
        read_loader(loader, "the training loader"),
        device=trainer.strategy.root_device,
        settings={"amp": PRECISION[trainer.precision], "accumulation_steps": trainer.accumulate_grad_batches},
        options={"ranks": trainer.num_devices} | options,
        optimizer=steps.optimizer,
        training_step=steps.training_step,
        max_grad_norm=trainer.gradient_clip_val if is_norm else None,
        epoch_batches=_epoch_batches(trainer),
    )


def _module_class(module: Any) -> type:
    for parent in type(module).__mro__:
        if parent.__name__ == "LightningModule" and _package(parent) in ("lightning", "pytorch_lightning"):
            return parent
    require("lightning")
    raise UsageError(f"module is {type(module).__name__}; allowed: a LightningModule, not compiled and not wrapped")


def _refuse_what_cannot_be_tuned(trainer: Any, module: Any, base: type) -> None:
    require(_package(base))
    strategies = [parent.__name__ for parent in type(getattr(trainer, "strategy", None)).__mro__]
    if not any(p.__name__ == "Trainer" and _package(p) == _package(base) for p in type(trainer).__mro__):
        raise UsageError(f"trainer is {type(trainer).__name__}; allowed: a {_package(base)} Trainer, as the module's")
    if {"SingleDeviceStrategy", "DDPStrategy"}.isdisjoint(strategies) or trainer.num_nodes != 1:
        raise UsageError(
            f"the trainer uses {type(trainer.strategy).__name__} on {trainer.num_devices} x {trainer.num_nodes} "
            "devices; allowed: one device, or ddp on one host. Or measure the script: python -m autotune run"
        )
    if trainer.precision not in PRECISION:
        raise UsageError(f"the trainer's precision is {trainer.precision}; allowed: {', '.join(PRECISION)}")
    for hook in ("training_step", "configure_optimizers"):
        if not overrides(module, hook, base):
            raise UsageError(f"{type(module).__name__} has no {hook}: there is nothing to train")
    if not module.automatic_optimization:
        raise UsageError(
            f"{type(module).__name__} optimizes by itself (automatic_optimization is False): pass its step as "
            "autotune.Workload(model, dataset, training_step=...) to autotune.tune"
        )
    if getattr(module, "_compiled_call_impl", None) is not None:
        raise UsageError(f"{type(module).__name__} is compiled in place: pass it before that; {COMPILING}")
    if "dataloader_iter" in inspect.signature(module.training_step).parameters:
        raise UsageError(f"{type(module).__name__}.training_step takes dataloader_iter; allowed: batch, batch_idx")


def _batch_hooks(module: Any, data: Any, base: type) -> Iterator[tuple[str, Any]]:
    for name in BATCH_HOOKS:
        owners = [each for each in (data, module) if each is not None and overrides(each, name, base)]
        if owners:
            yield name, getattr(owners[0], name)


def _unmeasured(trainer: Any, module: Any, hooks: Mapping[str, Any], base: type) -> Iterator[str]:
    name = type(module).__name__
    if BATCH_HOOKS[0] in hooks:
        yield f"{type(hooks[BATCH_HOOKS[0]].__self__).__name__}.{BATCH_HOOKS[0]}"
    yield from (f"{name}.{hook}" for hook in NOT_MEASURED if overrides(module, hook, base))
    for callback in trainer.callbacks:
        if HARMLESS.isdisjoint(parent.__name__ for parent in type(callback).__mro__):
            yield f"the callback {type(callback).__name__}"
    if trainer.gradient_clip_val and trainer.gradient_clip_algorithm == "value":
        yield "clipping gradients by value"


def _epoch_batches(trainer: Any) -> int | float | None:
    limit: int | float = trainer.limit_train_batches
    if not limit:
        raise UsageError(
            "the trainer's limit_train_batches is 0: it trains on nothing; allowed: 1 and more, or a share"
        )
    return None if limit == 1.0 and isinstance(limit, float) else limit


def _package(kind: type) -> str:
    return kind.__module__.partition(".")[0]


class _Steps:
    """A module's step and optimizer as a workload takes them, in whatever process they are called."""

    def __init__(self, module: Any, trainer: StandInTrainer, before: Sequence[str], batch_hooks: Sequence[Any]) -> None:
        self._module = module
        self._trainer = trainer
        self._before = before
        self._batch_hooks = batch_hooks
        self._batches = 0
        self._compiled: Any = None
        parameters = inspect.signature(module.training_step).parameters.values()
        is_open = any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters)
        self._takes_index = is_open or len(parameters) > 1

    def optimizer(self, parameters: Iterable[Any]) -> torch.optim.Optimizer:
        module = self._module
        is_first = module._trainer is None
        if is_first:
            module.trainer = self._trainer
            module.log = module.log_dict = log_nothing
        optimizer, schedulers = _made_of(module.configure_optimizers())
        for group in optimizer.param_groups:
            if not group["lr"]:
                group["lr"] = WARM_UP * group.get("initial_lr", 0.0)
        self._trainer.take(module, optimizer, schedulers)
        for hook in self._before if is_first else ():
            getattr(module, hook)()
        return optimizer

    def training_step(self, model: Any, batch: Any) -> torch.Tensor:
        device = self._trainer.strategy.root_device
        with torch.autocast(device.type, enabled=False):
            for hook in self._batch_hooks:
                batch = hook(batch, device, 0) if hook.__name__ == "transfer_batch_to_device" else hook(batch, 0)
        step = self._step(model)
        output = step(batch, self._batches) if self._takes_index else step(batch)
        self._batches += 1
        self._trainer.global_step = self._batches // self._trainer.accumulate_grad_batches
        loss = output.get("loss") if isinstance(output, dict) else output
        if not isinstance(loss, torch.Tensor):
            raise UserCodeError(
                f"training_step returned {type(output).__name__}; allowed: the loss, or a dictionary with 'loss'"
            )
        return loss

    def _step(self, model: Any) -> Any:
        """Return the module's step: compiled as a whole, as Lightning does it, where the module is."""
        if model._compiled_call_impl is None:
            return model.training_step
        self._compiled = self._compiled or torch.compile(model.training_step)
        return self._compiled


def _made_of(made: Any) -> tuple[torch.optim.Optimizer, list[Any]]:
    """Return the optimizer, and the schedulers, among what ``configure_optimizers`` may return.

    Raises ``UserCodeError`` where there is no optimizer, or more than one.
    """
    if isinstance(made, tuple) and len(made) == 2 and all(isinstance(part, (list, tuple)) for part in made):
        several, given = made
    else:
        several = made if isinstance(made, (list, tuple)) else [made]
        given = [each["lr_scheduler"] for each in several if isinstance(each, dict) and "lr_scheduler" in each]
    optimizers = [each.get("optimizer") if isinstance(each, dict) else each for each in several]
    if len(optimizers) != 1 or not isinstance(optimizers[0], torch.optim.Optimizer):
        names = ", ".join(type(each).__name__ for each in optimizers)
        raise UserCodeError(f"configure_optimizers made {names or 'nothing'}; allowed: one optimizer")
    schedulers = [each.get("scheduler") if isinstance(each, dict) else each for each in given if each is not None]
    return optimizers[0], schedulers


class StandInTrainer:
    """What a trainer knows before it runs, for a module that asks for it.

    Whatever else it is asked for is an ``AttributeError`` that says so.
    """

    max_epochs: Any

    def __init__(self, trainer: Any, base: type) -> None:
        """Take the facts of a trainer; ``base`` is the ``LightningModule`` of its package."""
        vars(self).update({name: getattr(trainer, name) for name in FACTS})
        if self.max_epochs is None:
            self.max_epochs = 1000 if self.max_steps == -1 else -1  # as Lightning does
        self._package = base.__module__.partition(".core.")[0]
        self.num_training_batches: float = math.inf
        self.estimated_stepping_batches: float = math.inf
        self.current_epoch = self.global_step = 0
        self.training = True
        self.sanity_checking = self.validating = self.testing = self.predicting = self.evaluating = False
        self.barebones = False
        self.callbacks: list[Any] = []
        self.callback_metrics: dict[str, Any] = {}
        self.logged_metrics: dict[str, Any] = {}
        self.progress_bar_callback = None
        self.datamodule: Any = None
        self.lightning_module: Any = None
        self.train_dataloader: _Sized | None = None
        self.log_dir = self.default_root_dir
        self.optimizers: list[torch.optim.Optimizer] = []
        self.lr_scheduler_configs: list[Any] = []
        self.state = SimpleNamespace(fn="fit", stage="train", status="running")
        self.strategy = SimpleNamespace(root_device=trainer.strategy.root_device, _lightning_optimizers=[])
        self._make_logger()

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"trainer.{name} is not there while autotune measures: only a running trainer has it")

    def __getstate__(self) -> dict[str, Any]:
        """Leave behind what cannot travel, or need not: of a data module the plain facts go."""
        state = {name: value for name, value in vars(self).items() if name not in ("logger", "loggers")}
        return state | {"datamodule": _plain_facts(self.datamodule), "lightning_module": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._make_logger()

    def _make_logger(self) -> None:
        self.logger = import_module(f"{self._package}.loggers.logger").DummyLogger()
        self.loggers = [self.logger]

    @property
    def model(self) -> Any:
        """The module."""
        return self.lightning_module

    def set_up(self, module: Any, data: Any, base: type) -> Any:
        """Set up a module and a copy of its data module as ``fit`` does; return the training loader."""
        source = module
        module.trainer = self
        if hasattr(data, "train_dataloader"):
            self.datamodule = source = self._copied(data)
            source.trainer = self
            source.prepare_data()
            source.setup("fit")
        for hook, *arguments in (("prepare_data",), ("setup", "fit"), ("configure_model",)):
            if overrides(module, hook, base):
                getattr(module, hook)(*arguments)
        loader = source.train_dataloader() if data is None or source is not module else data
        self._count_steps(loader)
        return loader

    def _copied(self, data: Any) -> Any:
        """Return a copy of a data module, whose hooks change it; what it holds already of data is shared."""
        held = [value for value in vars(data).values() if isinstance(value, (Dataset, torch.Tensor, np.ndarray))]
        memo: dict[int, Any] = {id(value): value for value in held}
        if (trainer := getattr(data, "trainer", None)) is not None:
            memo[id(trainer)] = self
        return copy.deepcopy(data, memo)

    def _count_steps(self, loader: Any) -> None:
        try:
            batches = len(loader)
        except TypeError:  # a stream, or no loader at all
            self.estimated_stepping_batches = self.max_steps
            return
        limit = self.limit_train_batches
        self.num_training_batches = min(batches, limit) if isinstance(limit, int) else int(batches * limit)
        self.train_dataloader = _Sized(self.num_training_batches)
        epochs = math.ceil(self.num_training_batches / self.accumulate_grad_batches) * max(self.max_epochs, 1)
        given = (-1 if self.max_epochs == -1 else epochs, self.max_steps)
        limits = [steps for steps in given if steps not in (None, -1)]
        self.estimated_stepping_batches = min(limits, default=math.inf)

    def take(self, module: Any, optimizer: torch.optim.Optimizer, schedulers: list[Any]) -> None:
        """Note what ``configure_optimizers`` made, which a module may look up."""
        self.lightning_module = module
        self.optimizers = self.strategy._lightning_optimizers = [optimizer]
        self.lr_scheduler_configs = [SimpleNamespace(scheduler=scheduler) for scheduler in schedulers]


class _Sized:
    def __init__(self, length: float) -> None:
        self._length = int(length)

    def __len__(self) -> int:
        return self._length


def overrides(thing: Any, name: str, base: type) -> bool:
    """Return whether a module has a method of its own in place of the base class's."""
    return name in vars(thing) or getattr(type(thing), name, None) is not getattr(base, name, None)


def _plain_facts(data: Any) -> Any:
    found = {}
    for name in dir(data) if data is not None else ():
        with suppress(Exception):
            if not name.startswith("_") and isinstance(value := getattr(data, name), PLAIN):
                found[name] = value
    return SimpleNamespace(**found) if data is not None else None
