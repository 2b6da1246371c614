"""Signs of failure: the outcome of a measuring process without an answer, by exit code, last words and counters."""

from __future__ import annotations

import errno
import os
import re
import signal
from collections.abc import Collection
from typing import NamedTuple

from autotune.outcome import Outcome
from autotune.source_location import is_foreign

RANK_FRAME = "rank_"
"""Begin of the name of a rank's function, before its number: frames then say whose they are."""
TAIL_LENGTH = 4000
"""Characters of a dead process's output that are kept."""
_NOISE = re.compile(r"^(Extension modules: .*|Fatal Python error: .*|Current thread 0x[0-9a-f]+.*)\n?", re.MULTILINE)
_FRAME = re.compile(r'^  File "(?P<path>.+)", line (?P<line>\d+) in (?P<function>.+)$', re.MULTILINE)
_RANK = re.compile(RANK_FRAME + r"\d+")
_KILLERS = {
    None: ", as the kernel does when memory runs out",
    True: " by the kernel, which had run out of memory: its count of such kills went up",
    False: ", but not by the kernel for want of memory: perhaps by a batch system, or a guard such as systemd-oomd",
}


class Sign(NamedTuple):
    """One way in which a failure shows."""

    of: str
    """Type of the exception or of a base of it, signal, or the place where the text was found."""
    text: str
    """Pattern of the text; empty where ``of`` says it all."""
    outcome: Outcome
    words: str = ""
    """Its words in the message, or the way out."""


_FILES = "; allow more (ulimit -n), or have fewer batches in flight"
_TOO_LARGE = r"unable to (resize|write to).*torch_.*(File too large|\(27\))"
_LIMIT = (
    "; a limit of files (ulimit -f) holds for shared memory too, and while a script is measured it is half the free "
    "space of the temporary folder: have TMPDIR lie on a larger disk, or pass --allow-writes"
)
_TIMEOUT = ", the timeout in its own options; allow more, or have smaller batches"
_LONE = (
    ": batch normalisation cannot train on a single sample, which the last batch of an epoch may be; drop that batch "
    "(drop_last=True), or take another batch size"
)
_ON_DEVICE = "; let the dataset return tensors of the CPU, or load without workers"
_NO_DEVICE_MEMORY = (
    r"NVML_SUCCESS == r INTERNAL ASSERT FAILED|(Triton Error \[CUDA\]|CUDA driver error): out of memory|"
    r"hipErrorOutOfMemory|^Invalid buffer size|Failed to CUDA \w*alloc|Cuda failure 2\b"
)
"""Texts of torch's allocator, Triton, the drivers, Metal and NCCL, in this order."""
SIGNS = (
    Sign("OutOfMemoryError", "", Outcome.DEVICE_OOM),  # torch's
    Sign("MemoryError", "", Outcome.HOST_OOM),
    Sign("OSError", rf"\[Errno {errno.ENOMEM}\]", Outcome.HOST_OOM),
    Sign("Exception", "DefaultCPUAllocator: can't allocate memory", Outcome.HOST_OOM),
    Sign(
        "RuntimeError", r"(?i)unable to (mmap|allocate shared memory)|bus error|insufficient shared memory", Outcome.SHM
    ),
    Sign("RuntimeError", _TOO_LARGE, Outcome.SHM, _LIMIT),
    Sign("OSError", rf"\[Errno {errno.EFBIG}\]", Outcome.USER_ERROR, _LIMIT),
    Sign("RuntimeError", r"(?i)too many open files|received 0 items of ancdata", Outcome.SHM, _FILES),
    Sign("OSError", rf"\[Errno {errno.EMFILE}\]", Outcome.SHM, _FILES),
    Sign(
        "RuntimeError", r"in pin memory thread(.|\n)*out of memory", Outcome.HOST_OOM, "; pin no memory, or less of it"
    ),
    Sign("RuntimeError", "shared memory segment /dev/shm/nccl", Outcome.SHM),
    Sign("RuntimeError", _NO_DEVICE_MEMORY, Outcome.DEVICE_OOM),
    Sign("RuntimeError", r"(CUDA|HIP) error: out of memory|(HIP|XPU|MPS backend) out of memory", Outcome.DEVICE_OOM),
    Sign("RuntimeError", r"(CUBLAS|CUDNN|CUSOLVER)_STATUS_ALLOC_FAILED|DEVICE_ALLOCATION_FAILED", Outcome.DEVICE_OOM),
    # cuDNN and cuBLAS say these for want of memory, and for other reasons as well.
    Sign("full device", r"CUDNN_STATUS_(NOT_SUPPORTED|INTERNAL_ERROR|NOT_INITIALIZED)", Outcome.DEVICE_OOM),
    Sign("full device", r"CUBLAS_STATUS_(NOT_INITIALIZED|INTERNAL_ERROR)|unable to find an engine", Outcome.DEVICE_OOM),
    Sign("RuntimeError", "DataLoader timed out after", Outcome.USER_ERROR, _TIMEOUT),
    Sign("ValueError", "Expected more than 1 value per channel when training", Outcome.USER_ERROR, _LONE),
    Sign("RuntimeError", r"DataLoader worker.*(killed by signal|exited unexpectedly)", Outcome.WORKER_DIED),
    Sign("receiving", "", Outcome.WORKER_DIED),
    Sign("RuntimeError", r"Cannot re-initialize \w+ in forked subprocess", Outcome.UNPICKLABLE, _ON_DEVICE),
    Sign("RuntimeError", r"busy or unavailable", Outcome.SUSPECT, ": another process has it for itself"),
    Sign("AcceleratorError", "", Outcome.DEVICE_ERROR),
    Sign("RuntimeError", r"(CUDA|HIP) error:", Outcome.DEVICE_ERROR),
    Sign("RuntimeError", r"(CUDNN|CUBLAS)_STATUS_(EXECUTION_FAILED|INTERNAL_ERROR)", Outcome.DEVICE_ERROR),
    Sign("SIGBUS", "", Outcome.SHM, "bus error: shared memory (/dev/shm) was too small"),
    Sign("SIGSEGV", "", Outcome.CRASHED, "segmentation fault, "),
    Sign("SIGABRT", "", Outcome.CRASHED, "aborted, "),
    Sign("SIGFPE", "", Outcome.CRASHED, "arithmetic error, "),
    Sign("SIGILL", "", Outcome.CRASHED, "illegal instruction: a library was built for another CPU, "),
    Sign(
        "output",
        r"unable to (allocate|resize|write to|mmap).*torch_.*(No space left|\(28\))",
        Outcome.SHM,
        "a worker found no room for its batch in shared memory (/dev/shm)",
    ),
    Sign("output", _TOO_LARGE, Outcome.SHM, f"a worker found no room for its batch{_LIMIT}"),
    Sign(
        "output",
        r"(?im)^\w*Error: .*too many open files",
        Outcome.SHM,
        f"too many open files for the tensors in flight{_FILES}",
    ),
)
"""Evidence before words: the type of an error or a signal, then a text; the first that is found counts."""


def find_sign(places: Collection[str], text: str) -> Sign | None:
    """Return the first sign of failure in a text from these places, or in the places alone."""
    return next((sign for sign in SIGNS if sign.of in places and re.search(sign.text, text)), None)


def describe_end(code: int, output: str, oom_kills: int | None) -> tuple[Outcome, str]:
    """Return outcome and message for an exit code, which is a signal's number below zero.

    ``oom_kills`` is how many processes the kernel has killed for want of memory meanwhile, ``None`` where it does not
    say.
    """
    if code >= 0:
        return Outcome.CRASHED, f"the process ended without an answer (exit code {code})"
    name = next((each.name for each in signal.Signals if each == -code), str(-code))  # not all have one
    if name == "SIGKILL":
        killer = _KILLERS[None if oom_kills is None else oom_kills > 0]
        return Outcome.HOST_OOM, f"the process was killed (signal 9){killer}"
    sign = find_sign([name], "") or Sign(name, "", Outcome.CRASHED)
    if sign.outcome is Outcome.SHM:
        return sign.outcome, sign.words + _place(output)
    return sign.outcome, f"the process ended without an answer ({sign.words}signal {name}){_place(output)}"


def describe_silence(limit: float, output: str, *, shared_memory_full: bool) -> tuple[Outcome, str]:
    """Return outcome and message for a process that still lives and has not answered in so many seconds."""
    silence = f"no answer within {limit:.0f} s"
    if lost := lost_batch(output):
        return lost.outcome, f"{silence}: {lost.words}"
    if shared_memory_full:
        return Outcome.SHM, f"{silence}, and shared memory (/dev/shm) was full"
    return Outcome.TIMEOUT, f"{silence}{_place(output, ': it was in ')}"


def lost_batch(output: str) -> Sign | None:
    """Return the sign of a worker whose sending thread found no room for a batch in shared memory.

    The worker reports the error and goes on without the batch, for which training waits for ever.
    """
    return find_sign(["output"], output)


def describe_worker(message: str, output: str) -> tuple[Outcome, str]:
    """Return outcome and message for a loader worker that died, by torch's last output in it.

    ``message`` is training's own error, perhaps no more than a connection that was reset.
    """
    signals = re.findall(r"ERROR: Unexpected (.+?) encountered in worker", output)
    if not signals:
        lost = lost_batch(output)
        return (lost.outcome, f"{lost.words}: {message}") if lost else (Outcome.WORKER_DIED, message)
    if signals[-1] == "bus error":
        return Outcome.SHM, "bus error in a loader worker: shared memory (/dev/shm) was too small"
    return Outcome.WORKER_DIED, f"a loader worker died ({signals[-1]}): {message}"


def last_words(output: str) -> str:
    """Return the end of a process's output; where it crashed, the frames that it was in."""
    return _NOISE.sub("", output)[-TAIL_LENGTH:]


def _place(output: str, before: str = " in ") -> str:
    """Return where a crashed or aborted process was by its own dump, the user's code first; else nothing."""
    dumps = [list(_FRAME.finditer(dump)) for dump in output.split("Fatal Python error: ")[1:]]
    frames = [(frame, dump) for dump in dumps for frame in dump]
    if not frames:
        return ""
    own = (found for found in frames if not (found[0]["path"].startswith("<") or is_foreign(found[0]["path"])))
    frame, dump = next(own, frames[0])
    functions = (other["function"] for other in dump)
    rank = next((f" of rank {name.removeprefix(RANK_FRAME)}" for name in functions if _RANK.fullmatch(name)), "")
    return f"{before}{frame['function']}, {os.path.basename(frame['path'])} line {frame['line']}{rank}"
