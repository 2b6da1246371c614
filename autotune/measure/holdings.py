"""What a dataset holds that its workers get: bytes when they are spawned, Python objects when they are forked."""

from __future__ import annotations

import gc
import time
from itertools import islice
from types import CodeType, FunctionType, ModuleType
from typing import Any

import cloudpickle
import numpy as np
import torch

__all__ = ["count_objects", "pickled_bytes"]

MOST_OBJECTS = 1_000_000
MOST_SECONDS = 1.0
"""Longest that pickling a dataset may take."""
CONTAINERS = (list, tuple, dict, set, frozenset)
SHARED = (type, ModuleType, FunctionType, CodeType)
"""Through these one comes to all of Python and no further into the dataset."""


def count_objects(dataset: object) -> int:
    """Count the distinct Python objects in the containers that a dataset holds, directly or through its attributes.

    None of the user's code runs. Counts up to ``MOST_OBJECTS``.
    """
    held: set[int] = set()
    visited = {id(dataset)}
    pending = [dataset]
    while pending and len(held) < MOST_OBJECTS:
        holder = pending.pop()
        if issubclass(type(holder), CONTAINERS) and len(holder) >= MOST_OBJECTS:  # type: ignore[arg-type]
            return MOST_OBJECTS
        parts = gc.get_referents(holder)
        if issubclass(type(holder), CONTAINERS):
            held.update(map(id, islice(parts, MOST_OBJECTS - len(held))))
        for part in parts:
            if id(part) not in visited and _may_hold(part):
                visited.add(id(part))
                pending.append(part)
    return min(len(held), MOST_OBJECTS)


def _may_hold(part: object) -> bool:
    """Tell whether there may be more to count in an object; the collector does not track containers of plain values."""
    kind = type(part)
    return issubclass(kind, CONTAINERS) or (gc.is_tracked(part) and not issubclass(kind, SHARED))


def pickled_bytes(dataset: object) -> int | None:
    """Return what pickling a dataset takes, tensors left out; ``None`` where it fails or takes too long."""
    sink = _Sink()
    try:
        _Pickler(sink).dump(dataset)
    except Exception:  # the user's own code may raise anything here
        return None
    return sink.bytes


class _Sink:
    """Counts what is written to it, and keeps nothing."""

    def __init__(self) -> None:
        self.bytes = 0
        self._limit = time.perf_counter() + MOST_SECONDS

    def write(self, data: Any) -> int:
        if time.perf_counter() > self._limit:
            raise TimeoutError
        count = memoryview(data).nbytes
        self.bytes += count
        return count


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles what belongs to ``__main__`` too: in a script of the user's it can be imported."""

    def __init__(self, sink: _Sink) -> None:
        super().__init__(sink)
        self._sink = sink

    def reducer_override(self, part: Any) -> Any:
        if isinstance(part, torch.Tensor):
            return int, ()
        if isinstance(part, np.ndarray) and not part.dtype.hasobject:
            self._sink.bytes += part.nbytes  # without the copy that pickling makes of a file mapped into memory
            return int, ()
        return super().reducer_override(part)
