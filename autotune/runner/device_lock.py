"""One tuner on an accelerator at a time: two would measure each other.

The lock is the kernel's, on a file in the folder for temporary files: it ends with the process that holds it, however
that ends. The file stays, and says who took it last.
"""

from __future__ import annotations

import getpass
import json
import os
import re
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from autotune.errors import UsageError

POLL_SECONDS = 0.5
SHARED_FOLDER = Path("/tmp")
"""Where all users of a machine find each other's locks, whatever ``TMPDIR`` says."""
_CREDENTIALS = re.compile(r"(?<=//)\S*@|(?<=password=)[^&\s]*")


class DeviceLock:
    """Holds an accelerator from ``take`` to ``free``; where the system has no such locks (Windows), does nothing."""

    def __init__(self, name: str, folder: Path | None = None) -> None:
        """Take the device's name: its UUID or, where it has none, what torch calls it."""
        self._name = name
        self._path = (folder or _shared_folder()) / f"autotune-{re.sub(r'[^A-Za-z0-9_.-]', '-', name)}.lock"
        self._descriptor: int | None = None

    def take(self, patience: float, on_wait: Callable[[str], None]) -> None:
        """Take the device; while another tuner holds it, tell ``on_wait`` once who that is, and wait.

        Raises ``UsageError`` when it is not free within ``patience`` seconds.
        """
        limit, is_told = time.monotonic() + patience, False
        while not self._try():
            holder = self._holder()
            if time.monotonic() >= limit:
                raise UsageError(
                    f"{self._name} is in use by another autotune: {holder}; wait until that has ended, or pass --device"
                )
            if not is_told:
                on_wait(holder)
                is_told = True
            time.sleep(min(POLL_SECONDS, max(0.0, limit - time.monotonic())))

    def free(self) -> None:
        """Give the device back, if it was taken."""
        if self._descriptor is not None:
            import fcntl

            fcntl.flock(self._descriptor, fcntl.LOCK_UN)  # for processes, too, that were forked meanwhile
            os.close(self._descriptor)
            self._descriptor = None

    def _try(self) -> bool:
        try:
            import fcntl
        except ImportError:
            return True
        descriptor = _open(self._path)
        if descriptor is None:
            return True  # a machine that lets nobody write there has no way to keep tuners apart
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            return not isinstance(error, BlockingIOError)  # a folder that knows no locks has no way either
        self._descriptor = descriptor
        with suppress(OSError):  # opened for reading only: another user's
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps(_about_this_process()).encode(), 0)
        return True

    def _holder(self) -> str:
        """Return who holds the device, as far as the file says."""
        with suppress(OSError, ValueError, KeyError, TypeError):
            return _text(json.loads(self._path.read_text(encoding="utf-8")))
        return "a process that did not say which"


def _text(about: Mapping[str, Any]) -> str:
    return f"process {about['pid']} of {about['user']}, since {about['since']} ({about['command']})"


def _about_this_process() -> dict[str, Any]:
    return {
        "pid": os.getpid(),
        "user": _user(),
        "since": datetime.now().astimezone().isoformat(sep=" ", timespec="seconds"),
        "command": _CREDENTIALS.sub("", shlex.join(sys.argv)),
    }


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        return str(os.getuid())


def _open(path: Path) -> int | None:
    """Open the file so that every user can: systems refuse to create one that is there and another user's."""
    for flags in (os.O_RDWR, os.O_RDWR | os.O_CREAT | os.O_EXCL, os.O_RDWR, os.O_RDONLY):
        with suppress(OSError):
            descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
            if flags & os.O_CREAT:
                os.fchmod(descriptor, 0o666)  # whatever the umask is
            return descriptor
    return None


def _shared_folder() -> Path:
    return SHARED_FOLDER if os.access(SHARED_FOLDER, os.W_OK) else Path(tempfile.gettempdir())
