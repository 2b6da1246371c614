from __future__ import annotations

import os
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace

import psutil
import pytest

from autotune.runner.card import PATIENCE, SLACK, Cards, holders


def test_the_processes_that_hold_most_are_named_and_nobody_without_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for NVML's library, which tells nothing without a GPU."""
    gone = 2**22 + 1  # above the largest number of a process
    held: dict[int, list[tuple[int, int | None]]] = {
        0: [(os.getpid(), 70 * 2**30), (gone, 2**30)],
        1: [(gone, None), (1, 2**29)],
        2: [(1, 2**36)],  # of a card on which there is room
    }
    module = ModuleType("pynvml")
    vars(module).update(
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: len(held),
        nvmlDeviceGetHandleByIndex=lambda number: number,
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(total=100, free=50 if handle == 2 else 3),
        nvmlDeviceGetComputeRunningProcesses=lambda handle: [
            SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in held[handle]
        ],
    )
    monkeypatch.setitem(sys.modules, "pynvml", module)
    name = psutil.Process().name()
    assert holders() == (
        f"process {os.getpid()} ({name}) holds 70.0 GiB of GPU 0, process {gone} holds 1.0 GiB of GPU 0, "
        f"process 1 ({psutil.Process(1).name()}) holds 0.5 GiB of GPU 1"
    )
    held.update({0: [(gone, None)], 1: []})
    assert holders() == f"process {gone} holds memory of GPU 0"
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert holders() == ""


class Card:
    def __init__(self, used: Callable[[float], int | None]) -> None:
        self.used, self.time = used, 0.0

    def used_bytes(self) -> int | None:
        return self.used(self.time)

    def sleep(self, seconds: float) -> None:
        self.time += seconds


GIB = 2**30


@pytest.mark.parametrize(
    ("used", "waited"),
    [
        (lambda time: 0 if time == 0 or time > 3 else 70 * GIB, 3),
        (lambda time: 0 if time == 0 else 70 * GIB, PATIENCE),
        (lambda time: 0 if time == 0 else SLACK, 0),
        (lambda time: None, 0),
    ],
    ids=["comes back", "stays away", "next to nothing", "not told"],
)
def test_the_memory_of_a_killed_session_is_waited_for(used: Callable[[float], int | None], waited: float) -> None:
    card = Card(used)
    cards = Cards([card], lambda: card.time, card.sleep)
    cards.prepare()
    card.sleep(0.5)  # the session fills the card, and ends in order
    cards.prepare()
    assert card.time == 0.5

    card.time = 0.0
    cards.prepare()
    card.sleep(0.5)
    cards.was_killed = True
    cards.prepare()
    assert card.time - 0.5 == pytest.approx(max(0.0, waited if waited == PATIENCE else waited - 0.5), abs=0.2)
    before = card.time
    cards.prepare()  # what has not come back by then is another's
    assert card.time == before


def test_without_a_card_nothing_is_waited_for() -> None:
    cards = Cards()
    cards.was_killed = True
    cards.prepare()
    assert not cards.was_killed
