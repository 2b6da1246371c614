"""Numbers that are exact on a quiet machine, on one that may not be."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pytest

from autotune.measure.conditions import conditions_between, snapshot

T = TypeVar("T")

ATTEMPTS = 3
MOST_FOREIGN_CPUS = 0.25
"""CPUs that other processes may use beside a measurement that is held against arithmetic."""


def undisturbed(measure: Callable[[], T], is_right: Callable[[T], bool]) -> T:
    """Measure until the result is right, three times at most, and return the last one.

    A machine may stand still for a moment: what is wrong three times in a row is wrong. Where others used the CPUs
    meanwhile that says nothing, and the test is skipped. What no neighbour can cause, such as a sleep that is too
    short, is no matter for the value of ``is_right``: it must hold of every result.
    """
    neighbours = 0.0
    for _ in range(ATTEMPTS):
        before = snapshot()
        found = measure()
        neighbours = max(neighbours, conditions_between(before, snapshot()).foreign_cpus)
        if is_right(found):
            return found
    if neighbours > MOST_FOREIGN_CPUS:
        pytest.skip(f"other processes used up to {neighbours:.1f} CPUs while it was measured {ATTEMPTS} times")
    return found
