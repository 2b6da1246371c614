"""The work that the probes ask of a device: steps, copies, pinning, and too much of its memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cached_property

import torch

from autotune.measure.device import Device
from autotune.measure.failures import classify

MIB = 2**20
TOO_MUCH = 2**46
"""Bytes that no machine has."""
FULL_CARD = "context on a full card"
EXHAUSTS = ("device memory", "pinned host memory", "cuBLAS handle", "cuDNN convolution", FULL_CARD)


class Load:
    """Work for a device, which it is asked for without waiting."""

    def __init__(self, device: Device, size: int = 200 * MIB, width: int = 1024, kernels: int = 300) -> None:
        """Take a device; the size of a copy is no power of two, as torch rounds pinned memory up to one."""
        self.size, self._device, self._width, self._kernels = size, device, width, kernels

    @cached_property
    def _matrices(self) -> tuple[torch.Tensor, torch.Tensor]:
        matrix = torch.randn(self._width, self._width, device=self._device.torch_device)
        return matrix, torch.empty_like(matrix)

    @cached_property
    def _source(self) -> torch.Tensor:
        return torch.ones(self.size, dtype=torch.uint8)

    @cached_property
    def _pinned(self) -> torch.Tensor:
        return self._source.pin_memory()

    @cached_property
    def _target(self) -> torch.Tensor:
        return torch.empty(self.size, dtype=torch.uint8, device=self._device.torch_device)

    def step(self) -> None:
        """Ask for a step of many short kernels."""
        matrix, product = self._matrices
        for _ in range(self._kernels):
            torch.mm(matrix, matrix, out=product)

    def copy(self, *, is_pinned: bool) -> None:
        """Copy to the device."""
        self._target.copy_(self._pinned if is_pinned else self._source, non_blocking=is_pinned)

    def pin(self) -> torch.Tensor:
        """Copy to pinned memory; it is pinned for as long as the answer is kept."""
        return self._source.pin_memory()

    def exhaust(self, what: str) -> None:
        """Fail for want of memory in one of the ways of ``EXHAUSTS``."""
        device = self._device.torch_device
        if what == "device memory":
            torch.empty(TOO_MUCH, dtype=torch.uint8, device=device)
        elif what == "pinned host memory":
            torch.empty(TOO_MUCH, dtype=torch.uint8, pin_memory=True)
        elif what == "cuBLAS handle":
            matrix, full = torch.ones(64, 64, device=device), fill(self._device)
            torch.mm(matrix, matrix)
            del full
        elif what == "cuDNN convolution":
            convolution, image = torch.nn.Conv2d(3, 8, 3, device=device), torch.ones(1, 3, 32, 32, device=device)
            full = fill(self._device)
            convolution(image)
            del full
        self._device.synchronize()

    def rest(self, seconds: float) -> None:
        """Ask nothing of the device."""
        time.sleep(seconds)


def failure(ask: Callable[[], object]) -> str:
    """Run out of memory in one way; return what autotune calls it, and the text."""
    try:
        ask()
    except Exception as error:
        outcome, line, _ = classify(error)
        return f"{outcome}: {line}"
    return "no error"


def fill(device: Device, share: float = 1.0) -> list[torch.Tensor]:
    """Take a share of the memory that can be had; all of it until the allocator gets no more."""
    kept, block = list[torch.Tensor](), int(share * device.memory_limit)
    while block >= MIB // 2:
        try:
            kept.append(torch.empty(block, dtype=torch.uint8, device=device.torch_device))
        except RuntimeError:
            block //= 2
        else:
            block = block if share == 1.0 else 0
    return kept
