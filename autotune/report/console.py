"""The terminal that a run is shown on: whatever is printed there is made printable first."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.console import Console, RenderHook
from rich.segment import Segment

from autotune.printable import printable

if TYPE_CHECKING:
    from rich.console import ConsoleOptions, ConsoleRenderable

__all__ = ["open_console"]


def open_console(*, stderr: bool = True) -> Console:
    """Return a console on standard error, or on standard output."""
    console = Console(stderr=stderr, highlight=False)
    console.push_render_hook(_OnlyPrintable())
    return console


class _OnlyPrintable(RenderHook):
    """Makes printable what the console is given, before it adds its own colours."""

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [_Printable(each) for each in renderables]


class _Printable:
    def __init__(self, inner: ConsoleRenderable) -> None:
        self._inner = inner

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for segment in console.render(self._inner, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)
