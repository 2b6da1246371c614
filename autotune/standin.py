"""What a Lightning module may ask its trainer for, in a process where no trainer runs."""

from __future__ import annotations

import copy
import math
from contextlib import suppress
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

__all__ = ["StandInTrainer", "overrides"]

FACTS = (
    *("max_epochs", "min_epochs", "max_steps", "min_steps", "accumulate_grad_batches", "gradient_clip_val"),
    *("gradient_clip_algorithm", "precision", "log_every_n_steps", "check_val_every_n_epoch", "limit_train_batches"),
    *("world_size", "num_devices", "num_nodes", "global_rank", "local_rank", "node_rank", "is_global_zero"),
    *("default_root_dir", "fast_dev_run"),
)
"""What is known before a trainer runs."""
EPOCHS = 1000
"""How many Lightning trains where neither epochs nor steps are given."""
PLAIN = (bool, int, float, str, list, tuple, dict, type(None))


class StandInTrainer:
    """What a trainer knows before it runs, for a module that asks for it.

    Whatever else it is asked for is an ``AttributeError`` that says so.
    """

    max_epochs: Any
    max_steps: Any
    limit_train_batches: Any
    accumulate_grad_batches: Any
    default_root_dir: Any

    def __init__(self, trainer: Any, base: type) -> None:
        """Take the facts of a trainer; ``base`` is the ``LightningModule`` of its package."""
        vars(self).update({name: getattr(trainer, name) for name in FACTS})
        if self.max_epochs is None:
            self.max_epochs = EPOCHS if self.max_steps == -1 else -1
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
        """Make a logger that takes everything and keeps nothing."""
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
        memo: dict[int, Any] = {}
        for value in vars(data).values():
            if isinstance(value, (Dataset, torch.Tensor, np.ndarray)):
                memo[id(value)] = value
        if (trainer := getattr(data, "trainer", None)) is not None:
            memo[id(trainer)] = self
        return copy.deepcopy(data, memo)

    def _count_steps(self, loader: Any) -> None:
        """Note how many steps the training is to make, where that is known."""
        try:
            batches = len(loader)
        except TypeError:  # a stream, or no loader at all
            self.estimated_stepping_batches = self.max_steps
            return
        limit = self.limit_train_batches
        self.num_training_batches = min(batches, limit) if isinstance(limit, int) else int(batches * limit)
        self.train_dataloader = _Sized(self.num_training_batches)
        epochs = math.ceil(self.num_training_batches / self.accumulate_grad_batches) * max(self.max_epochs, 1)
        is_open = self.max_epochs == -1
        limits = [steps for steps in (None if is_open else epochs, self.max_steps) if steps not in (None, -1)]
        self.estimated_stepping_batches = min(limits, default=math.inf)

    def take(self, module: Any, optimizer: torch.optim.Optimizer, schedulers: list[Any]) -> None:
        """Note what ``configure_optimizers`` made, which a module may look up."""
        self.lightning_module = module
        self.optimizers = self.strategy._lightning_optimizers = [optimizer]
        self.lr_scheduler_configs = [SimpleNamespace(scheduler=scheduler) for scheduler in schedulers]


class _Sized:
    """A loader of which only the length is known."""

    def __init__(self, length: float) -> None:
        self._length = int(length)

    def __len__(self) -> int:
        return self._length


def overrides(thing: Any, name: str, base: type) -> bool:
    """Tell whether a module has a method of its own in place of the base class's."""
    return name in vars(thing) or getattr(type(thing), name, None) is not getattr(base, name, None)


def _plain_facts(data: Any) -> Any:
    """Return the plain public attributes of a data module, its hyperparameters and properties included."""
    found = {}
    for name in dir(data) if data is not None else ():
        with suppress(Exception):
            if not name.startswith("_") and isinstance(value := getattr(data, name), PLAIN):
                found[name] = value
    return SimpleNamespace(**found) if data is not None else None
