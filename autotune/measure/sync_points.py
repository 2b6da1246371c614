"""Lines of a training step that make the host wait for the device.

An accelerator is kept busy only while the host runs ahead of it; reading a value, or anything whose size depends on
values, ends that. On a CPU nothing waits, but the same code would on an accelerator.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from autotune.measure.batch import tensors_in
from autotune.source_location import is_ours, is_standard, is_torch, place

READS = ("_local_scalar_dense", "nonzero", "masked_select", "_unique", "_unique2")  # the first is item(), float(), if
WAITING = {f"aten::{name}" for name in (*READS, "unique_dim", "unique_consecutive", "unique_dim_consecutive")}
"""Operators for whose result the host waits on any accelerator."""
INDEX, COPY = "aten::index", "aten::_to_copy"
TO_HOST = (torch.Tensor.cpu, torch.Tensor.tolist)
"""Methods that copy from an accelerator to the host, and call no operator on a CPU."""

Waits = Counter[tuple[str, str]]
"""Calls of each operator that makes the host wait, by the place of the call."""


@contextmanager
def watch_synchronisations(device: torch.device) -> Iterator[Waits]:
    """Count waits for a device, in backward too: autograd gives its threads the modes of the caller.

    A call counts only with a line of the user's code or of a library between it and autotune's own step. Calls of
    torch's optimizers and gradient scaling are not the user's. A compiled model runs uncompiled meanwhile.
    """
    waits: Waits = Counter()
    with _Operators(waits, device), _Methods(waits, device):
        yield waits


class _Operators(TorchDispatchMode):
    def __init__(self, waits: Waits, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._waits, self._device = waits, device

    def __torch_dispatch__(
        self, operator: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        arguments = dict(kwargs or {})
        name = operator.name().partition(".")[0]
        if self._must_wait(name, args, arguments):
            _note(self._waits, name, sys._getframe(1))
        return operator(*args, **arguments)

    def _must_wait(self, name: str, args: tuple[Any, ...], arguments: dict[str, Any]) -> bool:
        if name not in WAITING and name not in (INDEX, COPY):
            return False
        if all(tensor.device.type != self._device.type for tensor in tensors_in([args, arguments])):
            return False  # its tensors are on the host, and the host waits for nothing
        if name == INDEX:
            return any(index.dtype in (torch.bool, torch.uint8) for index in tensors_in(args[1]))
        if name == COPY:
            target = torch.device(arguments.get("device") or self._device)
            return target.type == "cpu" and self._device.type != "cpu" and not arguments.get("non_blocking")
        return True


class _Methods(TorchFunctionMode):
    """Sees calls on a CPU that would copy to the host on an accelerator."""

    def __init__(self, waits: Waits, device: torch.device) -> None:
        super().__init__()
        self._waits, self._methods = waits, TO_HOST if device.type == "cpu" else ()

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if function in self._methods:
            _note(self._waits, COPY, sys._getframe(1))
        return function(*args, **(kwargs or {}))


def _note(waits: Waits, operator: str, frame: FrameType | None) -> None:
    """Count a call at the innermost place outside torch and Python's library, unless that is autotune's own."""
    while frame is not None:
        filename = frame.f_code.co_filename
        if filename != __file__ and not is_torch(filename) and not is_standard(filename):
            if not is_ours(filename):
                waits[operator, place(filename, frame.f_lineno, frame.f_code.co_name)] += 1
            return
        frame = frame.f_back
