"""Charts drawn by Matplotlib: PNG and SVG, for papers and pages without scripts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune.report.vega import COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from autotune.report.chart import Axis, Chart, Series

__all__ = ["figure"]

SYMBOLS = {"circle": "o", "open circle": "o", "diamond": "D", "cross": "x"}
WIDTH, HEIGHT, ROW_HEIGHT = 6.4, 3.6, 0.42
"""Inches of a chart, and of each category where they stand below one another."""


def figure(chart: Chart) -> Figure:
    """Return a Matplotlib figure that belongs to no window; ``savefig`` writes it."""
    from matplotlib.figure import Figure

    rows = len(chart.y.categories)
    found = Figure(figsize=(WIDTH, 1.7 + ROW_HEIGHT * rows if rows else HEIGHT), layout="constrained")
    axes = found.add_subplot()
    ends = [0.0] * rows
    for series in chart.series:
        if series.kind == "bars":
            ends = _draw_bars(axes, series, chart, ends)
        else:
            _draw(axes, series, chart)
    _dress(axes, chart)
    return found


def _draw_bars(axes: Axes, series: Series, chart: Chart, begins: list[float]) -> list[float]:
    """Draw bars that begin where the ones before end, and return where they end."""
    lengths = dict(zip(series.y, map(float, series.x), strict=True))
    widths = [lengths.get(name, 0.0) for name in chart.y.categories]
    axes.barh(range(len(widths)), widths, left=begins, height=0.6, color=COLOURS[series.colour], label=_label(series))
    return [begin + width for begin, width in zip(begins, widths, strict=True)]


def _draw(axes: Axes, series: Series, chart: Chart) -> None:
    x, y = _positions(series.x, chart.x), _positions(series.y, chart.y)
    style: dict[str, Any] = {"color": COLOURS[series.colour], "label": _label(series), "zorder": 3}
    if series.kind != "points":
        drawstyle = "steps-post" if series.kind == "steps" else "default"
        axes.plot(x, y, linestyle=series.dashes, drawstyle=drawstyle, marker="o" if len(x) == 1 else "", **style)
        return
    style |= {"marker": SYMBOLS[series.symbol], "linestyle": "none", "markersize": 6}
    if series.symbol == "open circle":
        style["markerfacecolor"] = "none"
    if series.spread:
        below = [at - low for at, (low, _) in zip(x, series.spread, strict=True)]
        above = [high - at for at, (_, high) in zip(x, series.spread, strict=True)]
        axes.errorbar(x, y, xerr=[below, above], capsize=4, **style)
    else:
        axes.plot(x, y, **style)


def _positions(values: tuple[float | str, ...], axis: Axis) -> list[float]:
    """Return numbers as they are, and of categories their positions."""
    return [float(axis.categories.index(str(value)) if axis.categories else value) for value in values]


def _dress(axes: Axes, chart: Chart) -> None:
    """Draw what belongs to no series: axes, marks, title and legend."""
    for mark in chart.marks:
        draw = axes.axvline if mark.axis == "x" else axes.axhline
        draw(mark.at, color="0.45", linestyle=":", linewidth=1.2, label=_literal(mark.text))
    if chart.x.categories:
        axes.set_xticks(range(len(chart.x.categories)), [_literal(name) for name in chart.x.categories])
    elif chart.x.from_zero:
        axes.set_xlim(left=0)
    if chart.y.categories:
        axes.set_yticks(range(len(chart.y.categories)), [_literal(name) for name in chart.y.categories])
        axes.set_ylim(len(chart.y.categories) - 0.5, -0.5)
    elif chart.y.from_zero:
        axes.set_ylim(bottom=0)
    axes.set_xlabel(_literal(chart.x.title))
    axes.set_ylabel(_literal(chart.y.title))
    axes.set_title(_literal("\n".join(filter(None, (chart.title, chart.key)))), loc="left", fontsize=9)
    axes.grid(color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if axes.get_legend_handles_labels()[1]:
        axes.figure.legend(loc="outside lower left", ncols=3, frameon=False, fontsize=8)


def _label(series: Series) -> str | None:
    return _literal(series.name) if series.in_legend else None


def _literal(text: str) -> str:
    """Return text of which Matplotlib makes no formula."""
    return text.replace("$", r"\$")
