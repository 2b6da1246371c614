"""Trains a script as it is, with the answer of a config file: ``python -m autotune.apply FILE SCRIPT ...``."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

from autotune.config import Config, beginning_text, load_config
from autotune.errors import ConfigFileError
from autotune.machine.launcher import heed_launches
from autotune.records import ADDED
from autotune.report.text import counted
from autotune.torch_import import at_first_import
from autotune.workload import Script

if TYPE_CHECKING:
    from autotune.loop_times import LoopTimes
    from autotune.sites import Site

STRICT = "--strict"
"""Flag that ends a script to which the answer cannot be applied."""


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
    One of several ranks that ``torchrun`` has started gets its share of workers and threads.
    Raises ``ConfigFileError`` and ``UsageError``.
    """
    answer, *_ = read_answer(path)
    config = answer.for_rank()
    Script.of(words)
    if part := beginning_text((config.measured or {}).get("beginning_samples")):
        _say_in_one_rank(f"{path}: its rate is known{part}, and not for the rest")
    if config.ranks != answer.ranks:
        _say_in_one_rank(
            f"{path}: measured with {counted(answer.ranks, 'rank')}, and this is one of {config.ranks}: it takes its "
            f"share, {counted(config.num_workers, 'worker')}; at what rate is not known"
        )
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    command = [sys.executable, *flags, "-m", "autotune.apply", *[STRICT][: int(strict)], path, *words]
    os.execve(sys.executable, command, {**os.environ, **config.thread_environment()})


def _say_in_one_rank(text: str) -> None:
    if os.environ.get("RANK", "0") == "0":
        sys.stderr.write(f"autotune: {text}\n")
        sys.stderr.flush()


def main(argv: Sequence[str]) -> None:
    """Run the script as ``__main__``; the DataLoader that trains gets the answer's settings."""
    is_strict = argv[0] == STRICT
    path, *words = argv[is_strict:]
    script = Script.of(words)
    with warnings.catch_warnings(action="ignore"):  # they were shown before
        answer, first, others = read_answer(path)
    config, of_ranks = answer.for_rank(), (answer.made_on or {}).get("loaders_of_ranks", ())
    if len(of_ranks) == config.ranks:
        first = of_ranks[int(os.environ["RANK"])]
    missing = {first, *others}
    """Places of DataLoaders that were neither made yet, nor told to be absent."""

    def tell(told: str) -> None:
        if is_strict:
            raise SystemExit(told)
        sys.stderr.write(told + "\n")

    def tell_of_missing(*_: Any) -> None:
        if missing:
            lines = ", ".join(sorted(each.partition(" ")[0] for each in missing))
            missing.clear()
            tell(
                f"autotune: {path} was not applied: {lines} made no DataLoader like the one that "
                f"was tuned; tune again with python -m autotune run {script.name}"
            )

    def tell_of_ranks() -> None:
        launcher = replace(config, ranks=max(2, config.ranks)).launcher
        tell(
            f"autotune: {script.name} starts ranks itself, which train without {path}: start them with {launcher} "
            f"-m autotune apply {shlex.join([path, *words])}"
        )

    is_cast = (config.made_on or {}).get("autocast") == ADDED
    times: list[LoopTimes] = []

    def settle_all() -> None:
        config.apply_threads()
        from torch.optim.optimizer import register_optimizer_step_pre_hook

        from autotune.loop_times import LoopTimes
        from autotune.sites import apply_answer

        def found(site: Site, loader: Any, is_tuned: bool) -> None:
            missing.discard(site.key)
            times[0].note(site.text, loader, is_tuned)

        times.append(LoopTimes())
        apply_answer(config, (first, *others), script, found, is_cast=is_cast)
        times[0].watch()
        register_optimizer_step_pre_hook(tell_of_missing)

    heed_launches(script.path, script.module, tell_of_ranks)
    at_first_import(settle_all)  # not before: the script may set variables that torch reads at its import
    sys.path[0] = str(script.folder)
    try:
        script.run()
    finally:
        tell_of_missing()
        tune = f"python -m autotune run --loop {{loop}} {shlex.join(words)}"
        if told := times[0].told(tune) if times else None:
            _say_in_one_rank(told)


if __name__ == "__main__":
    main(sys.argv[1:])
