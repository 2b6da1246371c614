"""Signals that ask a run to stop: Ctrl-C, SIGTERM of a batch system, SIGHUP of a closing terminal.

Each raises ``KeyboardInterrupt`` in the main thread. The second one also ends what was started at once, and the
process itself where that does not come to an end by itself.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

SAME_EVENT = 0.5
"""Seconds in which SIGHUP or SIGTERM may come twice for one reason: from the kernel and from a shell, say."""
PATIENCE = 1.0
"""Seconds that cleaning up may take after the second signal."""
END_AT_ONCE: set[Callable[[], None]] = set()
"""Functions that end started processes, for when there is no time to ask them."""

_SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


@contextmanager
def interruptible() -> Iterator[None]:
    """Turn the signals into ``KeyboardInterrupt`` for as long as this lasts; those that are ignored stay so.

    A run under ``nohup``, or in the background of a script, ignores some. Does nothing outside the main thread.
    """
    handler = _Handler()
    taken = _replace_handlers(handler, lambda current: current not in (signal.SIG_IGN, None))
    try:
        yield
    finally:
        _restore(taken)


@contextmanager
def shielded() -> Iterator[None]:
    """Let no interrupt come between: one that arrives meanwhile comes at the end, and a second one at once."""
    arrived: list[int] = []

    def pass_on() -> None:
        numbers, arrived[:] = tuple(arrived), []
        for number in numbers[:-1]:
            with suppress(KeyboardInterrupt):
                taken[number](number, None)
        for number in numbers[-1:]:
            taken[number](number, None)

    def note(number: int, frame: FrameType | None) -> None:
        arrived.append(number)
        if len(arrived) > 1:
            pass_on()

    taken = _replace_handlers(note, callable)
    try:
        yield
    finally:
        _restore(taken)
        pass_on()


def _replace_handlers(new: Callable[[int, FrameType | None], None], wanted: Callable[[Any], bool]) -> dict[int, Any]:
    if threading.current_thread() is not threading.main_thread():
        return {}  # signals are only ever handled in the main thread
    taken = {number: current for number in _SIGNALS if wanted(current := signal.getsignal(number))}
    for number in taken:
        signal.signal(number, new)
    return taken


def _restore(taken: dict[int, Any]) -> None:
    for number, handler in taken.items():
        signal.signal(number, handler)


@dataclass(slots=True)
class _Handler:
    count: int = 0
    _last: tuple[int, float] = (0, 0.0)
    _terminals: list[int] = field(default_factory=lambda: [fd for fd in (0, 1, 2) if os.isatty(fd)])

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Stop, the more firmly the more often this is asked for."""
        previous, self._last = self._last, (number, time.monotonic())
        if number != signal.SIGINT and number == previous[0] and self._last[1] - previous[1] < SAME_EVENT:
            return
        self.count += 1
        self._leave_closed_terminals()
        if self.count == 2:
            _end_children()
            timer = threading.Timer(PATIENCE, _exit, (self._terminals,))
            timer.daemon = True
            timer.start()
        elif self.count > 2:
            _exit(self._terminals)
        raise KeyboardInterrupt

    def _leave_closed_terminals(self) -> None:
        for descriptor in self._terminals:
            if not os.isatty(descriptor):
                nothing = os.open(os.devnull, os.O_RDWR)
                os.dup2(nothing, descriptor)
                os.close(nothing)


def _end_children() -> None:
    for end in tuple(END_AT_ONCE):
        with suppress(OSError):
            end()


def _exit(terminals: list[int]) -> None:
    _end_children()
    with suppress(OSError):
        if 2 in terminals:
            os.write(2, b"\x1b[?25h")  # shows the cursor, which a live display hides
    with suppress(Exception):
        sys.stderr.flush()
    os._exit(130)  # as shells give it for Ctrl-C
