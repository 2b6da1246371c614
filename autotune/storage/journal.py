"""A study's file: Optuna's journal, locked for one run, repaired when it is opened, and never half written.

Optuna's own backend appends behind a line that was cut off, which makes the file unreadable for ever. Its lock outlives
a killed process by half a minute, and a full disk leaves half a line.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from optuna.storages.journal import BaseJournalBackend, JournalFileBackend

from autotune.errors import StorageError

START = b'{"op_code"'
"""How the first line of Optuna's journal files begins."""
MAX_BYTES = 2**28
"""A trial takes some 5 kB; a larger file is no study."""
WITHOUT_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP}
"""Errors of file systems without locks."""
LOCKS = Path("/proc/locks")
"""Where Linux says which process holds which lock."""


class StudyFile(JournalFileBackend):
    """The file behind a ``JournalStorage``; no other process may hold it meanwhile.

    Raises ``StorageError`` when another run writes it or it is no study, ``OSError`` when it cannot be read or written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = _open_locked(path)
        try:
            self.notes = self._repair()
            """Notes for the user, on damaged lines that were left out."""
            super().__init__(str(path))
            _sync_folder(path)
        except BaseException:
            self.close()
            raise

    @property
    def _backup(self) -> Path:
        """Where the file is kept as it was before damaged lines were left out."""
        return self._path.with_name(f"{self._path.name}.bak")

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Append lines: all of them, or none, and then ``OSError``. Optuna's own lock is not needed."""
        content = "".join(json.dumps(log, separators=(",", ":")) + "\n" for log in logs).encode()
        if not _is_same_file(self._path, self._descriptor):
            raise FileNotFoundError(f"{self._path} was removed or replaced meanwhile")
        end = os.fstat(self._descriptor).st_size
        try:
            _write(self._descriptor, content)
        except BaseException:
            with suppress(OSError):
                os.ftruncate(self._descriptor, end)
            raise

    def close(self) -> None:
        """Let other processes have the file."""
        if self._descriptor >= 0:
            _unlock(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1

    def _repair(self) -> list[str]:
        """Cut off a half line at the end; leave damaged lines out, and return a note on them."""
        content = _read(self._path, self._descriptor)
        head, newline, tail = content.rpartition(b"\n")
        lines = head.split(b"\n") if newline else []
        sound = [line for line in lines if _is_operation(line)]
        if count := len(lines) - len(sound):
            self._replace(content, b"".join(line + b"\n" for line in sound))
            left_out = "1 damaged line was" if count == 1 else f"{count} damaged lines were"
            return [f"{self._path}: {left_out} left out; the original is {self._backup}"]
        if tail:
            os.ftruncate(self._descriptor, len(content) - len(tail))
        return []

    def _replace(self, content: bytes, repaired: bytes) -> None:
        """Replace a damaged file by a repaired one; a copy of the damaged file stays."""
        copy = os.open(self._backup, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        try:
            _write(copy, content)
        finally:
            os.close(copy)
        shutil.copymode(self._path, self._backup)
        temporary = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            descriptor = _open_locked(temporary)
            os.ftruncate(descriptor, 0)  # a process with the same number may have died over it
            shutil.copymode(self._path, temporary)
            os.close(self._descriptor)
            self._descriptor = descriptor
            _write(descriptor, repaired)
            temporary.replace(self._path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


class RecordedFile(BaseJournalBackend):
    """A study's file as it was when it was opened, which is neither locked nor changed: a run may be writing it.

    Raises ``StorageError`` when it is no study, ``OSError`` when it cannot be read.
    """

    def __init__(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            lines = _read(path, descriptor).rpartition(b"\n")[0].split(b"\n")
        finally:
            os.close(descriptor)
        self._operations = [json.loads(line) for line in lines if _is_operation(line)]

    def read_logs(self, log_number_from: int) -> Iterator[dict[str, Any]]:
        """Return the operations from a number on."""
        return iter(self._operations[log_number_from:])

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Refuse: the file is only read."""
        raise StorageError("is only read")


def _open_locked(path: Path) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_CLOEXEC", 0), 0o666)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise StorageError("is not a file")
        _lock(descriptor)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _lock(descriptor: int) -> None:
    """Lock the file until it is closed, by this process or, when it ends in any way, by the kernel.

    Nothing is locked where the file system knows no locks, as some that are mounted over a network.
    """
    if sys.platform == "win32":
        return
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise StorageError(f"{_holder(descriptor)} is writing it; wait until that has ended") from None
    except OSError as error:
        if error.errno not in WITHOUT_LOCKS:
            raise


def _unlock(descriptor: int) -> None:
    """End the lock for processes, too, that were forked meanwhile and hold the file open."""
    with suppress(ImportError, OSError):  # Windows has no such module
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_UN)


def _holder(descriptor: int) -> str:
    """Name the process that holds the lock, where the system says it."""
    inode = str(os.fstat(descriptor).st_ino)
    with suppress(OSError, ValueError, IndexError):
        for line in LOCKS.read_text().splitlines():
            parts = line.split()
            if parts[1] == "FLOCK" and parts[5].rpartition(":")[2] == inode:
                return f"process {int(parts[4])}"
    return "another process"


def _read(path: Path, descriptor: int) -> bytes:
    if os.fstat(descriptor).st_size > MAX_BYTES:
        raise StorageError(f"larger than {MAX_BYTES} bytes, so it is not a study")
    content = path.read_bytes()
    is_torn_start = START.startswith(content) or not content.strip(b"\0")
    if not content.startswith(START) and not is_torn_start:
        raise StorageError("the file exists and is not a study")  # Optuna would append to any file
    return content


def _is_operation(line: bytes) -> bool:
    try:
        operation = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(operation, dict) and "op_code" in operation


def _write(descriptor: int, content: bytes) -> None:
    while content:
        content = content[os.write(descriptor, content) :]
    os.fsync(descriptor)


def _is_same_file(path: Path, descriptor: int) -> bool:
    with suppress(OSError):
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    return False


def _sync_folder(path: Path) -> None:
    """Make a created file survive a power loss."""
    with suppress(OSError):  # not every file system can
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
