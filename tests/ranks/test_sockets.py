"""Ranks of one host are nobody else's business: nothing of them listens beyond the loopback interface."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from ipaddress import ip_address

import psutil
import pytest

from autotune.config import Config
from autotune.errors import UsageError
from autotune.machine.host import inspect_host
from autotune.measure import rank_launch as ranks
from autotune.records import Request
from autotune.runner.local import ProcessRunner
from autotune.workload import describe

pytestmark = pytest.mark.machine

TWO = Config(batch_size=8, ranks=2)
SMALL = describe("tests.ranks.workloads:small")
CPUS = inspect_host().cpus


def listening() -> set[tuple[str, int]]:
    """The addresses at which anything below this process listens."""
    found = set()
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            sockets = process.net_connections(kind="inet")
            found |= {tuple(each.laddr) for each in sockets if each.status == psutil.CONN_LISTEN}
    return found


@contextmanager
def watched() -> Iterator[set[tuple[str, int]]]:
    found: set[tuple[str, int]] = set()
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.wait(0.05):
            found.update(listening())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield found
    finally:
        is_over.set()
        watcher.join()


def own_addresses() -> list[str]:
    """The addresses of this machine that others may know."""
    known = [each for addresses in psutil.net_if_addrs().values() for each in addresses]
    return [
        each.address for each in known if each.family == socket.AF_INET and not ip_address(each.address).is_loopback
    ]


def accepts(address: str, port: int) -> bool:
    with socket.socket() as caller:
        caller.settimeout(1.0)
        return caller.connect_ex((address, port)) == 0


def test_ranks_listen_on_the_loopback_interface_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth0")  # what a cluster's users have in their profile
    with watched() as found, ProcessRunner(SMALL, "cpu") as runner:
        runner.inspect(TWO)
        attempt = runner.measure(TWO, Request(seconds=0.5, time_limit=60))
        reached = [port for _, port in listening() for own in own_addresses() if accepts(own, port)]
    assert attempt.found, attempt
    assert found, "gloo listens for the other rank: it should have been seen"
    assert all(ip_address(address).is_loopback for address, _ in found), found
    assert reached == []


def test_the_process_that_forks_ranks_looks_at_no_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where NVML does not answer such a look initialises CUDA, and no fork can use it after that."""
    import torch

    job = os.getpid()

    def looks(*_: object) -> bool:
        assert os.getpid() != job, "the ranks could not use a GPU any more"
        return False

    for name in ("is_available", "device_count", "current_device", "init"):
        monkeypatch.setattr(torch.cuda, name, looks)
    assert ranks.run_ranks(2, lambda group: None) is None


@pytest.mark.parametrize("count", [CPUS + 1, 1_000_000])
def test_more_ranks_than_cpus_are_refused_before_anything_starts(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autotune.runner.local.MeasuringProcess", None)
    says = f"--ranks {count}: this host has {CPUS} CPUs; pass --ranks {CPUS}, or"
    with ProcessRunner(SMALL, "cpu") as runner, pytest.raises(UsageError, match=says):
        runner.inspect(Config(batch_size=8, ranks=count))
