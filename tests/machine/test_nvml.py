from __future__ import annotations

import os
import sys
import time
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from autotune.machine.nvml import GpuReading, NvmlGpu, open_gpu
from autotune.measure.conditions import snapshot

OWN = {os.getpid()}
UUIDS = ["GPU-bbbb", "GPU-aaaa", "MIG-dddd"]  # NVML's order; CUDA numbers the fastest first: GPU-aaaa
VIOLATIONS = {0: SimpleNamespace(violationTime=9 * 10**9), 1: SimpleNamespace(violationTime=25 * 10**8)}


def process(pid: int, used: int | None) -> Any:
    return SimpleNamespace(pid=pid, usedGpuMemory=used)


def sample(pid: int, use: int, stamp: int = 2**62) -> Any:
    return SimpleNamespace(pid=pid, smUtil=use, timeStamp=stamp)


def install(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    """Put a stand-in for NVML's library in place, which no machine without a GPU has."""
    module = ModuleType("pynvml")
    functions = {
        "NVML_PERF_POLICY_THERMAL": 1,
        "nvmlInit": lambda: None,
        "nvmlDeviceGetHandleByUUID": lambda uuid: UUIDS[UUIDS.index(uuid)],
        "nvmlDeviceGetViolationStatus": lambda handle, policy: VIOLATIONS[policy],
        "nvmlDeviceGetProcessUtilization": lambda handle, since: [],
        "nvmlDeviceGetUtilizationRates": lambda handle: SimpleNamespace(gpu=87, memory=10),
        "nvmlDeviceGetComputeRunningProcesses": lambda handle: [process(1, 5), process(os.getpid(), 6 * 2**30)],
        "nvmlDeviceGetCurrentClocksEventReasons": lambda handle: 0x4 | 0x20,
        "nvmlDeviceGetCurrentClocksThrottleReasons": lambda handle: 0x4 | 0x20,
    }
    for name, value in {**functions, **changes}.items():
        setattr(module, name, value)
    monkeypatch.setitem(sys.modules, "pynvml", module)


class NVMLError(Exception):
    """What the library raises, also for a function that it has and an older driver has not."""


def failing(*arguments: Any) -> None:
    raise NVMLError("Function Not Found")


def opened(uuid: str = "aaaa") -> NvmlGpu:
    gpu = open_gpu(uuid)
    assert gpu is not None
    return gpu


def read(uuid: str) -> GpuReading:
    return opened(uuid).read()


def test_the_uuid_finds_the_gpu_whatever_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)
    assert [read(uuid).utilisation for uuid in ("dddd", "MIG-dddd")] == [0.87, 0.87]  # a part as a whole one


def test_a_power_cap_is_usual_and_heat_is_not_also_under_the_name_that_older_drivers_gave_the_reasons(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    install(monkeypatch)
    assert read("aaaa").slowdowns == ("software thermal slowdown",)
    older = {"nvmlDeviceGetCurrentClocksThrottleReasons": lambda handle: 0x8}
    install(monkeypatch, nvmlDeviceGetCurrentClocksEventReasons=failing, **older)
    assert read("aaaa").slowdowns == ("hardware slowdown",)


def test_the_seconds_of_heat_are_counted_and_not_those_of_a_power_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)
    assert snapshot(gpu=opened()).lost["heat"] == 2.5
    install(monkeypatch, nvmlDeviceGetViolationStatus=failing)
    assert opened().heat_seconds() is None


@pytest.mark.parametrize(
    ("samples", "shown", "foreign"),
    [
        ([sample(os.getpid(), 50), sample(7, 40), sample(8, 0)], [], {7: 0.4}),
        ([sample(7, 40)], [process(os.getpid(), None)], {7: 0.4}),
        ([sample(os.getpid(), 90)] * 4 + [sample(7, 40)], [], {7: 0.1}),
        ([sample(os.getpid(), 90), sample(7, 40, stamp=0), sample(8, 4_000_000_000)], [], {}),
        ([], [process(os.getpid(), 5)], {}),
        ([sample(7, 40)], [process(7, 5)], None),
        ([], [], None),
    ],
    ids=["others", "idle", "now and then", "never written", "alone", "this one has another number", "hidden"],
)
def test_what_others_compute_is_their_share_of_the_samples_where_this_process_is_shown(
    monkeypatch: pytest.MonkeyPatch, samples: list[Any], shown: list[Any], foreign: dict[int, float] | None
) -> None:
    running = {"nvmlDeviceGetComputeRunningProcesses": lambda handle: shown}
    install(monkeypatch, nvmlDeviceGetProcessUtilization=lambda handle, since: samples, **running)
    assert opened().foreign_use(OWN) == foreign


def test_workers_and_other_ranks_are_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = [sample(os.getpid(), 50), sample(os.getppid(), 40)]
    install(monkeypatch, nvmlDeviceGetProcessUtilization=lambda handle, since: samples)
    for job, foreign in ((None, {os.getppid(): 0.4}), (os.getppid(), {})):
        assert snapshot(job=job, gpu=opened()).foreign == foreign


def test_the_use_is_asked_for_since_the_counters_before_and_unsupported_it_is_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []
    install(monkeypatch, nvmlDeviceGetProcessUtilization=lambda handle, since: asked.append(since))
    gpu, begin = opened(), time.time_ns() // 1000
    gpu.foreign_use(OWN)
    gpu.foreign_use(OWN)
    assert begin <= asked[1] <= time.time_ns() // 1000
    install(monkeypatch, nvmlDeviceGetProcessUtilization=failing)
    assert opened().foreign_use(OWN) is None


@pytest.mark.parametrize(
    ("processes", "foreign"),
    [
        ([process(1, 5), process(os.getpid(), 7), process(2, 6)], 11),
        ([process(os.getpid(), 7)], 0),
        ([process(os.getpid(), None), process(1, 5)], 5),
        ([process(1, 5), process(2, None), process(os.getpid(), 7)], 5),
        ([process(1, None), process(os.getpid(), 7)], None),
        ([process(1, 5)], None),
        ([], None),
    ],
    ids=["others", "alone", "own not told", "one not told", "not told", "this one is not shown", "hidden"],
)
def test_the_memory_of_others_is_what_they_are_seen_to_hold(
    monkeypatch: pytest.MonkeyPatch, processes: list[Any], foreign: int | None
) -> None:
    install(monkeypatch, nvmlDeviceGetComputeRunningProcesses=lambda handle: processes)
    assert read("aaaa").foreign_bytes == foreign


def test_what_the_gpu_does_not_support_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    reasons = ("CurrentClocksEventReasons", "CurrentClocksThrottleReasons")
    names = ("UtilizationRates", "ComputeRunningProcesses", *reasons)
    install(monkeypatch, **{f"nvmlDeviceGet{name}": failing for name in names})
    nothing = GpuReading(utilisation=None, foreign_bytes=None, slowdowns=())
    assert read("aaaa") == nothing


def test_without_nvml_or_with_an_unknown_uuid_there_is_no_gpu_and_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)
    assert open_gpu("cccc") is None
    assert open_gpu(None) is None
    install(monkeypatch, nvmlInit=failing)
    assert open_gpu("aaaa") is None
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert open_gpu("aaaa") is None
