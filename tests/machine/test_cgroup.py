"""Fake /proc and /sys trees, laid out as kernels and container runtimes lay them out."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.machine.host import MemoryMeter, cpu_quota, oom_kills

GIB = 2**30
MACHINE = 2**20 * GIB
"""Memory of the machine, which no group is allowed."""
NO_LIMIT_V1 = "9223372036854771712\n"
V1_GROUPS = "4:memory:/job\n3:cpu,cpuacct:/job\n1:name=systemd:/init.scope\n"


def plant(root: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


def v2_tree(root: Path, group: str, files: dict[str, str]) -> Path:
    plant(root, {"proc/self/cgroup": f"0::{group}\n"})
    return plant(root, {f"sys/fs/cgroup/{name}": content for name, content in files.items()})


def v1_tree(root: Path, files: dict[str, str]) -> Path:
    plant(root, {"proc/self/cgroup": V1_GROUPS})
    return plant(root, {f"sys/fs/cgroup/{name}": content for name, content in files.items()})


def quota_v1(folder: str, quota: int, period: int = 100_000) -> dict[str, str]:
    return {f"{folder}/cpu.cfs_quota_us": f"{quota}\n", f"{folder}/cpu.cfs_period_us": f"{period}\n"}


def meter(root: Path) -> MemoryMeter:
    plant(root, {"proc/meminfo": "".join(f"{name}: {MACHINE // 1024} kB\n" for name in ("MemTotal", "MemAvailable"))})
    return MemoryMeter(root)


ABOVE = {f"{level}cpu.max": "800000 100000\n" for level in ("", "slice/", "slice/job/")}
ABOVE |= {f"{level}memory.max": f"{8 * GIB}\n" for level in ("", "slice/", "slice/job/")}
OWN_V1, ROOT_V1 = "memory/job/memory.limit_in_bytes", "memory/memory.limit_in_bytes"
LIMITS: dict[str, tuple[str | None, dict[str, str], float | None, int]] = {
    "v2, its own": ("/job", {"job/cpu.max": "150000 100000\n", "job/memory.max": f"{2 * GIB}\n"}, 1.5, 2 * GIB),
    "v2, none": ("/job", {"job/cpu.max": "max 100000\n", "job/memory.max": "max\n"}, None, MACHINE),
    **{
        f"v2, the tightest is that of {tight or 'the root'}": (
            "/slice/job",
            ABOVE | {f"{tight}cpu.max": "300000 100000\n", f"{tight}memory.max": f"{GIB}\n"},
            3.0,
            GIB,
        )
        for tight in ("", "slice/", "slice/job/")
    },
    "v2, a group beside": ("/slice/job", {"slice/other/cpu.max": "100000 100000\n"}, None, MACHINE),
    "v2, not below the mount": (
        "/docker/abc", {"cpu.max": "400000 100000\n", "memory.max": f"{GIB}\n"}, 4.0, GIB
    ),
    "v2, outside the namespace": (
        "/../other", {"cpu.max": "400000 100000\n", "../other/cpu.max": "100000 100000\n"}, 4.0, MACHINE
    ),
    **{
        f"v1, {place}": (None, quota_v1(f"{place}/job", 75_000, 50_000) | {OWN_V1: f"{3 * GIB}\n"}, 1.5, 3 * GIB)
        for place in ("cpu", "cpu,cpuacct")
    },
    "v1, a tighter group above": (
        None,
        quota_v1("cpu,cpuacct/job", -1) | quota_v1("cpu,cpuacct", 200_000) | {OWN_V1: NO_LIMIT_V1, ROOT_V1: f"{GIB}\n"},
        2.0,
        GIB,
    ),
    "v1, minus one and huge": (
        None,
        quota_v1("cpu,cpuacct/job", -1) | {OWN_V1: NO_LIMIT_V1, "memory/job/memory.usage_in_bytes": "1000\n"},
        None,
        MACHINE,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LIMITS)
def test_the_tightest_limit_of_the_own_group_and_those_above_counts(tmp_path: Path, name: str) -> None:
    group, files, quota, memory = LIMITS[name]
    root = v1_tree(tmp_path, files) if group is None else v2_tree(tmp_path, group, files)
    assert (cpu_quota(root), meter(root).total) == (quota, memory)
    assert meter(root).available() == memory  # nothing is used


def test_no_cgroups_do_not_limit(tmp_path: Path) -> None:
    assert (cpu_quota(tmp_path), meter(tmp_path).total, meter(tmp_path).available()) == (None, MACHINE, MACHINE)


def test_hybrid_takes_the_tighter_of_both_hierarchies(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": V1_GROUPS + "0::/job\n",
        "sys/fs/cgroup/unified/job/cpu.max": "200000 100000\n",
        "sys/fs/cgroup/unified/job/memory.max": f"{8 * GIB}\n",
        **quota_v1("sys/fs/cgroup/cpu,cpuacct/job", 400_000),
        "sys/fs/cgroup/memory/job/memory.limit_in_bytes": f"{4 * GIB}\n",
    }
    root = plant(tmp_path, files)
    assert (cpu_quota(root), meter(root).total) == (2.0, 4 * GIB)


def used(group: str, limit: int, current: int, stat: str = "") -> dict[str, str]:
    files = {"memory.max": f"{limit}\n", "memory.current": f"{current}\n", "memory.stat": stat}
    return {f"{group}/{name}": content for name, content in files.items()}


@pytest.mark.parametrize(
    ("files", "free"),
    [
        (used("slice/job", 4 * GIB, 3 * GIB, f"anon {GIB}\ninactive_file {GIB}\nactive_file {GIB}\n"), 3 * GIB),
        (used("slice", 8 * GIB, 7 * GIB) | used("slice/job", 4 * GIB, GIB), GIB),
        (used("slice/job", 1000, 2000), 0),
    ],
    ids=["file cache counts as free", "that of the fullest group", "never negative"],
)
def test_free_memory_is_limit_less_usage(tmp_path: Path, files: dict[str, str], free: int) -> None:
    assert meter(v2_tree(tmp_path, "/slice/job", files)).available() == free


def test_free_memory_of_v1_counts_the_cache_of_groups_below(tmp_path: Path) -> None:
    files = {
        OWN_V1: f"{4 * GIB}\n",
        "memory/job/memory.usage_in_bytes": f"{3 * GIB}\n",
        "memory/job/memory.stat": f"inactive_file 0\ntotal_inactive_file {GIB // 2}\ntotal_active_file {GIB // 2}\n",
    }
    assert meter(v1_tree(tmp_path, files)).available() == 2 * GIB


@pytest.mark.parametrize(
    ("file", "content"),
    [
        *(("cpu.max", text) for text in ("", "100000", "max", "0 100000", "100000 0", "-5 100000", "a b", "1 2 3")),
        *(("memory.max", text) for text in ("", "0", "-1", "many", "1.5", "1e9", "9" * 5000)),
    ],
)
def test_a_damaged_limit_is_none(tmp_path: Path, file: str, content: str) -> None:
    root = v2_tree(tmp_path, "/job", {f"job/{file}": content})
    assert (cpu_quota(root), meter(root).total) == (None, MACHINE)


def test_a_directory_in_place_of_a_file_is_no_limit(tmp_path: Path) -> None:
    root = v2_tree(tmp_path, "/job", {"cpu.max": "200000 100000\n"})
    (root / "sys/fs/cgroup/job/cpu.max").mkdir(parents=True)
    assert cpu_quota(root) == 2.0


DAMAGED = st.one_of(
    st.binary(max_size=200),
    st.text(max_size=100).map(lambda text: text.encode("utf-8", "surrogatepass")),
    st.lists(st.sampled_from([V1_GROUPS, "0::/job\n", "3:cpu:/a\0b\n", " - ", "max 1", ":", "/"]))
    .map("".join)
    .map(str.encode),
)


@settings(max_examples=50)
@given(group=DAMAGED, limit=DAMAGED)
def test_damaged_files_never_raise(group: bytes, limit: bytes) -> None:
    with TemporaryDirectory() as folder:
        root = plant(Path(folder), {"proc/self/none": "", "sys/fs/cgroup/job/none": ""})
        (root / "proc/self/cgroup").write_bytes(group)
        for name in ("cpu.max", "memory.max", "memory.current", "memory.stat", "job/cpu.max"):
            (root / "sys/fs/cgroup" / name).write_bytes(limit)
        assert (cpu_quota(root) or 0.0) >= 0
        assert 0 <= meter(root).available() <= meter(root).total


def test_kills_for_want_of_memory_are_counted_in_the_groups_own_file(tmp_path: Path) -> None:
    events = "low 0\nhigh 0\nmax 4\noom 1\noom_kill 3\noom_group_kill 0\n"
    root = v2_tree(tmp_path, "/slice/job", {"slice/job/memory.events": events, "slice/memory.events": "oom_kill 9\n"})
    plant(root, {"proc/vmstat": "nr_free_pages 7\noom_kill 12\n"})
    assert oom_kills(root) == 3


def test_kills_are_counted_by_v1(tmp_path: Path) -> None:
    files = {"memory/job/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"}
    assert oom_kills(v1_tree(tmp_path, files)) == 2


@pytest.mark.parametrize(("vmstat", "count"), [("nr_free_pages 7\noom_kill 12\n", 12), ("nr_free_pages 7\n", None)])
def test_without_such_a_file_the_machines_count_is_taken(tmp_path: Path, vmstat: str, count: int | None) -> None:
    assert oom_kills(plant(tmp_path, {"proc/vmstat": vmstat})) == count
    assert oom_kills(tmp_path / "nowhere") is None
