"""Batches of any shape: their tensors, wherever they sit."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from typing import Any

import torch

_PARTS = {
    torch.sparse_coo: ("_indices", "_values"),
    **dict.fromkeys((torch.sparse_csr, torch.sparse_bsr), ("crow_indices", "col_indices", "values")),
    **dict.fromkeys((torch.sparse_csc, torch.sparse_bsc), ("ccol_indices", "row_indices", "values")),
}
"""Methods for the dense parts of a sparse tensor, by its layout."""


def move(batch: Any, device: torch.device, *, non_blocking: bool) -> Any:
    """Move every tensor in a batch, wherever it sits: tuple, list, mapping, dataclass, or an object with ``to``."""

    def again(part: Any) -> Any:
        return move(part, device, non_blocking=non_blocking)

    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=non_blocking)
    if hasattr(batch, "to"):
        try:
            moved = batch.to(device, non_blocking=non_blocking)
        except TypeError:  # a batch of the user's own
            moved = batch.to(device)
        return batch if moved is None else moved  # which may have moved its own tensors
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        fields = {f.name: again(getattr(batch, f.name)) for f in dataclasses.fields(batch) if f.init}
        return dataclasses.replace(batch, **fields)
    return _rebuilt(batch, again) if isinstance(batch, (tuple, list, Mapping)) else batch


def _rebuilt(batch: Any, again: Callable[[Any], Any]) -> Any:
    if not isinstance(batch, Mapping):
        parts = [again(part) for part in batch]
        named = hasattr(batch, "_fields")
        return type(batch)(*parts) if named else parts if isinstance(batch, list) else tuple(parts)
    items = {key: again(part) for key, part in batch.items()}
    try:
        if not isinstance(batch, MutableMapping):
            return type(batch)(items)  # type: ignore[call-arg]
        rebuilt = copy.copy(batch)
        if not isinstance(batch, dict):  # its copy would share the dictionaries that it keeps its items in
            vars(rebuilt).update({name: dict(each) for name, each in vars(batch).items() if type(each) is dict})
        for key, part in items.items():
            rebuilt[key] = part
        return rebuilt
    except Exception:  # a class of the user's own, which is made in another way
        return items


def with_tensors(batch: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return a batch with each tensor changed."""
    if isinstance(batch, (tuple, list, Mapping)):
        return _rebuilt(batch, lambda part: with_tensors(part, change))
    return change(batch) if isinstance(batch, torch.Tensor) else batch


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
    """Return the bytes of all tensors in a batch; of sparse ones those that are kept."""
    dense = ([getattr(each, name)() for name in _PARTS.get(each.layout, ())] or [each] for each in tensors_in(batch))
    return sum(part.nbytes for parts in dense for part in parts)


def versions(batch: Any) -> list[int]:
    """Return the versions of a batch's tensors, which rise as they are changed in place."""
    return [0 if tensor.is_inference() else tensor._version for tensor in tensors_in(batch)]


def shallow(batch: Any) -> Any:
    """Return a batch whose containers may be changed by the script; tensors stay the same."""
    if isinstance(batch, torch.Tensor):
        return batch
    return _rebuilt(batch, shallow) if isinstance(batch, (tuple, list, Mapping)) else copy.copy(batch)
