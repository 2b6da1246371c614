"""The time that a run may take."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

__all__ = ["Clock"]


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
