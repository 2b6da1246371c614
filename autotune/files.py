"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from autotune.errors import ConfigFileError

__all__ = ["reason", "write_file"]


def write_file(path: Path, content: str | bytes) -> None:
    """Write a file whole or not at all; text as UTF-8.

    Raises ``ConfigFileError`` when it cannot be written.
    """
    temporary = path.parent / f".{path.name}.{secrets.token_hex(8)}"
    try:
        encoded = content.encode() if isinstance(content, str) else content
        with _removed_on_failure(temporary):
            with temporary.open("xb") as file:
                file.write(encoded)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
    except (OSError, UnicodeError) as error:
        raise ConfigFileError(f"{path}: cannot be written: {reason(error)}") from None


def reason(error: OSError | UnicodeError) -> str:
    """Return why a file could not be read or written."""
    return getattr(error, "strerror", None) or str(error)


@contextmanager
def _removed_on_failure(temporary: Path) -> Iterator[None]:
    try:
        yield
    except BaseException:  # an interrupt too must leave nothing behind
        with suppress(OSError):
            temporary.unlink()
        raise
