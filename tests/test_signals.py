from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import psutil
import pytest

from autotune.signals import interruptible, shielded


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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_shield_holds_a_signal_off_to_its_end(number: int) -> None:
    done: list[str] = []
    with interruptible():
        with pytest.raises(KeyboardInterrupt):
            shield_against(number, done, times=1)
        done.append("after")
    assert done == ["sent", "after"]


def test_outside_the_main_thread_nothing_is_changed() -> None:
    before = signal.getsignal(signal.SIGINT)
    seen = []

    def look() -> None:
        with interruptible(), shielded():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [before]


def test_a_second_signal_passes_the_shield() -> None:
    done: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        shield_against(signal.SIGINT, done, times=2)
    assert done == ["sent"]


STUBBORN = textwrap.dedent(
    """
    import subprocess, time
    from autotune.signals import END_AT_ONCE, interruptible

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
        assert process.stdout is not None
        child = int(process.stdout.readline())
        for _ in range(2):
            assert process.stdout.readline() == b"ready\n"
            process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) == 130
    end = time.monotonic() + 10.0
    while is_running(child) and time.monotonic() < end:
        time.sleep(0.05)
    assert not is_running(child)


def is_running(number: int) -> bool:
    try:
        return bool(psutil.Process(number).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
