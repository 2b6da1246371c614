"""What a run may say of a gain, in one place. Pure, without torch and Optuna."""

from __future__ import annotations

import math
import re
from enum import StrEnum

__all__ = ["EARLIER", "Verdict", "parse_verdict", "percent_above", "verdict_text"]

EARLIER = "no proven gain"
"""What files of 0.1.0 say where a gain was not proven, for whatever reason."""


class Verdict(StrEnum):
    """Whether something is faster than what the user runs."""

    FASTER = "faster"
    """Proven: by 2 % at least, and its interval excludes equality."""
    NO_GAIN = "no gain"
    """Nothing that was compared is faster by more than a few percent, and the search expects no more of the rest."""
    UNDECIDED = "undecided"
    """Neither is known."""


def verdict_text(verdict: Verdict, most_gain: float | None) -> str:
    """Return a verdict as a file has it: ``faster``, ``no gain above 3 %`` or ``undecided``.

    ``most_gain`` is the largest gain that was not excluded, as a share.
    """
    if verdict is not Verdict.NO_GAIN:
        return str(verdict)
    return f"no gain above {percent_above(most_gain or 0.0)} %"


def percent_above(share: float) -> int:
    """Return a share in whole percent, rounded up."""
    return math.ceil(round(100 * share, 6))


def parse_verdict(text: object) -> Verdict | None:
    """Return the verdict that a file's text stands for; ``None`` where it is none."""
    if text == EARLIER:
        return Verdict.UNDECIDED
    if isinstance(text, str) and re.fullmatch(r"no gain above \d+ %", text):
        return Verdict.NO_GAIN
    return next((verdict for verdict in (Verdict.FASTER, Verdict.UNDECIDED) if text == verdict), None)
