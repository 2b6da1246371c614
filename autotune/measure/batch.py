"""Batches of any shape: their tensors, wherever they sit."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch


def move(batch: Any, device: torch.device, *, non_blocking: bool) -> Any:
    """Move every tensor in a batch, wherever it sits: tuple, list, mapping, dataclass, or an object with ``to``."""

    def again(part: Any) -> Any:
        return move(part, device, non_blocking=non_blocking)

    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=non_blocking)
    if hasattr(batch, "to"):
        try:
            return batch.to(device, non_blocking=non_blocking)
        except TypeError:  # a batch of the user's own
            return batch.to(device)
    if isinstance(batch, tuple):
        moved = [again(part) for part in batch]
        return type(batch)(*moved) if hasattr(batch, "_fields") else tuple(moved)
    if isinstance(batch, list):
        return [again(part) for part in batch]
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        fields = {f.name: again(getattr(batch, f.name)) for f in dataclasses.fields(batch) if f.init}
        return dataclasses.replace(batch, **fields)
    if isinstance(batch, Mapping):
        return {key: again(part) for key, part in batch.items()}
    return batch


def tensors_in(batch: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors of a batch in order, wherever they sit."""
    return (leaf for leaf in leaves_in(batch) if isinstance(leaf, torch.Tensor))


def leaves_in(batch: Any) -> Iterator[Any]:
    """Yield the parts of a batch or a sample, out of its tuples, lists, mappings and dataclasses."""
    parts: Iterable[Any]
    if isinstance(batch, Mapping):
        parts = batch.values()
    elif isinstance(batch, (tuple, list)):
        parts = batch
    elif dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        parts = [getattr(batch, field.name) for field in dataclasses.fields(batch)]
    else:
        yield batch
        return
    for part in parts:
        yield from leaves_in(part)


def tensor_bytes(batch: Any) -> int:
    """Return the bytes of all tensors in a batch."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors_in(batch))


def versions(batch: Any) -> list[int]:
    """Return the versions of a batch's tensors, which rise as they are changed in place."""
    return [0 if tensor.is_inference() else tensor._version for tensor in tensors_in(batch)]


def shallow(batch: Any) -> Any:
    """Return a batch whose containers may be changed by the script; tensors stay the same."""
    if isinstance(batch, torch.Tensor):
        return batch
    if isinstance(batch, tuple):
        parts = [shallow(part) for part in batch]
        return type(batch)(*parts) if hasattr(batch, "_fields") else tuple(parts)
    if isinstance(batch, list):
        return [shallow(part) for part in batch]
    if type(batch) is dict:
        return {key: shallow(part) for key, part in batch.items()}
    return copy.copy(batch)
