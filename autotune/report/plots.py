"""The plots of a result, as objects of Altair and as files."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.errors import UsageError
from autotune.report import charts
from autotune.report.vega import specification
from autotune.result import RecordedStudy

if TYPE_CHECKING:
    from autotune.report.chart import Chart
    from autotune.result import Result

__all__ = ["plot", "require_vega", "save_plots", "vega_script"]

SUFFIXES = (".svg", ".png", ".pdf")
WIDTH = 720
"""Of a chart in a file, in pixels."""
PNG_SCALE = 3.0
"""Pixels of a PNG for each of those: some 300 to the inch of a printed page."""
MISSING = "plots need {package}, which is not installed: pip install 'torch-autotune[report]'"


def plot(name: str, result: Result) -> Any:
    """Draw one of the charts of ``autotune.report.charts``, such as ``history_chart``, as an ``altair.LayerChart``.

    Raises ``UsageError`` where there is nothing to show, or Altair is not installed.
    """
    of_study = name in ("memory_chart", "history_chart")
    chart: Chart | None = getattr(charts, name)(RecordedStudy.of(result) if of_study else result)
    if chart is None:
        what = name.removesuffix("_chart").replace("_", " ")
        raise UsageError(f"there is nothing to plot: nothing is known of {what} here")
    try:
        import altair
    except ImportError:
        raise UsageError(MISSING.format(package="altair")) from None
    return altair.Chart.from_dict(specification(chart))


def save_plots(result: Result, folder: Path, suffix: str) -> list[Path]:
    """Write every chart to a folder, and return the files. Raises ``UsageError`` as ``plot`` does."""
    if suffix not in SUFFIXES:
        raise UsageError(f"suffix {suffix!r}; allowed: {', '.join(SUFFIXES)}")
    require_vega()
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for chart in charts.charts_of(RecordedStudy.of(result)):
        path = folder / f"{chart.name}{suffix}"
        path.write_bytes(_drawn(chart, suffix))
        written.append(path)
    return written


def _drawn(chart: Chart, suffix: str) -> bytes:
    """Return a chart as a file's content."""
    import vl_convert

    drawn = {**specification(chart), "width": WIDTH, "background": "white"}
    if suffix == ".svg":
        return str(vl_convert.vegalite_to_svg(drawn)).encode()
    convert = vl_convert.vegalite_to_png if suffix == ".png" else vl_convert.vegalite_to_pdf
    return bytes(convert(drawn, scale=PNG_SCALE if suffix == ".png" else 1.0))


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
