"""Plots as objects of Altair, and as files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import altair
import pytest

from autotune.errors import UsageError
from autotune.report.charts import charts_of
from autotune.report.vega import COLOURS, Axis, Chart, Mark, Series, specification
from autotune.result import RecordedStudy, Result
from tests import examples
from tests.report.results import simulated_result

PLOTS = [name for name in dir(Result) if name.startswith("plot_")]
MARKUP = '<a href="https://example.org">$x_1$</a>'


def test_every_plot_is_a_chart_of_altair_and_there_is_one_for_every_chart() -> None:
    plots = [getattr(simulated_result(), name)() for name in PLOTS]
    assert all(isinstance(plot, altair.LayerChart) for plot in plots)
    assert len(plots) == len(charts_of(RecordedStudy.of(simulated_result())))


def test_every_value_is_in_the_specification_and_the_legend_names_series_in_their_colours_and_no_others() -> None:
    for chart in charts_of(RecordedStudy.of(simulated_result())):
        layers = specification(chart)["layer"]
        values = {(series.name, x, y) for series in chart.series for x, y in zip(series.x, series.y, strict=True)}
        rows: list[dict[str, Any]] = [row for layer in layers for row in layer["data"]["values"] if row]
        assert values <= {(row["name"], row["x"], row["y"]) for row in rows}
        named = {series.name: COLOURS[series.colour] for series in chart.series if series.in_legend}
        for layer in layers:
            if "scale" in (colour := layer["encoding"]["color"]):
                assert dict(zip(colour["scale"]["domain"], colour["scale"]["range"], strict=True)) == named


def test_a_drawing_holds_the_texts_of_a_chart_as_they_are() -> None:
    import vl_convert

    series = Series(name=MARKUP, kind="points", colour="blue", x=("a", MARKUP), y=(1.0, 2.0), labels=(MARKUP, MARKUP))
    chart = Chart(
        name="a",
        title=MARKUP,
        summary=MARKUP,
        x=Axis(title=MARKUP, categories=("a", MARKUP)),
        y=Axis(title=MARKUP),
        series=(series,),
        marks=(Mark(axis="y", at=1.5, text=MARKUP),),
    )
    drawn = vl_convert.vegalite_to_svg({**specification(chart), "width": 900, "height": 300})
    assert "<a" not in drawn
    assert "&lt;a" in drawn


@pytest.mark.parametrize("suffix", [".svg", ".png", ".pdf"])
def test_every_plot_is_written_as_a_file(tmp_path: Path, suffix: str) -> None:
    files = simulated_result().save_plots(tmp_path / "new" / "folder", suffix)
    assert len(files) == len(PLOTS)
    starts = {".svg": b"<svg", ".png": b"\x89PNG", ".pdf": b"%PDF"}
    assert all(file.read_bytes().startswith(starts[suffix]) for file in files)


def test_what_cannot_be_drawn_says_so(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^there is nothing to plot: nothing is known of loader here"):
        examples.faster_result().plot_loader()
    with pytest.raises(UsageError, match=r"suffix '.gif'; allowed"):
        simulated_result().save_plots(tmp_path, ".gif")


def test_a_package_that_is_missing_is_named_with_the_line_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "altair"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "altair", None)
    with pytest.raises(UsageError, match=r"need altair.*pip install 'torch-autotune\[report\]'"):
        simulated_result().plot_history()
