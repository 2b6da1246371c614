"""Writes of a script that are held back while it is measured: it runs many times, and never to its end."""

from __future__ import annotations

import builtins
import importlib.util
import inspect
import io
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from autotune.runner.descendants import MARK


class HeldBack:
    """Keeps checkpoints, logs and files of a script from the disk."""

    def __init__(self) -> None:
        self.is_training = False
        """Whether training has begun: from then on no file is written at all, and before no file is replaced."""
        self._open, self._pid = builtins.open, os.getpid()
        self._scratch = os.environ.get(MARK) or tempfile.gettempdir()

    def install(self) -> None:
        """Stand in for the ways to write, those of libraries once they are imported."""
        torch.save = _nothing
        builtins.open = io.open = self._open_elsewhere
        os.environ |= {"WANDB_MODE": "disabled", "MLFLOW_TRACKING_URI": Path(self._scratch, "mlflow").as_uri()}
        actions = {
            "lightning.pytorch.trainer.trainer": self._hold_lightning,
            "pytorch_lightning.trainer.trainer": self._hold_lightning,
            "transformers.trainer": self._hold_transformers,
            "accelerate.accelerator": _hold_accelerate,
            "safetensors.torch": _hold_safetensors,
            "torch.utils.tensorboard.writer": self._hold_tensorboard,
        }
        sys.meta_path.insert(0, _AfterImport(actions))

    def _open_elsewhere(self, file: Any, mode: str = "r", *given: Any, **options: Any) -> Any:
        """Open a file; one that must not be written leads nowhere."""
        is_written = any(letter in mode for letter in "wax+") and os.getpid() == self._pid
        if is_written and isinstance(file, (str, bytes, os.PathLike)):
            path = os.path.abspath(os.fsdecode(file))
            is_ours = path.startswith((self._scratch, os.devnull, "/proc/", "/dev/"))
            if not is_ours and (self.is_training or ("w" in mode and os.path.exists(path))):
                return self._open(os.devnull, mode.replace("x", "w"), *given, **options)
        return self._open(file, mode, *given, **options)

    def _hold_lightning(self, module: ModuleType) -> None:
        fit = module.Trainer.fit

        def fit_without_files(trainer: Any, *given: Any, **options: Any) -> Any:
            trainer.loggers = []
            trainer.callbacks = [each for each in trainer.callbacks if "Checkpoint" not in type(each).__name__]
            return fit(trainer, *given, **options)

        module.Trainer.fit = fit_without_files

    def _hold_transformers(self, module: ModuleType) -> None:
        make = module.Trainer.__init__
        signature = inspect.signature(make)

        def make_without_files(trainer: Any, *given: Any, **options: Any) -> None:
            bound = signature.bind(trainer, *given, **options)
            if (arguments := bound.arguments.get("args")) is not None:
                arguments.output_dir, arguments.report_to = self._scratch, []
                arguments.save_strategy = type(arguments.save_strategy)("no")
            make(*bound.args, **bound.kwargs)

        module.Trainer.__init__ = make_without_files

    def _hold_tensorboard(self, module: ModuleType) -> None:
        make = module.SummaryWriter.__init__

        def make_elsewhere(writer: Any, *given: Any, **options: Any) -> None:
            make(writer, log_dir=os.path.join(self._scratch, "tensorboard"))

        module.SummaryWriter.__init__ = make_elsewhere


def _hold_accelerate(module: ModuleType) -> None:
    for name in ("save", "save_state", "save_model", "init_trackers", "log"):
        setattr(module.Accelerator, name, _nothing)


def _hold_safetensors(module: ModuleType) -> None:
    module.save_file = module.save_model = _nothing  # type: ignore[attr-defined]


def _nothing(*given: Any, **options: Any) -> None:
    """Write nothing."""


class _AfterImport(MetaPathFinder):
    """Does something with modules right after their import."""

    def __init__(self, actions: Mapping[str, Callable[[ModuleType], None]]) -> None:
        self._actions = dict(actions)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a module as usual, and have its loader tell of its end."""
        action = self._actions.pop(name, None)  # once: the search below comes here again
        spec = importlib.util.find_spec(name) if action else None
        if action is None or spec is None or spec.loader is None:
            return None
        loader: Any = spec.loader
        run = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run(module)
            action(module)

        loader.exec_module = exec_module
        return spec
