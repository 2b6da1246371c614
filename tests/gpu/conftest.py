"""Everything in this folder needs an accelerator and is skipped where there is none."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from autotune.measure.device import AcceleratorDevice

if TYPE_CHECKING:
    from collections.abc import Iterator

REASON = f"needs an accelerator; torch {torch.__version__} finds none here"
TORCH_SAYS = (
    "ignore:Attempting to run cuBLAS:UserWarning",  # the first product of a process is one of backward
    "ignore:Synchronization debug mode:UserWarning",  # it is a prototype
    "ignore:This process .* is multi-threaded:DeprecationWarning",  # loader workers are forked beside CUDA's threads
    "ignore:'pin_memory' argument is set as true but not supported:UserWarning",  # on MPS
)
"""Warnings that say nothing about the code under test."""


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent not in item.path.parents:
            continue
        item.add_marker(pytest.mark.gpu)
        item.add_marker(pytest.mark.skipif(not torch.accelerator.is_available(), reason=REASON))
        for warning in TORCH_SAYS:
            item.add_marker(pytest.mark.filterwarnings(warning))


@pytest.fixture
def device() -> Iterator[AcceleratorDevice]:
    """The current accelerator; what a test has left on it is gone before the next."""
    kind = torch.accelerator.current_accelerator()
    device = AcceleratorDevice(torch.device(kind.type, torch.accelerator.current_device_index()))
    yield device
    device.synchronize()
    gc.collect()
    torch.get_device_module(kind).empty_cache()


@pytest.fixture
def cuda(device: AcceleratorDevice) -> AcceleratorDevice:
    if device.torch_device.type != "cuda":
        pytest.skip(f"needs CUDA; the accelerator here is {device.torch_device.type}")
    return device
