"""A clock that no neighbour disturbs: time that a process sleeps by its own word, and time that its CPUs work for it.

Python imports this module as it starts where its folder is on ``PYTHONPATH``. Code below ``KNOWN_TIME`` does not wait
for its sleeps; all other code does. Waiting for other processes takes no time by this clock: measure without workers.
"""

import os
import sys
import time
from functools import partial

PLACE = os.environ["KNOWN_TIME"]
wait, cpu = time.sleep, time.process_time
passed = 0.0
"""Seconds slept, and CPU seconds of the processes that this one was forked from."""


def sleep(seconds: float) -> None:
    global passed
    passed += seconds
    if not os.path.abspath(sys._getframe(1).f_code.co_filename).startswith(PLACE):
        wait(seconds)


def perf_counter() -> float:
    return passed + cpu()


def inherit(seconds: list[float]) -> None:
    global passed
    passed += seconds[0]


forked = [0.0]
os.register_at_fork(before=lambda: forked.__setitem__(0, cpu()), after_in_child=partial(inherit, forked))
time.sleep, time.perf_counter = sleep, perf_counter
