"""A user's code imports torch in a process that has it already: the environment must count as in plain Python."""

from __future__ import annotations

import builtins
import importlib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

READ_ONCE = (
    *("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "BLIS_", "NUMEXPR_", "VECLIB_"),
    *("PYTORCH_", "TORCH", "ATEN_", "DNNL_", "ONEDNN_"),
)
"""First letters of the variables that torch, and the libraries that it loads, read once."""

OURS = ("autotune", "torch")
"""Packages whose own imports of torch are not the user's: they load parts of it late."""

Variables = Mapping[str, str | None]
"""Values of environment variables; ``None`` for one that is not set."""


class OtherEnvironmentError(Exception):
    """The user's code sets ``variables`` before it imports torch, which this process has imported without them."""

    def __init__(self, variables: Variables) -> None:
        super().__init__(", ".join(variables))
        self.variables = dict(variables)


class _SeenError(BaseException):
    """Ends the user's code where it imports torch; no ``except Exception`` of its own catches it."""


def set_variables(variables: Variables) -> None:
    """Set environment variables of this process, and delete those that are ``None``."""
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def at_first_import(act: Callable[[], None]) -> None:
    """Call a function once, right before the user's code first imports torch, whether or not it is loaded."""
    usual, usual_by_name = builtins.__import__, importlib.import_module
    is_over = False

    def see(name: str) -> None:
        nonlocal is_over
        if is_over or name.partition(".")[0] != "torch":
            return
        is_over = True
        if builtins.__import__ is import_watched:
            builtins.__import__ = usual
        if importlib.import_module is by_name_watched:
            importlib.import_module = usual_by_name
        act()

    def import_watched(
        name: str, globals: Mapping[str, Any] | None = None, locals: Any = None, fromlist: Any = (), level: int = 0
    ) -> Any:
        if level == 0 and str((globals or {}).get("__name__")).partition(".")[0] not in OURS:
            see(name)
        return usual(name, globals, locals, fromlist, level)

    def by_name_watched(name: str, package: str | None = None) -> Any:
        see(name)
        return usual_by_name(name, package)

    builtins.__import__, importlib.import_module = import_watched, by_name_watched


@contextmanager
def require_same_environment() -> Iterator[None]:
    """End the user's code at its first import of torch where it has set variables that torch has read without them.

    Raises ``OtherEnvironmentError``.
    """
    before, process, found = _read_once(), os.getpid(), dict[str, str | None]()

    def compare() -> None:
        now = _read_once()
        names = sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
        if names and os.getpid() == process:  # a child that was forked may import what it likes
            found.update({name: now.get(name) for name in names})
            raise _SeenError

    at_first_import(compare)
    try:
        yield
    except BaseException:
        if not found:
            raise
    if found:
        raise OtherEnvironmentError(found)


def _read_once() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith(READ_ONCE)}
