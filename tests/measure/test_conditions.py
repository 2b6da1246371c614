from __future__ import annotations

import mmap
import os
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from torch import nn

from autotune.config import Config
from autotune.machine.nvml import POWER_BRAKE, GpuReading
from autotune.measure.benchmark import machine_notes
from autotune.measure.conditions import Snapshot, conditions_between, snapshot
from autotune.measure.loader import open_stream
from autotune.workload import Workload
from tests import examples
from tests.datasets import Squares

LOST = {"throttled": 0.0, "heat": None}
START = Snapshot(clock=10.0, own=1.0, busy=5.0, lost=LOST, read={7: (1000, 0)}, threads={})


@pytest.fixture(autouse=True)
def two_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autotune.measure.conditions.affinity_cpus", lambda: {0, 1})


def after(seconds: float, **changes: object) -> Snapshot:
    return replace(START, clock=START.clock + seconds, **changes)  # type: ignore[arg-type]


def test_what_others_use_is_what_is_busy_beyond_our_own() -> None:
    conditions = conditions_between(START, after(2.0, own=3.0, busy=8.0))
    assert (conditions.own_cpus, conditions.foreign_cpus) == (1.0, 0.5)


@pytest.mark.parametrize(
    ("own", "foreign", "is_crowded"),
    [(1.9, 0.05, False), (1.0, 0.9, True), (0.1, 0.9, False), (2.0, 0.0, False), (1.5, 0.3, True)],
)
def test_others_disturb_only_where_they_take_what_we_could_use(own: float, foreign: float, is_crowded: bool) -> None:
    conditions = conditions_between(START, after(1.0, own=START.own + own, busy=START.busy + own + foreign))
    assert (conditions.is_crowded, bool(conditions.disturbances)) == (is_crowded, is_crowded)


def test_what_the_system_does_not_count_is_none() -> None:
    before = replace(START, lost=dict.fromkeys(LOST), read={})
    found = conditions_between(before, after(1.0, lost={**LOST, "throttled": 1.0}))
    assert (found.throttled_share, found.storage_share, found.gpu_utilisation) == (None,) * 3


@pytest.mark.parametrize(
    ("stored", "share", "is_noted"),
    [
        *((None, None, False), (0, 0.0, False), (40, 0.04, False), (100, 0.1, True), (500, 0.5, True)),
        *((890, 0.89, True), (1000, 1.0, True), (1900, 1.0, True)),
        *((2100, None, False), (4000, None, False)),  # files in memory, whose pages no call reads
    ],
)
def test_the_storage_share_is_what_did_not_come_from_the_page_cache_and_is_noted(
    stored: int | None, share: float | None, is_noted: bool
) -> None:
    of_many = {} if stored is None else {7: (1000 + 1000 * 2**12, stored * 2**12), 9: (50, 50)}
    found = conditions_between(START, after(1.0, read=of_many))
    assert found.storage_share == share
    assert any("came from storage" in note for note in machine_notes(found)) == is_noted


def test_where_next_to_nothing_was_read_it_does_not_matter_where_from() -> None:
    assert conditions_between(START, after(1.0, read={7: (2000, 900)})).storage_share is None


@pytest.mark.skipif(sys.platform != "linux", reason="bytes are not counted by process here")
def test_a_mapped_file_that_is_mostly_in_memory_is_not_said_to_come_from_storage(tmp_path: Path) -> None:
    path, size, cold = tmp_path / "mapped.bin", 16 * 2**20, 4 * 2**20
    path.write_bytes(os.urandom(size))
    with path.open("rb") as file, mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as mapped:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, cold, os.POSIX_FADV_DONTNEED)
        before = snapshot()
        assert sum(mapped[place] for place in range(0, size, 4096)) > 0
        found = conditions_between(before, snapshot())
    assert found.storage_share is None


@pytest.mark.parametrize(
    ("used", "threads"),
    [
        ({1: 0.9}, 1),
        ({1: 0.9, 2: 0.8}, 2),
        ({1: 0.92, 2: 0.26}, 2),  # a library's thread that has a part of the work
        ({1: 0.9, **dict.fromkeys(range(2, 9), 0.08)}, 8),  # several that have small ones
        ({1: 0.9, 2: 0.06}, 1),  # it only passes on what the other built
        ({1: 0.9, 2: 0.06, 3: 0.06, 4: 0.04, 5: 0.04}, 1),
        ({1: 0.04, 2: 0.04, 3: 0.04}, 0),  # nobody computes
        ({1: 0.5, 2: 0.5, 3: 0.5, 4: 0.0}, 3),
    ],
)
def test_a_worker_computes_in_the_threads_that_are_busy(used: dict[int, float], threads: int) -> None:
    before = replace(START, threads={7: {1: 5.0}})
    later = after(1.0, threads={7: {**used, 1: 5.0 + used[1]}, 8: {9: 9.0}})
    assert conditions_between(before, later).worker_threads == threads


def test_a_gpu_that_is_hot_makes_the_measurement_suspect() -> None:
    slowdowns = ("hardware thermal slowdown",)
    reading = GpuReading(utilisation=0.9, foreign_bytes=7, slowdowns=slowdowns)
    found = conditions_between(START, after(1.0), reading)
    assert (found.gpu_utilisation, found.gpu_foreign_bytes) == (0.9, 7)
    assert found.disturbances == ("the GPU ran slower than it can: hardware thermal slowdown",)


@pytest.mark.parametrize(
    ("heat", "last", "slowdowns"),
    [
        (2.0, (), ("thermal slowdown",)),
        (0.03, ("hardware slowdown", "software thermal slowdown"), ()),  # of the last moment alone, idle already
        (0.0, ("hardware slowdown", POWER_BRAKE), (POWER_BRAKE,)),
        (None, ("software thermal slowdown",), ("software thermal slowdown",)),
    ],
)
def test_heat_counts_by_the_time_for_which_it_kept_the_clocks_down(
    heat: float | None, last: tuple[str, ...], slowdowns: tuple[str, ...]
) -> None:
    before = replace(START, lost={"heat": 7.0})
    reading = GpuReading(utilisation=None, foreign_bytes=None, slowdowns=last)
    later = after(4.0, lost={"heat": None if heat is None else 7.0 + heat})
    assert conditions_between(before, later, reading).gpu_slowdowns == slowdowns


def test_heat_is_seen_without_a_reading_of_the_last_moment() -> None:
    later = after(1.0, lost={"heat": 7.5})
    assert conditions_between(replace(START, lost={"heat": 7.0}), later).gpu_slowdowns
    assert not conditions_between(START, later).gpu_slowdowns


@pytest.mark.parametrize(
    ("foreign", "share", "words"),
    [
        ({123: 0.4}, 0.4, ("another process computed on the GPU for 40 % of the time (pid 123)",)),
        ({9: 0.3, 8: 0.9}, 1.0, ("other processes computed on the GPU for 100 % of the time (pid 8, 9)",)),
        ({123: 0.05}, 0.05, ()),
        ({}, 0.0, ()),
        (None, None, ()),
    ],
)
def test_others_that_compute_on_the_gpu_disturb(
    foreign: dict[int, float] | None, share: float | None, words: tuple[str, ...]
) -> None:
    later = after(1.0, foreign=foreign)
    found = conditions_between(replace(START, foreign={5: 0.7}), later)
    assert (found.gpu_foreign_share, found.disturbances) == (share, words)
    assert conditions_between(START, later).gpu_foreign_share is None  # it tells of another time


@pytest.mark.parametrize(
    ("crowded", "foreign", "taken"),
    [(False, None, 0.0), (True, None, 0.5), (True, 0.3, 0.5), (True, 0.7, 0.7), (False, 0.3, 0.3), (False, 0.1, 0.0)],
)
def test_what_others_take_is_the_larger_share_of_cpus_and_gpu_where_it_matters(
    crowded: bool, foreign: float | None, taken: float
) -> None:
    found = examples.conditions(is_crowded=crowded, foreign_cpus=1.0, cpus=2, gpu_foreign_share=foreign)
    assert found.taken_share == taken


@pytest.mark.skipif(sys.platform != "linux", reason="threads have no names here")
def test_threads_that_send_batches_are_none_that_compute() -> None:
    stream = open_stream(Workload(nn.Linear(1, 1), Squares(64)), Config(batch_size=8, num_workers=1))
    try:
        for _ in range(8):
            next(stream)
        (worker,) = stream.workers
        assert list(snapshot().threads[worker]) == [worker]
        assert psutil.Process(worker).num_threads() > 1
    finally:
        stream.close()
