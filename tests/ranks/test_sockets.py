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
from autotune.host import inspect_host
from autotune.measure import rank_launch as ranks
from autotune.records import Request
from autotune.runner.local import ProcessRunner
from autotune.workload import describe

pytestmark = pytest.mark.machine

INTERVAL = 0.05
"""Seconds between two looks at the sockets of all processes."""
TWO = Config(batch_size=8, ranks=2)


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
        while not is_over.wait(INTERVAL):
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
    addresses = [
        each.address for own in psutil.net_if_addrs().values() for each in own if each.family == socket.AF_INET
    ]
    return [address for address in addresses if not ip_address(address).is_loopback]


def accepts(address: str, port: int) -> bool:
    with socket.socket() as caller:
        caller.settimeout(1.0)
        return caller.connect_ex((address, port)) == 0


@pytest.mark.parametrize("interface", [None, "eth0"])
def test_ranks_listen_on_the_loopback_interface_alone(interface: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if interface is not None:  # what a cluster's users have in their profile
        monkeypatch.setenv("GLOO_SOCKET_IFNAME", interface)
    with watched() as found, ProcessRunner(describe("tests.ranks.workloads:small"), "cpu") as runner:
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


def test_more_ranks_than_cpus_are_refused_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autotune.runner.local.MeasuringProcess", None)
    cpus = inspect_host().cpus
    with ProcessRunner(describe("tests.ranks.workloads:small"), "cpu") as runner:
        for count in (cpus + 1, 1_000_000):
            with pytest.raises(
                UsageError, match=f"--ranks {count}: this host has {cpus} CPUs; pass --ranks {cpus}, or"
            ):
                runner.inspect(Config(batch_size=8, ranks=count))


def test_more_ranks_than_cpus_may_be_asked_for() -> None:
    ranks = inspect_host().cpus + 1
    with ProcessRunner(describe("tests.ranks.workloads:small"), "cpu", oversubscribe_ranks=True) as runner:
        runner.inspect(Config(batch_size=4, ranks=ranks))
        attempt = runner.measure(Config(batch_size=4, ranks=ranks), Request(seconds=0.3, time_limit=60))
    assert attempt.measurement is not None
    assert len(attempt.measurement.ranks) == ranks
