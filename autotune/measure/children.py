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

from autotune.machine.launcher import heed_launches

TRAINS = signal.SIGRTMIN + 7 if hasattr(signal, "SIGRTMIN") else signal.SIGUSR2
"""Signal by which a child tells that it would train."""
REMEDIES = {
    "notebook_launcher": "call the function itself, in place of notebook_launcher",
    "spawn": "call the function itself, as rank 0 of 1 or as torchrun does, in place of torch.multiprocessing.spawn",
    "heed": "run the script that it starts, with the arguments that it passes",
}
"""What to do where a function starts processes, by its name; the last one hears of programs that are started."""


def remedy(inside: Sequence[str]) -> str:
    """Return what to do about children that train, by the functions of packages that have started them."""
    if "lightning" in sys.modules or "pytorch_lightning" in sys.modules:
        return "pass --ranks N for the N devices of the Trainer"
    known = (each for name, each in REMEDIES.items() if name in inside)
    return f"{next(known, 'train in one process')}; --ranks N measures it in N ranks"


def refuse_training_children(
    script: str, module: str | None, refuse: Callable[[], NoReturn], *, are_held: bool
) -> None:
    """Have ``refuse`` called, in this process, before a child trains; ``refuse`` raises.

    Children whose writes nobody would hold (``are_held`` is false) are refused once they would import the script.
    """
    this = os.getpid()
    start = multiprocessing.process.BaseProcess.start

    def start_child(process: Any) -> None:
        if getattr(process, "_target", None) is not _worker_loop and os.getpid() == this:
            method = getattr(process, "_start_method", None) or multiprocessing.get_start_method()
            if not are_held and method != "fork":
                refuse()
            process.training_is_refused = _InChild(this)
        start(process)

    multiprocessing.process.BaseProcess.start = start_child  # type: ignore[method-assign, assignment]

    def is_told(*_: object) -> None:
        signal.signal(TRAINS, signal.SIG_IGN)  # once: other children end in the same way
        refuse()

    signal.signal(TRAINS, is_told)
    register_optimizer_step_pre_hook(lambda *_: None if os.getpid() == this else tell(this))
    heed_launches(script, module, refuse)


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
