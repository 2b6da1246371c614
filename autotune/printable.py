"""Foreign text for a terminal: names, messages and file names must not be able to move its cursor or hide anything."""

from __future__ import annotations

import unicodedata

__all__ = ["printable"]

HIDDEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}
"""Unicode categories of what is not seen but acts: controls, format and direction marks, surrogates, separators."""


def printable(text: str) -> str:
    r"""Return a text with what would act on a terminal written out as in Python (``\x1b``); lines and tabs stay."""
    return "".join(_written_out(character) for character in text)


def _written_out(character: str) -> str:
    if character in "\n\t" or unicodedata.category(character) not in HIDDEN:
        return character
    return character.encode("unicode_escape").decode("ascii")
