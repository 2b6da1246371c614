"""The limits of a run: the time of its budget and the memory of the machine, as people write them."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

from autotune.errors import UsageError

_NUMBER = r"[0-9]+(?:\.[0-9]+)?"
_UNITS = re.compile(
    rf"(?:({_NUMBER})\s*h(?:ours?)?)?\s*(?:({_NUMBER})\s*m(?:in(?:utes?)?)?)?\s*(?:({_NUMBER})\s*s(?:ec(?:onds?)?)?)?",
    re.IGNORECASE,
)
LEAST_BUDGET = 30.0
"""Seconds in which a baseline and one alternative can be measured and compared, with imports and build."""
GRACE, SHARE_GRACE = 10.0, 5.0
"""Seconds after the end of the budget, and of the search's share of it, for a running measurement to end."""
USUAL_BUDGET = 180.0
"""Seconds of a budget until it is chosen."""
USUAL_BUDGETS = (30.0, 60.0, 120.0, 180.0, 300.0, 600.0, 1200.0, 1800.0, 3600.0)
"""Seconds of the budgets that are proposed."""
_SIZE = re.compile(rf"({_NUMBER})\s*([KMGT]i?)?B?", re.IGNORECASE)
LEAST_SIZE = 2**20
"""Bytes below which a limit of memory is a slip."""
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


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
    if re.fullmatch(_NUMBER, text):
        return float(text)
    match = _UNITS.fullmatch(text)
    if not match or not text:
        return math.nan
    hours, minutes, seconds = (float(part or 0) for part in match.groups())
    return 3600 * hours + 60 * minutes + seconds


def require_budget(seconds: float) -> float:
    """Return a budget. Raises ``UsageError`` where it is too short to compare anything."""
    if seconds < LEAST_BUDGET:
        raise UsageError(
            f"--budget {format_duration(seconds)}: too short to compare anything; the least is "
            f"{format_duration(LEAST_BUDGET)}"
        )
    return seconds


def longer_budget(seconds: float, least: float = 0.0) -> str:
    """Return, as people write it, a usual budget that is half as long again, and so many seconds at least."""
    wanted = max(1.5 * seconds, least)
    return format_duration(next((usual for usual in USUAL_BUDGETS if usual >= wanted), 2 * seconds))


@dataclass(slots=True)
class Budget:
    """Wall time for everything."""

    seconds: float
    now: Callable[[], float] = time.monotonic
    """The clock; injected by tests and simulated machines."""
    is_given: bool = True
    """Whether the user gave it; else it is chosen once the baseline was measured."""
    start: float = field(init=False)

    def __post_init__(self) -> None:
        self.start = self.now()

    @classmethod
    def of_user(cls, given: float | str | None) -> Self:
        """Return the budget that a user gave, or one to be chosen. Raises ``UsageError``."""
        return cls(USUAL_BUDGET, is_given=False) if given is None else cls(require_budget(parse_duration(given)))

    def choose(self, seconds: float) -> None:
        """Take so many seconds for the whole budget."""
        self.seconds, self.is_given = seconds, True

    @property
    def spent(self) -> float:
        """Seconds since the start."""
        return self.now() - self.start

    @property
    def left(self) -> float:
        """Seconds left, never negative."""
        return max(0.0, self.seconds - self.spent)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLimit:
    """The share of memory to leave free, and the most memory for training."""

    headroom: float = 0.1
    """Share of each memory that must stay free."""
    most: int | None = None
    """Bytes of the memory that limits training; ``None`` where only the machine limits."""

    @classmethod
    def of_user(cls, headroom: float | str, max_memory: float | str | None) -> Self:
        """Read both as people write them. Raises ``UsageError``."""
        return cls(
            headroom=parse_share("--headroom", headroom), most=None if max_memory is None else parse_size(max_memory)
        )

    def of(self, limit: float) -> float:
        """Return the usable bytes of a ``limit`` in bytes, in the memory that limits training."""
        share = self.beside(limit)
        return share if self.most is None else min(share, self.most)

    def beside(self, limit: float) -> float:
        """Return the same for any other memory."""
        return (1 - self.headroom) * limit


DEFAULT_MEMORY_LIMIT = MemoryLimit()
"""A tenth stays free."""


def parse_share(flag: str, given: float | str) -> float:
    """Return the share of a flag from a number below 1, or from text such as ``"10%"`` or ``"0.1"``.

    Raises ``UsageError``.
    """
    text = str(given).strip()
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = -1.0
    if not 0 <= share < 1:
        raise UsageError(f"{flag} {given}: allowed: a share from 0% to below 100%, for example 10% or 0.1")
    return share


def parse_size(given: float | str) -> int:
    """Return bytes from a number of them, or from text such as ``"12GiB"``, ``"800MB"`` or ``"12G"`` (as ``12GiB``).

    Raises ``UsageError``.
    """
    match = _SIZE.fullmatch(str(given).strip())
    size = 0.0
    if match:
        unit = (match[2] or "").lower()
        is_decimal = len(unit) == 1 and str(given).strip().lower().endswith("b")
        size = float(match[1]) * (1000 if is_decimal else 1024) ** _POWERS[unit[:1]]
    if not 1 <= size < math.inf:
        raise UsageError(f"--max-memory {given}: allowed: a size such as 12GiB, 800MB, or bytes")
    if size < LEAST_SIZE:
        raise UsageError(
            f"--max-memory {given}: is {size:,.0f} bytes, in which nothing trains; name a unit, as in 12GiB"
        )
    return int(size)


def percent(share: float) -> str:
    """Return a share in percent."""
    return f"{100 * share:.0f} %"


def percent_up(share: float) -> str:
    """Return a share in percent, rounded up: no more than that."""
    return f"{math.ceil(round(100 * share, 6))} %"


def format_size(count: float) -> str:
    """Return bytes as people read them: ``1.5 GiB``, ``800 MiB``."""
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"
