"""The plots of a result, as objects of Altair or Matplotlib."""

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
    from autotune.result import Backend, Result

__all__ = ["plot", "require_vega", "save_plots", "vega_script"]

SUFFIXES = (".svg", ".png", ".pdf")
MISSING = "plots need {package}, which is not installed: pip install 'torch-autotune[report]'"


def plot(name: str, result: Result, backend: Backend = "altair") -> Any:
    """Draw one of the charts of ``autotune.report.charts``, such as ``history_chart``.

    Raises ``UsageError`` where there is nothing to show, or the package that draws it is not installed.
    """
    of_study = name in ("memory_chart", "history_chart")
    chart: Chart | None = getattr(charts, name)(RecordedStudy.of(result) if of_study else result)
    if chart is None:
        what = name.removesuffix("_chart").replace("_", " ")
        raise UsageError(f"there is nothing to plot: nothing is known of {what} here")
    return draw(chart, backend)


def draw(chart: Chart, backend: Backend) -> Any:
    """Draw a chart. Raises ``UsageError`` where the package that draws it is not installed."""
    if backend not in ("altair", "matplotlib"):
        raise UsageError(f"backend {backend!r}; allowed: altair, matplotlib")
    try:
        if backend == "matplotlib":
            from autotune.report.matplotlib import figure

            return figure(chart)
        import altair

        return altair.Chart.from_dict(specification(chart))
    except ImportError:
        raise UsageError(MISSING.format(package=backend)) from None


def save_plots(result: Result, folder: Path, suffix: str) -> list[Path]:
    """Write every chart by Matplotlib to a folder, and return the files."""
    if suffix not in SUFFIXES:
        raise UsageError(f"suffix {suffix!r}; allowed: {', '.join(SUFFIXES)}")
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for chart in charts.charts_of(RecordedStudy.of(result)):
        path = folder / f"{chart.name}{suffix}"
        draw(chart, "matplotlib").savefig(path, dpi=200)
        written.append(path)
    return written


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
