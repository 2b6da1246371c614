"""Failed measurements by their exception: outcome, one line, and the user's part of the traceback."""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Iterator
from contextlib import suppress

import torch

from autotune.errors import AutotuneError
from autotune.machine.postmortem import find_sign
from autotune.outcome import Outcome
from autotune.source_location import is_ours

NEARLY_FULL = 0.05
"""Share of the device's memory; with less free, a library's vague error is for want of it."""
_MENDING = (
    "define its classes and functions at the top level of a module and open files, locks and connections in the worker "
    "(at the first item), or run without workers"
)


def classify(error: BaseException, oom_kills: int = 0) -> tuple[Outcome, str, str]:
    """Return outcome, one line and the user's traceback for an exception of a measurement.

    ``oom_kills`` is how many processes the kernel has killed for want of memory since the measurement began.
    """
    sign = find_sign(list(_places(error)), f"{error} {error.__cause__}")
    outcome, line = sign.outcome if sign else Outcome.USER_ERROR, _one_line(error)
    if not outcome.is_want_of_memory and (how := _way_of_starting(error)):
        return Outcome.UNPICKLABLE, f"loader workers cannot be started ({how}): {line}; {_MENDING}", ""
    if outcome is Outcome.WORKER_DIED and oom_kills > 0:
        return Outcome.HOST_OOM, f"the kernel had run out of memory and killed a loader worker: {line}", ""
    if sign is None and isinstance(error, AutotuneError):
        return outcome, str(error), getattr(error, "user_traceback", "")
    advice = sign.words if sign else ""
    is_of_users = bool(advice) or outcome in (Outcome.DEVICE_ERROR, Outcome.USER_ERROR)
    return outcome, line + advice, user_traceback(error) if is_of_users else ""


def is_known(error: BaseException) -> bool:
    """Return whether an error is one of those whose cause is known: memory, a worker, a lone sample."""
    return find_sign(list(_places(error)), f"{error} {error.__cause__}") is not None


def _places(error: BaseException) -> Iterator[str]:
    yield from (kind.__name__ for kind in type(error).__mro__)
    if isinstance(error, RuntimeError) and _is_device_full():
        yield "full device"
    if _lost_while_receiving(error):
        yield "receiving"


def _is_device_full() -> bool:
    with suppress(Exception):  # a device in a bad state answers every question with an error
        if torch.cuda.is_initialized():
            free, total = torch.cuda.mem_get_info()
            return bool(free < NEARLY_FULL * total)
    return False


def _way_of_starting(error: BaseException) -> str | None:
    """Return how a worker was being started, where its objects could not be sent; ``None`` otherwise."""
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__) if frame.name in ("_launch", "dump")]
    found = [match for file in files if (match := re.search(r"popen_(spawn|forkserver)", file))]
    is_sent = any(_is_multiprocessing(file, "reduction.py") for file in files)
    return str(found[0][1]) if found and is_sent else None


def _lost_while_receiving(error: BaseException) -> bool:
    frames = traceback.extract_tb(error.__traceback__)
    is_broken = isinstance(error, (ConnectionResetError, BrokenPipeError, EOFError))
    return is_broken and bool(frames) and _is_multiprocessing(frames[-1].filename)


def _is_multiprocessing(filename: str, name: str = "") -> bool:
    return f"{os.sep}multiprocessing{os.sep}{name}" in filename


def _one_line(error: BaseException) -> str:
    """Return type and first line of an error; those of other threads and processes, and of NCCL, have theirs below."""
    name, lines = type(error).__name__, str(error).strip().splitlines() or [""]
    if raised := re.match(r"Caught (\w+) in (?:DataLoader worker|pin memory thread)", lines[0]):
        own = [line for line in lines[1:] if re.match(rf"(\w+\.)*{raised[1]}(:|$)", line)]
        return own[-1].strip() if own else f"{raised[1]} in a loader worker"
    cause = str(error).partition("Last error:")[2].strip().splitlines()[:1] or lines
    return f"{name}: {cause[0].strip()}".rstrip(": ")


def user_traceback(error: BaseException) -> str:
    """Format a traceback without the frames of autotune and of the import system.

    A loader worker's error comes as text inside the message; its frames are treated alike.
    """
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_hidden(frame.filename)]
    lines = ["Traceback (most recent call last):\n", *traceback.format_list(frames)] if frames else []
    return "".join(lines) + _without_our_frames("".join(traceback.format_exception_only(error)))


def _is_hidden(filename: str) -> bool:
    return is_ours(filename) or "<frozen importlib" in filename


def _without_our_frames(text: str) -> str:
    kept, is_dropping = [], False
    for line in text.splitlines(keepends=True):
        frame = re.match(r'  File "(.+?)", line ', line)
        if frame:
            is_dropping = _is_hidden(frame[1])
        elif not line.startswith("    "):
            is_dropping = False
        if not is_dropping:
            kept.append(line)
    return "".join(kept)
