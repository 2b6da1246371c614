"""Changes of modules that a script may import later."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class AfterImport:
    """A finder that changes modules right after their import."""

    def __init__(self, changes: Mapping[str, Callable[[ModuleType], object]]) -> None:
        self._changes = changes
        sys.meta_path.insert(0, self)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Find a module as ever, and have it changed once it has been imported."""
        if name not in self._changes:
            return None
        found = (finder.find_spec(name, path, target) for finder in sys.meta_path if finder is not self)
        spec = next(filter(None, found), None)
        if spec is not None and (loader := spec.loader) is not None:
            run = loader.exec_module

            def run_and_change(module: ModuleType) -> None:
                run(module)
                self._changes[name](module)

            loader.exec_module = run_and_change  # type: ignore[method-assign]
        return spec
