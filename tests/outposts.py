"""Outposts on the hosts of a Ray cluster, told what to do one after the other; says what became of it, as JSON.

python -m tests.outposts tests.workloads:telling_threads
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import psutil
from ray._private import state

from autotune.budget import Clock
from autotune.cluster import Cluster
from autotune.config import Config
from autotune.records import Attempt, Request
from autotune.remote import RemoteHost
from autotune.workload import describe

CONFIG = Config(batch_size=8)
LONG = Request(seconds=60.0, target=1e-9, time_limit=200.0)


def main(workload: str) -> None:
    with Cluster(describe(workload), "cpu", CONFIG, Clock(300.0), lambda message: None) as cluster:
        hosts = cluster.gather()
        first, *_ = hosts
        found: dict[str, Any] = {"names": [host.described.name for host in hosts], "notes": cluster.notes}
        found["loss"] = [measured(host).measurement.loss for host in hosts]  # type: ignore[union-attr]
        found["priorities"] = priorities(first)
        found["jobs"] = [job["Entrypoint"] for job in state.jobs()]
        found["killed"] = outcome(in_the_middle(first, lambda: os.kill(outpost_of(first), signal.SIGKILL)))
        found["without"] = outcome(measured(first))
        found["reopened"] = first.reopen()
        found["again"] = outcome(measured(first))
        found["cancelled"] = outcome(in_the_middle(first, first.cancel))
        found["after"] = outcome(measured(first))
        first.actor.measure.remote(CONFIG, LONG)  # what runs when all is given back
        wait_for(lambda: sessions_below(outpost_of(first)))
        last = [*psutil.Process(outpost_of(first)).children(recursive=True), psutil.Process(outpost_of(first))]
        begin = time.monotonic()
    cluster.close()
    found["closing"] = time.monotonic() - begin
    found["left"] = [process.pid for process in psutil.wait_procs(last, timeout=20)[1]]
    found["is_started"] = begun_after_the_end(cluster, first)
    sys.stdout.write(json.dumps(found) + "\n")


def priorities(host: RemoteHost) -> list[int]:
    """By how much less than Ray's own process each measuring process is scheduled."""
    outpost = psutil.Process(outpost_of(host))
    return [session.nice() - outpost.parent().nice() for session in outpost.children(recursive=True)]


def measured(host: RemoteHost) -> Attempt:
    return host.measure(CONFIG, Request(seconds=0.3, time_limit=60.0))


def outcome(attempt: Attempt) -> list[str]:
    return [attempt.outcome, attempt.message]


def in_the_middle(host: RemoteHost, what: Callable[[], object]) -> Attempt:
    """Measure for long, and do something once the session runs."""
    process = outpost_of(host)

    def do() -> None:
        wait_for(lambda: sessions_below(process))
        time.sleep(0.5)
        what()

    thread = threading.Thread(target=do)
    thread.start()
    attempt = host.measure(CONFIG, LONG)
    thread.join()
    return attempt


def outpost_of(host: RemoteHost) -> int:
    """The process of an outpost, which is on this machine."""
    return int(host.cluster.ray.get(host.actor.process.remote()))


def sessions_below(process: int) -> list[psutil.Process]:
    return psutil.Process(process).children(recursive=True)[1:]


def wait_for(claim: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not claim():
        assert time.monotonic() < end
        time.sleep(0.05)


def begun_after_the_end(cluster: Cluster, host: RemoteHost) -> bool:
    cluster.start(host)
    return host.actor is not None


if __name__ == "__main__":
    main(sys.argv[1])
