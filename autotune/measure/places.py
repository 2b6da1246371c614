"""Whose code a file holds, and how a place in it is named without the folders of one machine."""

from __future__ import annotations

import os
import sys
import sysconfig

import torch

__all__ = ["is_ours", "is_standard", "is_torch", "place"]

PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
DEMO = os.path.join(PACKAGE, "demo.py")
"""A workload like a user's, although it comes with the package."""
TORCH = os.path.dirname(os.path.abspath(torch.__file__))
STANDARD = os.path.abspath(sysconfig.get_path("stdlib"))
LIBRARY_FOLDERS = ("site-packages", "dist-packages")
SHORT = 2
"""Parts of a library's path that are enough to recognise a file."""


def is_ours(filename: str) -> bool:
    """Tell whether a file belongs to autotune and is no workload."""
    path = os.path.abspath(filename)
    return _is_in(path, PACKAGE) and path != DEMO


def is_torch(filename: str) -> bool:
    """Tell whether a file belongs to torch itself; its sister packages are libraries like others."""
    return _is_in(os.path.abspath(filename), TORCH)


def is_standard(filename: str) -> bool:
    """Tell whether a file belongs to Python's standard library."""
    if filename.startswith("<frozen "):
        return True
    return _is_in(os.path.abspath(filename), STANDARD) and not _is_library(filename)


def place(filename: str, line: int, function: str) -> str:
    """Return a place in code as people read it: ``workload.py:41 __getitem__``."""
    return f"{_short_name(filename).replace(os.sep, '/')}:{line} {function}"


def _short_name(filename: str) -> str:
    """Return the user's files relative to the working directory or the import path, others by their last parts."""
    if filename.startswith("<"):
        return filename  # typed in, or made by exec
    path = os.path.abspath(filename)
    if is_standard(filename):
        return _last_parts(os.path.relpath(path, STANDARD))
    roots = [] if _is_library(filename) else [os.getcwd(), *sorted(map(os.path.abspath, sys.path), key=len)[::-1]]
    for root in roots:
        if root != os.path.dirname(root) and _is_in(path, root):
            return os.path.relpath(path, root)
    return _last_parts(path)


def _last_parts(path: str) -> str:
    return os.sep.join(path.split(os.sep)[-SHORT:])


def _is_library(filename: str) -> bool:
    return any(folder in filename.split(os.sep) for folder in LIBRARY_FOLDERS)


def _is_in(path: str, folder: str) -> bool:
    return path.startswith(folder.rstrip(os.sep) + os.sep)
