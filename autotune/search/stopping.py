"""When the search may end, and what it says then.

Pure: no clock, no torch, no I/O.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from autotune.search.outlook import Outlook

__all__ = ["CEILING_SHARE", "GAIN", "Ending", "Stop", "at_ceiling", "reason_to_stop"]

CEILING_SHARE = 0.97
"""Share of the ceiling that a rate must reach to count as one with it."""
GAIN = 0.02
"""Gains below this share do not count: no measurement here tells them from nothing."""


class Ending(StrEnum):
    """What ended a search."""

    COMPLETE = "complete"
    """Nothing was left to gain."""
    TRIALS = "trials"
    """The number of trials that was asked for."""
    BUDGET = "budget"
    """What was left of the budget was not enough."""
    INTERRUPTED = "interrupted"
    """The user."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Why a search ended."""

    ending: Ending
    """What ended it."""
    text: str
    """The same in words."""


def reason_to_stop(outlook: Outlook) -> str | None:
    """Return why nothing is left to gain, or ``None``."""
    if at_ceiling(outlook):
        share = f"{1 - CEILING_SHARE:.0%}"
        most = max(outlook.highest_ceiling, math.exp(outlook.best_log))
        return f"within {share} of the ceiling: no loader can give more than {most:,.0f} samples/s"
    if not outlook.is_open.any():
        return "every configuration within the bounds that could win was measured"
    if outlook.upside < GAIN:
        return f"the best that was not tried is expected to be less than {GAIN:.0%} faster"
    return None


def at_ceiling(outlook: Outlook) -> bool:
    """Tell whether the steps alone would hardly be faster than the best so far."""
    return math.exp(outlook.best_log) >= CEILING_SHARE * outlook.highest_ceiling
