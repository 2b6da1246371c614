"""The charts of results whose numbers are known, as objects of Altair and as files."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import altair
import pandas
import pytest

from autotune.config import Config
from autotune.errors import UsageError
from autotune.outcome import Outcome
from autotune.records import StepTime, Trial
from autotune.report.charts import GREY, TOO_FAR, charts_of
from autotune.report.memory import fastest_so_far
from autotune.report.result import RecordedStudy, Result
from autotune.result import StepForecast
from tests import examples
from tests.report.results import only_failures, simulated_result
from tests.search.test_feasibility import fitting, look
from tests.search.there import there

NAMES = ["time", "confirmation", "batch-size", "loader", "memory"]
RATE = "samples/s"
MARKUP = '<a href="https://example.org">$x_1$</a>'


def drawn(name: str, result: Result) -> altair.LayerChart:
    return charts_of(RecordedStudy.of(result))[name]


def rows(chart: altair.LayerChart, what: str, how: str | None = None) -> Any:
    """The rows of a chart's table with this name."""
    table = chart.data
    assert isinstance(table, pandas.DataFrame)
    found = table[table["what"] == what]
    return found if how is None else found[found["how"] == how]


def marks(chart: altair.LayerChart, axis: str) -> list[float]:
    layers = [layer for layer in chart.to_dict()["layer"] if layer["mark"]["type"] == "rule"]
    return [layer["encoding"][axis]["datum"] for layer in layers if "datum" in layer["encoding"].get(axis, {})]


@pytest.mark.parametrize("make", [simulated_result, examples.no_gain_result])
def test_every_chart_is_drawn_from_its_table_with_its_groups_in_the_legend(make: Callable[[], Result]) -> None:
    charts = charts_of(RecordedStudy.of(make()))
    assert list(charts) == (NAMES if make is simulated_result else ["time", "memory"])
    for chart in charts.values():
        specification = chart.to_dict()
        assert specification["title"]["text"]
        assert specification["description"].endswith(".")
        assert len(chart.data) > 0
        for layer in specification["layer"]:
            if "scale" in (colour := layer["encoding"].get("color", {})):
                assert set(colour["scale"]["domain"]) == set(chart.data["what"])


def test_the_parts_of_a_samples_time_add_up_to_its_rate_and_where_nothing_changes_there_is_one_row() -> None:
    chart = drawn("time", examples.faster_result())
    totals = chart.data.groupby("configuration")["microseconds for each sample"].sum()
    assert [totals["before"], totals["after"]] == pytest.approx([1e6 / 1234.5, 1e6 / 2853.0], rel=0.02)
    assert "Before: a sample takes 810 µs, most of it waiting for data (59 %)." in chart.description
    nothing = StepTime(data_wait=0, host_to_device=0, forward=0, backward=0, optimizer=0, other=0)
    chart = drawn("time", examples.no_gain_result(measurement=examples.measurement(step_time=nothing)))
    assert set(chart.data["configuration"]) == {"your configuration"}


def test_every_round_and_every_interval_is_shown() -> None:
    finalist = replace(there(examples.faster_result().likeliest), ratios=(2.2, 2.4))
    other = replace(finalist, config=examples.BASELINE, speedup=1.0, interval=None, ratios=(1.0,), has_failed=True)
    chart = drawn("confirmation", examples.faster_result(finalists=(other, finalist)))
    unit = "times as fast as the baseline"
    assert list(chart.data["configuration"].unique()) == ["finalist 1", "the answer"]
    assert list(rows(chart, "a round")[unit]) == [1.0, 2.2, 2.4]
    assert rows(chart, "with its interval")[["from", "to"]].to_numpy().tolist() == [[2.18, 2.45]]
    assert list(rows(chart, "without one yet")["from"].isna()) == [True]
    assert "The fastest: 2.31 times (2.18 to 2.45), in 2 rounds." in chart.description


def test_of_failures_alone_nothing_is_drawn() -> None:
    assert charts_of(only_failures()) == {}


def test_what_was_measured_stands_beside_what_is_expected_by_batch_size() -> None:
    result = simulated_result()
    chart = drawn("batch-size", result)
    for amp, name in (("off", "fp32"), ("bf16", "bf16")):
        measured = [trial for trial in result.history if trial.config.amp == amp and trial.outcome is Outcome.OK]
        assert list(rows(chart, name, "measured")[RATE]) == [trial.rate for trial in measured]
        alone, expected = rows(chart, name, "step alone")[RATE], rows(chart, name, "expected")[RATE]
        assert all(most >= 0.9 * rate for most, rate in zip(alone, expected, strict=True))


def batch_sizes(refusal_of: Callable[[StepForecast], str | None], history: tuple[Trial, ...] = ()) -> Any:
    """The chart by batch size of a simulated result with these refusals and trials."""
    landscape = there(simulated_result().landscape)
    steps = tuple(replace(step, refusal=refusal_of(step)) for step in landscape.steps)
    result = replace(simulated_result(), history=history, landscape=replace(landscape, steps=steps))
    return drawn("batch-size", result)


def test_what_may_not_be_used_is_said_and_what_does_not_fit_is_marked_with_its_reason() -> None:
    reasons = {"fp16": "it diverges"}
    chart = batch_sizes(lambda step: reasons.get(step.amp) or ("too large" if step.batch_size > 500 else None))
    for name in ("fp32", "bf16"):
        refused = rows(chart, f"{name}: does not fit, or fails")
        assert list(refused["batch size"]) == [512, 1024]
        assert all(refused["details"].str.endswith("too large"))
    assert not {512, 1024} & set(rows(chart, "bf16", "expected")["batch size"])
    assert chart.description.endswith("fp16 may not be used: it diverges.")
    assert chart.to_dict()["title"]["subtitle"].endswith(" · fp16 may not be used")
    assert not {"expected", "step alone"} & set(rows(chart, "fp16")["how"])
    assert not chart.data["what"].str.startswith("fp16").any()


def test_what_was_not_looked_at_is_no_failure() -> None:
    chart = batch_sizes(lambda step: TOO_FAR if step.amp == "off" and step.batch_size > 200 else None)
    assert list(rows(chart, "fp32: not looked at")["batch size"]) == [256, 512, 1024]
    assert not chart.data["what"].str.contains("fails").any()
    domain = chart.to_dict()["layer"][0]["encoding"]["color"]["scale"]
    assert dict(zip(domain["domain"], domain["range"], strict=True))["fp32: not looked at"] == GREY
    whole = batch_sizes(lambda step: TOO_FAR if step.amp == "fp16" else None)
    assert whole.description.endswith(f"fp16 was not looked at: {TOO_FAR}.")
    assert whole.to_dict()["title"]["subtitle"].endswith(" · fp16 was not looked at")


def test_what_ran_is_never_marked_as_failing() -> None:
    fits = examples.trial(number=1, kind="search", config=Config(batch_size=512, amp="bf16"))
    growth = examples.measurement(peak_memory_bytes=2**50)
    large = examples.trial(number=2, kind="search", config=Config(batch_size=1024, amp="bf16"), measurement=growth)
    chart = batch_sizes(lambda step: "too large" if step.batch_size > 500 else None, (fits, large))
    assert list(rows(chart, "bf16", "measured")["batch size"]) == [512, 1024]
    assert list(rows(chart, "bf16: takes more memory than allowed")["batch size"]) == [1024]
    assert not chart.data["what"].str.startswith("bf16: does not fit").any()
    assert list(rows(chart, "fp32: does not fit, or fails")["batch size"]) == [512, 1024]


def test_the_chart_reads_the_words_of_the_search() -> None:
    known = fitting(look(32, 1))
    assert TOO_FAR in there(known.refusal(Config(batch_size=10_000)))


def test_only_trials_with_the_answers_step_stand_in_the_chart_of_its_loader() -> None:
    result = simulated_result()
    chart = drawn("loader", result)
    details = list(chart.data.loc[chart.data["how"] == "measured", "details"])
    assert details
    assert all(f"batch {result.config.batch_size} " in text and result.config.amp in text for text in details)
    assert marks(chart, "y") == [result.measurement.ceiling_samples_per_second]


def growing(number: int, rate: float, peak: float, by_the_end: float | None) -> Trial:
    """A measurement beside which the memory of workers grows, in GiB."""
    measured = examples.measurement(
        samples_per_second=rate,
        memory="host",
        peak_memory_bytes=int(peak * 2**30),
        epoch_host_memory_bytes=None if by_the_end is None else int(by_the_end * 2**30),
        memory_limit_bytes=8 * 2**30,
    )
    return examples.trial(number=number, kind="search" if number else "baseline", measurement=measured)


def test_what_counts_is_the_memory_at_the_end_of_an_epoch() -> None:
    history = (growing(0, 100, 1, None), growing(1, 90, 0.5, 4), growing(2, 300, 2, 9), growing(3, 200, 2, 3))
    result = examples.faster_result(history=history)
    memory = drawn("memory", result)
    front = rows(memory, "Pareto front")
    assert front[["peak memory, GiB of the host", RATE]].to_numpy().tolist() == [[1.0, 100], [3.0, 200]]
    assert "The smallest takes 1.0 GiB for 100 samples/s, the fastest 3.0 GiB for 200 samples/s." in memory.description
    assert list(rows(memory, "takes more memory than allowed")[RATE]) == [300]
    assert fastest_so_far(RecordedStudy.of(result)) == 200


def test_memory_that_is_far_away_is_not_marked() -> None:
    plenty = examples.trial(measurement=examples.measurement(memory_limit_bytes=2**40))
    for history, limits in ((examples.faster_result().history, [8.0]), ((plenty,), [])):
        assert marks(drawn("memory", examples.faster_result(history=history)), "x") == limits


def test_every_plot_is_written_as_a_file(tmp_path: Path) -> None:
    files = simulated_result().save_plots(tmp_path / "new" / "folder", ".svg")
    assert [file.stem for file in files] == NAMES
    for suffix in (".png", ".pdf"):
        files += examples.no_gain_result().save_plots(tmp_path, suffix)
    starts = {".svg": b"<svg", ".png": b"\x89PNG", ".pdf": b"%PDF"}
    assert all(file.read_bytes().startswith(starts[file.suffix]) for file in files)
    assert {file.suffix for file in files} == set(starts)
    assert {type(simulated_result().plot(name)) for name in NAMES} == {altair.LayerChart}


def test_a_drawing_holds_foreign_texts_as_they_are(tmp_path: Path) -> None:
    landscape = there(simulated_result().landscape)
    steps = tuple(replace(step, refusal=MARKUP if step.amp == "fp16" else None) for step in landscape.steps)
    result = replace(simulated_result(), landscape=replace(landscape, steps=steps))
    result.plot("batch-size").properties(width=300, title=MARKUP).save(tmp_path / "plot.svg")
    text = (tmp_path / "plot.svg").read_text(encoding="utf-8")
    assert "&lt;a" in text
    assert "<a" not in text


def test_what_cannot_be_drawn_says_so(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^there is nothing to plot: nothing is known of loader here"):
        examples.faster_result().plot("loader")
    with pytest.raises(UsageError, match=r"^plot 'speed'; allowed: time, "):
        examples.faster_result().plot("speed")
    with pytest.raises(UsageError, match=r"suffix '.gif'; allowed"):
        simulated_result().save_plots(tmp_path, ".gif")


@pytest.mark.parametrize("package", ["altair", "vl_convert"])
def test_a_package_that_is_missing_is_named_with_the_line_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, package: str, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    result = simulated_result()
    for ask in (lambda: result.plot("memory"), lambda: result.save_plots(tmp_path)):
        with pytest.raises(UsageError, match=rf'need {package[:6].replace("_", "-")}.*"torch-autotune\[report\]"'):
            ask()
