from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from autotune.machine.signals import interruptible, shielded
from tests.processes import are_gone


def send(number: int = signal.SIGINT) -> None:
    os.kill(os.getpid(), number)
    time.sleep(0)  # a handler runs between two instructions of the main thread


def shield_against(number: int, done: list[str], times: int) -> None:
    with shielded(), shielded():
        for _ in range(times):
            send(number)
            done.append("sent")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_each_signal_is_an_interrupt_and_the_handlers_come_back(number: int) -> None:
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt), interruptible():
        send(number)
    assert signal.getsignal(number) is before


def test_what_is_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        with interruptible():
            send(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_outside_the_main_thread_nothing_is_changed() -> None:
    before = signal.getsignal(signal.SIGINT)

    def look() -> object:
        with interruptible(), shielded():
            return signal.getsignal(signal.SIGINT)

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(look).result() is before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_shield_holds_a_signal_off_to_its_end(number: int) -> None:
    done: list[str] = []
    with interruptible():
        with pytest.raises(KeyboardInterrupt):
            shield_against(number, done, times=1)
        done.append("after")
    assert done == ["sent", "after"]


def test_a_second_signal_passes_the_shield() -> None:
    done: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        shield_against(signal.SIGINT, done, times=2)
    assert done == ["sent"]


STUBBORN = textwrap.dedent(
    """
    import subprocess, time
    from autotune.machine.signals import END_AT_ONCE, interruptible

    child = subprocess.Popen(["sleep", "600"], stdout=subprocess.DEVNULL)
    END_AT_ONCE.add(child.kill)
    print(child.pid, flush=True)
    with interruptible():
        while True:
            try:
                print("ready", flush=True)
                time.sleep(600)
            except KeyboardInterrupt:
                pass
    """
)


def test_the_second_signal_ends_even_what_does_not_want_to_end() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE, env=environment) as process:
        child = int(process.stdout.readline())
        for _ in range(2):
            assert process.stdout.readline() == b"ready\n"
            process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) == 130
    assert are_gone(lambda: [each for each in psutil.process_iter() if each.pid == child and is_alive(each)])


def is_alive(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    return False
