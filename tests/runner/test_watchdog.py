"""The watchdog over fake /proc and /sys trees, with the memory of real processes."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import psutil
import pytest

from autotune.measure.process_memory import held_bytes
from autotune.outcome import Outcome
from autotune.runner.watchdog import INTERVAL, LARGEST_RESERVE, LOST_BATCH_LIMIT, RESERVE_SHARE, LostBatch, Watchdog

MIB, GIB = 2**20, 2**30


def leave(root: Path, available: int, total: int = 16 * GIB) -> Path:
    path = root / "proc/meminfo"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"MemTotal: {total // 1024} kB\nMemAvailable: {available // 1024} kB\n")
    return root


def watchdog(root: Path, processes: int = 1) -> Watchdog:
    times = itertools.count(100.0, INTERVAL)  # every question comes in time for a look
    return Watchdog(lambda: [psutil.Process(os.getpid())] * processes, root, lambda: next(times))


def ended(watching: Watchdog, outcome: Outcome) -> str:
    """What it says when it ends a trial with this outcome."""
    found = watching.reason_to_end()
    assert found is not None
    assert found[0] is outcome
    return found[1]


@pytest.mark.parametrize("total", [GIB, 2 * GIB, 4 * GIB, 16 * GIB, 1024 * GIB])
def test_a_machine_with_a_tenth_of_its_memory_available_is_left_alone(tmp_path: Path, total: int) -> None:
    root = leave(tmp_path, total // 2, total)
    watching = watchdog(root)
    leave(tmp_path, total // 10, total)
    assert watching.reason_to_end() is None


@pytest.mark.parametrize("total", [GIB, 16 * GIB, 1024 * GIB])
def test_it_ends_before_the_reserve_is_used_up(tmp_path: Path, total: int) -> None:
    reserve = int(min(RESERVE_SHARE * total, LARGEST_RESERVE))
    watching = watchdog(leave(tmp_path, 2 * reserve + MIB, total), processes=40)
    leave(tmp_path, reserve + MIB, total)
    assert watching.reason_to_end() is None
    leave(tmp_path, reserve - MIB, total)
    ended(watching, Outcome.HOST_OOM)


def test_where_the_machine_was_nearly_full_before_half_of_what_there_was_may_be_taken(tmp_path: Path) -> None:
    watching = watchdog(leave(tmp_path, 200 * MIB), processes=40)
    leave(tmp_path, 110 * MIB)
    assert watching.reason_to_end() is None
    leave(tmp_path, 90 * MIB)
    assert watching.reason_to_end() is not None


def test_the_message_has_the_numbers_and_what_others_have_taken_is_not_its_fault(tmp_path: Path) -> None:
    watching, small = watchdog(leave(tmp_path, GIB), processes=40), watchdog(leave(tmp_path, 8 * GIB))
    leave(tmp_path, 100 * MIB)
    expected = "stopped before memory ran out: 100 MiB of 16.0 GiB were left, 1.0 GiB at its start; it had taken "
    assert ended(watching, Outcome.HOST_OOM).startswith(expected)
    assert ended(small, Outcome.SUSPECT).endswith(", other programs the rest")


def test_a_trial_that_has_taken_more_than_others_is_out_of_memory(tmp_path: Path) -> None:
    own = held_bytes()
    watching = watchdog(leave(tmp_path, 100 * MIB + int(1.5 * own)))
    leave(tmp_path, 100 * MIB)
    ended(watching, Outcome.HOST_OOM)


def test_a_cgroups_limit_counts_as_the_machines_memory(tmp_path: Path) -> None:
    root = leave(tmp_path, 8 * GIB)
    (group := root / "sys/fs/cgroup/memory").mkdir(parents=True)
    (group / "memory.limit_in_bytes").write_text(f"{2 * GIB}\n")
    (group / "memory.usage_in_bytes").write_text(f"{GIB}\n")
    watching = watchdog(root, processes=40)
    assert watching.reason_to_end() is None
    (group / "memory.usage_in_bytes").write_text(f"{2 * GIB - MIB}\n")
    assert "1 MiB of 2.0 GiB were left, 1.0 GiB at its start" in (watching.reason_to_end() or ("", ""))[1]


def test_where_the_kernel_has_killed_its_answer_is_awaited(tmp_path: Path) -> None:
    watching = watchdog(leave(tmp_path, 8 * GIB), processes=40)
    leave(tmp_path, 100 * MIB)
    (tmp_path / "proc/vmstat").write_text("oom_kill 1\n")
    assert watching.reason_to_end() is None
    assert any(watching.reason_to_end() for _ in range(10))  # it was not enough


def test_it_looks_twice_a_second_at_most(tmp_path: Path) -> None:
    now = 100.0
    watching = Watchdog(list, leave(tmp_path, 8 * GIB), lambda: now)
    assert watching.reason_to_end() is None
    leave(tmp_path, MIB)
    now += 0.9 * INTERVAL
    assert watching.reason_to_end() is None
    now += 0.2 * INTERVAL
    assert watching.reason_to_end() is not None


def test_it_looks_whenever_asked_where_little_is_left(tmp_path: Path) -> None:
    watching = Watchdog(list, leave(tmp_path, 8 * GIB), lambda: 100.0)
    leave(tmp_path, GIB)
    assert watching.reason_to_end() is None
    leave(tmp_path, MIB)
    assert watching.reason_to_end() is not None


def test_a_lost_batch_is_final_when_nothing_follows_for_a_while() -> None:
    now, output = 100.0, ""
    lost = LostBatch(lambda: output, lambda: now)
    now += 60
    assert not lost.is_final()
    output = "RuntimeError: unable to allocate shared memory(shm) for file </torch_1_2_3>: No space left on device (28)"
    now += INTERVAL
    assert not lost.is_final()
    now += LOST_BATCH_LIMIT
    assert not lost.is_final()
    now += INTERVAL
    assert lost.is_final()
