"""Writes of Python code that go to copies: a folder of scratch files with the paths of the user's.

Where the kernel gives no layer. A file that is opened for writing is copied first, and read from its copy from then on;
what is removed is hidden. Imports and forked children have the same copies, C libraries at the doors that are known.
"""

from __future__ import annotations

import _imp
import builtins
import errno
import json
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from autotune.machine.descendants import SHARED_MEMORY, remove_folder
from autotune.measure.doors import Doors

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
"""Flags of ``os.open`` that may change a file."""
CHANGING = frozenset("wax+")
"""Letters of a mode of ``open`` that may change a file."""
READERS = ("stat", "access", "statvfs", "getxattr", "listxattr")
"""Functions of ``os`` that take the path of a copy as well as that of the file."""
MOST_LINKS = 40
"""Links that a path may lead over, as on Linux."""
CHANGERS = ("chmod", "chown", "utime", "truncate", "setxattr", "removexattr")
"""Functions of ``os`` that change what is there."""
MAKERS = ("mkdir", "mkfifo", "mknod")
"""Functions of ``os`` that make what is not there."""


class Copies:
    """Copies of the files that Python code writes."""

    def __init__(self, folder: str, free: Iterable[str], held: Iterable[str] = ()) -> None:
        """Keep the copies in a folder; below ``free`` folders, but not below those ``held``, all stays as it is."""
        self._folder = os.path.realpath(folder)
        self._free = tuple(os.path.realpath(each) + os.sep for each in (*free, folder))
        self._held = tuple(os.path.realpath(each) + os.sep for each in held)
        self._hidden: set[str] = set()
        """Paths of the user's that have been removed."""
        self._links: dict[str, str] = {}
        """New symbolic links, and the absolute paths that they lead to."""
        self._own = {name: getattr(os, name) for name in dir(os) if callable(getattr(os, name))}
        self._open, self._connect, self._create = builtins.open, sqlite3.connect, _imp.create_dynamic
        self._notes, self._noted = f"{self._folder}.notes", (0, 0)
        """The file in which all processes of a script note what they remove and link, and what was read of which."""
        self._begin_notes()
        self._here = os.getcwd()
        """The working folder, as the user's code knows it: the system's may be its copy."""

    def install(self) -> None:
        """Stand in for the functions that open, change and list files."""
        table: dict[str, Callable[..., Any]] = {
            "open": self._open_descriptor,
            "chdir": self._chdir,
            "getcwd": lambda: self._here,
            "getcwdb": lambda: os.fsencode(self._here),
            "remove": self._remove,
            "unlink": self._remove,
            "rmdir": self._remove,
            "rename": self._rename,
            "replace": self._rename,
            "link": self._link,
            "symlink": self._symlink,
            "listdir": lambda path=".": [each.name for each in self._entries(path)],
            "scandir": lambda path=".": _Entries(self._entries(path)),
        }
        table |= {name: self._with(name, self._seen) for name in READERS if hasattr(os, name)}
        table |= {name: self._with(name, self._seen, itself=True) for name in ("lstat", "readlink")}
        table |= {name: self._with(name, self._taken) for name in CHANGERS if hasattr(os, name)}
        table |= {name: self._make(name) for name in MAKERS if hasattr(os, name)}
        for name, function in table.items():
            if self._own[name] in os.supports_follow_symlinks:
                os.supports_follow_symlinks.add(function)
        Doors(self._given).install(
            {self._own[name]: function for name, function in table.items()}
            | {self._open: self._open_copy, self._connect: self._connect_copy, self._create: self._create_dynamic}
        )
        shutil._use_fd_functions = False  # type: ignore[attr-defined]  # it removes by descriptors

    def begin_anew(self) -> None:
        """Remove all copies: every file is as the user has it."""
        self._begin_notes()
        remove_folder(self._folder)
        self._own["mkdir"](self._folder)

    def _begin_notes(self) -> None:
        """Begin another file, by whose number the other processes see that all is as at first."""
        self._open(f"{self._notes}.new", "w").close()
        self._own["replace"](f"{self._notes}.new", self._notes)

    def _note(self, path: str, target: str | None = None, *, is_removed: bool = False) -> None:
        """Note that a path has been removed, or leads to a target now; without any that it is no link any more."""
        with self._open(self._notes, "a") as file:
            file.write(json.dumps([path, target, is_removed]) + "\n")

    def _read_notes(self) -> None:
        found = self._own["stat"](self._notes)
        number, size = self._noted
        if found.st_ino != number:
            self._hidden.clear()
            self._links.clear()
            size = 0
        if found.st_size > size:
            with self._open(self._notes) as file:
                file.seek(size)
                for path, target, is_removed in map(json.loads, file):
                    self._links.pop(path, None)
                    self._links |= {path: target} if target else {}
                    self._hidden |= {path} if is_removed else set()
        self._noted = found.st_ino, found.st_size

    def _with(self, name: str, chosen: Callable[..., Any], *, itself: bool = False) -> Callable[..., Any]:
        own = self._own[name]

        def stand_in(path: Any, *given: Any, **options: Any) -> Any:
            if options.get("dir_fd") is None:
                path = chosen(path, itself=itself or options.get("follow_symlinks") is False)
            return own(path, *given, **options)

        return stand_in

    def _copy_of(self, path: Any, *, itself: bool = False) -> tuple[str, str] | None:
        """Return the absolute path and that of its copy; ``None`` for descriptors, and where paths stay as they are.

        New links are followed, but a link ``itself`` is not.
        """
        if isinstance(path, int):
            return None
        self._read_notes()
        text = path if type(path) is str else os.fsdecode(path)
        absolute = os.path.normpath(text if text.startswith(os.sep) else os.path.join(self._here, text))
        if self._links:
            absolute = self._followed(absolute, itself)
        is_device = absolute.startswith("/dev/") and not absolute.startswith(f"{SHARED_MEMORY}/")
        is_free = absolute.startswith(self._free) and not absolute.startswith(self._held)
        return None if is_device or is_free else (absolute, self._folder + absolute)

    def _followed(self, absolute: str, itself: bool) -> str:
        for _ in range(MOST_LINKS):
            link = next((each for each in self._links if absolute.startswith(each + os.sep)), None)
            link = absolute if link is None and not itself and absolute in self._links else link
            if link is None:
                break
            absolute = os.path.normpath(self._links[link] + absolute[len(link) :])
        return absolute

    def _is_there(self, path: str) -> bool:
        return bool(self._own["access"](path, os.F_OK, follow_symlinks=False))

    def _is_hidden(self, path: str) -> bool:
        return bool(self._hidden) and any(path == each or path.startswith(each + os.sep) for each in self._hidden)

    def _seen(self, path: Any, *, itself: bool = False) -> Any:
        both = self._copy_of(path, itself=itself)
        if both is None:
            return path
        return both[1] if self._is_there(both[1]) or self._is_hidden(both[0]) else both[0]

    def _new(self, path: Any, *, itself: bool = True) -> Any:
        both = self._copy_of(path, itself=itself)
        if both is None:
            return path
        folder = os.path.dirname(both[0])
        if not os.path.isdir(folder):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), both[0])
        self._make_folder(os.path.dirname(both[1]))
        return both[1]

    def _make_folder(self, copy: str) -> None:
        if not self._is_there(copy):
            self._make_folder(os.path.dirname(copy))
            self._own["mkdir"](copy)

    def _taken(self, path: Any, *, empty: bool = False, itself: bool = False) -> Any:
        """Return the path to change: that of a copy, made now where there is none; ``empty`` without the content."""
        both = self._copy_of(path, itself=itself)
        if both is None:
            return path
        seen, new = self._seen(path, itself=itself), self._new(path, itself=itself)
        if seen != new and self._is_there(seen):
            if os.path.isdir(seen):
                self._make_folder(new)
            elif not empty:
                shutil.copy2(os.path.realpath(seen), new)
        return new

    def _opened(self, path: Any, mode: str) -> Any:
        if not CHANGING.isdisjoint(mode):
            self._refuse_existing(path, "x" in mode or mode == "w-")
            return self._taken(path, empty="w" in mode)
        return self._seen(path)

    def _given(self, path: Any, mode: str) -> Any:
        """Return the path for C code to open in a mode; of a folder it sees what was there before, if anything was."""
        chosen, both = self._opened(path, mode), self._copy_of(path)
        return both[0] if both and os.path.isdir(chosen) and self._is_there(both[0]) else chosen

    def _open_copy(self, file: Any, mode: str = "r", *given: Any, **options: Any) -> Any:
        return self._open(self._opened(file, mode), mode, *given, **options)

    def _open_descriptor(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if dir_fd is None:
            self._refuse_existing(path, bool(flags & os.O_EXCL and flags & os.O_CREAT))
            path = self._taken(path, empty=bool(flags & os.O_TRUNC)) if flags & WRITING else self._seen(path)
        return int(self._own["open"](path, flags, mode, dir_fd=dir_fd))

    def _chdir(self, path: Any) -> None:
        self._own["chdir"](self._seen(path))
        both = self._copy_of(path)
        self._here = both[0] if both else self._own["getcwd"]()

    def _refuse_existing(self, path: Any, is_made: bool) -> None:
        if is_made and self._is_there(self._seen(path, itself=True)):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)

    def _make(self, name: str) -> Callable[..., None]:
        def make(path: Any, *given: Any, dir_fd: int | None = None, **options: Any) -> None:
            if dir_fd is None:
                self._refuse_existing(path, True)
                path = self._new(path)
            self._own[name](path, *given, dir_fd=dir_fd, **options)

        return make

    def _remove(self, path: Any, *, dir_fd: int | None = None) -> None:
        seen = path if dir_fd is not None else self._seen(path, itself=True)
        is_folder = os.path.isdir(seen) and not os.path.islink(seen)
        both = None if dir_fd is not None else self._copy_of(path, itself=True)
        if both is None:
            self._own["rmdir" if is_folder else "unlink"](path, dir_fd=dir_fd)
            return
        if is_folder and self._entries(path):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)
        if not self._is_there(seen):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        if self._is_there(both[1]):
            self._own["rmdir" if is_folder else "unlink"](both[1])
        self._note(both[0], is_removed=self._is_there(both[0]))

    def _rename(self, source: Any, path: Any, **options: Any) -> None:
        if self._copy_of(source) is None and self._copy_of(path) is None:
            self._own["rename"](source, path, **options)
            return
        if not os.path.lexists(source):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), source)
        if os.path.abspath(path) == os.path.abspath(source):
            return
        is_folder = os.path.isdir(source) and not os.path.islink(source)
        if is_folder and os.path.abspath(path).startswith(os.path.abspath(source) + os.sep):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), source)
        if os.path.lexists(path):
            self._refuse_unlike(path, is_folder)
        self._new(path)  # whose folder has to be there
        if is_folder:
            if os.path.lexists(path):
                self._remove(path)
            shutil.copytree(source, path, symlinks=True)
            shutil.rmtree(source)
        else:
            self._own["replace"](self._taken(source, itself=True), self._new(path))
            self._note_link(path)
            if before := self._copy_of(source, itself=True):
                self._note(before[0], is_removed=self._is_there(before[0]))

    def _symlink(self, source: Any, path: Any, *given: Any, **options: Any) -> None:
        self._refuse_existing(path, True)
        self._own["symlink"](source, self._new(path))
        self._note_link(path)

    def _note_link(self, path: Any) -> None:
        both = self._copy_of(path, itself=True)
        if both and os.path.islink(both[1]):
            self._note(both[0], os.path.join(os.path.dirname(both[0]), self._own["readlink"](both[1])))
        elif both:
            self._note(both[0])

    def _refuse_unlike(self, path: Any, is_folder: bool) -> None:
        if (os.path.isdir(path) and not os.path.islink(path)) != is_folder:
            number = errno.ENOTDIR if is_folder else errno.EISDIR
            raise OSError(number, os.strerror(number), path)

    def _link(self, source: Any, path: Any, **options: Any) -> None:
        self._refuse_existing(path, True)
        self._own["link"](self._taken(source), self._new(path))

    def _entries(self, path: Any) -> list[Any]:
        both = None if isinstance(path, bytes) else self._copy_of(path)
        if both is None:
            with self._own["scandir"](path) as entries:
                return list(entries)
        found: dict[str, Any] = {}
        if not self._is_hidden(both[0]) and (self._is_there(both[0]) or not self._is_there(both[1])):
            with self._own["scandir"](path) as entries:
                names = {each.name: each for each in entries}
            found = {name: each for name, each in names.items() if not self._is_hidden(os.path.join(both[0], name))}
        if self._is_there(both[1]):
            with self._own["scandir"](both[1]) as entries:
                found |= {each.name: _Entry(each, os.path.join(os.fspath(path), each.name)) for each in entries}
        return list(found.values())

    def _connect_copy(self, database: Any, *given: Any, **options: Any) -> Any:
        text = os.fsdecode(database) if isinstance(database, (str, bytes, os.PathLike)) else ":"
        if options.get("uri") and text.startswith("file:"):
            database = self._located(text)
        elif not text.startswith(":"):
            database = self._taken(database)
        return self._connect(database, *given, **options)

    def _located(self, uri: str) -> str:
        parts = urlsplit(uri)
        path = unquote(parts.path)
        if not path or path == ":memory:" or "mode=memory" in parts.query:
            return uri
        chosen = self._opened(path, "r" if "mode=ro" in parts.query or "immutable=1" in parts.query else "a")
        return f"file:{quote(chosen)}" + (f"?{parts.query}" if parts.query else "")

    def _create_dynamic(self, spec: Any, *given: Any) -> Any:
        seen: Any = SimpleNamespace(name=spec.name, origin=self._seen(spec.origin))
        module = self._create(seen, *given)
        if getattr(module, "__file__", None) == seen.origin:
            module.__file__ = spec.origin
        return module

    def unseen(self, path: str) -> str | None:
        """Return the absolute path of what is a copy only, which other programs do not see; ``None`` of all else."""
        both = self._copy_of(path)
        if both is None or not self._is_there(both[1]) or (os.path.isdir(both[1]) and self._is_there(both[0])):
            return None
        return both[0]


class _Entry:
    def __init__(self, entry: os.DirEntry[str], path: str) -> None:
        self._entry, self.name, self.path = entry, entry.name, path

    def __fspath__(self) -> str:
        return self.path

    def __getattr__(self, name: str) -> Any:
        return getattr(self._entry, name)

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return os.path.isdir(self.path) and (follow_symlinks or not self._entry.is_symlink())

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        return os.path.isfile(self.path) and (follow_symlinks or not self._entry.is_symlink())

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        return os.stat(self.path) if follow_symlinks else os.lstat(self.path)


class _Entries(Iterator[Any], AbstractContextManager[Any]):
    def __init__(self, entries: list[Any]) -> None:
        self._entries = iter(entries)

    def __next__(self) -> Any:
        return next(self._entries)

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._entries = iter(())
