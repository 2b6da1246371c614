"""A pseudo-terminal at which nobody sits, for scripts that ask their input for the terminal's size."""

from __future__ import annotations

import fcntl
import os
import struct
import termios
from typing import IO


def open_terminal() -> tuple[IO[bytes], int]:
    """Return both ends: the first stays open as long as the second, a descriptor, is used, whose reads end at once.

    Where the system has no terminal left, both are of the null device.
    """
    try:
        ours, theirs = os.openpty()
    except OSError:
        ours, theirs = (os.open(os.devnull, os.O_RDONLY) for _ in range(2))
        return open(ours, "rb", buffering=0), theirs
    settings = termios.tcgetattr(theirs)
    settings[3] &= ~termios.ICANON
    settings[6][termios.VMIN] = settings[6][termios.VTIME] = 0
    termios.tcsetattr(theirs, termios.TCSANOW, settings)
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))  # rows and columns
    return open(ours, "rb", buffering=0), theirs
