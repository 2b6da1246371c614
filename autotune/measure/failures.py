"""What an exception says of a failed measurement: its outcome, one line, and the user's part of the traceback.

Evidence goes before words: the type of the error and where it was raised, then its text, then what the device and the
kernel's counters say where the text may mean more than one thing.
"""

from __future__ import annotations

import errno
import os
import re
import traceback
from contextlib import suppress

from autotune.errors import AutotuneError
from autotune.records import Outcome

NEARLY_FULL = 0.05
"""Share of the device's memory; with less free, a library's vague error is for want of it."""
_SHM_SIGNS = ("unable to allocate shared memory", "unable to mmap", "bus error", "insufficient shared memory")
_FILE_SIGNS = ("too many open files", "received 0 items of ancdata")
_DEVICE_OOM_SIGNS = (
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
    "CUSOLVER_STATUS_ALLOC_FAILED",
    "HIP error: out of memory",
    "HIP out of memory",
    "XPU out of memory",
    "MPS backend out of memory",
)
_VAGUE_SIGNS = (
    "CUDNN_STATUS_NOT_SUPPORTED",
    "CUDNN_STATUS_INTERNAL_ERROR",
    "CUDNN_STATUS_NOT_INITIALIZED",
    "CUBLAS_STATUS_NOT_INITIALIZED",
    "CUBLAS_STATUS_INTERNAL_ERROR",
    "unable to find an engine to execute this computation",
)
"""What cuDNN and cuBLAS say for want of memory, and for other reasons as well."""
_DEVICE_SIGNS = (
    "CUDA error:",
    "HIP error:",
    "CUDNN_STATUS_EXECUTION_FAILED",
    "CUDNN_STATUS_INTERNAL_ERROR",
    "CUBLAS_STATUS_EXECUTION_FAILED",
    "CUBLAS_STATUS_INTERNAL_ERROR",
)
_FILES_ADVICE = "; allow more (ulimit -n), or have fewer batches in flight"
_MENDING = (
    "define its classes and functions at the top level of a module and open files, locks and connections in the worker "
    "(at the first item), or run without workers"
)


def classify(error: BaseException, oom_kills: int = 0) -> tuple[Outcome, str, str]:
    """Return outcome, one line and the user's traceback for what a measurement raised.

    ``oom_kills`` is how many processes the kernel has killed for want of memory since the measurement began.
    """
    text = str(error)
    line = _one_line(error)
    if outcome := _outcome_of_memory(error, text):
        advice = _FILES_ADVICE if _is_for_want_of_files(error, text) else ""
        return outcome, line + advice, user_traceback(error) if advice else ""
    if how := _way_of_starting(error):
        return Outcome.UNPICKLABLE, f"loader workers cannot be started ({how}): {line}; {_MENDING}", ""
    if _is_dead_worker(error, text):
        if oom_kills > 0:
            return Outcome.HOST_OOM, f"the kernel had run out of memory and killed a loader worker: {line}", ""
        return Outcome.WORKER_DIED, line, ""
    if _is_of_device(error, text):
        return Outcome.DEVICE_ERROR, line, user_traceback(error)
    if isinstance(error, AutotuneError):
        return Outcome.USER_ERROR, text, getattr(error, "user_traceback", "")
    return Outcome.USER_ERROR, line, user_traceback(error)


def _outcome_of_memory(error: BaseException, text: str) -> Outcome | None:
    """Return which memory ran out, if one did."""
    import torch

    if isinstance(error, torch.OutOfMemoryError):
        return Outcome.DEVICE_OOM
    is_from_host = isinstance(error, OSError) and error.errno == errno.ENOMEM
    if isinstance(error, MemoryError) or is_from_host or "DefaultCPUAllocator: can't allocate memory" in text:
        return Outcome.HOST_OOM
    if _has_no_room_to_share(error, text) or _is_for_want_of_files(error, text):
        return Outcome.SHM
    if isinstance(error, RuntimeError):
        if any(sign in text for sign in _DEVICE_OOM_SIGNS):
            return Outcome.DEVICE_OOM
        if any(sign in text for sign in _VAGUE_SIGNS) and _is_device_full():
            return Outcome.DEVICE_OOM
    return None


def _has_no_room_to_share(error: BaseException, text: str) -> bool:
    told = f"{text} {error.__cause__}".lower()
    return isinstance(error, RuntimeError) and any(sign in told for sign in _SHM_SIGNS)


def _is_for_want_of_files(error: BaseException, text: str) -> bool:
    """Return whether a process may open no more files: every tensor that a worker sends is one."""
    is_told = isinstance(error, RuntimeError) and any(sign in text.lower() for sign in _FILE_SIGNS)
    return is_told or (isinstance(error, OSError) and error.errno == errno.EMFILE)


def _is_of_device(error: BaseException, text: str) -> bool:
    """Return whether the accelerator failed: most of its errors stay, whatever the process asks of it next."""
    import torch

    if isinstance(error, getattr(torch, "AcceleratorError", ())):
        return True
    return isinstance(error, RuntimeError) and any(sign in text for sign in _DEVICE_SIGNS)


def _is_device_full() -> bool:
    """Return whether next to nothing of the accelerator's memory is free; false where it does not say."""
    import torch

    with suppress(Exception):  # a device in a bad state answers every question with an error
        if torch.cuda.is_initialized():
            free, total = torch.cuda.mem_get_info()
            return bool(free < NEARLY_FULL * total)
    return False


def _way_of_starting(error: BaseException) -> str | None:
    """Return how a worker was being started, where it could not be sent what it needs; ``None`` otherwise."""
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__) if frame.name in ("_launch", "dump")]
    found = [match for file in files if (match := re.search(r"popen_(spawn|forkserver)", file))]
    is_sent = any(_is_multiprocessing(file, "reduction.py") for file in files)
    return str(found[0][1]) if found and is_sent else None


def _is_dead_worker(error: BaseException, text: str) -> bool:
    is_told = "DataLoader worker" in text and ("killed by signal" in text or "exited unexpectedly" in text)
    return (isinstance(error, RuntimeError) and is_told) or _lost_while_receiving(error)


def _lost_while_receiving(error: BaseException) -> bool:
    """Return whether a worker died while this process was fetching a batch from it."""
    frames = traceback.extract_tb(error.__traceback__)
    is_broken = isinstance(error, (ConnectionResetError, BrokenPipeError, EOFError))
    return is_broken and bool(frames) and _is_multiprocessing(frames[-1].filename)


def _is_multiprocessing(filename: str, name: str = "") -> bool:
    return f"{os.sep}multiprocessing{os.sep}{name}" in filename


def _one_line(error: BaseException) -> str:
    """Return type and first line of an error; what a loader worker raised ends in its own type and message."""
    name, lines = type(error).__name__, str(error).strip().splitlines() or [""]
    if lines[0].startswith("Caught ") and lines[-1].startswith(f"{name}:"):
        return lines[-1].strip()
    return f"{name}: {lines[0].strip()}".rstrip(": ")


def user_traceback(error: BaseException) -> str:
    """Format a traceback without the frames of autotune and of the import system.

    What a loader worker raised comes as text inside the message; its frames are treated alike.
    """
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_ours(frame.filename)]
    lines = ["Traceback (most recent call last):\n", *traceback.format_list(frames)] if frames else []
    return "".join(lines) + _without_our_frames("".join(traceback.format_exception_only(error)))


def _is_ours(filename: str) -> bool:
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    return os.path.abspath(filename).startswith(package + os.sep) or "<frozen importlib" in filename


def _without_our_frames(text: str) -> str:
    """Drop from a formatted traceback the frames of autotune, each with the source lines below it."""
    kept, is_dropping = [], False
    for line in text.splitlines(keepends=True):
        frame = re.match(r'  File "(.+?)", line ', line)
        if frame:
            is_dropping = _is_ours(frame[1])
        elif not line.startswith("    "):
            is_dropping = False
        if not is_dropping:
            kept.append(line)
    return "".join(kept)
