"""The time that a run may take."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from autotune.duration import format_duration
from autotune.errors import UsageError

__all__ = ["LEAST_BUDGET", "Clock", "longer_budget", "require_budget", "told"]

LEAST_BUDGET = 30.0
"""Seconds in which a baseline and one alternative can be measured and compared, with imports and build."""
TOLD_EVERY = 10.0
"""Seconds after which it is said again how long something has taken."""
USUAL_BUDGETS = (30.0, 60.0, 120.0, 180.0, 300.0, 600.0, 1200.0, 1800.0, 3600.0)
"""Seconds of the budgets that are proposed."""


def require_budget(seconds: float) -> float:
    """Return a budget. Raises ``UsageError`` where it is too short to compare anything."""
    if seconds < LEAST_BUDGET:
        raise UsageError(
            f"--budget {format_duration(seconds)}: too short to compare anything; the least is "
            f"{format_duration(LEAST_BUDGET)}"
        )
    return seconds


def longer_budget(seconds: float) -> str:
    """Return, as people write it, a usual budget that is half as long again at least."""
    return format_duration(next((usual for usual in USUAL_BUDGETS if usual >= 1.5 * seconds), 2 * seconds))


@dataclass(slots=True)
class Clock:
    """The budget: wall time for everything."""

    budget: float
    """Seconds in all."""
    now: Callable[[], float] = time.monotonic
    """The clock; injected by tests and simulated machines."""
    start: float = field(init=False)

    def __post_init__(self) -> None:
        self.start = self.now()

    @property
    def spent(self) -> float:
        """Seconds since the start."""
        return self.now() - self.start

    @property
    def left(self) -> float:
        """Seconds left, never negative."""
        return max(0.0, self.budget - self.spent)


@contextmanager
def told(tell: Callable[[float], object], every: float | None = None) -> Iterator[None]:
    """Say again and again how long what runs inside has taken: ``every`` so many seconds, ``TOLD_EVERY`` by default."""
    every = every or TOLD_EVERY
    begin, is_over = time.monotonic(), threading.Event()

    def go_on() -> None:
        while not is_over.wait(every):
            tell(time.monotonic() - begin)

    thread = threading.Thread(target=go_on, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
