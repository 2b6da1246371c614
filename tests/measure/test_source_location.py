"""How places in code are named, and whose they are."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from torch import nn

from autotune.demo import CompressedImages
from autotune.measure.device import CpuDevice
from autotune.source_location import is_ours, is_standard, is_torch, place


def test_places_are_named_without_folders_of_the_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    assert place(str(folder / "data" / "read.py"), 3, "f") == "data/read.py:3 f"
    assert place("/env/lib/python3.11/site-packages/PIL/Image.py", 2871, "open") == "PIL/Image.py:2871 open"
    assert place(str(folder / ".venv/lib/site-packages/a/b/c.py"), 1, "f") == "a/b/c.py:1 f"
    assert place(str(tmp_path / "elsewhere" / "x.py"), 1, "f") == "elsewhere/x.py:1 f"
    assert place(json.decoder.__file__, 9, "decode") == "json/decoder.py:9 decode"
    assert place("<string>", 1, "<module>") == "<string>:1 <module>"
    monkeypatch.syspath_prepend(str(tmp_path))
    assert place(str(tmp_path / "a" / "b" / "x.py"), 1, "f") == "a/b/x.py:1 f"


def test_whose_code_a_file_holds() -> None:
    assert is_ours(CpuDevice.synchronize.__code__.co_filename)
    assert not is_ours(CompressedImages.__len__.__code__.co_filename)
    assert is_torch(nn.Linear.forward.__code__.co_filename)
    assert is_standard(json.decoder.__file__)
    assert not is_standard(np.__file__)
    assert not is_torch(__file__)
