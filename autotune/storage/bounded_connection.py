"""A connection to PostgreSQL with a time limit for every answer."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg


class BoundedConnection(psycopg.Connection[Any]):
    """Is cut where an answer takes longer than ``seconds``, and raises ``psycopg.OperationalError`` then.

    A frozen server, or a host that drops packets, keeps the kernel's connection alive.
    """

    seconds: float = 20.0
    """How long an answer may take."""

    def wait(self, *arguments: Any, **options: Any) -> Any:
        """Wait for an answer, as psycopg does; every round trip of a connection that is open comes by here."""
        with _cut_after(self.seconds, self.pgconn.socket) as is_cut:
            try:
                return super().wait(*arguments, **options)
            except psycopg.Error:
                if is_cut.is_set():
                    self.pgconn.finish()
                    raise psycopg.OperationalError(f"no answer within {self.seconds:.0f} s") from None
                raise


@contextmanager
def _cut_after(seconds: float, descriptor: int) -> Iterator[threading.Event]:
    """Shut a socket down after so many seconds, unless this ends before; the event says that it was."""
    is_cut, is_over, lock = threading.Event(), threading.Event(), threading.Lock()

    def cut() -> None:
        with lock:
            if not is_over.is_set():  # by then another file may have the number
                is_cut.set()
                with suppress(OSError):
                    borrowed = socket.socket(fileno=descriptor)
                    try:
                        borrowed.shutdown(socket.SHUT_RDWR)
                    finally:
                        borrowed.detach()

    timer = threading.Timer(seconds, cut)
    timer.daemon = True
    timer.start()
    try:
        yield is_cut
    finally:
        with lock:
            is_over.set()
        timer.cancel()
