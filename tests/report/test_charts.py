"""What the charts show of results whose numbers are known."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from autotune.records import Outcome, StepTime, Trial
from autotune.report.charts import charts_of, confirmation_chart, time_chart
from autotune.report.space_charts import (
    batch_size_chart,
    fastest_so_far,
    history_chart,
    importance_chart,
    loader_chart,
    memory_chart,
)
from autotune.report.table import COLUMNS, trial_row
from autotune.report.vega import Chart, Series
from autotune.result import Importance, RecordedStudy, Result, pareto_front
from tests import examples
from tests.report.results import only_failures, simulated_result
from tests.search.there import there

RESULTS = {"simulated": simulated_result, "faster": examples.faster_result, "no gain": examples.no_gain_result}


def named(chart: Chart | None, name: str) -> Series:
    (found,) = [series for series in there(chart).series if series.name == name]
    return found


@pytest.mark.parametrize("result", RESULTS.values(), ids=RESULTS)
def test_every_chart_says_what_it_shows_and_its_values_lie_on_its_axes(result: Callable[[], Result]) -> None:
    charts = charts_of(RecordedStudy.of(result()))
    assert len({chart.name for chart in charts}) == len(charts)
    for chart in charts:
        assert chart.title
        assert chart.summary.endswith(".")
        assert chart.series
        for series in chart.series:
            assert len(series.x) == len(series.y) > 0
            assert len(series.labels) in (0, len(series.x))
            assert len(series.spread) in (0, len(series.x))
            for axis, values in ((chart.x, series.x), (chart.y, series.y)):
                on_axis = set(axis.categories)
                assert set(values) <= on_axis if on_axis else all(math.isfinite(float(value)) for value in values)


def test_a_run_of_the_whole_program_fills_every_chart() -> None:
    names = [chart.name for chart in charts_of(RecordedStudy.of(simulated_result()))]
    assert names == ["time", "confirmation", "batch-size", "loader", "memory", "history", "importances"]


def test_the_parts_of_a_samples_time_add_up_to_its_rate() -> None:
    chart = time_chart(examples.faster_result())
    assert chart.y.categories == ("before", "after")
    totals = [sum(float(series.x[row]) for series in chart.series) for row in (0, 1)]
    assert totals == pytest.approx([1e6 / 1234.5, 1e6 / 2853.0], rel=0.02)  # what is tiny is left out
    assert "Before: a sample takes 810 µs, most of it waiting for data (59 %)." in chart.summary


def test_one_row_where_nothing_changes_and_a_step_without_time_is_drawn() -> None:
    assert time_chart(examples.no_gain_result()).y.categories == ("your configuration",)
    nothing = StepTime(data_wait=0, host_to_device=0, forward=0, backward=0, optimizer=0, other=0)
    assert time_chart(examples.no_gain_result(measurement=examples.measurement(step_time=nothing))).summary


def test_every_round_and_every_interval_is_shown() -> None:
    finalist = replace(there(examples.faster_result().likeliest), ratios=(2.2, 2.4))
    other = replace(finalist, config=examples.BASELINE, speedup=1.0, interval=None, ratios=(1.0,), has_failed=True)
    chart = there(confirmation_chart(examples.faster_result(finalists=(other, finalist))))
    assert chart.y.categories == ("finalist 1", "the answer", "baseline again")
    assert named(chart, "a round").x == (1.0, 2.2, 2.4)
    assert named(chart, "with its interval").spread == ((2.18, 2.45),)
    assert (named(chart, "without one yet").x, named(chart, "without one yet").spread) == ((1.0,), ())
    assert named(chart, "the baseline against itself").x == (1.004,)
    assert "The fastest: 2.31 times (2.18 to 2.45), in 2 rounds." in chart.summary


def test_nothing_confirmed_and_no_landscape_are_no_charts() -> None:
    result = examples.no_gain_result()
    charts = confirmation_chart(result), batch_size_chart(result), loader_chart(result), importance_chart(result)
    assert charts == (None, None, None, None)


def test_what_was_measured_stands_beside_what_is_expected_by_batch_size() -> None:
    result = simulated_result()
    chart = batch_size_chart(result)
    for amp, name in (("off", "fp32"), ("bf16", "bf16")):
        measured = [trial for trial in result.history if trial.config.amp == amp and trial.outcome is Outcome.OK]
        assert named(chart, f"{name}: measured").y == tuple(trial.rate for trial in measured)
        rates = zip(named(chart, f"{name}: step alone").y, named(chart, name).y, strict=True)
        assert all(most >= 0.9 * rate for most, rate in rates)


def chart_where(refusal: str, is_refused: Callable[[Any], bool]) -> Chart:
    """The chart of batch sizes where these steps are refused."""
    landscape = there(simulated_result().landscape)
    steps = tuple(replace(step, refusal=refusal if is_refused(step) else None) for step in landscape.steps)
    return there(batch_size_chart(replace(simulated_result(), landscape=replace(landscape, steps=steps))))


def test_what_does_not_fit_is_marked_with_its_reason() -> None:
    chart = chart_where("too large", lambda step: step.batch_size > 500)
    refused = named(chart, "does not fit, or fails")
    assert set(refused.x) == {"512", "1024"}
    assert all(label.endswith("too large") for label in refused.labels)
    assert not set(named(chart, "bf16").x) & set(refused.x)


def test_a_precision_that_may_not_be_used_is_said_and_not_drawn() -> None:
    chart = chart_where("it diverges", lambda step: step.amp == "fp16")
    assert chart.summary.endswith("fp16 may not be used: it diverges.")
    assert chart.key.endswith(" · fp16 may not be used")
    assert not {"fp16", "fp16: step alone", "does not fit, or fails"} & {series.name for series in chart.series}


def test_only_trials_with_the_answers_step_stand_in_the_chart_of_its_loader() -> None:
    result = simulated_result()
    chart = there(loader_chart(result))
    own = f"batch {result.config.batch_size} "
    assert (points := [label for series in chart.series if series.kind == "points" for label in series.labels])
    assert all(own in label and result.config.amp in label for label in points)
    answer = result.config.amp, result.config.batch_size
    landscape = there(result.landscape)
    (step,) = [each for each in landscape.steps if (each.amp, each.batch_size) == answer]
    assert chart.marks[0].at == step.ceiling
    assert all(each.rate <= step.ceiling for each in landscape.loaders)


def test_the_front_holds_what_nothing_beats_in_both() -> None:
    result = simulated_result()
    front = named(memory_chart(RecordedStudy.of(result)), "Pareto front")
    assert front.y[::-1] == tuple(trial.rate for trial in pareto_front(result.history))
    assert list(front.x) == sorted(float(x) for x in front.x)


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
    study = RecordedStudy.of(examples.faster_result(history=history))
    memory, course = there(memory_chart(study)), history_chart(study)
    front = named(memory, "Pareto front")
    assert (front.x, front.y) == ((1.0, 3.0), (100, 200))
    assert "The smallest takes 1.0 GiB for 100 samples/s, the fastest 3.0 GiB for 200 samples/s." in memory.summary
    assert named(memory, "takes more than it may").y == (300,)
    assert named(course, "takes more memory than it may").y == (300,)
    assert (named(course, "best so far").y[-1], fastest_so_far(study)) == (200, 200)


def test_options_that_were_tried_after_the_search_are_left_out_of_what_it_expects() -> None:
    result = simulated_result()
    config = replace(result.config, options=("compile",))
    faster = examples.measurement(samples_per_second=1e6, ceiling_samples_per_second=2e6)
    trial = examples.trial(number=999, kind="confirm", config=config, measurement=faster)
    explored = replace(result, config=config, measurement=faster, history=(*result.history, trial))
    for chart in (batch_size_chart, loader_chart):
        found, plain = there(chart(explored)), there(chart(result))
        assert " · without compile" in found.key
        assert found.series == plain.series
        assert all(mark.at < 1e6 for mark in found.marks)


def test_memory_that_is_far_away_is_not_marked() -> None:
    plenty = examples.trial(measurement=examples.measurement(memory_limit_bytes=2**40))
    for history, marks in ((examples.faster_result().history, [8.0]), ((plenty,), [])):
        chart = there(memory_chart(RecordedStudy.of(examples.faster_result(history=history))))
        assert [mark.at for mark in chart.marks] == marks


def test_failures_stand_at_zero_with_their_outcome() -> None:
    chart = there(history_chart(RecordedStudy.of(examples.faster_result())))
    failed = named(chart, "failed")
    assert (failed.x, failed.y) == ((4.0,), (0.0,))
    assert failed.labels[0].endswith("device_oom")
    assert chart.summary.startswith("8 measurements: 1 search, 6 confirmation, 1 failed.")


def test_a_study_of_failures_alone_has_a_history_and_nothing_else() -> None:
    assert [series.name for series in there(history_chart(only_failures())).series] == ["failed"]
    assert memory_chart(only_failures()) is None


def test_the_best_so_far_never_falls_and_ends_at_the_best_of_the_search() -> None:
    result = simulated_result()
    best = named(history_chart(RecordedStudy.of(result)), "best so far").y
    searched = [trial for trial in result.history if trial.kind in ("baseline", "search")]
    assert list(best) == sorted(map(float, best))
    assert best[-1] == max(there(trial.rate) for trial in searched if trial.outcome == "ok")


def test_importances_are_percent_by_name() -> None:
    result = simulated_result()
    importances = (Importance(knob="num_workers", share=0.75), Importance(knob="amp", share=0.125))
    landscape = replace(there(result.landscape), importances=importances)
    chart = there(importance_chart(replace(result, landscape=landscape)))
    assert (chart.series[0].x, chart.series[0].y) == ((75.0, 12.5), ("workers", "amp"))


def test_the_columns_of_trials_are_those_that_are_documented() -> None:
    frame = simulated_result().trials
    assert list(frame.columns) == list(COLUMNS)
    assert all(trial_row(trial).keys() == COLUMNS.keys() for trial in simulated_result().history)
    assert frame.attrs["units"]["peak_memory_bytes"] == "bytes"
    assert list(frame["number"]) == [trial.number for trial in simulated_result().history]
