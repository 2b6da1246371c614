"""Charts as Vega-Lite specifications, which Altair and the report's own script draw. Pure.

Version 6 of the grammar (https://vega.github.io/vega-lite/docs/).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any, Literal

from autotune.errors import UsageError

SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
COLOURS = {
    "blue": "#3d7fc4",
    "orange": "#d9772b",
    "green": "#2f9a6b",
    "purple": "#9270c9",
    "red": "#d6545c",
    "grey": "#858c96",
    "teal": "#2a9bab",
    "brown": "#a97c50",
}
"""Each stands out from white and from black, three to one at least: one palette for both."""
TEXT, GRID = "#737c87", "#87909a33"
SYMBOLS = {"circle": "circle", "open circle": "circle", "diamond": "diamond", "cross": "M-1,-1L1,1M1,-1L-1,1"}
DASHES = {"solid": [1, 0], "dashed": [6, 4], "dotted": [2, 3]}
HEIGHT, ROW_HEIGHT = 230, 38
"""Pixels of a chart without its axes, and of each category where they stand below one another."""
Data = dict[str, Any]


CONFIG: Data = {
    "view": {"stroke": None},
    "axis": {
        "labelColor": TEXT,
        "titleColor": TEXT,
        "titleFontWeight": "normal",
        "gridColor": GRID,
        "domainColor": GRID,
        "tickColor": GRID,
        "labelFontSize": 12,
        "titleFontSize": 12,
        "labelLimit": 140,
    },
    "legend": {"orient": "top", "direction": "horizontal", "labelColor": TEXT, "labelFontSize": 12, "labelLimit": 260},
    "title": {"color": TEXT, "subtitleColor": TEXT},
    "axisX": {"labelAngle": 0},
}
MISSING = "plots need {package}, which is not installed: pip install 'torch-autotune[report]'"


Kind = Literal["bars", "line", "steps", "points"]
"""Bars lie along the x axis, one on another; steps stay until the next point."""
Colour = Literal["blue", "orange", "green", "purple", "red", "grey", "teal", "brown"]
Symbol = Literal["circle", "open circle", "diamond", "cross"]
Dashes = Literal["solid", "dashed", "dotted"]


def specification(chart: Chart) -> Data:
    """Return a chart as a Vega-Lite specification; transparent, so that it suits light and dark pages."""
    axes = {"x": _axis(chart.x), "y": _axis(chart.y)}
    named = {series.name: COLOURS[series.colour] for series in chart.series if series.in_legend}
    layers = [*_bars(chart), *(layer for series in chart.series for layer in _layers(series))]
    layers += [layer for mark in chart.marks for layer in _mark(mark, chart)]
    rows = chart.y.categories
    return {
        "$schema": SCHEMA,
        "title": {"text": chart.title, "subtitle": chart.key, "anchor": "start", "fontSize": 15},
        "description": " ".join(filter(None, (f"{chart.title}.", chart.key, chart.summary))),
        "width": "container",
        "height": ROW_HEIGHT * len(rows) if rows else HEIGHT,
        "autosize": {"type": "fit-x", "contains": "padding"},
        "background": "transparent",
        "layer": [{**layer, "encoding": _complete(layer["encoding"], axes, named)} for layer in layers],
        "config": CONFIG,
    }


def _complete(encoding: Data, axes: Data, named: dict[str, str]) -> Data:
    """Return what a layer shows where, with its axes, and with the legend where it is named there."""
    complete = {**encoding, **{channel: {**axes[channel], **encoding[channel]} for channel in axes.keys() & encoding}}
    if "field" in encoding.get("color", {}):
        columns = 2 if max(map(len, named)) < 18 else 1
        scale = {"domain": list(named), "range": list(named.values())}
        legend = {"title": None, "columns": columns, "symbolStrokeWidth": 2}
        complete["color"] |= {"type": "nominal", "scale": scale, "legend": legend}
    return complete


def _axis(axis: Axis) -> Data:
    """Return an axis; its categories stand in their order."""
    title = axis.title or None
    if axis.categories:
        return {
            "type": "nominal",
            "sort": list(axis.categories),
            "scale": {"domain": list(axis.categories)},
            "title": title,
        }
    return {"type": "quantitative", "scale": {"zero": axis.from_zero, "nice": True}, "title": title}


def _bars(chart: Chart) -> Iterator[Data]:
    """Yield one layer with all bars, each row's one after another."""
    bars = [series for series in chart.series if series.kind == "bars"]
    rows = [{**row, "order": order} for order, series in enumerate(bars) for row in _rows(series)]
    if not rows:
        return
    yield {
        "data": {"values": rows},
        "mark": {"type": "bar", "height": {"band": 0.6}},
        "encoding": {
            "x": {"field": "x", "stack": "zero"},
            "y": {"field": "y"},
            "order": {"field": "order"},
            **_fixed(bars[0]),
            **_tooltip(bars[0]),
        },
    }


def _layers(series: Series) -> Iterator[Data]:
    """Yield the layers of a series of lines or points."""
    if series.kind == "bars":
        return
    places: Data = {"x": {"field": "x"}, "y": {"field": "y"}}
    data = {"values": _rows(series)}
    if series.spread:
        ends = [{**row, "x": low, "x2": high} for row, (low, high) in zip(_rows(series), series.spread, strict=True)]
        interval = {**places, "x2": {"field": "x2"}, **_fixed(series)}
        yield {"data": {"values": ends}, "mark": {"type": "rule", "strokeWidth": 3}, "encoding": interval}
    yield {"data": data, "mark": _mark_of(series), "encoding": {**places, **_fixed(series), **_tooltip(series)}}


def _mark_of(series: Series) -> Data:
    if series.kind == "points":
        is_solid = series.symbol in ("circle", "diamond")
        return {
            "type": "point",
            "shape": SYMBOLS[series.symbol],
            "filled": is_solid,
            "size": 110 if series.symbol == "diamond" else 70,
            "strokeWidth": 2,
            "opacity": 1,
        }
    line: Data = {
        "type": "line",
        "strokeWidth": 2.5,
        "interpolate": "step-after" if series.kind == "steps" else "linear",
    }
    return line | {"strokeDash": DASHES[series.dashes], "point": {"size": 60} if len(series.x) == 1 else False}


def _rows(series: Series) -> list[Data]:
    labels: Sequence[str | None] = series.labels or (None,) * len(series.x)
    rows = ({"x": x, "y": y, "label": label} for x, y, label in zip(series.x, series.y, labels, strict=True))
    return [{**row, "name": series.name} for row in rows]


def _fixed(series: Series) -> Data:
    """Return the colour: by the legend, or its own where the legend does not name it."""
    if series.in_legend:
        return {"color": {"field": "name"}}
    return {"color": {"value": COLOURS[series.colour]}}


def _tooltip(series: Series) -> Data:
    if series.labels:
        return {"tooltip": {"field": "label", "type": "nominal"}}
    return {"tooltip": [{"field": "name", "type": "nominal"}, {"field": "x"}, {"field": "y"}]}


def _middle(chart: Chart) -> float:
    """Return the middle of an axis x of numbers."""
    values = [float(x) for series in chart.series for x in series.x]
    values += [end for series in chart.series for interval in series.spread for end in interval]
    values += [mark.at for mark in chart.marks if mark.axis == "x"] + ([0.0] if chart.x.from_zero else [])
    return (min(values) + max(values)) / 2


def _mark(mark: Mark, chart: Chart) -> Iterator[Data]:
    """Yield a line across the chart, and what it means, on the side of it where there is more room."""
    place = {mark.axis: {"datum": mark.at}, "color": {"value": TEXT}}
    is_right = mark.axis == "x" and mark.at > _middle(chart)
    text: Data = {"type": "text", "fontSize": 12, "text": mark.text, "align": "right" if is_right else "left"}
    text |= {"dx": -5 if is_right else 5}
    text |= {"y": 6, "baseline": "top"} if mark.axis == "x" else {"x": 0, "baseline": "bottom", "dy": -4}
    once: Data = {"values": [{}]}
    yield {"data": once, "mark": {"type": "rule", "strokeDash": [3, 3], "strokeWidth": 1.5}, "encoding": place}
    yield {"data": once, "mark": text, "encoding": place}


def vega_script() -> str:
    """Return the script that draws Vega-Lite specifications, ``vegaEmbed``, as text.

    Raises ``UsageError`` where it is not installed.
    """
    require_vega()
    return _bundle()


@cache
def _bundle() -> str:
    from vl_convert import javascript_bundle

    return str(javascript_bundle("window.vegaEmbed = vegaEmbed;"))


def require_vega() -> None:
    """Raise ``UsageError`` where the script that draws a report's charts is not installed."""
    if find_spec("vl_convert") is None:
        raise UsageError(MISSING.format(package="vl-convert-python"))


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
    """Where: numbers, or categories."""
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
