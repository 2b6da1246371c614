"""Places in code: their names, and whose they are."""

from __future__ import annotations

import os
import re
import sys
import sysconfig

PACKAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "")
STANDARD = os.path.join(os.path.abspath(sysconfig.get_path("stdlib")), "")
LIBRARIES = re.compile(r".*[/\\](?:site|dist)-packages[/\\]")
"""Folders of packages that the user does not write."""


def is_ours(filename: str) -> bool:
    """Return whether a file belongs to autotune; its demonstration is a workload like a user's."""
    path = os.path.abspath(filename)
    return path.startswith(PACKAGE) and path != os.path.join(PACKAGE, "demo.py")


def is_torch(filename: str) -> bool:
    """Return whether a file belongs to torch, once it is imported; its sister packages are libraries like others."""
    torch = sys.modules.get("torch")
    folder = os.path.dirname(os.path.abspath(str(torch.__file__))) if torch else ""
    return bool(folder) and os.path.abspath(filename).startswith(os.path.join(folder, ""))


def is_installed(filename: str) -> bool:
    """Return whether a file belongs to an installed package."""
    return LIBRARIES.match(filename) is not None


def is_standard(filename: str) -> bool:
    """Return whether a file belongs to Python's standard library."""
    is_own = os.path.abspath(filename).startswith(STANDARD) and not is_installed(filename)
    return is_own or filename.startswith("<frozen ")


def is_foreign(filename: str) -> bool:
    """Return whether a file is not the user's, but autotune's, torch's, installed or Python's own."""
    return any(belongs(filename) for belongs in (is_ours, is_torch, is_installed, is_standard))


def place(filename: str, line: int, function: str) -> str:
    """Return a place in code as people read it: ``workload.py:41 __getitem__``."""
    return f"{_short_name(filename).replace(os.sep, '/')}:{line} {function}"


def _short_name(filename: str) -> str:
    """Return a file relative to its library, the working directory or the import path, else its last two parts."""
    if filename.startswith("<"):
        return filename  # typed in, or made by exec
    path = os.path.abspath(filename)
    if library := LIBRARIES.match(path):
        return path[library.end() :]
    for root in (STANDARD, os.getcwd(), *sorted(map(os.path.abspath, sys.path), key=len, reverse=True)):
        if root != os.path.dirname(root) and path.startswith(os.path.join(root, "")):
            return os.path.relpath(path, root)
    return os.sep.join(path.split(os.sep)[-2:])
