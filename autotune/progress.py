"""How a run shows that it is alive: a live display on a terminal, one plain line a trial elsewhere."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Self

from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from autotune.report.terminal import probe_line, status, trial_line, waiting_line

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from rich.console import Console, RenderableType

    from autotune.records import Progress

__all__ = ["LiveProgress", "PlainProgress"]

FRAMES_PER_SECOND = 4
"""Low on purpose: the display shares the CPUs with what is being timed."""


class PlainProgress:
    """Writes one line for each finished trial; for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def __call__(self, progress: Progress) -> None:
        """Write the look or the trial that has just finished, if one has."""
        if progress.waiting_for:
            self._console.print(waiting_line(progress.waiting_for), soft_wrap=True)
        if progress.looked:
            self._console.print(probe_line(progress.looked), soft_wrap=True)
        if progress.finished:
            self._console.print(trial_line(progress.finished, progress.baseline_rate), soft_wrap=True)


class LiveProgress:
    """Keeps two lines about the moment at the foot of a terminal; finished trials scroll above them."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._spinner = Spinner("dots", style="green")
        self._progress: Progress | None = None
        self._received = 0.0
        self._number = 0
        self._last_rate: float | None = None
        self._live = Live(
            console=console,
            get_renderable=self.render,
            refresh_per_second=FRAMES_PER_SECOND,
            transient=True,
        )

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def __call__(self, progress: Progress) -> None:
        """Show this moment; a finished trial also gets a line that stays."""
        self._progress, self._received = progress, self._clock()
        trial = progress.finished
        if progress.waiting_for:
            self._console.print(waiting_line(progress.waiting_for))
        if progress.looked:
            self._console.print(probe_line(progress.looked), no_wrap=True, overflow="ellipsis")
        if trial:
            self._number = trial.number + 1
            self._last_rate = trial.rate
            whole = bool(trial.message)  # what went wrong is read to its end; a configuration may be cut
            line = trial_line(trial, progress.baseline_rate)
            self._console.print(line, no_wrap=not whole, overflow="ellipsis")

    def render(self) -> RenderableType:
        """Return what stands at the foot of the terminal now; the time left counts down by the clock."""
        if self._progress:
            elapsed = self._clock() - self._received
            text = status(
                self._progress,
                number=self._number,
                last_rate=self._last_rate,
                seconds_left=self._progress.seconds_left - elapsed,
            )
        else:
            text = Text("starting", style="bold")
        grid = Table.grid(padding=(0, 1))
        grid.add_column()
        grid.add_column(no_wrap=True, overflow="ellipsis")
        grid.add_row(self._spinner, text)
        return grid
