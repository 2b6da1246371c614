from __future__ import annotations

import functools
import os
import uuid
from typing import TYPE_CHECKING

import pytest

from tests.processes import MARK, marked

if TYPE_CHECKING:
    from collections.abc import Callable

    import psutil


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[psutil.Process]]:
    """Finds every process, however distant, that was started from here on."""
    mark = f"{os.getpid()}-{uuid.uuid4()}"
    monkeypatch.setenv(MARK, mark)
    return functools.partial(marked, mark)
