"""Confinement of this process and its children: files may be changed below some folders, and nowhere else.

The kernel's own mechanism, without privileges, from Linux 5.13 on (Documentation/userspace-api/landlock.rst).
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterable
from contextlib import suppress

CREATE, ADD, RESTRICT = 444, 445, 446
"""Numbers of the system calls, the same on every architecture."""
VERSION = 1
"""Flag of ``CREATE`` that asks for the version."""
NO_NEW_PRIVILEGES = 38
"""Option of ``prctl`` without which a plain user must not confine a process."""
CHANGES = sum(1 << bit for bit in (1, *range(4, 13)))
"""Rights to write to a file, to remove, and to make files of each kind."""
MOVE, TRUNCATE = 1 << 13, 1 << 14
"""Rights to rename between folders (since version 2) and to shorten a file (3)."""
WHOLE = 3
"""Version from which all changes of contents are covered: Linux 6.2."""
BELOW = 1
"""Kind of a rule: for everything below a folder."""


def confine(folders: Iterable[str]) -> int:
    """Refuse this process and its children every change outside folders; return the kernel's version, 0 if it does not.

    Modes, owners and times are not covered: the kernel has no such right to take away. Nor is the shortening of files
    before version ``WHOLE``.
    """
    library = ctypes.CDLL(None, use_errno=True)
    version = library.syscall(CREATE, None, ctypes.c_size_t(0), VERSION)
    if version < 1:
        return 0
    rights = CHANGES | (MOVE if version >= 2 else 0) | (TRUNCATE if version >= WHOLE else 0)
    handled = ctypes.create_string_buffer(struct.pack("=Q", rights), 8)
    rules = library.syscall(CREATE, handled, ctypes.c_size_t(8), 0)
    if rules < 0:
        return 0
    try:
        for folder in folders:
            with suppress(OSError):
                file = os.open(folder, os.O_PATH | os.O_DIRECTORY)
                try:
                    rule = ctypes.create_string_buffer(struct.pack("=Qi", rights, file), 12)
                    library.syscall(ADD, rules, BELOW, rule, 0)
                finally:
                    os.close(file)
        library.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0)
        return 0 if library.syscall(RESTRICT, rules, 0) else int(version)
    finally:
        os.close(rules)
