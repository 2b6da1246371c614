"""The end of the search, and its reason in words.

Pure: no clock, no torch, no I/O.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from autotune.limits import percent
from autotune.search.forecast import Forecast
from autotune.search.observations import GAIN

CEILING_SHARE = 0.97
"""Share of the ceiling that a rate must reach to count as one with it."""


class Ending(StrEnum):
    """The kinds of reasons that end a search."""

    COMPLETE = "complete"
    """Nothing was left to gain."""
    TRIALS = "trials"
    """The number of trials that was asked for."""
    BUDGET = "budget"
    """The rest of the budget was not enough."""
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class Stop:
    """The reason why a search ended."""

    ending: Ending
    text: str


def reason_to_stop(forecast: Forecast) -> str | None:
    """Return the reason why nothing is left to gain, or ``None``."""
    if forecast.is_open.any():
        return None
    if math.exp(forecast.best_log) >= CEILING_SHARE * forecast.most:
        share = percent(1 - CEILING_SHARE)
        return f"within {share} of the ceiling: no data loader can give more than {forecast.most:,.0f} samples/s"
    if not forecast.is_left.any():
        return "every allowed configuration that fits was measured"
    return f"no untried setting is expected to gain more than {percent(GAIN)}"
