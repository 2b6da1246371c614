"""Whether a script's losses come from the batches of its loaders, or from other data.

A script may train on data of its own, and evaluate on a loader between its steps, with gradients. Its steps come
between the loader's batches as in training, but no loss that it goes back from is computed from them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode, _get_current_dispatch_mode_stack

from autotune.measure.batch import leaves_in, tensors_in

SEVERAL = 2
"""Steps after a batch, each with a backward pass, from which its part in them is looked at."""
ROUNDS = 3
"""Batches, each with several steps and no part in them, that are no accident."""


class Lineage(TorchDispatchMode):
    """The tensors that were computed from some others since it was entered, known by their storages."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._storages: set[int] = set()

    def add(self, tensors: Iterable[torch.Tensor]) -> None:
        """Begin with these tensors."""
        self._storages.update(map(_storage, tensors))

    def holds(self, tensors: Iterable[torch.Tensor]) -> bool:
        """Return whether one of these tensors was computed from those that it began with."""
        return any(_storage(each) in self._storages for each in tensors)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call an operator, and note its results; a storage that is made anew may lie where an earlier one did."""
        is_of_line = self.holds(tensors_in((args, kwargs)))
        results = func(*args, **(kwargs or {}))
        note = self._storages.add if is_of_line else self._storages.discard
        for each in tensors_in(results):
            note(_storage(each))
        return results


class Parts:
    """The part that batches have in a script's steps, where it makes several for each."""

    def __init__(self) -> None:
        self._lineage: Lineage | None = None
        self._steps_at_pass = self._passes = 0
        """Steps before the last backward pass, and passes since the last batch, with a step between them."""
        self._apart = 0
        """Batches with several steps and no part in them."""
        self._is_settled = False
        """Whether a batch had a part in a step, or that cannot be seen."""

    @property
    def are_doubted(self) -> bool:
        """Whether the batches may have no part in the steps."""
        return not self._is_settled and (self._lineage is not None or self._passes >= SEVERAL)

    def note_pass(self, roots: Any, steps: int) -> None:
        """Note a backward pass from some tensors, after so many steps."""
        self._passes += self._passes == 0 or steps > self._steps_at_pass
        self._steps_at_pass = steps
        if self._lineage is not None and self._lineage.holds(tensors_in(roots)):
            self.settle()

    def note_batch(self, batch: Any) -> None:
        """Note a batch that is handed to the script with gradients; its part in the next steps is looked at."""
        passes, self._passes = self._passes, 0
        if self._is_settled or (passes < SEVERAL and self._lineage is None):
            return
        leaves = list(leaves_in(batch))
        if not all(isinstance(each, (torch.Tensor, bool, int, float)) for each in leaves) or self._sees_too_little():
            self.settle()
        elif self._lineage is None:
            self._lineage = Lineage()
            self._lineage.__enter__()  # type: ignore[no-untyped-call]
        else:
            self._apart += passes >= SEVERAL
        if self._lineage is not None:
            self._lineage.add(tensors_in(leaves))

    def _sees_too_little(self) -> bool:
        """Return whether operators may run out of sight: in compiled code, or with a mode of the script's own."""
        dynamo: Any = sys.modules.get("torch._dynamo.utils")
        is_compiled = "triton" in sys.modules or (dynamo is not None and bool(dynamo.counters["frames"]))
        return is_compiled or any(each is not self._lineage for each in _get_current_dispatch_mode_stack())

    @property
    def have_none(self) -> bool:
        """Whether batches have had no part in the steps for long."""
        return self._apart >= ROUNDS

    def settle(self) -> None:
        """Look no more."""
        self._is_settled = True
        if self._lineage is not None and _get_current_dispatch_mode() is self._lineage:
            self._lineage.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        self._lineage = None


def _storage(tensor: torch.Tensor) -> int:
    try:
        return int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):
        return id(tensor)
