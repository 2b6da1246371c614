"""One tuner on an accelerator at a time: two would measure each other.

The lock is the kernel's, on a file that all users share: it ends with its holder, however the process ends.
The file stays, and says who took it last.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import psutil
from filelock import FileLock, Timeout

from autotune.errors import UsageError

SHARED_FOLDER = Path("/tmp/autotune-locks")
"""Where all users of a machine find each other's locks, whatever ``TMPDIR`` says."""
LONGEST = 2**16
"""Bytes of a file that is read: any user can write it."""


class DeviceLock:
    """Holds an accelerator from ``take`` to ``free``, or while it exists; does nothing where no file can be locked."""

    def __init__(self, name: str, folder: Path | None = None) -> None:
        """Take the device's name: its UUID or, without one, torch's name."""
        self._name = name
        self._path = (folder or _shared_folder()) / f"autotune-{re.sub(r'[^A-Za-z0-9_.-]', '-', name)}.lock"
        self._lock = FileLock(self._path, mode=0o666, thread_local=False, poll_interval=0.5, on_acquired=_sign)

    def take(self, patience: float, on_wait: Callable[[str], None]) -> None:
        """Take the device; while another tuner holds it, tell ``on_wait`` once who that is, and wait.

        Raises ``UsageError`` when it is not free within ``patience`` seconds.
        """
        if holder := self._try(0):
            on_wait(holder)
            holder = self._try(patience)
        if holder:
            raise UsageError(
                f"{self._name} is in use by another autotune: {holder}; wait until that has ended, or pass --device"
            )

    def free(self) -> None:
        """Give the device back, if it was taken."""
        self._lock.release()

    def _try(self, seconds: float) -> str | None:
        """Return who still holds the device after so many seconds; ``None`` where it is this tuner's."""
        try:
            self._lock.acquire(timeout=seconds)
        except Timeout:
            return self._holder()
        except OSError:
            return None  # a folder that nobody may write to or that knows no locks has no way to keep tuners apart
        return None

    def _holder(self) -> str:
        with suppress(OSError, ValueError, KeyError, TypeError):
            text = self._path.read_bytes() if self._path.is_file() and self._path.stat().st_size < LONGEST else b""
            return "process {pid} of {user}, since {since} ({command})".format_map(json.loads(text))
        return "an unknown process"


def _sign(descriptor: int) -> None:
    about = {
        "pid": os.getpid(),
        "user": psutil.Process().username(),
        "since": datetime.now().astimezone().isoformat(sep=" ", timespec="seconds"),
        "command": " ".join([Path(sys.argv[0]).name, *[word for word in sys.argv[1:] if word.endswith(".py")][:1]]),
    }
    with suppress(OSError):
        if os.fstat(descriptor).st_nlink == 1:  # a link may be to any file
            os.ftruncate(descriptor, 0)
            os.write(descriptor, json.dumps(about).encode())


def _shared_folder() -> Path:
    """Return a folder where each user can take any lock: in /tmp itself, nobody can take one that is another's."""
    with suppress(OSError):
        SHARED_FOLDER.mkdir()
        SHARED_FOLDER.chmod(0o777)  # whatever the umask is
    is_usable = os.access(SHARED_FOLDER, os.W_OK) and not SHARED_FOLDER.is_symlink()
    return SHARED_FOLDER if is_usable else Path(tempfile.gettempdir())
