"""Doors by which C code opens files: functions and classes that take a path and hand it on, which may be a copy's.

Libraries are imported later than their doors are known, so each module gets its stand-ins when it has been imported.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from importlib.machinery import ModuleSpec
from types import ModuleType, WrapperDescriptorType
from typing import Any, NamedTuple

Choose = Callable[[Any, str], Any]
"""Returns the path to open for a path and a mode of ``open``."""


class Door(NamedTuple):
    """A function or class that opens a file."""

    name: str
    """Its name in the module, with that of its class before it."""
    place: int
    """The place of the path among its arguments."""
    parameter: str
    """The name of the path's parameter."""
    mode: str | None = "r"
    """How it opens the file; ``None`` where the argument after the path says so."""

    def choose(self, choose: Choose, given: tuple[Any, ...], options: Mapping[str, Any], after: int = 0) -> Any:
        """Return the arguments with the path to open; so many arguments come before those that are counted."""
        place = self.place + after
        path = given[place] if len(given) > place else options.get(self.parameter)
        if not isinstance(path, (str, bytes, os.PathLike)) or options.get("filesystem") is not None:
            return given, options
        mode = self.mode
        if mode is None:
            mode = given[place + 1] if len(given) > place + 1 else options.get("mode", "r")
        is_bare = self.name == "CDLL" and os.sep not in os.fsdecode(path)  # the system's loader looks it up
        if not isinstance(mode, str) or "://" in os.fsdecode(path) or is_bare:
            return given, options
        chosen = choose(path, mode)
        if len(given) > place:
            return (*given[:place], chosen, *given[place + 1 :]), options
        return given, {**options, self.parameter: chosen}


DOORS = {
    "_io": (Door("FileIO", 0, "file", None),),
    "ctypes": (Door("CDLL", 0, "name"),),
    "h5py": (Door("File", 0, "name", None), Door("is_hdf5", 0, "fname")),
    "pyarrow": (
        Door("memory_map", 0, "path", None),
        Door("OSFile", 0, "path", None),
        Door("input_stream", 0, "source"),
        Door("output_stream", 0, "source", "w"),
    ),
    "pyarrow.csv": (
        Door("read_csv", 0, "input_file"),
        Door("open_csv", 0, "input_file"),
        Door("write_csv", 1, "output_file", "w"),
    ),
    "pyarrow.feather": (
        Door("read_table", 0, "source"),
        Door("read_feather", 0, "source"),
        Door("write_feather", 1, "dest", "w"),
    ),
    "pyarrow.ipc": (Door("new_file", 0, "sink", "w"), Door("new_stream", 0, "sink", "w")),
    "pyarrow.json": (Door("read_json", 0, "input_file"), Door("open_json", 0, "input_file")),
    "pyarrow.parquet.core": (
        Door("read_table", 0, "source"),
        Door("read_schema", 0, "where"),
        Door("read_metadata", 0, "where"),
        Door("ParquetFile", 0, "source"),
        Door("ParquetWriter", 0, "where", "w"),
    ),
    "safetensors": (Door("safe_open", 0, "filename"), Door("serialize_file", 1, "filename", "w")),
    "torch": (Door("save", 1, "f", "w"), Door("load", 0, "f")),
    "torch.jit": (Door("save", 1, "f", "w"), Door("load", 0, "f")),
    "torch.jit._script": (
        Door("ScriptModule.save", 1, "f", "w"),
        Door("RecursiveScriptModule.save", 1, "f", "w"),
    ),
}


class Doors:
    """Stand-ins at all doors of the modules that are imported, now and later."""

    def __init__(self, choose: Choose) -> None:
        self._choose = choose

    def install(self, functions: Mapping[Any, Any]) -> None:
        """Put stand-ins for functions, and those at the doors, in the place of the originals in every module."""
        stand_ins = {id(own): (own, other) for own, other in functions.items()}
        for name in DOORS.keys() & sys.modules.keys():
            stand_ins |= {id(own): (own, other) for own, other in self._open(sys.modules[name], DOORS[name])}
        for module in list(sys.modules.values()):
            for name, value in list(getattr(module, "__dict__", {}).items()):
                if id(value) in stand_ins:
                    setattr(module, name, stand_ins[id(value)][1])
        sys.meta_path.insert(0, self)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Find a module with doors as ever, and have its stand-ins put there once it has been imported."""
        if name not in DOORS:
            return None
        found = (finder.find_spec(name, path, target) for finder in sys.meta_path if finder is not self)
        spec = next(filter(None, found), None)
        if spec is not None and (loader := spec.loader) is not None:
            own = loader.exec_module

            def execute(module: ModuleType) -> None:
                own(module)
                self._open(module, DOORS[name])

            loader.exec_module = execute  # type: ignore[method-assign]
        return spec

    def _open(self, module: ModuleType, doors: Iterable[Door]) -> list[tuple[Any, Any]]:
        replaced = []
        for door in doors:
            *parents, name = door.name.split(".")
            place: Any = module
            for parent in parents:
                place = getattr(place, parent, None)
            own = getattr(place, name, None)
            if own is None:
                continue
            other = self._stand_in(own, door)
            setattr(place, name, other)
            origin = sys.modules.get(getattr(own, "__module__", ""))
            if getattr(origin, name, None) is own:  # where pickle looks for it
                setattr(origin, name, other)
            replaced.append((own, other))
        return replaced

    def _stand_in(self, own: Any, door: Door) -> Any:
        """Return a stand-in for a function, for a class of C code, or the class itself with another beginning."""
        if not isinstance(own, type):
            return self._around(own, door)
        begin = vars(own).get("__init__")
        if begin is not None and not isinstance(begin, WrapperDescriptorType):
            type.__setattr__(own, "__init__", self._around(begin, door, 1))
            return own
        try:
            return _Alike(own.__name__, (own,), {"opened": staticmethod(self._around(own, door))})
        except TypeError:  # it may have no subclasses
            return self._around(own, door)

    def _around(self, own: Callable[..., Any], door: Door, after: int = 0) -> Callable[..., Any]:
        @functools.wraps(own, updated=())
        def opened(*given: Any, **options: Any) -> Any:
            given, options = door.choose(self._choose, given, options, after)
            return own(*given, **options)

        return opened


class _Alike(type):
    """Stand-in for a class of C code, its base: it makes objects of the base, and all of the base's are its own."""

    def __call__(cls, *given: Any, **options: Any) -> Any:
        return vars(cls)["opened"](*given, **options) if "opened" in vars(cls) else super().__call__(*given, **options)

    def __instancecheck__(cls, each: Any) -> bool:
        return cls.__subclasscheck__(type(each))

    def __subclasscheck__(cls, each: type) -> bool:
        return (cls.__mro__[1] if "opened" in vars(cls) else cls) in each.__mro__
