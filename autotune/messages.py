"""Messages of a run to its user."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal

from autotune.config import Config
from autotune.limits import Budget
from autotune.records import Probe, Trial

Phase = Literal["inspect", "baseline", "probe", "search", "confirm"]
"""Phase of a run: loading the workload, the baseline, probes, search, confirmation."""
REPEAT_SECONDS = 10.0
"""Seconds after which a waiting message is repeated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """One moment of a run, for its display."""

    phase: Phase
    seconds_left: float | None = None
    """Seconds left of the budget; ``None`` without one."""
    running: Config | None = None
    finished: Trial | None = None
    looked: Probe | None = None
    """The short look that has just ended."""
    best_rate: float | None = None
    """Best samples per second so far."""
    baseline_rate: float | None = None
    """Samples per second of the baseline."""
    message: str | None = None


class Messages:
    """The one way from a run to its user, safe to call from any thread."""

    def __init__(
        self,
        budget: Budget | None = None,
        on_progress: Callable[[Progress], object] = lambda progress: None,
        words: Callable[[str], str] = str,
    ) -> None:
        """Take a listener to each ``Progress``, the budget if there is one, and what puts messages into its words."""
        self._budget = budget
        self._words = words
        self._on_progress = on_progress
        self._lock = threading.RLock()
        self._rates: tuple[float | None, float | None] = (None, None)
        self.phase: Phase = "inspect"
        self.notes: tuple[str, ...] = ()
        """What the result says again."""

    @property
    def seconds_left(self) -> float | None:
        """Seconds left of the budget; ``None`` without one."""
        return self._budget.left if self._budget else None

    def show(self, moment: Progress) -> None:
        """Show a moment of the run, with what is left of the budget now."""
        self.phase, self._rates = moment.phase, (moment.best_rate, moment.baseline_rate)
        with self._lock:
            self._on_progress(replace(moment, seconds_left=self.seconds_left))

    def say(self, message: str) -> None:
        """Say what the user should know now."""
        best_rate, baseline_rate = self._rates
        said = self._words(message)
        self.show(Progress(phase=self.phase, best_rate=best_rate, baseline_rate=baseline_rate, message=said))

    def note(self, message: str) -> None:
        """Say something that the result says again."""
        self.notes += (message,)
        self.say(message)

    @contextmanager
    def waiting(self, what: str, every: float | None = None) -> Iterator[None]:
        """Say again and again how long ``what`` has taken, ``every`` so many seconds."""
        every = every or REPEAT_SECONDS
        begin, is_over = time.monotonic(), threading.Event()

        def go_on() -> None:
            while not is_over.wait(every):
                self.say(f"{what} has taken {time.monotonic() - begin:.0f} s")

        thread = threading.Thread(target=go_on, daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()
