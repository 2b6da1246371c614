"""What the control groups of this process (cgroup v1, v2 or both) leave it of the machine.

The limits of a process are those of its own group and of every group above it. Whatever is missing, damaged
or says that there is no limit does not limit: nothing here raises.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

__all__ = [
    "amount",
    "cpu_quota",
    "memory_free",
    "memory_limit",
    "memory_limits",
    "oom_kills",
    "read_fields",
    "throttled_seconds",
    "within",
]

UNLIMITED = 2**60
"""cgroup v1 writes "no limit" as the largest multiple of the page size below 2**63."""

USUAL_MOUNTS = (
    ("", "/sys/fs/cgroup"),
    ("", "/sys/fs/cgroup/unified"),
    ("cpu", "/sys/fs/cgroup/cpu"),
    ("cpu", "/sys/fs/cgroup/cpu,cpuacct"),
    ("memory", "/sys/fs/cgroup/memory"),
)
"""Controller and place of the hierarchies when /proc/self/mountinfo does not say."""


def cpu_quota(root: Path) -> float | None:
    """Return the CPU time per wall time that the groups allow, ``None`` without a quota."""
    quotas = [_quota(group) for group in _groups(root, "cpu")]
    return min((quota for quota in quotas if quota is not None), default=None)


def memory_limit(root: Path) -> int | None:
    """Return the bytes that the groups allow, ``None`` without a limit."""
    return min((limit for _, limit in memory_limits(root)), default=None)


def memory_free(root: Path) -> int | None:
    """Return the bytes that may still be taken, ``None`` without a limit.

    File cache that the kernel gives back on demand counts as free: else a training run that has read its
    dataset once would seem to have used up its memory.
    """
    return within(memory_limits(root))


def memory_limits(root: Path) -> list[tuple[Path, int]]:
    """Return the groups that limit memory: the directory of each, and the bytes that it allows."""
    found = [(group, _limit(group)) for group in _groups(root, "memory")]
    return [(group, limit) for group, limit in found if limit is not None]


def within(limits: Sequence[tuple[Path, int]]) -> int | None:
    """Return the bytes that may still be taken in groups found before, ``None`` without a limit."""
    return min((max(0, limit - _in_use(group)) for group, limit in limits), default=None)


def oom_kills(root: Path) -> int | None:
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


def throttled_seconds(root: Path) -> float | None:
    """Return how long the quotas of the groups have stopped their processes so far, ``None`` where nobody counts."""
    found = [_throttled(group) for group in _groups(root, "cpu")]
    return max((seconds for seconds in found if seconds is not None), default=None)


def read_fields(path: Path, separator: str) -> dict[str, str]:
    """Return the first value of each key in a file of one key and value a line; empty when unreadable."""
    fields: dict[str, str] = {}
    for line in _read(path).split("\n"):
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mount:
    controllers: tuple[str, ...]
    """Controllers of a v1 hierarchy; the empty name stands for v2, which has them all."""
    group: str
    """The group that the mount shows at its top; in a container often not the hierarchy's own top."""
    directory: Path
    """Where the mount is."""


def _groups(root: Path, controller: Literal["cpu", "memory"]) -> list[Path]:
    """Return the directories of this process's group and all above it, in every hierarchy of a controller."""
    own = _own_groups(root)
    return [
        directory
        for mount in _mounts(root)
        for name in ("", controller)
        if name in mount.controllers
        for directory in _upwards(mount, own.get(name, "/"))
    ]


def _upwards(mount: _Mount, group: str) -> list[Path]:
    path = PurePosixPath(group)
    inside = path.relative_to(mount.group).parts if path.is_relative_to(mount.group) else ()
    if ".." in inside:  # the process was moved out of its namespace
        inside = ()
    return [mount.directory.joinpath(*inside[:depth]) for depth in range(len(inside), -1, -1)]


def _own_groups(root: Path) -> dict[str, str]:
    groups: dict[str, str] = {}
    for line in _read(root / "proc/self/cgroup").split("\n"):
        _, _, rest = line.partition(":")
        controllers, colon, group = rest.partition(":")
        if colon:
            groups |= dict.fromkeys(controllers.split(","), group)
    return groups


def _mounts(root: Path) -> list[_Mount]:
    found: dict[tuple[str, ...], _Mount] = {}
    for line in _read(root / "proc/self/mountinfo").split("\n"):
        mount = _mount(root, line)
        if mount is not None:
            found.setdefault(mount.controllers, mount)  # later ones show parts of the same hierarchy again
    return list(found.values()) or [
        _Mount(controllers=(name,), group="/", directory=_under(root, path)) for name, path in USUAL_MOUNTS
    ]


def _mount(root: Path, line: str) -> _Mount | None:
    """Read a line of mountinfo: numbers, group, place, options, a dash, then kind, source and controllers."""
    place, _, system = (part.split() for part in line.partition(" - "))
    if len(place) < 6 or len(system) < 3 or system[0] not in ("cgroup", "cgroup2"):
        return None
    controllers = ("",) if system[0] == "cgroup2" else tuple(system[2].split(","))
    return _Mount(controllers=controllers, group=_unescaped(place[3]), directory=_under(root, place[4]))


def _under(root: Path, path: str) -> Path:
    return root / _unescaped(path).lstrip("/")


def _unescaped(path: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), path)


def _quota(group: Path) -> float | None:
    v1 = f"{_read(group / 'cpu.cfs_quota_us')} {_read(group / 'cpu.cfs_period_us')}"
    fields = _read(group / "cpu.max").split() or v1.split()
    quota, period = map(amount, fields) if len(fields) == 2 else (None, None)
    return quota / period if quota and period else None


def _throttled(group: Path) -> float | None:
    fields = read_fields(group / "cpu.stat", " ")
    for name, unit in (("throttled_usec", 1e-6), ("throttled_time", 1e-9)):  # v2, v1
        if fields.get(name, "").isdigit():
            return int(fields[name]) * unit
    return None


def _limit(group: Path) -> int | None:
    return amount(_read(group / "memory.max")) or amount(_read(group / "memory.limit_in_bytes"))


def _in_use(group: Path) -> int:
    used = amount(_read(group / "memory.current")) or amount(_read(group / "memory.usage_in_bytes")) or 0
    statistics = read_fields(group / "memory.stat", " ")
    cache = statistics.get("total_inactive_file")  # v1: with the groups below, as usage is
    return max(0, used - (amount(cache or statistics.get("inactive_file", "")) or 0))


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8", "replace")
    except (OSError, ValueError):  # ValueError: a path that no file can have
        return ""
