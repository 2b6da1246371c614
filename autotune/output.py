"""Files that a user names for writing: what is there, whether autotune may replace it, and how it is written.

Every file is written whole beside its place and then moved there, so a stream or a device cannot be one.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from autotune.errors import ConfigFileError

HEAD = 2**16
"""Bytes of a file among which the mark of autotune is."""
STREAMS = ("/dev/std", "/dev/fd/", "/proc/")
"""Beginnings of the paths of open files."""
OTHERS: Mapping[Callable[[int], bool], str] = {
    stat.S_ISBLK: "a device",
    stat.S_ISCHR: "a device",
    stat.S_ISFIFO: "a FIFO",
    stat.S_ISSOCK: "a socket",
}
"""Words for what is neither a file nor a folder."""
EXPORTED = "Exported by autotune"
"""Beginning of the first comment of an export or a patch."""
GENERATOR = '<meta name="generator" content="autotune">'
"""Element in the head of a report."""
STUDY_START = b'{"op_code"'
"""How the first line of Optuna's journal files begins."""


class Kind(NamedTuple):
    """A kind of file."""

    name: str
    is_ours: Callable[[Path], bool]
    """Whether autotune wrote a file of this kind, by its content."""


def is_study(path: Path, content: bytes) -> bool:
    """Return whether content is a study's: empty, or begun as one; named so, its first line may have been cut off."""
    if not content or content.startswith(STUDY_START):
        return True
    return path.suffix == ".study" and (STUDY_START.startswith(content) or not content.strip(b"\0"))


REPORT = Kind("report", lambda path: GENERATOR.encode() in _head(path))
EXPORT = Kind("export or patch", lambda path: _head(path).startswith(f"# {EXPORTED}".encode()))
BARE_EXPORT = Kind("export that can be recognised (it has no comments)", lambda path: False)
STUDY = Kind("study", lambda path: is_study(path, _head(path)))


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(HEAD)


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """A file that a flag names for writing."""

    flag: str
    path: Path
    kind: Kind
    force: bool | None = False
    """Whether any regular file may be replaced; ``None`` where the flag has no ``--force``."""
    kept: Mapping[str, Path] = field(default_factory=dict)
    """Files that are never replaced, by what they are."""

    def require(self) -> None:
        """Raise ``ConfigFileError`` where autotune may not write: another's file, or a folder that refuses it."""
        if str(self.path) == "-" or str(self.path.absolute()).startswith(STREAMS):
            raise self._error("cannot be written: is a stream, and autotune writes whole files; name a file")
        try:
            file = regular_file(self.path)
            self._require_ours(file)
            with tempfile.NamedTemporaryFile(dir=file.parent, prefix=f".{file.name[:100]}."):
                return
        except (OSError, ValueError) as error:
            raise self._error(f"cannot be written: {reason(error)}") from None

    def write(self, content: str | bytes) -> None:
        """Write the file. Raises ``ConfigFileError`` as ``require`` does."""
        self.require()
        write_file(self.path, content)

    def _require_ours(self, file: Path) -> None:
        for what, other in self.kept.items():
            if _is_same(file, other):
                raise self._error(f"is {what}, which is never replaced; choose another name")
        if not file.exists() or not file.stat().st_size or self.kind.is_ours(self.path):
            return
        if _head(file).startswith(STUDY_START):
            raise self._error("is a study, which is never replaced; choose another name")
        if self.force:
            return
        way = "" if self.force is None else ", or replace it with --force"
        raise self._error(f"this file is no {self.kind.name} of autotune; choose another name{way}")

    def _error(self, text: str) -> ConfigFileError:
        target = Path(os.path.realpath(self.path))
        leads = f" leads to {target}:" if self.path.is_symlink() else ""
        return ConfigFileError(f"{self.flag} {self.path}:{leads} {text}")


def _is_same(one: Path, other: Path) -> bool:
    with suppress(OSError):
        return one.samefile(other)
    return os.path.realpath(one) == os.path.realpath(other)


def regular_file(path: Path) -> Path:
    """Return the file that a path leads to, which need not be there.

    Raises ``OSError`` where it leads to a folder, a device, a FIFO or a socket.
    """
    file = Path(os.path.realpath(path))
    try:
        mode = file.stat().st_mode
    except FileNotFoundError:
        return file
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(mode):
        found = next((words for test, words in OTHERS.items() if test(mode)), "another thing")
        raise OSError(errno.EINVAL, f"it is no regular file but {found}")
    return file


def write_file(path: Path, content: str | bytes) -> None:
    """Write the file that a path leads to, whole or not at all; text as UTF-8.

    Raises ``ConfigFileError`` when it cannot be written.
    """
    try:
        file = regular_file(path)
        temporary = file.parent / f".{file.name}.{secrets.token_hex(8)}"
        encoded = content.encode() if isinstance(content, str) else content
        try:
            with temporary.open("xb") as made:
                made.write(encoded)
                made.flush()
                os.fsync(made.fileno())
            temporary.replace(file)
        finally:  # an interrupt too must leave nothing behind
            with suppress(OSError):
                temporary.unlink()
    except (OSError, UnicodeError) as error:
        raise ConfigFileError(f"{path}: cannot be written: {reason(error)}") from None


def reason(error: OSError | ValueError) -> str:
    """Return why a file could not be read or written."""
    return getattr(error, "strerror", None) or str(error)
