"""When the search may end, and what it says then.

Pure: no clock, no torch, no I/O.
"""

from __future__ import annotations

import math

from autotune.search.outlook import Outlook

__all__ = ["AT_CEILING", "CEILING_SHARE", "GAIN", "reason_to_stop"]

CEILING_SHARE = 0.97
"""Share of the ceiling that a rate must reach to count as one with it."""
AT_CEILING = f"within {1 - CEILING_SHARE:.0%} of the ceiling"
"""How the reason begins where the step alone is hardly faster."""
GAIN = 0.02
"""Gains below this share do not count: no measurement here tells them from nothing."""


def reason_to_stop(outlook: Outlook) -> str | None:
    """Return why nothing is left to gain, or ``None``."""
    rate, ceiling = math.exp(outlook.best_log), outlook.highest_ceiling
    if rate >= CEILING_SHARE * ceiling:
        return f"{AT_CEILING}: no loader can give more than {ceiling:,.0f} samples/s"
    if not outlook.is_open.any():
        return "every configuration within the bounds that could win was measured"
    if outlook.upside < GAIN:
        return f"the best that was not tried is expected to be less than {GAIN:.0%} faster"
    return None
