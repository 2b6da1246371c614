"""How much of the memory a configuration may use: ``--headroom`` and ``--max-memory``."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from autotune.errors import UsageError

__all__ = ["DEFAULT_ROOM", "MemoryRoom", "format_size", "parse_headroom", "parse_size"]

_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([KMGT]i?)?B?", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRoom:
    """The share that stays free, and the most that training may take."""

    headroom: float = 0.1
    """Share of each memory that must stay free."""
    most: int | None = None
    """Bytes of the memory that limits training; ``None`` where only the machine limits."""

    def of(self, limit: float) -> float:
        """Return the bytes that may be used of so many in the memory that limits training."""
        share = self.beside(limit)
        return share if self.most is None else min(share, self.most)

    def beside(self, limit: float) -> float:
        """Return the same for any other memory."""
        return (1 - self.headroom) * limit


DEFAULT_ROOM = MemoryRoom()
"""A tenth stays free."""


def parse_headroom(given: float | str) -> float:
    """Return a share from a number below 1, or from text such as ``"10%"`` or ``"0.1"``.

    Raises ``UsageError``.
    """
    text = str(given).strip()
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = -1.0
    if not 0 <= share < 1:
        raise UsageError(f"--headroom {given}: allowed: a share from 0% to below 100%, for example 10% or 0.1")
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
    return int(size)


def format_size(count: float) -> str:
    """Return bytes as people read them: ``1.5 GiB``, ``800 MiB``."""
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"
