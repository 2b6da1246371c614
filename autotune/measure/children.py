"""Child processes of a script: those that would train are refused, because nobody measures them.

A forked child is known by the optimizer that steps in it, a spawned one by the same, and a program by its command line.
Workers of loaders, and children that compute something else, run as ever.
"""

from __future__ import annotations

import multiprocessing.process
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.data._utils.worker import _worker_loop

LAUNCHERS = ("torchrun", "accelerate", "deepspeed", "mpirun", "horovodrun")
"""Programs that start a script in several processes."""
LAUNCHING_MODULES = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch")
"""Modules that do."""
STARTS = {"subprocess.Popen": 1, "os.system": 0, "os.exec": 1, "os.posix_spawn": 1}
"""Events of Python's audit hooks by which a program is started, and the place of its command in their arguments."""
TRAINS = signal.SIGRTMIN + 7 if hasattr(signal, "SIGRTMIN") else signal.SIGUSR2
"""Signal by which a child tells that it would train."""


WAYS_OUT = {
    "notebook_launcher": "pass num_processes=1 to notebook_launcher",
    "spawn": "call the function itself, as rank 0 of 1, in place of torch.multiprocessing.spawn",
    "heed": "run the script that it starts, with the arguments that it passes",
}
"""What to do where a function starts processes, by its name; the last one hears of programs that are started."""


def way_out(inside: Sequence[str]) -> str:
    """Return what to do about children that train, by the functions of packages that have started them."""
    if "lightning" in sys.modules or "pytorch_lightning" in sys.modules:
        return "pass devices=1 to the Trainer"
    known = (way for name, way in WAYS_OUT.items() if name in inside)
    return next(known, "train in one process, or have run --ranks N start as many")


def refuse_training_children(
    script: str, module: str | None, refuse: Callable[[], NoReturn], *, are_held: bool
) -> None:
    """Have ``refuse`` called, in this process, before a child trains; ``refuse`` raises.

    Children whose writes nobody would hold (``are_held`` is false) are refused once they would import the script.
    """
    this, modules = os.getpid(), (*LAUNCHING_MODULES, *([module, f"{module}.__main__"] if module else ()))
    start = multiprocessing.process.BaseProcess.start

    def start_child(process: Any) -> None:
        if getattr(process, "_target", None) is not _worker_loop and os.getpid() == this:
            if not (are_held or _is_forked(process)):
                refuse()
            process.training_is_refused = _InChild(this)
        start(process)

    def heed(event: str, given: tuple[Any, ...]) -> None:
        place = STARTS.get(event)
        if place is not None and os.getpid() == this and _is_launch(given[place], script, modules):
            refuse()

    multiprocessing.process.BaseProcess.start = start_child  # type: ignore[method-assign, assignment]

    def is_told(*_: object) -> None:
        signal.signal(TRAINS, signal.SIG_IGN)  # once: other children end in the same way
        refuse()

    signal.signal(TRAINS, is_told)
    register_optimizer_step_pre_hook(lambda *_: None if os.getpid() == this else tell(this))
    sys.addaudithook(heed)


def _is_forked(process: Any) -> bool:
    method = getattr(process, "_start_method", None) or multiprocessing.get_start_method()
    return bool(method == "fork")


def _is_launch(command: Any, script: str, modules: Sequence[str]) -> bool:
    """Return whether a command starts the script once more, or a launcher of scripts, also by their modules."""
    parts = [command] if isinstance(command, (str, bytes)) else list(command)
    words = [word for part in parts for word in os.fsdecode(part).split()]  # a shell has all in one part
    return any(os.path.basename(word) in LAUNCHERS for word in words[:3]) or any(
        word in modules or (word.endswith(".py") and os.path.realpath(word) == os.path.realpath(script))
        for word in words
    )


def tell(parent: int) -> NoReturn:
    """Tell the session of the script, and end this child before its first step."""
    os.kill(parent, TRAINS)
    os._exit(1)


def _watch(parent: int) -> None:
    register_optimizer_step_pre_hook(lambda *_: tell(parent))


class _InChild:
    """Watches the optimizers of the process that it is unpickled in."""

    def __init__(self, parent: int) -> None:
        self._parent = parent

    def __reduce__(self) -> tuple[Callable[[int], None], tuple[int]]:
        return _watch, (self._parent,)
