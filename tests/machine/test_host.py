from __future__ import annotations

import math
import os
import platform
import sys
from dataclasses import replace
from importlib.metadata import version
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.machine.host import (
    Gpu,
    Host,
    MemoryMeter,
    cpu_model,
    device_notes,
    inspect_host,
    made_elsewhere,
    usable_cpus,
)
from autotune.machine.nvml import find_gpus
from autotune.storage.identity import identify
from tests import examples
from tests.processes import printed
from tests.simulated import space_of

if TYPE_CHECKING:
    from pathlib import Path

GIB = 2**30
H100 = Gpu(uuid="GPU-1", name="NVIDIA H100 80GB HBM3", memory_bytes=80 * GIB, driver="580.95")
CPU_HOST = Host(
    cpus=6, cpu_model="Example CPU 9000", affinity_cpus=8, quota_cpus=6.5, memory_bytes=32 * GIB, shm_bytes=16 * GIB,
    gpus=(), versions={"python": "3.11.7", "torch": "2.13.0"}, platform="Linux",
)  # fmt: skip
GPU_HOST = replace(CPU_HOST, gpus=(H100,), versions={"torch": "2.13.0+cu130"})
MADE_HERE = {"device": "Example CPU 9000", "cpus": 6, "torch": "2.13.0", "driver": None, "workload": "ab"}
MADE_ON_H100 = MADE_HERE | {"device": H100.name, "torch": "2.13.0+cu130", "driver": "580.95"}


@pytest.mark.parametrize(
    ("device", "is_chosen", "gpus", "ranks", "torch", "note"),
    [
        ("cpu", False, 0, 1, "2.13.0", None),
        ("cpu", True, 1, 1, "2.13.0", None),
        ("cpu", False, 1, 1, "2.13.0+cpu", "this torch 2.13.0+cpu is a build for CPUs"),
        ("cpu", False, 1, 1, "2.13.0", "torch 2.13.0 cannot use it with driver 580.95"),
        ("cpu", False, 0, 1, "2.13.0+cu130", "torch 2.13.0+cu130 is a build for GPUs, but finds none here"),
        ("cpu", True, 0, 1, "2.13.0+cu130", None),
        ("cuda:0", False, 1, 1, "2.13.0", None),
        ("cuda:0", False, 4, 1, "2.13.0", "4 GPUs are here, and 1 is used: --ranks 4 "),
        ("cuda:0", True, 4, 1, "2.13.0", None),
        ("cuda:0", False, 4, 4, "2.13.0", None),
        ("cuda:0", False, 0, 1, "2.13.0+rocm6.4", "untested on ROCm"),
        ("mps:0", False, 0, 1, "2.13.0", "untested on mps"),
    ],
)
def test_a_device_that_is_not_used_or_was_never_tried_is_said(
    device: str,
    is_chosen: bool,
    gpus: int,
    ranks: int,
    torch: str,
    note: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    host = replace(CPU_HOST, gpus=(H100,) * gpus)
    found = device_notes(device, host, torch, ranks, is_chosen=is_chosen, is_script=False)
    assert len(found) == (note is not None)
    assert note is None or note in found[0]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    named, chosen = (
        device_notes("cpu", host, torch, ranks, is_chosen=chosen, is_script=False) for chosen in (False, True)
    )
    assert named == chosen


def test_a_script_on_the_cpu_beside_a_gpu_that_torch_can_use_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    (note,) = device_notes("cpu", GPU_HOST, "2.13.0+cu130", 1, is_chosen=False, is_script=True)
    assert note.startswith("NVIDIA H100 80GB HBM3 is here, but the script trains on the CPU")
    (note,) = device_notes("cpu", GPU_HOST, "2.13.0+cpu", 1, is_chosen=False, is_script=True)
    assert "is a build for CPUs" in note
    many = replace(GPU_HOST, gpus=(H100,) * 4)
    assert not device_notes("cuda:0", many, "2.13.0+cu130", 1, is_chosen=False, is_script=True)


def machine(root: Path, **files: str) -> Path:
    contents = {
        "proc/self/cgroup": "0::/job\n",
        "proc/meminfo": files.get("meminfo", "MemTotal: 16777216 kB\nMemAvailable: 8388608 kB\n"),
        "proc/cpuinfo": files.get("cpuinfo", "processor\t: 0\nmodel name\t: Example CPU  9000\n"),
        "sys/fs/cgroup/job/cpu.max": files.get("cpu", "max 100000"),
        "sys/fs/cgroup/job/memory.max": files.get("memory", "max"),
        "sys/fs/cgroup/job/memory.current": files.get("used", "0"),
    }
    for name, content in contents.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)
    return root


@pytest.mark.parametrize(
    ("quota", "most"), [("max 100000", 2**20), ("150000 100000", 1), ("50000 100000", 1), ("99900000 100000", 999)]
)
def test_cpus_are_the_affinity_masks_or_as_many_whole_ones_as_the_quota_gives(
    tmp_path: Path, quota: str, most: int
) -> None:
    host, affinity = inspect_host(machine(tmp_path, cpu=quota)), len(os.sched_getaffinity(0))
    assert (host.cpus, host.affinity_cpus) == (min(most, affinity), affinity)
    assert host.quota_cpus == (None if quota.startswith("max") else int(quota.split()[0]) / 100_000)


@given(affinity=st.integers(1, 1024), quota=st.none() | st.floats(0.01, 2048))
def test_usable_cpus_are_the_most_that_neither_affinity_nor_quota_exceed(affinity: int, quota: float | None) -> None:
    cpus = usable_cpus(affinity, quota)
    bound = min(affinity, math.inf if quota is None else quota)
    assert cpus == 1 or cpus <= bound
    assert cpus + 1 > bound


@pytest.mark.parametrize(("limit", "memory"), [("max", 16 * GIB), (f"{4 * GIB}", 4 * GIB), (f"{64 * GIB}", 16 * GIB)])
def test_memory_is_the_machines_or_the_cgroup_limit_where_that_is_less(tmp_path: Path, limit: str, memory: int) -> None:
    assert inspect_host(machine(tmp_path, memory=limit)).memory_bytes == memory


@pytest.mark.parametrize("meminfo", ["", "MemTotal: much kB\n", "MemTotal:\n", "\0\0\0"])
def test_without_a_readable_meminfo_the_system_call_answers(tmp_path: Path, meminfo: str) -> None:
    root = machine(tmp_path, meminfo=meminfo)
    assert inspect_host(root).memory_bytes == psutil.virtual_memory().total
    assert 0 < MemoryMeter(root).available() <= psutil.virtual_memory().total


def test_shm_is_the_size_of_the_file_system_there_if_there_is_one(tmp_path: Path) -> None:
    assert inspect_host(tmp_path).shm_bytes is None
    (tmp_path / "dev/shm").mkdir(parents=True)
    there = os.statvfs(tmp_path)
    assert inspect_host(tmp_path).shm_bytes == there.f_blocks * there.f_frsize


def test_the_cpu_model_is_the_name_in_cpuinfo_or_its_parts(tmp_path: Path) -> None:
    assert inspect_host(machine(tmp_path)).cpu_model == "Example CPU 9000"
    parts = machine(tmp_path, cpuinfo="processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd40\n")
    assert cpu_model(parts) == f"{platform.machine()} implementer 0x41 part 0xd40"


def test_versions_are_those_installed_and_the_missing_are_left_out() -> None:
    versions = inspect_host().versions
    assert versions["python"] == platform.python_version()
    assert versions["torch"] == version("torch")
    assert set(versions) <= {"python", "torch", "optuna", "autotune"}
    assert all(versions.values())


def stand_in_for_nvml(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    calls: dict[str, Any] = {
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlSystemGetDriverVersion": lambda: "580.95",
        "nvmlDeviceGetCount": lambda: 2,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetUUID": lambda handle: f"GPU-{handle}",
        "nvmlDeviceGetName": lambda handle: "NVIDIA H100",
        "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(total=80 * GIB),
    }
    module = ModuleType("pynvml")
    vars(module).update(calls | changes)
    monkeypatch.setitem(sys.modules, "pynvml", module)


def failing(*_: object) -> None:
    raise RuntimeError("driver trouble")


GPUS = tuple(Gpu(uuid=f"GPU-{n}", name="NVIDIA H100", memory_bytes=80 * GIB, driver="580.95") for n in range(2))


@pytest.mark.parametrize(
    ("changes", "gpus"),
    [
        ({}, GPUS),
        ({"nvmlInit": failing}, ()),
        ({"nvmlSystemGetDriverVersion": failing}, ()),
        ({"nvmlDeviceGetCount": failing}, ()),
        ({"nvmlShutdown": failing}, GPUS),
        ({"nvmlDeviceGetHandleByIndex": lambda index: index if index else 1 // 0}, GPUS[1:]),
        ({"nvmlDeviceGetMemoryInfo": failing}, tuple(replace(gpu, memory_bytes=None) for gpu in GPUS)),
    ],
)
def test_gpus_are_listed_with_what_the_driver_tells_of_them(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], gpus: tuple[Gpu, ...]
) -> None:
    stand_in_for_nvml(monkeypatch, **changes)
    assert find_gpus() == gpus


def test_there_are_no_gpus_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert find_gpus() == ()


@pytest.mark.gpu
def test_gpus_are_those_that_torch_sees() -> None:
    import torch

    if not torch.cuda.is_available():
        pytest.skip("no accelerator")
    seen = {torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())}
    found = find_gpus()
    assert seen <= {gpu.name for gpu in found}
    assert all(gpu.uuid.startswith("GPU-") and gpu.driver and gpu.memory_bytes for gpu in found)


CPUS = ("Intel(R) Xeon(R) Platinum 8480+", "13th Gen Intel(R) Core(TM) i7-13700H", "AMD EPYC 7B13", "Other CPU")
CPUS += ("AMD Ryzen 9 7950X 16-Core Processor", "aarch64 0x41 0xd40")
OTHERS = ("AMD Instinct MI300X", "mps", "Tesla T4", H100.name)
MIG = {"device": f"{H100.name} MIG 3g.40gb"}
T4 = {name: f"was made on {name}, here is {H100.name}" for name in ("NVIDIA T4", "Tesla T4", "T4 MIG 1g")}


@pytest.mark.parametrize(
    ("made_on", "host", "sentence"),
    [
        *((made_on, CPU_HOST, None) for made_on in (MADE_HERE, {}, {"device": None, "cpus": None})),
        *((made_on, GPU_HOST, None) for made_on in (MADE_ON_H100, MADE_ON_H100 | MIG, MADE_HERE, {"torch": "2.13.0"})),
        ({"colour": "red", "device": 5}, CPU_HOST, None),
        *((MADE_HERE | {"device": name}, CPU_HOST, None) for name in OTHERS),
        (MADE_HERE | {"device": "Intel(R) Arc(TM) A770 Graphics"}, GPU_HOST, None),
        (MADE_HERE | {"device": H100.name, "driver": "570.1"}, CPU_HOST, None),
        *(({"device": name}, CPU_HOST, f"was made on {name}, here is Example CPU 9000") for name in CPUS),
        (MADE_HERE | {"torch": "2.11.0"}, CPU_HOST, "was made with torch 2.11.0, here is 2.13.0"),
        (MADE_HERE | {"cpus": 16}, CPU_HOST, "was made with 16 CPUs, here are 6"),
        (MADE_HERE | {"device": "Other CPU"}, GPU_HOST, "was made on Other CPU, here is Example CPU 9000"),
        (MADE_HERE | {"device": "NVIDIA T4"}, GPU_HOST, T4["NVIDIA T4"]),
        *((MADE_ON_H100 | {"device": name}, GPU_HOST, sentence) for name, sentence in T4.items()),
        (MADE_ON_H100 | {"driver": "570.1"}, GPU_HOST, "was made with driver 570.1, here is 580.95"),
        (MADE_ON_H100 | {"torch": "2.13.0+cu128"}, GPU_HOST, "was made with torch 2.13.0+cu128, here is 2.13.0+cu130"),
    ],
)
def test_each_difference_is_one_sentence_and_what_is_missing_or_unknown_is_none(
    made_on: dict[str, Any], host: Host, sentence: str | None
) -> None:
    assert made_elsewhere(made_on, host) == ([sentence] if sentence else [])


def test_the_traits_do_not_depend_on_the_order_of_gpus_nor_on_the_process() -> None:
    other = replace(H100, uuid="GPU-2")
    assert replace(CPU_HOST, gpus=(H100, other)).traits == replace(CPU_HOST, gpus=(other, H100)).traits
    code = "from autotune.machine.host import inspect_host; print(inspect_host().traits)"
    assert printed("-c", code) == str(inspect_host().traits)


def test_hosts_that_differ_only_in_which_gpus_they_have_share_a_study() -> None:
    def name(gpu: Gpu) -> str:
        here = replace(GPU_HOST, gpus=(gpu, H100))
        return identify(examples.facts(), here, space_of(examples.facts()).fingerprint).name

    assert name(replace(H100, uuid="GPU-2")) == name(H100)
    assert name(replace(H100, memory_bytes=40 * GIB)) != name(H100)
    assert name(replace(H100, memory_bytes=None)) != name(H100)
    assert name(replace(H100, name="NVIDIA A100")) != name(H100)


def test_open_files_are_those_that_a_process_may_hold() -> None:
    resource = pytest.importorskip("resource")
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert inspect_host().open_files == (None if soft == resource.RLIM_INFINITY else soft)


def test_a_meter_reads_again_what_it_has_found_once(tmp_path: Path) -> None:
    assert MemoryMeter(machine(tmp_path)).available() == 8 * GIB
    root = machine(tmp_path, memory=str(4 * GIB), used=str(3 * GIB))
    meter = MemoryMeter(root)
    assert (meter.total, meter.available()) == (4 * GIB, GIB)
    machine(tmp_path, memory=str(4 * GIB), used=str(2 * GIB))
    assert meter.available() == 2 * GIB
