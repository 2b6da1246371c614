"""A study's file: Optuna's journal, locked for one run, without a torn tail when it is opened, and never half written.

Optuna's own backend appends behind a line that was cut off, which makes the file unreadable for ever. Its lock outlives
a killed process by half a minute, and a full disk leaves half a line.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from optuna.storages.journal import BaseJournalBackend
from optuna.storages.journal._storage import JournalOperation

from autotune.errors import StorageError
from autotune.output import is_study, regular_file

PASSING = (
    JournalOperation.SET_TRIAL_PARAM,
    JournalOperation.SET_TRIAL_USER_ATTR,
    JournalOperation.SET_TRIAL_SYSTEM_ATTR,
)
"""Operations on a running trial, which is on the disk once it has ended: only a power loss would tell a difference."""
MAX_BYTES = 2**28
"""A trial takes some 5 kB; a larger file is no study."""


class RecordedFile(BaseJournalBackend):
    """A study's file as it was when it was opened, which is neither locked nor changed: a run may be writing it.

    Raises ``StorageError`` when it is no study, ``OSError`` when it cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self._operations, _ = _read(path)

    def read_logs(self, log_number_from: int) -> Iterator[dict[str, Any]]:
        """Return the operations from a number on."""
        return iter(self._operations[log_number_from:])

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Refuse: the file is only read."""
        raise StorageError("is only read")


class StudyFile(RecordedFile):
    """The file behind a ``JournalStorage``; no other process may hold it meanwhile.

    Raises ``StorageError`` when another run writes it or it is no study, ``OSError`` when it cannot be read or written.
    """

    def __init__(self, path: Path) -> None:
        self._path = regular_file(path)
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            _lock(self._descriptor)
            self._operations, sound = _read(path)
            if sound < os.fstat(self._descriptor).st_size:  # the last line was cut off
                os.ftruncate(self._descriptor, sound)
        except BaseException:
            self.close()
            raise

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Append lines: all of them, or none, and then ``OSError``. Optuna's own lock is not needed."""
        content = "".join(json.dumps(log, separators=(",", ":")) + "\n" for log in logs).encode()
        here = os.fstat(self._descriptor)
        if not (self._path.exists() and os.path.samestat(self._path.stat(), here)):
            raise FileNotFoundError(f"{self._path} was removed or replaced meanwhile")
        try:
            written = 0
            while written < len(content):
                written += os.write(self._descriptor, content[written:])
            if any(log["op_code"] not in PASSING for log in logs):
                os.fsync(self._descriptor)
        except BaseException:
            with suppress(OSError):
                os.ftruncate(self._descriptor, here.st_size)
            raise
        self._operations += map(json.loads, content.splitlines())

    def close(self) -> None:
        """Let other processes have the file, also where forked ones hold it open."""
        if self._descriptor >= 0:
            with suppress(ImportError, OSError):
                import fcntl

                fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            os.close(self._descriptor)
            self._descriptor = -1


def _read(path: Path) -> tuple[list[dict[str, Any]], int]:
    """Return the operations in a file, and how many bytes they take: a torn last line is not among them."""
    with regular_file(path).open("rb") as file:
        if os.fstat(file.fileno()).st_size > MAX_BYTES:
            raise StorageError(f"larger than {MAX_BYTES} bytes, so it is not a study")
        content = file.read()
    if not is_study(path, content):
        raise StorageError("the file exists and is not a study")  # Optuna would append to any file
    whole = content[: content.rfind(b"\n") + 1]
    return [_operation(line, number) for number, line in enumerate(whole.splitlines(), 1)], len(whole)


def _operation(line: bytes, number: int) -> dict[str, Any]:
    with suppress(ValueError, RecursionError):
        operation = json.loads(line)
        if isinstance(operation, dict) and "op_code" in operation:
            return operation
    raise StorageError(f"line {number} is damaged")


def _lock(descriptor: int) -> None:
    """Lock the file until it is closed, by this process or, when it ends in any way, by the kernel.

    Nothing is locked where the file system knows no locks, as some that are mounted over a network.
    """
    try:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except ImportError:
        return  # Windows
    except BlockingIOError:
        raise StorageError(f"{_holder(descriptor)} is writing it; wait until that has ended") from None
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP):
            raise


def _holder(descriptor: int) -> str:
    inode = str(os.fstat(descriptor).st_ino)
    with suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/locks").read_text().splitlines():
            parts = line.split()
            if parts[1] == "FLOCK" and parts[5].rpartition(":")[2] == inode:
                return f"process {int(parts[4])}"
    return "another process"
