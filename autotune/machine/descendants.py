"""Ending all descendants of a process, however distant, and removing their remains.

Loader workers, and processes of the user's code, are found below the process, in its process group, and by a mark in
their environment. Orphans, and processes in a session of their own, still carry the mark.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil

MARK = "AUTOTUNE_MEASURING"
"""Environment variable of a measuring process and all below it: the path of their scratch folder, no other's."""
CLEANERS = ("multiprocessing.resource_tracker", "torch_shm_manager")
"""Parts of the command lines of processes that remove semaphores and segments once their users are gone."""
KILL_LIMIT = 4.0
"""Seconds in which killed processes are gone, unless the kernel holds them."""
CLEANING_LIMIT = 4.0
"""Seconds in which the cleaners end by themselves; torch's looks around every two."""
NOTES = "workers"
"""File of the scratch folder with the numbers of the loader workers that there were."""
FIRST, LATER = "first", "later"
"""Folders of the scratch folder with what a script writes: in its first session, and in the present one."""
SHARED_MEMORY = Path("/dev/shm")


def remove_scratch(mark: str | None) -> None:
    """Remove a scratch folder with its content, and the shared memory of the workers noted in it."""
    if mark is not None:
        remove_segments_of_noted(mark)
        remove_folder(mark)


def remove_folder(path: str | Path) -> None:
    """Remove a folder with its content, also where its owner may not list a folder in it, as one of a layer's own."""
    for folder, names, _ in os.walk(path):
        for below in (os.path.join(folder, name) for name in names):
            if not os.path.islink(below):
                with suppress(OSError):
                    os.chmod(below, 0o700)
    shutil.rmtree(path, ignore_errors=True)


def note_workers(numbers: Iterable[int]) -> None:
    """Note the numbers of loader workers in this process's scratch folder, if it has one."""
    mark = os.environ.get(MARK)
    if mark is not None:
        with suppress(OSError), Path(mark, NOTES).open("a", encoding="ascii") as notes:
            notes.writelines(f"{number}\n" for number in numbers)


def remove_segments_of_noted(mark: str) -> None:
    """Remove the shared memory of workers that have ended: where there was too little for a batch torch leaves it."""
    with suppress(OSError):
        noted = Path(mark, NOTES).read_text(encoding="ascii").split()
        _remove_segments(int(number) for number in noted if _has_ended(int(number)))


def end_descendants(root: int, mark: str | None = None) -> None:
    """Kill every descendant of ``root``, but not ``root`` itself; takes 8 seconds at most.

    With a ``mark`` also those that carry it or are of the group of ``root``, wherever they are. Processes that remove
    semaphores and shared memory when their users are gone are left to do so before they are killed, too.
    """
    ended: set[int] = set()
    limit = time.monotonic() + KILL_LIMIT
    while (victims := [each for each in _living(root, mark) if not is_cleaner(each)]) and time.monotonic() < limit:
        ended |= _kill(victims)
    limit = time.monotonic() + CLEANING_LIMIT
    while (cleaners := list(_living(root, mark))) and time.monotonic() < limit:
        time.sleep(0.02)
    _remove_segments(ended | _kill(cleaners))


def _kill(victims: Iterable[psutil.Process]) -> set[int]:
    numbers = set()
    for victim in victims:
        numbers.add(victim.pid)
        with suppress(psutil.Error):
            victim.kill()
    if numbers:
        time.sleep(0.01)
    return numbers


def _living(root: int, mark: str | None) -> Iterator[psutil.Process]:
    found: dict[int, psutil.Process] = {}
    with suppress(psutil.Error):
        found = {child.pid: child for child in psutil.Process(root).children(recursive=True)}
    if mark is not None:
        found |= {each.pid: each for each in psutil.process_iter() if _belongs(each, root, mark)}
    for number, process in found.items():
        with suppress(psutil.Error):
            if number not in (root, os.getpid()) and process.status() != psutil.STATUS_ZOMBIE:
                yield process


def _belongs(process: psutil.Process, root: int, mark: str) -> bool:
    try:
        is_of_group = hasattr(os, "getpgid") and os.getpgid(process.pid) == root
        return is_of_group or process.environ().get(MARK) == mark
    except (OSError, psutil.Error):  # gone, or another user's
        return False


def is_cleaner(process: psutil.Process) -> bool:
    """Return whether a process removes semaphores or shared memory once their users are gone."""
    try:
        return any(name in part for part in process.cmdline() for name in CLEANERS)
    except psutil.Error:
        return False


def _remove_segments(owners: Iterable[int]) -> None:
    """Remove the shared memory of killed processes that were about to remove its name themselves."""
    for owner in owners:
        for segment in SHARED_MEMORY.glob(f"torch_{owner}_*"):
            with suppress(OSError):
                segment.unlink()


def _has_ended(number: int) -> bool:
    """Return whether a process has ended, though nobody may have waited for it yet."""
    try:
        return bool(psutil.Process(number).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True
