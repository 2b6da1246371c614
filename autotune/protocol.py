"""The conversation between the tuner and a measuring process: JSON objects through a socket pair.

Each message carries the number of its request. ``multiprocessing`` frames the messages; nothing is unpickled.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any

LARGEST = 16 * 2**20
"""Bytes of a reply; the largest there is, a trace of a long loader, takes a hundredth of that."""
STALL_SECONDS = 2
"""Seconds for the rest of a message that has begun: its sender may have been killed in the middle of it."""


class UnreadableError(Exception):
    """A message is damaged, cut, too large, or somebody else's."""


class Channel:
    """One end of the conversation."""

    def __init__(self, descriptor: int) -> None:
        self._connection: Connection[Any, Any] = Connection(descriptor)

    @classmethod
    def pair(cls) -> tuple[Channel, Channel]:
        """Return the tuner's end and the measuring process's."""
        ours, theirs = socket.socketpair()
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", STALL_SECONDS, 0))
        return cls(ours.detach()), cls(theirs.detach())

    def fileno(self) -> int:
        """Return the socket's descriptor."""
        return self._connection.fileno()

    def send(self, number: int, document: Mapping[str, Any]) -> None:
        """Send a request, its reply, or the end of the session that it has opened. Raises ``OSError``."""
        self._connection.send_bytes(json.dumps([number, document]).encode())

    def waits(self, seconds: float) -> bool:
        """Return whether a message, or the other side's end, comes within so many seconds."""
        return self._connection.poll(seconds)

    def receive(self) -> tuple[int, dict[str, Any]]:
        """Return the number and the content of the next message. Raises ``EOFError`` and ``UnreadableError``."""
        try:
            number, document = json.loads(self._connection.recv_bytes(LARGEST))
        except (OSError, TypeError, ValueError) as error:
            raise UnreadableError(str(error) or type(error).__name__) from None
        if not isinstance(number, int) or not isinstance(document, dict):
            raise UnreadableError("no numbered object")
        return number, document

    def close(self) -> None:
        """Close this end."""
        self._connection.close()
