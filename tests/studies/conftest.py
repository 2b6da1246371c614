"""What a test file gets of the study whose folder it names as ``STUDY``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from types import ModuleType

import pandas
import pytest


@pytest.fixture(scope="module")
def study(request: pytest.FixtureRequest) -> Iterator[Callable[[str], ModuleType]]:
    """Imports a module of the study by its name, as its scripts do."""
    folder, before = str(request.module.STUDY), set(sys.modules)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield import_module
    for name in set(sys.modules) - before:
        if folder in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest) -> pandas.DataFrame:
    return pandas.read_csv(request.module.STUDY / "recorded" / "runs.csv")


@pytest.fixture(scope="module")
def readme(request: pytest.FixtureRequest) -> str:
    text: str = (request.module.STUDY / "README.md").read_text(encoding="utf-8")
    return text
