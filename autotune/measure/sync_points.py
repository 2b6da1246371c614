"""Which lines of a training step make the host wait for the device.

An accelerator is kept busy only while the host runs ahead of it; reading a value, or anything whose size depends on
values, ends that. On a CPU nothing waits, but the same code would on an accelerator.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from autotune.measure.step import tensors_in
from autotune.probes import Synchronisation

WAITING = frozenset(
    f"aten::{name}"
    for name in (
        "_local_scalar_dense",  # item(), float(), bool(), if
        "nonzero",
        "masked_select",
        "_unique",
        "_unique2",
        "unique_dim",
        "unique_consecutive",
        "unique_dim_consecutive",
    )
)
"""Operators for whose result the host waits on any accelerator."""
INDEX, COPY = "aten::index", "aten::_to_copy"
TO_HOST = (torch.Tensor.cpu, torch.Tensor.tolist)
"""Methods that copy from an accelerator to the host, and call no operator on a CPU."""
Place = tuple[str, str]
PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
DEMO = os.path.join(PACKAGE, "demo.py")
"""A workload like a user's, although it comes with the package."""
TORCH = os.path.dirname(os.path.abspath(torch.__file__))
STANDARD = os.path.abspath(sysconfig.get_path("stdlib"))
LIBRARY_FOLDERS = ("site-packages", "dist-packages")
SHORT = 2
"""Parts of a library's path that are enough to recognise a file."""


class SynchronisationLog:
    """Operators that made the host wait, and the code behind each call.

    A call counts only with a line of the user's code or of a library between it and autotune's own step. Calls of
    torch's optimizers and gradient scaling are not the user's.
    """

    def __init__(self) -> None:
        self._counts: Counter[Place] = Counter()

    def note(self, operator: str, frame: FrameType | None) -> None:
        """Note a call of an operator from a frame, if it is the user's."""
        where = _cause(frame)
        if where is not None:
            self._counts[operator, where] += 1

    def per_step(self, steps: int) -> tuple[Synchronisation, ...]:
        """Return the waits in so many steps, most frequent first."""
        return tuple(
            Synchronisation(operator=operator, where=where, per_step=count / steps)
            for (operator, where), count in self._counts.most_common()
        )


@contextmanager
def watch_synchronisations(device: torch.device) -> Iterator[SynchronisationLog]:
    """Note waits for a device, in backward too: autograd gives its threads the modes of the caller.

    A compiled model runs uncompiled meanwhile.
    """
    log = SynchronisationLog()
    with _Operators(log, device), _Methods(log, device):
        yield log


class _Operators(TorchDispatchMode):
    """Sees every ATen operator that is called."""

    def __init__(self, log: SynchronisationLog, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._log = log
        self._device = device

    def __torch_dispatch__(
        self, operator: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        arguments = dict(kwargs or {})
        name = operator.name().partition(".")[0]
        if self._waits(name, args, arguments):
            self._log.note(name, sys._getframe(1))
        return operator(*args, **arguments)

    def _waits(self, name: str, args: tuple[Any, ...], arguments: dict[str, Any]) -> bool:
        if name not in WAITING and name not in (INDEX, COPY):
            return False
        if all(tensor.device.type != self._device.type for tensor in tensors_in([args, arguments])):
            return False  # its tensors are on the host, and the host waits for nothing
        if name == INDEX:
            return any(index.dtype in (torch.bool, torch.uint8) for index in tensors_in(args[1]))
        if name == COPY:
            target = arguments.get("device")
            is_to_host = target is not None and torch.device(target).type == "cpu" and not arguments.get("non_blocking")
            return is_to_host and self._device.type != "cpu"
        return True


class _Methods(TorchFunctionMode):
    """Sees calls on a CPU that would copy to the host on an accelerator."""

    def __init__(self, log: SynchronisationLog, device: torch.device) -> None:
        super().__init__()
        self._log = log
        self._is_cpu = device.type == "cpu"

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if self._is_cpu and function in TO_HOST:
            self._log.note(COPY, sys._getframe(1))
        return function(*args, **(kwargs or {}))


def _cause(frame: FrameType | None) -> str | None:
    """Return the innermost place outside torch, Python's library and autotune; ``None`` where autotune comes first."""
    while frame is not None:
        filename = frame.f_code.co_filename
        if filename != __file__ and not is_torch(filename) and not is_standard(filename):
            return None if is_ours(filename) else place(filename, frame.f_lineno, frame.f_code.co_name)
        frame = frame.f_back
    return None


def is_ours(filename: str) -> bool:
    """Return whether a file belongs to autotune and is no workload."""
    path = os.path.abspath(filename)
    return _is_in(path, PACKAGE) and path != DEMO


def is_torch(filename: str) -> bool:
    """Return whether a file belongs to torch itself; its sister packages are libraries like others."""
    return _is_in(os.path.abspath(filename), TORCH)


def is_standard(filename: str) -> bool:
    """Return whether a file belongs to Python's standard library."""
    if filename.startswith("<frozen "):
        return True
    return _is_in(os.path.abspath(filename), STANDARD) and not _is_library(filename)


def place(filename: str, line: int, function: str) -> str:
    """Return a place in code as people read it: ``workload.py:41 __getitem__``."""
    return f"{_short_name(filename).replace(os.sep, '/')}:{line} {function}"


def _short_name(filename: str) -> str:
    """Return the user's files relative to the working directory or the import path, others by their last parts."""
    if filename.startswith("<"):
        return filename  # typed in, or made by exec
    path = os.path.abspath(filename)
    if is_standard(filename):
        return _last_parts(os.path.relpath(path, STANDARD))
    roots = [] if _is_library(filename) else [os.getcwd(), *sorted(map(os.path.abspath, sys.path), key=len)[::-1]]
    for root in roots:
        if root != os.path.dirname(root) and _is_in(path, root):
            return os.path.relpath(path, root)
    return _last_parts(path)


def _last_parts(path: str) -> str:
    return os.sep.join(path.split(os.sep)[-SHORT:])


def _is_library(filename: str) -> bool:
    return any(folder in filename.split(os.sep) for folder in LIBRARY_FOLDERS)


def _is_in(path: str, folder: str) -> bool:
    return path.startswith(folder.rstrip(os.sep) + os.sep)
