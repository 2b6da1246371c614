"""What a measurement must not be fooled by, each on the real thing where it can be had."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.multiprocessing
from torch import nn
from torch.utils.data import Dataset

from autotune.config import Config
from autotune.machine.host import throttled_seconds
from autotune.measure.benchmark import measure
from autotune.measure.conditions import conditions_between, snapshot
from autotune.measure.device import CpuDevice
from autotune.measure.step_probe import open_step
from autotune.outcome import Outcome
from autotune.records import Conditions, Request
from autotune.runner.local import ProcessRunner
from autotune.workload import Workload, describe
from tests.datasets import Squares
from tests.measure.doing import Doing, spin

QUICK = Request(seconds=0.3, time_limit=60)
ALONE = Config(batch_size=8)
WITH_WORKERS = Config(batch_size=8, num_workers=2, persistent_workers=True)

pytestmark = [pytest.mark.machine, pytest.mark.usefixtures("shared_processes")]


def runner_of(name: str) -> ProcessRunner:
    return ProcessRunner(describe(f"tests.measure.test_claims:{name}"), "cpu")


@pytest.fixture
def busy_neighbours() -> Iterator[None]:
    """One process for each CPU that does nothing but use it, for a minute at most."""
    script = "import time; end = time.monotonic() + 60\nwhile time.monotonic() < end: pass"
    processes = [subprocess.Popen([sys.executable, "-c", script]) for _ in os.sched_getaffinity(0)]
    yield
    for process in processes:
        process.kill()
        process.wait()


def squares() -> Workload:
    return Workload(nn.Linear(1, 1), Squares(100_000))


def test_a_measurement_beside_busy_neighbours_is_suspect(request: pytest.FixtureRequest) -> None:
    with runner_of("squares") as runner:
        assert runner.measure(ALONE, QUICK).measurement is not None
        request.getfixturevalue("busy_neighbours")
        attempt = runner.measure(ALONE, Request(seconds=1.0))
    assert attempt.outcome is Outcome.SUSPECT
    assert "other processes used" in attempt.message
    assert attempt.measurement is not None
    assert attempt.measurement.conditions.is_crowded


def labour(index: int) -> None:
    spin(0.002)


@pytest.mark.parametrize("keeps", [False, True])
def test_loader_workers_are_no_neighbours_even_if_they_have_ended(keeps: bool) -> None:
    workload, device = Workload(nn.Linear(1, 1), Doing(labour, 64)), CpuDevice()
    config = Config(batch_size=8, num_workers=1, persistent_workers=keeps)
    found = measure(workload, config, open_step(workload, config, device), device, Request(seconds=0.6))
    assert found.restart_seconds is not None
    assert found.conditions.own_cpus > 0.15  # beside busy neighbours too; training itself takes a tenth of that


class Blocks(Dataset[torch.Tensor]):
    """Reads a block of a file for each sample, which the page cache may have forgotten before."""

    def __init__(self, path: Path, *, forgets: bool) -> None:
        self._path = path
        self._forgets = forgets

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.ones(1) * len(read_block(self._path, index % 16, forgets=self._forgets))


def read_block(path: Path, number: int, *, forgets: bool) -> bytes:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        if forgets:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        return os.pread(descriptor, 2**18, number * 2**18)
    finally:
        os.close(descriptor)


@pytest.fixture
def blocks(tmp_path: Path) -> Path:
    path = tmp_path / "blocks"
    with path.open("wb") as file:
        file.write(os.urandom(2**22))
        file.flush()
        os.fsync(file.fileno())
    before = snapshot().read[os.getpid()][1]
    read_block(path, 0, forgets=True)
    if snapshot().read[os.getpid()][1] == before:
        pytest.skip("this file system reads from memory")
    return path


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="the page cache cannot be told to forget")
@pytest.mark.parametrize("num_workers", [0, 2])
def test_what_comes_from_storage_is_told_from_what_the_page_cache_had(blocks: Path, num_workers: int) -> None:
    def storage_share(*, forgets: bool) -> float | None:
        workload = Workload(nn.Linear(1, 1), Blocks(blocks, forgets=forgets))
        config, device = Config(batch_size=4, num_workers=num_workers), CpuDevice()
        warm = open_step(workload, config, device)
        return measure(workload, config, warm, device, Request(seconds=0.2)).conditions.storage_share

    warm, cold = storage_share(forgets=False), storage_share(forgets=True)
    assert None not in (warm, cold)
    assert warm < 0.2 < 0.8 < cold  # type: ignore[operator]


@pytest.mark.parametrize(
    ("group", "folder", "before", "after"),
    [
        ("0::/job\n", "job", "throttled_usec 1000000", "throttled_usec 1500000"),
        ("3:cpu:/job\n", "cpu/job", "throttled_time 1000000000", "throttled_time 1500000000"),
    ],
    ids=["v2", "v1"],
)
def test_throttling_by_the_quota_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: str, folder: str, before: str, after: str
) -> None:
    monkeypatch.setattr("autotune.measure.conditions.throttled_seconds", lambda: throttled_seconds(tmp_path))

    def conditions_after(seconds: float) -> Conditions:
        statistics.write_text(f"nr_periods 10\n{before}\n")
        begin = snapshot()
        statistics.write_text(f"nr_periods 30\n{after}\n")
        return conditions_between(begin, replace(snapshot(), clock=begin.clock + seconds))

    statistics = tmp_path / "sys/fs/cgroup" / folder / "cpu.stat"
    statistics.parent.mkdir(parents=True)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(group)
    assert conditions_after(2.0).throttled_share == pytest.approx(0.25)


def squares_without_fork() -> Workload:
    torch.multiprocessing.set_start_method("forkserver", force=True)
    return squares()


def test_workers_that_are_not_forked_are_counted_alike() -> None:
    with runner_of("squares_without_fork") as runner:
        found = runner.measure(WITH_WORKERS, QUICK).measurement
    assert found is not None
    assert found.first_batch_seconds > 0.2  # each worker imports torch
    assert 0 < found.ready_batches <= 4
    assert found.conditions.own_cpus > 0.15
    assert found.worker_growth_bytes_per_sample is not None


class Products(Squares):
    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        matrix = torch.ones(300, 300)
        return (matrix @ matrix)[0, :1], torch.ones(1)


def threads_before_fork() -> Workload:
    """The pool of torch has computed, and a thread of the user's runs, before a worker is forked."""
    assert float((torch.ones(1000, 1000) @ torch.ones(1000, 1)).sum()) == 1e6
    threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()
    return Workload(nn.Linear(1, 1), Products(100_000))


def test_workers_that_compute_do_not_hang_on_threads_that_ran_before_they_were_forked() -> None:
    with runner_of("threads_before_fork") as runner:
        attempt = runner.measure(replace(WITH_WORKERS, intra_op_threads=2), QUICK)
    assert attempt.outcome in (Outcome.OK, Outcome.SUSPECT), attempt.message
    assert attempt.measurement is not None
