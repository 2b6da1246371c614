"""NVIDIA's cards as the tuner sees them, by NVML, which initialises no CUDA."""

from __future__ import annotations

from contextlib import suppress

import psutil

MOST_NAMED = 3
"""Processes that are named at most."""


def holders() -> str:
    """Return the processes that hold most of the cards' memory, in words; empty where NVML shows none."""
    found: list[tuple[int, int, int]] = []
    with suppress(Exception):  # no library, no driver, no permission: each means that nothing is known
        import pynvml

        pynvml.nvmlInit()
        for number in range(pynvml.nvmlDeviceGetCount()):
            for each in pynvml.nvmlDeviceGetComputeRunningProcesses(pynvml.nvmlDeviceGetHandleByIndex(number)):
                found.append((each.usedGpuMemory or 0, each.pid, number))
    texts = []
    for used, process, number in sorted(found, reverse=True)[:MOST_NAMED]:
        amount = f"{used / 2**30:.1f} GiB" if used else "memory"
        texts.append(f"process {process}{_name(process)} holds {amount} of GPU {number}")
    return ", ".join(texts)


def _name(process: int) -> str:
    with suppress(psutil.Error):  # gone, or of another container
        return f" ({psutil.Process(process).name()})"
    return ""
