from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

import pytest
import torch

from autotune.errors import UsageError
from autotune.machine.nvml import open_gpu
from autotune.measure.batch import move
from autotune.measure.device import open_device
from tests.gpu.workloads import GIBIBYTE, spin

if TYPE_CHECKING:
    from autotune.measure.device import AcceleratorDevice

LONG = 1000
"""Million cycles: at least ``LONG_SECONDS`` on a GPU of at most 3 GHz."""
LONG_SECONDS = 0.3
AT_ONCE = 0.1


# --- which device ---


def test_a_device_without_a_number_is_the_current_one(device: AcceleratorDevice) -> None:
    current = device.torch_device
    for name in ("auto", current.type, str(current)):
        assert open_device(name).torch_device == current


def test_a_device_that_is_not_there_is_a_usage_error(device: AcceleratorDevice) -> None:
    kind = device.torch_device.type
    with pytest.raises(UsageError, match="this machine has"):
        open_device(f"{kind}:99")
    with pytest.raises(UsageError, match="this machine's accelerator is"):
        open_device("xpu" if kind != "xpu" else "cuda")


def test_name_memory_and_precisions_are_those_of_the_hardware(cuda: AcceleratorDevice) -> None:
    properties = torch.cuda.get_device_properties(cuda.torch_device)
    assert cuda.name == properties.name != ""
    assert 0 < cuda.memory_limit <= properties.total_memory  # contexts, displays and other processes hold the rest
    has_bf16 = properties.major >= 8
    assert cuda.amp_modes == (("off", "bf16", "fp16") if has_bf16 else ("off", "fp16"))


# --- time ---


def warmed(cuda: AcceleratorDevice) -> float:
    """Wait for the device once it has done something, and say what time it is."""
    spin(1)
    cuda.synchronize()
    return time.perf_counter()


def test_the_seconds_between_two_marks_are_those_of_the_clock(cuda: AcceleratorDevice) -> None:
    begin, first = warmed(cuda), cuda.mark()
    spin(LONG)
    last = cuda.mark()
    cuda.synchronize()
    assert cuda.seconds(first, last) == pytest.approx(time.perf_counter() - begin, rel=0.02)


def test_a_mark_does_not_wait_for_the_device_and_synchronising_does(cuda: AcceleratorDevice) -> None:
    begin = warmed(cuda)
    spin(LONG)
    cuda.mark()
    marked = time.perf_counter() - begin
    cuda.synchronize()
    assert marked < AT_ONCE < LONG_SECONDS < time.perf_counter() - begin


@pytest.mark.parametrize("is_pinned", [True, False])
def test_only_a_pinned_batch_is_copied_without_waiting_for_the_device(cuda: AcceleratorDevice, is_pinned: bool) -> None:
    batch = [torch.arange(1024.0), torch.arange(1024)]
    if is_pinned:
        batch = [tensor.pin_memory() for tensor in batch]
    move(batch, cuda.torch_device, non_blocking=is_pinned)
    begin = warmed(cuda)
    spin(LONG)
    there = move(batch, cuda.torch_device, non_blocking=is_pinned)
    waited = time.perf_counter() - begin
    assert waited < AT_ONCE if is_pinned else waited > LONG_SECONDS
    assert all(torch.equal(tensor.cpu(), original) for tensor, original in zip(there, batch, strict=True))


# --- memory ---


def test_peaks_are_those_of_the_allocator_to_the_byte(cuda: AcceleratorDevice) -> None:
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    block = torch.empty(GIBIBYTE, dtype=torch.uint8, device=cuda.torch_device)
    del block
    torch.cuda.empty_cache()
    peaks = cuda.peaks()
    allocated, reserved = peaks
    assert allocated == before + GIBIBYTE
    assert allocated <= reserved == torch.cuda.max_memory_reserved()
    assert torch.cuda.memory_reserved() <= reserved - GIBIBYTE


# --- NVML ---


@pytest.fixture
def nvml(cuda: AcceleratorDevice) -> Any:
    pynvml = pytest.importorskip("pynvml")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        pytest.skip(f"NVML does not start here: {error}")
    return pynvml


def test_the_gpu_that_nvml_opens_is_the_one_that_torch_trains_on(cuda: AcceleratorDevice, nvml: Any) -> None:
    uuid = f"GPU-{torch.cuda.get_device_properties(cuda.torch_device).uuid}"
    for gpu in (cuda.gpu, open_gpu(uuid), open_gpu(uuid.removeprefix("GPU-"))):
        assert nvml.nvmlDeviceGetUUID(gpu._handle) == uuid


@pytest.mark.usefixtures("nvml")
def test_a_busy_gpu_reads_as_busy(cuda: AcceleratorDevice) -> None:
    assert cuda.gpu is not None
    for _ in range(100):
        spin(60)  # three seconds in all at 2 GHz, in pieces that no display's watchdog minds
    time.sleep(1.5)  # longer than NVML's sampling period
    reading = cuda.gpu.read()
    if reading.utilisation is None:
        pytest.skip("NVML does not tell the utilisation of this GPU")
    assert 0.5 < reading.utilisation <= 1


@pytest.mark.usefixtures("nvml")
def test_the_memory_that_nvml_counts_for_this_process_holds_what_is_reserved(cuda: AcceleratorDevice) -> None:
    assert cuda.gpu is not None
    block = torch.zeros(GIBIBYTE, dtype=torch.uint8, device=cuda.torch_device)
    cuda.synchronize()
    used = cuda.gpu.held().get(os.getpid())
    if used is None:
        pytest.skip("NVML does not know this process; in a container it may have another number outside")
    assert used >= torch.cuda.memory_reserved() >= block.nbytes
