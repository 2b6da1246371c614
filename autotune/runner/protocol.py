"""The protocol between the tuner and a measuring process: one frame a line, in both directions.

A frame is ``autotune/1 NUMBER CRC32 DOCUMENT``: the protocol's version, the number of its request, the checksum of
number and document, and a JSON object. An empty line precedes it: other writers to the same pipe, or a process killed
in the middle of a frame, spoil no frame but their own.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping
from typing import IO, Any

PREFIX = b"autotune/1"
LARGEST = 16 * 2**20
"""Bytes of a frame; the largest reply there is, a trace of a long loader, takes a hundredth of that."""


class FrameError(Exception):
    """A line is no frame: damaged, too large, or somebody else's."""


def encode(number: int, document: Mapping[str, Any]) -> bytes:
    """Return the frame of a request, of its reply, or of the end of the session that it has opened."""
    digits, content = b"%d" % number, json.dumps(document).encode()
    return b"\n%b %b %b %b\n" % (PREFIX, digits, _checksum(digits, content), content)


def decode(line: bytes) -> tuple[int, dict[str, Any]]:
    """Return a frame's number and document. Raises ``FrameError``."""
    if len(line) > LARGEST:
        raise FrameError(f"more than {LARGEST // 2**20} MiB")
    try:
        prefix, digits, checksum, content = line.removesuffix(b"\n").split(b" ", 3)
        if prefix != PREFIX or checksum != _checksum(digits, content):
            raise ValueError
        number, document = int(digits), json.loads(content)
    except ValueError:
        raise FrameError(f"{len(line)} bytes that begin with {line[:40]!r}") from None
    if not isinstance(document, dict):
        raise FrameError("no JSON object")
    return number, document


def frames(stream: IO[bytes]) -> Iterator[tuple[int, dict[str, Any]] | FrameError]:
    """Yield frames until the stream ends; a line that is too large is the last, its end is not looked for."""
    while line := stream.readline(LARGEST + 1):
        if line == b"\n":
            continue
        try:
            yield decode(line)
        except FrameError as error:
            yield error
            if len(line) > LARGEST:
                return


def _checksum(digits: bytes, content: bytes) -> bytes:
    return b"%08x" % zlib.crc32(content, zlib.crc32(digits))
