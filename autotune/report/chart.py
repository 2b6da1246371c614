"""What a chart shows, apart from how it is drawn.

Names of series, labels and marks are plain text; whoever draws them escapes what would be markup.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Axis", "Chart", "Colour", "Dashes", "Kind", "Mark", "Series", "Symbol"]

Kind = Literal["bars", "line", "steps", "points"]
"""Bars lie along the x axis, one on another; steps stay until the next point."""
Colour = Literal["blue", "orange", "green", "purple", "red", "grey", "teal", "brown"]
Symbol = Literal["circle", "open circle", "diamond", "cross"]
Dashes = Literal["solid", "dashed", "dotted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One axis."""

    title: str
    """What it says, with its unit; empty where the categories say it."""
    categories: tuple[str, ...] = ()
    """Its categories in order, along x from the left, along y from the top; empty for an axis of numbers."""
    from_zero: bool = True
    """Whether an axis of numbers begins at zero."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Values that belong together."""

    name: str
    """What they are, for the legend."""
    kind: Kind
    """How they are drawn."""
    colour: Colour
    """The colour."""
    x: tuple[float | str, ...]
    """Where: numbers, or categories."""
    y: tuple[float | str, ...]
    """The same."""
    labels: tuple[str, ...] = ()
    """What each says when it is pointed at; without them its numbers."""
    spread: tuple[tuple[float, float], ...] = ()
    """Interval of each along the axis of numbers: its two ends."""
    symbol: Symbol = "circle"
    """For points."""
    dashes: Dashes = "solid"
    """For lines."""
    in_legend: bool = True
    """Whether the legend names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A line across the chart."""

    axis: Literal["x", "y"]
    """The axis that it stands on."""
    at: float
    """Where it stands there."""
    text: str
    """What it means."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """One chart."""

    name: str
    """Short name, as a file is called."""
    title: str
    """Its heading."""
    summary: str
    """What it says, in a sentence or two: for whoever does not see it, and for whoever wonders what to see."""
    x: Axis
    """The horizontal axis."""
    y: Axis
    """The vertical axis."""
    series: tuple[Series, ...]
    """What is drawn, the lowest first."""
    marks: tuple[Mark, ...] = ()
    """Lines across it."""
    key: str = ""
    """What the legend does not say: what lines and points are."""
