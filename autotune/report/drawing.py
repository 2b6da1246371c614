"""Charts of a result on request: one of them, or each as a file, by packages that are installed on demand."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from io import BytesIO, StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.errors import UsageError
from autotune.output import write_file
from autotune.result import StudyRecord

if TYPE_CHECKING:
    import altair

    from autotune.result import Answer

PACKAGES = {"altair": "altair", "vl_convert": "vl-convert-python"}
"""Drawing modules by the package that holds them."""
SUFFIXES = {".svg": 1.0, ".png": 3.0, ".pdf": 1.0}
"""Kinds of files, with the scale of each: a PNG has some 300 pixels to the inch of a printed page."""
WIDTH = 720
"""Width of a chart in a file, in pixels before scaling."""


def missing_for_charts() -> str:
    """Return what charts need and how to install it; empty where all is there."""
    names = " and ".join(package for module, package in PACKAGES.items() if find_spec(module) is None)
    return f'charts need {names}, not installed here: pip install "torch-autotune[report]"' if names else ""


def require_drawing() -> None:
    """Raise ``UsageError`` where a package that draws charts is not installed."""
    if missing := missing_for_charts():
        raise UsageError(missing)


def plot(name: str, result: Answer) -> altair.LayerChart:
    """Return the chart of a result with this name; raises ``UsageError`` as ``Result.plot`` does."""
    require_drawing()
    from autotune.report.charts import CHARTS, charts_of

    if name not in CHARTS:
        raise UsageError(f"plot {name!r}; allowed: {', '.join(CHARTS)}")
    chart = charts_of(StudyRecord.of(result), name).get(name)
    if chart is None:
        raise UsageError(f"there is nothing to plot: nothing is known of {name.replace('-', ' ')} here")
    return chart


def save_plots(result: Answer, folder: Path, suffix: str) -> list[Path]:
    """Write every chart to a folder, and return the files. Raises ``UsageError`` as ``plot`` does."""
    if suffix not in SUFFIXES:
        raise UsageError(f"suffix {suffix!r}; allowed: {', '.join(SUFFIXES)}")
    require_drawing()
    import altair

    from autotune.report.charts import charts_of

    folder.mkdir(parents=True, exist_ok=True)
    files = []
    with altair.data_transformers.enable("default", max_rows=None):
        for name, chart in charts_of(StudyRecord.of(result)).items():
            files.append(folder / f"{name}{suffix}")
            content = StringIO() if suffix == ".svg" else BytesIO()
            drawn = chart.properties(width=WIDTH, background="white")
            ending: Any = suffix[1:]
            drawn.save(content, format=ending, scale_factor=SUFFIXES[suffix])
            write_file(files[-1], content.getvalue())
    return files


@cache
def vega_script() -> str:
    """Return the script that draws charts of Vega-Lite in a page, ``vegaEmbed``, as text."""
    from vl_convert import javascript_bundle

    return str(javascript_bundle("window.vegaEmbed = vegaEmbed;"))
