"""Durations as people write them: 90s, 3m, 1h, 1m30s, or a plain number of seconds."""

from __future__ import annotations

import math
import re

from autotune.errors import UsageError

__all__ = ["format_duration", "parse_duration"]

_NUMBER = r"[0-9]+(?:\.[0-9]+)?"
_SECONDS = re.compile(_NUMBER)
_UNITS = re.compile(rf"(?:({_NUMBER})h)?\s*(?:({_NUMBER})m)?\s*(?:({_NUMBER})s)?", re.IGNORECASE)


def parse_duration(text: str | float) -> float:
    """Return a duration in seconds: ``90s``, ``3m``, ``1h``, ``1m30s``, or a number of seconds.

    Raises ``UsageError`` for anything else, and for a duration that is not finite and above zero.
    """
    seconds = _read(text.strip()) if isinstance(text, str) else float(text)
    if not math.isfinite(seconds) or seconds <= 0:
        raise UsageError(f"--budget is {text!r}; allowed: a time above zero such as 90s, 3m, 1h, 1m30s, or seconds")
    return seconds


def format_duration(seconds: float) -> str:
    """Return a duration in whole seconds as ``parse_duration`` reads it; below zero it is ``0s``."""
    minutes, rest = divmod(round(max(0.0, seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    parts = ((hours, "h"), (minutes, "m"), (rest, "s"))
    return "".join(f"{count}{unit}" for count, unit in parts if count) or "0s"


def _read(text: str) -> float:
    if _SECONDS.fullmatch(text):
        return float(text)
    match = _UNITS.fullmatch(text)
    if not match or not text:
        return math.nan
    hours, minutes, seconds = (float(part or 0) for part in match.groups())
    return 3600 * hours + 60 * minutes + seconds
