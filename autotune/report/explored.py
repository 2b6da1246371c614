"""What became of an explored option, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.duration import format_duration
from autotune.room import format_size

if TYPE_CHECKING:
    from autotune.result import TriedOption

__all__ = ["tried_line"]

LEAST_CHANGE = 10 * 2**20
"""Changes of memory below so many bytes are not worth a word."""
LEAST_START = 1.0
"""The same for the seconds by which the first step is longer."""


def tried_line(tried: TriedOption, is_used: bool) -> str:
    """Return what became of an option, in a sentence or two; ``is_used`` says that the answer has it."""
    if tried.gain is None:
        return f"Option {tried.option}: {tried.message.removeprefix(f'{tried.option} ')}."
    pace = "faster" if tried.gain >= 0 else "slower"
    found = f"Option {tried.option}: the step alone is {100 * abs(tried.gain):.0f} % {pace}{_memory_text(tried)}"
    if not tried.kept:
        return f"{found}; left out: {tried.message}."
    if not is_used:
        return f"{found}; left out: that training is faster with it was not confirmed."
    return f"{found}; used.{_repaid_text(tried)}"


def _memory_text(tried: TriedOption) -> str:
    change = tried.memory_change_bytes or 0
    if abs(change) < LEAST_CHANGE:
        return ""
    return f", with {format_size(abs(change))} {'more' if change > 0 else 'less'} memory"


def _repaid_text(tried: TriedOption) -> str:
    """Return when a long first step is repaid; empty where it is not long."""
    longer, repaid = tried.start_seconds, tried.repaid_seconds
    if longer is None or repaid is None or longer < LEAST_START:
        return ""
    what = "Compiling" if tried.option == "compile" else "The first step"
    return f" {what} takes {longer:.0f} s, repaid after {format_duration(repaid)} of training."
