"""Measures a workload of ``tests.broken`` in a process of its own, and says what became of it and what is left.

``python -m tests.leaving NAME BATCH_SIZE WORKERS LIMIT [COUNT]`` says a line for each number of workers, which commas
part. With a count, it kills itself as soon as so many processes run below it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time

import psutil

from autotune.config import Config
from autotune.records import Request
from autotune.runner.local import ProcessRunner
from autotune.workload import describe


def main(name: str, batch_size: str, workers: str, limit: str, count: str = "0") -> None:
    if int(count):
        threading.Thread(target=kill_itself_at, args=(int(count),), daemon=True).start()
    request = Request(seconds=1.0, time_limit=float(limit))
    configs = [
        Config(batch_size=int(batch_size), num_workers=int(each), intra_op_threads=2) for each in workers.split(",")
    ]
    with ProcessRunner(describe(f"tests.broken:{name}"), "cpu") as runner:
        attempts = [runner.measure(config, request) for config in configs]
    left = sorted(os.listdir("/dev/shm"))
    for attempt in attempts:
        sys.stdout.write(json.dumps([attempt.outcome, attempt.message, attempt.details, attempt.seconds, left]) + "\n")


def kill_itself_at(count: int) -> None:
    while len(psutil.Process().children(recursive=True)) < count:
        time.sleep(0.1)
    time.sleep(1.0)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:])
