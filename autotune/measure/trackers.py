"""Uploads of a script, switched off while it is measured: experiment trackers and model hubs have their own switches.

What a script writes to the disk is held beneath it; what leaves the machine would be there for good.
"""

from __future__ import annotations

import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

LOCAL = ("CSVLogger", "TensorBoardLogger")
"""Loggers of Lightning that write to the disk alone."""


def switch_off(scratch: str) -> None:
    """Switch off trackers and uploads: by the environment, and once its package is imported whatever a script asks."""
    os.environ |= {
        "WANDB_MODE": "disabled",
        "MLFLOW_TRACKING_URI": f"sqlite:///{scratch}/mlflow.db",  # newer versions refuse folders
        "COMET_AUTO_LOG_DISABLE": "1",
        "CLEARML_OFFLINE_MODE": "1",
    }
    actions: dict[str, Callable[[ModuleType], None]] = {
        "wandb": lambda module: _force(module, "init", mode="disabled"),
        "mlflow.tracking._tracking_service.utils": lambda module: setattr(module, "set_tracking_uri", _nothing),
        "neptune.metadata_containers.run": lambda module: _force(module.Run, "__init__", mode="debug"),
        "neptune_scale.api.run": lambda module: _force(module.Run, "__init__", mode="disabled"),
        "lightning.pytorch.trainer.trainer": _keep_local_loggers,
        "pytorch_lightning.trainer.trainer": _keep_local_loggers,
        "transformers.trainer": _push_nothing,
        "huggingface_hub.hf_api": _upload_nothing,
    }
    for name in sorted(actions.keys() & sys.modules.keys()):
        actions.pop(name)(sys.modules[name])
    sys.meta_path.insert(0, _AfterImport(actions))


def _force(owner: Any, name: str, **forced: Any) -> None:
    """Have a function called with these arguments, whatever others it is given."""
    own = getattr(owner, name)
    signature = inspect.signature(own)

    def stand_in(*given: Any, **options: Any) -> Any:
        bound = signature.bind(*given, **options)
        bound.arguments |= forced
        return own(*bound.args, **bound.kwargs)

    setattr(owner, name, stand_in)


def _keep_local_loggers(module: ModuleType) -> None:
    fit = module.Trainer.fit

    def fit_without_uploads(trainer: Any, *given: Any, **options: Any) -> Any:
        dummy = importlib.import_module(f"{module.__name__.partition('.trainer')[0]}.loggers.logger").DummyLogger
        trainer.loggers = [each if type(each).__name__ in LOCAL else dummy() for each in trainer.loggers]
        return fit(trainer, *given, **options)

    module.Trainer.fit = fit_without_uploads


def _push_nothing(module: ModuleType) -> None:
    make = module.Trainer.__init__

    def make_without_hub(trainer: Any, *given: Any, **options: Any) -> None:
        arguments = inspect.signature(make).bind(trainer, *given, **options).arguments.get("args")
        if arguments is not None:
            arguments.push_to_hub = False
        make(trainer, *given, **options)

    module.Trainer.__init__ = make_without_hub


def _upload_nothing(module: ModuleType) -> None:
    def create_repo(api: Any, repo_id: str, **options: Any) -> Any:
        return module.RepoUrl(f"{api.endpoint}/{repo_id}")

    for name in ("create_repo", "create_commit", "upload_file", "upload_folder"):
        setattr(module.HfApi, name, create_repo if name == "create_repo" else _nothing)
        setattr(module, name, getattr(module.api, name))


def _nothing(*given: Any, **options: Any) -> None:
    """Send nothing."""


class _AfterImport(MetaPathFinder):
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
