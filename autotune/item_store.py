"""A dataset's items in memory-mapped files: read once from the dataset, and from there ever after."""

from __future__ import annotations

import copy
import hashlib
import inspect
import io
import json
import mmap
import os
import pickle
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from filelock import FileLock
from torch.utils.data import Dataset, IterableDataset

from autotune.errors import UsageError

LOCKS, POLL = 256, 0.0005
"""Locks among which the numbers of records are divided, and seconds until one that is held is tried again."""
CHECKED, EDGE = 8, 2**25
"""Items that a process reads twice, to see that they do not vary; bytes of both ends of an array that identify it."""
HEAD = struct.Struct("<II")
"""Bytes of an item's pickle, and how many arrays follow it; the bytes of each come next."""


def stored(dataset: Any, folder: str | Path, *, before: str | None = None) -> Stored:
    """Return a dataset whose items are read once, written to memory-mapped files in a folder, and read from there.

    Several processes may fill it at once, as loader workers and ranks do; one that is killed loses the item that it was
    at. Items must not vary: ``before`` names an attribute of the dataset, such as ``"transform"``, whose input is
    stored, and which is called with that at each draw.

    Raises ``UsageError`` where the dataset has no index, where the folder is that of another one (another length,
    class, source or ``__dict__``), and at the first draw where items vary.
    """
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
        raise UsageError(f"{type(dataset).__qualname__} has no index: only a map-style dataset can be stored")
    path, own = Path(folder) / "dataset.json", _identity(dataset, before)
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        with FileLock(path.with_suffix(".lock")):
            path.with_suffix(".new").write_text(json.dumps(own), encoding="utf-8")
            path.exists() or path.with_suffix(".new").replace(path)
    known = json.loads(path.read_text(encoding="utf-8"))
    if differing := [name for name in own | known if own.get(name) != known.get(name)]:
        told = f"holds the items of another dataset: its {' and '.join(differing)} differ"
        raise UsageError(f"{folder}: {told}; remove the folder, or name another")
    return Stored(dataset, ItemStore(folder, len(dataset)), before)


class ItemStore:
    """Records by number, which several processes write at once.

    A record counts once the index has its place, eight bytes that are written last: a kill leaves no part of one. Who
    makes a record holds the lock of its number, for which others wait.
    """

    def __init__(self, folder: str | Path, length: int) -> None:
        """Open the store of so many records in a folder, which is made where it is not there."""
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / "index"
        with suppress(OSError), path.open("ab") as file:
            file.truncate(16 * length)
        mode: Any = "r+" if os.access(path, os.W_OK) else "r"
        self._index = np.memmap(path, np.uint64, mode, shape=(length, 2)).view(np.ndarray)
        """The end of each record in the file of items, and its bytes; 0 where it is not there."""
        self._items = memoryview(b"")

    def __reduce__(self) -> tuple[Any, ...]:
        return ItemStore, (self.folder, len(self._index))

    @property
    def stored(self) -> list[int]:
        """Numbers of the records that are there."""
        return [int(number) for number in np.flatnonzero(self._index[:, 0])]

    def write(self, number: int, make: Callable[[], bytes]) -> memoryview:
        """Write a record that is made, unless another process has just written it; return it."""
        with FileLock(self.folder / f"lock-{number % LOCKS}", poll_interval=POLL):
            if (known := self.read(number)) is not None:
                return known
            record = make()
            with FileLock(self.folder / "lock", poll_interval=POLL), (self.folder / "items").open("ab") as file:
                file.write(record)
                file.flush()
                self._index[number, 1] = len(record)
                self._index[number, 0] = file.tell()
        return memoryview(record)

    def read(self, number: int) -> memoryview | None:
        """Return a record; ``None`` where it is not there. Raises ``IndexError``."""
        if not (end := self._index.item(number, 0)):
            return None
        if len(self._items) < end:
            with (self.folder / "items").open("rb") as file:
                self._items = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        return self._items[end - self._index.item(number, 1) : end]


class InPlaceOf(Dataset[Any]):
    """A dataset in the place of another, whose length and attributes it has."""

    def __len__(self) -> int:
        return len(self._dataset)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._dataset, name)


class Stored(InPlaceOf):
    """A map-style dataset over a store, which is filled as its items are asked for."""

    def __init__(self, dataset: Any, store: ItemStore, before: str | None = None) -> None:
        """Take a dataset, its store, and the name of the attribute that is called after reading back."""
        self._dataset, self.store, self._before, self._checked = dataset, store, before, 0
        if before:
            self._apply: Callable[[Any], Any] = getattr(dataset, before)
            self._dataset = copy.copy(dataset)
            setattr(self._dataset, before, self._note)

    def __getitem__(self, index: Any) -> Any:
        """Return an item, read from the store. Raises ``UsageError`` where items vary from draw to draw."""
        record = self.store.read(index)
        if record is None:
            number = range(len(self))[index]
            self._checked += 1
            if self._checked <= CHECKED and self._encoded(number) != self._encoded(number):
                told = "items vary from draw to draw: only what comes before the random part can be stored"
                raise UsageError(f"{type(self._dataset).__qualname__}: {told}, as with before='transform'")
            record = self.store.write(number, lambda: self._encoded(number))
        return self._decoded(record)

    def _note(self, part: Any) -> Any:
        self._given.append(part)
        return part

    def _encoded(self, number: int) -> bytes:
        self._given, file = list[Any](), io.BytesIO()
        item, pickler = self._dataset[number], _Pickler(file)
        if self._before:
            parts = list({id(part): part for part in self._given}.values())
            pickler.dump(parts)
            pickler.places = {id(part): place for place, part in enumerate(parts)}
        pickler.dump(item)
        if self._before and not pickler.met:
            raise UsageError(f"{type(self._dataset).__qualname__}: its items do not hold what {self._before} returns")
        sizes = [len(each) for each in pickler.buffers]
        begin = HEAD.pack(len(file.getvalue()), len(sizes)) + struct.pack(f"<{len(sizes)}Q", *sizes)
        return b"".join((begin, file.getvalue(), *pickler.buffers))

    def _decoded(self, record: memoryview) -> Any:
        length, count = HEAD.unpack_from(record)
        begin = HEAD.size + 8 * count
        head, end, buffers = record[begin : begin + length], begin + length, []
        for size in struct.unpack_from(f"<{count}Q", record, HEAD.size):
            buffers.append(bytearray(record[end : (end := end + size)]))
        if not self._before:
            return pickle.loads(head, buffers=buffers)
        unpickler = pickle.Unpickler(io.BytesIO(head), buffers=buffers)
        parts = unpickler.load()
        unpickler.persistent_load = lambda place: self._apply(parts[place])  # type: ignore[method-assign]
        return unpickler.load()


class _Pickler(pickle.Pickler):
    """Pickles an item: tensors as arrays, the content of arrays apart, and parts with a place by that."""

    def __init__(self, file: Any) -> None:
        self.buffers, self.places, self.met = list[memoryview](), dict[int, int](), 0
        super().__init__(file, protocol=5, buffer_callback=lambda each: self.buffers.append(each.raw()))

    def persistent_id(self, part: Any) -> int | None:
        self.met += (place := self.places.get(id(part))) is not None
        return place

    def reducer_override(self, part: Any) -> Any:
        if isinstance(part, np.memmap):
            return np.asarray(part).__reduce_ex__(5)
        if type(part) is torch.Tensor and part.layout is torch.strided:
            with suppress(TypeError, RuntimeError):  # of a type that numpy lacks, or with gradients
                array = np.ascontiguousarray(part.numpy()).reshape(part.shape)
                return _tensor, (pickle.PickleBuffer(array.data), array.dtype.str, array.shape)
        return NotImplemented


def _tensor(content: Any, dtype: str, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.from_numpy(np.ndarray(shape, dtype, content))  # faster than torch.frombuffer(content).view(shape)


def _identity(dataset: Any, before: str | None) -> dict[str, Any]:
    """Return the facts by which a dataset is known again; the attribute that is called later is none of them."""
    kind, own = type(dataset), getattr(dataset, "__dict__", {})
    state = {name: value for name, value in own.items() if name != before}
    source = [*map(_digest, dict.fromkeys([*kind.__mro__, *map(type, state.values())]))]
    known = {"class": kind.__qualname__, "length": len(dataset), "before": before, "source": source}
    return known | {f"attribute {name}": _digest(value) for name, value in state.items()}


def _digest(value: Any) -> str:
    digest = hashlib.sha256()
    with suppress(Exception):  # C code, an open file, a lock
        pickler = _Pickler(SimpleNamespace(write=digest.update))  # large data are never copied
        value = inspect.getsource(value) if isinstance(value, type) else value
        pickler.dump(sorted(map(repr, value)) if isinstance(value, (set, frozenset)) else value)
        for each in pickler.buffers:
            digest.update(str(len(each)).encode() + bytes(each[:EDGE]) + bytes(each[-EDGE:]))
        return digest.hexdigest()
    return str(getattr(value, "__qualname__", type(value).__qualname__))
