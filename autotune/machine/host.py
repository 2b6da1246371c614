"""The resources of this machine for a training process: CPUs, memory, GPUs and versions.

A container or a batch system gives less than the machine has; the affinity mask and the control groups say how much.
It never imports torch, so it is safe in the process that must not initialise CUDA.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from autotune.machine.nvml import Gpu, find_gpus

CPU_NAME = re.compile(r"\b(CPU|Processor|Core|Xeon|EPYC|Ryzen)\b|^aarch64 ")
"""Words in the names of CPUs and in no accelerator's."""
UNLIMITED = 2**60
"""cgroup v1 writes "no limit" as the largest multiple of the page size below 2**63."""
MOUNTS = (
    ("", "sys/fs/cgroup"),
    ("", "sys/fs/cgroup/unified"),
    ("cpu", "sys/fs/cgroup/cpu"),
    ("cpu", "sys/fs/cgroup/cpu,cpuacct"),
    ("memory", "sys/fs/cgroup/memory"),
)
"""Controller and place of each hierarchy of cgroup v1; v2 has all controllers and no name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """The part of the machine that this process may use."""

    cpus: int
    """CPUs that can be kept busy all the time: affinity and whole CPUs of quota, at least 1."""
    cpu_model: str
    affinity_cpus: int
    quota_cpus: float | None
    """CPU time per wall time that the cgroups allow; ``None`` without a quota."""
    memory_bytes: int
    """Physical memory or the cgroup limit, whichever is less."""
    shm_bytes: int | None
    """Size of /dev/shm, where workers leave batches; ``None`` where there is none or it has no limit."""
    gpus: tuple[Gpu, ...]
    """NVIDIA GPUs in the driver's order."""
    versions: Mapping[str, str]
    """Versions of python, torch, optuna and autotune, as far as installed."""
    platform: str
    """Operating system, kernel and architecture."""
    open_files: int | None = None
    """Files, sockets and shared memory that a process may hold open (``ulimit -n``); ``None`` without a limit."""

    def for_rank(self, ranks: int) -> Host:
        """Return the share of CPUs and memory for one of several ranks on this host."""
        if ranks == 1:
            return self
        return replace(
            self,
            cpus=max(1, self.cpus // ranks),
            affinity_cpus=max(1, self.affinity_cpus // ranks),
            quota_cpus=None if self.quota_cpus is None else self.quota_cpus / ranks,
            memory_bytes=self.memory_bytes // ranks,
            shm_bytes=None if self.shm_bytes is None else self.shm_bytes // ranks,
        )

    @property
    def traits(self) -> dict[str, str]:
        """The comparable facts of a machine in words: CPUs, GPUs, and their memory in whole GiB."""
        gpus = sorted(" ".join([gpu.name, *map(_gib, filter(None, [gpu.memory_bytes]))]) for gpu in self.gpus)
        return {
            "CPU": self.cpu_model,
            "CPUs": str(self.cpus),
            "memory": _gib(self.memory_bytes),
            "GPUs": ", ".join(gpus) or "none",
        }


def inspect_host(root: Path = Path("/")) -> Host:
    """Return the resources of this machine; never fails: a limit that cannot be read is none.

    ``root`` is where /proc, /sys and /dev are found.
    """
    affinity = len(affinity_cpus())
    quota = cpu_quota(root)
    return Host(
        cpus=usable_cpus(affinity, quota),
        cpu_model=cpu_model(root),
        affinity_cpus=affinity,
        quota_cpus=quota,
        memory_bytes=MemoryMeter(root).total,
        shm_bytes=shared_memory(root)[0] or None,
        gpus=find_gpus(),
        versions=_versions(),
        platform=platform.platform(),
        open_files=_open_files(),
    )


def usable_cpus(affinity: int, quota: float | None) -> int:
    """Return how many threads can run all the time.

    The quota is rounded down: one thread too many is throttled, and the others wait for it at every barrier.
    """
    return max(1, affinity if quota is None else min(affinity, int(quota)))


class MemoryMeter:
    """The memory of the machine, or of its control groups: limits are found once, free memory is read anew."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        limits = [(group, _limit(group)) for group in _groups(root, "memory")]
        self._limits = [(group, limit) for group, limit in limits if limit is not None]
        total = _kibibytes(read_fields(root / "proc/meminfo", ":").get("MemTotal"))
        physical = total or int(_virtual_memory().total)
        self.total = min([physical, *(limit for _, limit in self._limits)])
        """Physical memory or the cgroup limit, whichever is less, in bytes."""

    def available(self) -> int:
        """Return the bytes that can be taken now without swapping or meeting a cgroup limit.

        File cache that the kernel gives back on demand counts as available, in a cgroup as on the machine.
        """
        free = read_fields(self._root / "proc/meminfo", ":").get("MemAvailable")
        machine = _kibibytes(free) or int(_virtual_memory().available)
        return min([machine, *(max(0, limit - _in_use(group)) for group, limit in self._limits)])


def device_notes(device: str, host: Host, torch: str, ranks: int, *, is_chosen: bool, is_script: bool) -> list[str]:
    """Return a sentence for each accelerator that is not used although it is there, or that was never tried.

    ``device`` trains in ``ranks`` processes with this version of ``torch``; ``is_chosen`` where the user has named it.
    A script (``is_script``) puts its model there itself.
    """
    kind, found = device.partition(":")[0], list[str]()
    is_chosen |= "CUDA_VISIBLE_DEVICES" in os.environ
    if kind == "cpu" and not host.gpus and not is_chosen and ("+cu" in torch or "+rocm" in torch):
        found.append(f"torch {torch} is a build for GPUs, but finds none here: measured on the CPU")
    if kind == "cpu" and host.gpus and not is_chosen:
        gpu = host.gpus[0]
        why = f"torch {torch} cannot use it with driver {gpu.driver}"
        if torch.endswith("+cpu"):
            why = f"this torch {torch} is a build for CPUs (pytorch.org/get-started)"
        elif is_script:
            why = "the script trains on the CPU (model.to('cuda') puts a model there, or torch cannot use it)"
        found.append(f"{gpu.name} is here, but {why}: measured on the CPU")
    if kind == "cuda" and ranks == 1 < len(host.gpus) and not is_chosen and not is_script:
        count = len(host.gpus)
        found.append(f"{count} GPUs are here, and 1 is used: --ranks {count} tunes training on all of them")
    if kind not in ("cpu", "cuda") or "+rocm" in torch:
        found.append(f"autotune is untested on {'ROCm' if '+rocm' in torch else kind}")
    return found


def made_elsewhere(made_on: Mapping[str, Any], host: Host | None = None) -> list[str]:
    """Compare a config file's ``made_on`` section with this machine, or with ``host``.

    Returns one sentence, without subject, for each difference that matters for speed: device, CPUs, torch,
    driver. A value that either side does not know is no difference: without NVML, no GPU is known.
    """
    if not made_on:
        return []
    here = host or inspect_host()
    driver = here.gpus[0].driver if here.gpus else None
    found = (
        _other_device(made_on, here),
        _other("CPUs", made_on.get("cpus"), here.cpus),
        _other("torch", made_on.get("torch"), here.versions.get("torch")),
        _other("driver", made_on.get("driver"), driver),
    )
    return [difference for difference in found if difference is not None]


def _gib(size: int) -> str:
    return f"{round(size / 2**30)} GiB"


def _other(name: str, there: object, here: object) -> str | None:
    if there is None or here is None or _same_version(str(there), str(here)):
        return None
    if name == "CPUs":
        return f"was made with {there} CPUs, here are {here}"
    return f"was made with {name} {there}, here is {here}"


def _same_version(one: str, other: str) -> bool:
    # torch's own version names the build (2.11.0+cu128) where the distribution's may not (2.11.0)
    if "+" in one and "+" in other:
        return one == other
    return one.partition("+")[0] == other.partition("+")[0]


def _other_device(made_on: Mapping[str, Any], host: Host) -> str | None:
    device = made_on.get("device")
    if not isinstance(device, str):
        return None
    if made_on.get("driver") is not None or device.startswith("NVIDIA"):
        here = [gpu.name for gpu in host.gpus]
    else:  # it may be another vendor's, and nothing here tells of those
        here = [host.cpu_model] if CPU_NAME.search(device) else []
    if not here or device.partition(" MIG ")[0] in here:  # torch's name for a part of a GPU
        return None
    return f"was made on {device}, here is {', '.join(here)}"


def _versions() -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    found = {"python": platform.python_version()}
    for name, distribution in {"torch": "torch", "optuna": "optuna", "autotune": "torch-autotune"}.items():
        with suppress(PackageNotFoundError):
            found[name] = version(distribution)
    return found


def cpu_model(root: Path = Path("/")) -> str:
    """Return the CPU's name; without one, the architecture and the features of its cores."""
    facts = read_fields(root / "proc/cpuinfo", ":")
    if named := facts.get("model name") or facts.get("cpu"):
        return " ".join(named.split())
    parts = [f"{key.split()[-1]} {facts[key]}" for key in ("CPU implementer", "CPU part") if facts.get(key)]
    return " ".join([platform.machine() or "unknown", *parts])


def affinity_cpus() -> set[int]:
    """Return the numbers of the CPUs that this process may be scheduled on."""
    try:
        return os.sched_getaffinity(0)
    except (AttributeError, OSError):  # there is no such call outside Linux
        return set(range(os.cpu_count() or 1))


def _kibibytes(text: str | None) -> int | None:
    number = amount(text.removesuffix("kB")) if text else None
    return None if number is None else 1024 * number


def _virtual_memory() -> Any:
    import psutil

    return psutil.virtual_memory()


def shared_memory(root: Path = Path("/")) -> tuple[int, int, int]:
    """Return the bytes of /dev/shm in all, the used and the free ones; 0 where there is none."""
    try:
        return shutil.disk_usage(root / "dev/shm")
    except OSError:
        return 0, 0, 0


def _open_files() -> int | None:
    try:
        import resource
    except ImportError:  # there is none on Windows
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


def cpu_quota(root: Path) -> float | None:
    """Return the CPU time per wall time that the groups allow, ``None`` without a quota."""
    quotas = [_quota(group) for group in _groups(root, "cpu")]
    return min((quota for quota in quotas if quota is not None), default=None)


def oom_kills(root: Path = Path("/")) -> int | None:
    """Return how many processes the kernel has killed for want of memory so far, ``None`` where nobody counts.

    Counted are those of this process's own group or, where it does not say, those of the whole machine.
    """
    for group in _groups(root, "memory"):
        for name in ("memory.events", "memory.oom_control"):  # v2, v1
            count = read_fields(group / name, " ").get("oom_kill", "")
            if count.isdigit():
                return int(count)
    count = read_fields(root / "proc/vmstat", " ").get("oom_kill", "")
    return int(count) if count.isdigit() else None


def throttled_seconds(root: Path = Path("/")) -> float | None:
    """Return how long the quotas of the groups have stopped their processes so far, ``None`` where nobody counts."""
    found = [_throttled(group) for group in _groups(root, "cpu")]
    return max((seconds for seconds in found if seconds is not None), default=None)


def text_of(path: Path) -> str:
    """Return the text of a file, such as one of /proc; empty when unreadable."""
    try:
        return path.read_bytes().decode("utf-8", "replace")
    except (OSError, ValueError):  # ValueError: a path that no file can have
        return ""


def read_fields(path: Path, separator: str) -> dict[str, str]:
    """Return the first value of each key in a file of one key and value a line; empty when unreadable."""
    fields: dict[str, str] = {}
    for line in text_of(path).split("\n"):
        key, _, value = line.partition(separator)
        fields.setdefault(key.strip(), value.strip())
    return fields


def amount(text: str) -> int | None:
    """Return a positive number, ``None`` for every way to say that there is no limit or no such file."""
    try:
        number = int(text)
    except ValueError:
        return None
    return number if 0 < number < UNLIMITED else None


def _groups(root: Path, controller: Literal["cpu", "memory"]) -> list[Path]:
    """Return the directories of this process's group and all above it, in every hierarchy of a controller.

    In a container, the top of the mount often is the process's own group, whose path does not exist below it.
    """
    own = _own_groups(root)
    found = []
    for name, mount in MOUNTS:
        parts = PurePosixPath(own.get(name, "/")).parts[1:]
        if ".." in parts:  # the process was moved out of its namespace
            parts = ()
        if name in ("", controller):
            found += [root.joinpath(mount, *parts[:depth]) for depth in range(len(parts), -1, -1)]
    return found


def _own_groups(root: Path) -> dict[str, str]:
    groups: dict[str, str] = {}
    for line in text_of(root / "proc/self/cgroup").split("\n"):
        _, _, rest = line.partition(":")
        controllers, colon, group = rest.partition(":")
        if colon:
            groups |= dict.fromkeys(controllers.split(","), group)
    return groups


def _quota(group: Path) -> float | None:
    v1 = f"{text_of(group / 'cpu.cfs_quota_us')} {text_of(group / 'cpu.cfs_period_us')}"
    fields = text_of(group / "cpu.max").split() or v1.split()
    quota, period = map(amount, fields) if len(fields) == 2 else (None, None)
    return quota / period if quota and period else None


def _throttled(group: Path) -> float | None:
    fields = read_fields(group / "cpu.stat", " ")
    for name, unit in (("throttled_usec", 1e-6), ("throttled_time", 1e-9)):  # v2, v1
        if fields.get(name, "").isdigit():
            return int(fields[name]) * unit
    return None


def _limit(group: Path) -> int | None:
    return amount(text_of(group / "memory.max")) or amount(text_of(group / "memory.limit_in_bytes"))


def _in_use(group: Path) -> int:
    used = amount(text_of(group / "memory.current")) or amount(text_of(group / "memory.usage_in_bytes")) or 0
    statistics = read_fields(group / "memory.stat", " ")
    total = "total_" if "total_inactive_file" in statistics else ""  # v1: with the groups below, as usage is
    cache = [amount(statistics.get(f"{total}{kind}_file", "")) or 0 for kind in ("active", "inactive")]
    return max(0, used - sum(cache))
