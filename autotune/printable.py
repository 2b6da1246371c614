"""Foreign text for a terminal: names, messages and file names must not be able to move its cursor or hide anything."""

from __future__ import annotations

import unicodedata

__all__ = ["printable"]

LINE_ENDS = ("Zl", "Zp")
"""Unicode categories of other ends of lines; those that begin with C are controls, marks and what has no meaning."""


def printable(text: str) -> str:
    r"""Return a text with what would act on a terminal written out as in Python (``\x1b``); lines and tabs stay."""
    return "".join(_written_out(character) for character in text)


def _written_out(character: str) -> str:
    category = unicodedata.category(character)
    if character in "\n\t" or not (category.startswith("C") or category in LINE_ENDS):
        return character
    return character.encode("unicode_escape").decode("ascii")
