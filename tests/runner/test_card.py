from __future__ import annotations

import os
import sys
from types import ModuleType, SimpleNamespace

import psutil
import pytest

from autotune.runner.card import holders


def test_the_processes_that_hold_most_are_named_and_nobody_without_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for NVML's library, which tells nothing without a GPU."""
    gone = 2**22 + 1  # above the largest number of a process
    held = {0: [(os.getpid(), 70 * 2**30), (gone, 2**30)], 1: [(gone, None), (1, 2**29)]}
    module = ModuleType("pynvml")
    vars(module).update(
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: len(held),
        nvmlDeviceGetHandleByIndex=lambda number: number,
        nvmlDeviceGetComputeRunningProcesses=lambda handle: [
            SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in held[handle]
        ],
    )
    monkeypatch.setitem(sys.modules, "pynvml", module)
    name = psutil.Process().name()
    assert holders() == (
        f"process {os.getpid()} ({name}) holds 70.0 GiB of GPU 0, process {gone} holds 1.0 GiB of GPU 0, "
        f"process 1 ({psutil.Process(1).name()}) holds 0.5 GiB of GPU 1"
    )
    held.update({0: [(gone, None)], 1: []})
    assert holders() == f"process {gone} holds memory of GPU 0"
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert holders() == ""
