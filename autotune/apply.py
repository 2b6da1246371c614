"""Trains a script as it is, with the answer of a config file: ``python -m autotune.apply FILE SCRIPT ...``."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from autotune.config import WORKER_OPTIONS, Config, load_config, without_advice
from autotune.errors import ConfigFileError
from autotune.workload import Script

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

    from autotune.sites import Maker, Site

STRICT = "--strict"
"""Flag that ends a script to which the answer cannot be applied."""
OF_WORKERS = (*WORKER_OPTIONS, "multiprocessing_context", "timeout")
"""Arguments of a DataLoader that need workers."""


def read_answer(path: str) -> tuple[Config, str, tuple[str, ...]]:
    """Return the answer in a config file, the place of the DataLoader that it is for, and of others beside it.

    Raises ``ConfigFileError`` for a file that ``run`` did not write.
    """
    config = load_config(path)
    site = (config.made_on or {}).get("loader")
    if not isinstance(site, str):
        raise ConfigFileError(f"{path}: names no DataLoader of a script: write it with python -m autotune run SCRIPT")
    return config, site, tuple((config.made_on or {}).get("other_loaders") or ())


def start(path: str, words: Sequence[str], *, strict: bool = False) -> NoReturn:
    """Train a script, named by the words of its command line, with a config file's answer, in place of this process.

    A ``strict`` one ends where the answer finds no DataLoader. Thread variables must be there before Python starts.
    Raises ``ConfigFileError`` and ``UsageError``.
    """
    config, *_ = read_answer(path)
    Script.of(words)
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    command = [sys.executable, *flags, "-m", "autotune.apply", *[STRICT][: int(strict)], path, *words]
    os.execve(sys.executable, command, {**os.environ, **config.thread_environment()})


def main(argv: Sequence[str]) -> None:
    """Run the script as ``__main__``; the DataLoader that trains gets the answer's settings."""
    is_strict = argv[0] == STRICT
    path, *words = argv[is_strict:]
    script = Script.of(words)
    with warnings.catch_warnings(action="ignore"):  # they were shown before
        config, first, others = read_answer(path)
    config.apply_threads()
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    from autotune.sites import keep_threads, stand_in_for_autocast, stand_in_for_loaders

    answered: list[Any] = []
    """Datasets of loaders with the answer, which packages may put into loaders of their own."""
    missing = {first, *others}
    """Places of DataLoaders that were neither made yet, nor told to be absent."""

    def made(make: Maker, site: Site, loader: DataLoader[Any], given: dict[str, Any]) -> None:
        if site.key not in (first, *others):
            is_copy = any(given["dataset"] is each for each in answered)
            is_measured = is_copy and given.get("num_workers") == config.num_workers
            make(without_advice(loader) if is_measured else loader, **given)
            return
        missing.discard(site.key)
        answered.append(given["dataset"])
        make(without_advice(loader), **changed(given, config, keeps_size=site.key != first))

    def tell(*_: Any) -> None:
        if missing:
            lines = ", ".join(sorted(each.partition(" ")[0] for each in missing))
            missing.clear()
            told = (
                f"autotune: {path} was not applied: {lines} made no DataLoader like the one that "
                f"was tuned; tune again with python -m autotune run {script.name}"
            )
            if is_strict:
                raise SystemExit(told)
            sys.stderr.write(told + "\n")

    keep_threads(config)
    stand_in_for_loaders(script.folder, made)
    stand_in_for_autocast(lambda _: config.amp != "off")
    register_optimizer_step_pre_hook(tell)
    sys.path[0] = str(script.folder)
    try:
        script.run()
    finally:
        tell()


def changed(given: dict[str, Any], config: Config, *, keeps_size: bool = False) -> dict[str, Any]:
    """Return the arguments of a DataLoader with the settings of a configuration."""
    settings = config.dataloader_kwargs()
    if keeps_size or given.get("batch_sampler") is not None or given.get("batch_size", 1) is None:
        del settings["batch_size"]  # the sampler makes the batches
    kept = given if config.num_workers else {name: each for name, each in given.items() if name not in OF_WORKERS}
    return kept | settings


if __name__ == "__main__":
    main(sys.argv[1:])
