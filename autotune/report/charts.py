"""The charts of a study, drawn by Altair. ``chart.data`` holds the numbers of each as a DataFrame."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any, Literal

import altair as alt
from pandas import DataFrame

from autotune.limits import percent
from autotune.report.memory import fits, peak_bytes, room_of, sound
from autotune.report.text import (
    LEAST_SHARE,
    TIME_PARTS,
    compared,
    config_text,
    counted,
    rate_text,
    sentence,
    time_parts,
)
from autotune.report.text import gibibytes_text as gib
from autotune.result import pareto_front

if TYPE_CHECKING:
    from autotune.config import Config, StepKey
    from autotune.records import Trial
    from autotune.result import Answer, Finalist, StepForecast, StudyRecord

BLUE, ORANGE, GREEN, PURPLE, TEAL, BROWN = "#3d7fc4", "#d9772b", "#2f9a6b", "#9270c9", "#2a9bab", "#a97c50"
RED, GREY, TEXT, GRID = "#d6545c", "#858c96", "#737c87", "#87909a33"
"""Colours with a contrast of 3:1 at least to white and to black, the grid's apart: one palette for both."""
DASHES = ([1, 0], [6, 4], [2, 3])
CROSS = "M-1,-.7L-.7,-1L0,-.3L.7,-1L1,-.7L.3,0L1,.7L.7,1L0,.3L-.7,1L-1,.7L-.3,0Z"
TICK = "M-.2,-1.5L.2,-1.5L.2,1.5L-.2,1.5Z"
"""Symbols with an area, which is filled as that of Vega's own."""
CONFIG: dict[str, Any] = {
    "view": {"stroke": None},
    "axis": {
        **dict.fromkeys(("labelColor", "titleColor"), TEXT),
        **dict.fromkeys(("gridColor", "domainColor", "tickColor"), GRID),
        **dict.fromkeys(("labelFontSize", "titleFontSize"), 12),
        "titleFontWeight": "normal",
        "labelLimit": 140,
    },
    "axisX": {"labelAngle": 0, "labelFlush": False, "labelOverlap": "parity", "labelSeparation": 8},
    "legend": {
        "orient": "top",
        "labelColor": TEXT,
        "labelFontSize": 12,
        "labelLimit": 260,
        "symbolSize": 80,
        "symbolStrokeWidth": 2,
    },
    "line": {"strokeWidth": 2.5},
    "point": {"filled": True, "opacity": 1, "size": 80},
    "title": {"color": TEXT, "subtitleColor": TEXT, "anchor": "start", "fontSize": 15},
}
HEIGHT, ROW_HEIGHT = 230, 38
"""Pixels of a chart without its axes, and of each row where it has rows."""
PRECISIONS = {"off": "fp32", "bf16": "bf16", "fp16": "fp16"}
RATE, DETAILS = "samples/s", "details"
"""Columns: the rate, and the text of the tooltip."""
EXPECTED, ALONE, MEASURED = "expected", "step alone", "measured"
REFUSED, UNKNOWN = "does not fit, or fails", "not looked at"
TOO_FAR = "too far above the largest measured to predict their memory"
"""Words of a refusal that the search gives to what it did not look at: it may well fit."""
FRONT, TOO_LARGE = "Pareto front", "takes more memory than allowed"
GIBIBYTE = 2**30
NEAR = 3.0
"""A memory limit above so many times the largest peak is not drawn."""


def charts_of(study: StudyRecord, *names: str) -> dict[str, alt.LayerChart]:
    """Charts of these names, or of all, that a study has numbers for."""
    drawn = {name: CHARTS[name][1](study) for name in names or CHARTS}
    found = {name: chart for name, chart in drawn.items() if chart is not None}
    for name, chart in found.items():
        chart.title.text = CHARTS[name][0]
    return found


def time_chart(study: StudyRecord) -> alt.LayerChart | None:
    """Time for a sample, before and after, by part; ``None`` without an answer."""
    if study.result is None:
        return None
    rows, said, unit = [], [], "microseconds for each sample"
    for name, (_, measured) in compared(study.result).items():
        parts = {TIME_PARTS[part]: 1e6 * seconds for part, seconds in time_parts(measured).items()}
        total = sum(parts.values())
        for order, (part, time) in enumerate(parts.items()):
            text = f"{name}: {part} {rate_text(time)} µs a sample, {percent(time / total)}"
            rows.append((part, name, time, text, order, time / total))
        longest = max(parts, key=lambda part: parts[part])
        most = f"{longest} ({percent(parts[longest] / total)})"
        said.append(f"{name.capitalize()}: a sample takes {rate_text(total)} µs, most of it {most}.")
    frame = DataFrame(rows, columns=["what", "configuration", unit, DETAILS, "order", "share"])
    frame = frame[frame.groupby("what")["share"].transform("max") >= LEAST_SHARE].drop(columns="share")
    colours = dict(zip(TIME_PARTS.values(), (ORANGE, PURPLE, BLUE, TEAL, RED, GREEN, GREY, BROWN), strict=True))
    colour = alt.Color("what:N", **_legend(frame, colours))
    base = alt.Chart().encode(x=f"{unit}:Q", y=_rows(frame, "configuration"), color=colour, order="order:Q")
    bars = base.mark_bar(height=alt.RelativeBandSize(0.6)).encode(tooltip=f"{DETAILS}:N")
    return _chart(frame, bars, summary=" ".join(said), rows=len(said))


def confirmation_chart(study: StudyRecord) -> alt.LayerChart | None:
    """Ratio of every confirming round, with the intervals; ``None`` where nothing was confirmed."""
    result, unit = study.result, "times as fast as the baseline"
    if not result or not result.finalists:
        return None
    best = max(result.finalists, key=lambda finalist: finalist.speedup)
    frame = DataFrame(_ratios(result), columns=["what", "configuration", unit, "from", "to", DETAILS])
    colours = {"a round": GREY, "with its interval": GREEN, "without one yet": GREEN}
    symbols = {what: TICK if what == "a round" else "diamond" for what in colours}
    x, colour = alt.X(f"{unit}:Q").scale(zero=False), alt.Color("what:N", **_legend(frame, colours))
    base = alt.Chart().encode(x=x, y=_rows(frame, "configuration"), color=colour)
    spread = base.transform_filter("isValid(datum.from)").mark_rule(strokeWidth=3)
    points = base.mark_point().encode(shape=alt.Shape("what:N", **_legend(frame, symbols)), tooltip=f"{DETAILS}:N")
    return _chart(
        frame,
        *([spread.encode(x=alt.X("from:Q", title=unit), x2="to:Q")] if frame["from"].notna().any() else []),
        points,
        *_mark("x", 1.0, "as fast", middle=frame[unit].mean()),
        summary=(
            "Each finalist beside the baseline, in fresh processes, in random order. A gain is claimed where it is at "
            "least 2 % and the whole interval lies right of 1. "
            f"The fastest: {_ratio_text(best)}, in {counted(len(best.ratios), 'round')}."
        ),
        rows=frame["configuration"].nunique(),
    )


def _ratios(result: Answer) -> Iterator[tuple[Any, ...]]:
    means = []
    for position, each in enumerate(result.finalists, start=1):
        is_answer = result.config != result.baseline and result.speedup == each.speedup
        name, text = "the answer" if is_answer else f"finalist {position}", _ratio_text(each)
        what = "with its interval" if each.interval else "without one yet"
        means.append((what, name, each.speedup, each.interval, f"{config_text(each.config)}: {text}", each.ratios))
    for what, name, mean, interval, text, ratios in means:
        yield from (("a round", name, ratio, None, None, f"{name}, a round: {ratio:.3f}") for ratio in ratios)
        yield what, name, mean, *(interval or (None, None)), text


def _ratio_text(finalist: Finalist) -> str:
    interval = " ({:.2f} to {:.2f})".format(*finalist.interval) if finalist.interval else ""
    failed = ", but it failed once" if finalist.has_failed else ""
    return f"{finalist.speedup:.2f} times{interval}{failed}"


def batch_size_chart(study: StudyRecord) -> alt.LayerChart | None:
    """Rate by batch size and precision, with the ceiling; ``None`` without a landscape."""
    result = study.result
    if not result or not result.landscape:
        return None
    steps, rows = result.landscape.steps, []
    usable = {step.amp for step in steps if not step.refusal}
    ran, left_out = sound(result.history), _left_out(steps)
    for step in steps:
        name, size = PRECISIONS[step.amp], step.batch_size
        if not step.refusal:
            beside = ", looked at beside others" if step.is_disturbed else ""
            for how, rate in ((EXPECTED, step.rate), (ALONE, step.ceiling)):
                text = f"{name}, batch {size}, {how}: {rate_text(rate)} samples/s{beside}"
                rows.append((name, how, size, rate, text))
        elif step.amp in usable and (how := _fate(step, ran, room_of(study))):
            rows.append((f"{name}: {how}", how, size, 0.0, f"{name}, batch {size}: {step.refusal}"))
    known = {(step.amp, step.batch_size) for step in steps}
    for trial in ran:
        amp, size = trial.config.amp, trial.config.batch_size
        if (amp, size) in known:
            rows.append((PRECISIONS[amp], MEASURED, size, trial.rate or 0.0, _trial_text(trial)))
    frame = DataFrame(rows, columns=["what", "how", "batch size", RATE, DETAILS])
    said = ["No loader can bring more than the step alone."]
    if best := max((step for step in steps if not step.refusal), key=lambda step: step.ceiling, default=None):
        which = f"batch {best.batch_size} in {PRECISIONS[best.amp]}"
        said.append(f"The fastest step: {rate_text(best.ceiling)} samples/s, {which}.")
    if disturbed := sorted({step.batch_size for step in steps if step.is_disturbed}):
        sizes = ", ".join(map(str, disturbed))
        said.append(
            f"Others took CPUs or the GPU while the step was looked at with batches of {sizes}: it may be faster."
        )
    said += [sentence(f"{what}: {why}") for what, why in left_out.items()]
    key = "solid: expected with the best loader · dashed: the step alone · points: measured"
    dash = alt.StrokeDash("how:N", legend=None).scale(domain=[EXPECTED, ALONE], range=DASHES[:2])
    colours = {"fp32": BLUE, "bf16": ORANGE, "fp16": GREEN}
    fates = {UNKNOWN: GREY, REFUSED: RED, TOO_LARGE: RED}
    colours |= {f"{name}: {how}": fates[how] for how in fates for name in PRECISIONS.values()}
    return _chart(
        frame,
        *_lines_and_points(frame, sorted({step.batch_size for step in steps}), colours, dash),
        key=" · ".join((key, *left_out)),
        summary=" ".join(said),
    )


def _left_out(steps: Sequence[StepForecast]) -> dict[str, str]:
    reasons: dict[str, list[str]] = {}
    for step in steps:
        reasons.setdefault(step.amp, []).append(step.refusal or "")
    found = {}
    for amp, texts in reasons.items():
        if all(texts):
            known = [text for text in texts if TOO_FAR not in text]
            words = "may not be used" if known else f"was {UNKNOWN}"
            found[f"{PRECISIONS[amp]} {words}"] = (known or texts)[0]
    return found


def _fate(step: StepForecast, ran: Sequence[Trial], room: float) -> str:
    """Fate of a batch size in a precision that was refused; empty where it ran and fits."""
    alike = [trial for trial in ran if (trial.config.amp, trial.config.batch_size) == (step.amp, step.batch_size)]
    if alike:
        return "" if any(fits(trial, room) for trial in alike) else TOO_LARGE
    return UNKNOWN if TOO_FAR in (step.refusal or "") else REFUSED


def loader_chart(study: StudyRecord) -> alt.LayerChart | None:
    """Rate by workers and prefetch factor, expected and measured; ``None`` without a landscape."""
    result = study.result
    if not result or not result.landscape or not result.landscape.loaders:
        return None
    loaders, rows = result.landscape.loaders, []
    fitting = [each for each in loaders if not each.refusal]
    counts = sorted({each.num_workers for each in loaders})
    alike = [trial for trial in sound(result.history) if _step(trial.config, result) == _step(result.config, result)]
    for factor in sorted({each.prefetch_factor for each in loaders if each.prefetch_factor}) or [0]:
        name = f"prefetch {factor}" if factor else EXPECTED
        for each in fitting:
            if each.prefetch_factor in (None, factor):
                rate, low, high = map(rate_text, (each.rate, each.low, each.high))
                text = f"workers {each.num_workers}, {name}: {rate} samples/s ({low} to {high})"
                rows.append((name, EXPECTED, each.num_workers, each.rate, text))
        for trial in alike:
            if trial.config.prefetch_factor in (None, factor) and trial.config.num_workers in counts:
                rows.append((name, MEASURED, trial.config.num_workers, trial.rate or 0.0, _trial_text(trial)))
    frame = DataFrame(rows, columns=["what", "how", "workers", RATE, DETAILS])
    best = max(fitting or loaders, key=lambda each: each.rate)
    names = list(frame["what"].unique())
    colours = dict(zip(names, cycle((BLUE, ORANGE, GREEN, PURPLE, TEAL, BROWN, RED, GREY)), strict=False))
    dash = alt.StrokeDash("what:N", **_legend(frame, dict(zip(names, cycle(DASHES), strict=False)), "stroke"))
    return _chart(
        frame,
        *_lines_and_points(frame, counts, colours, dash),
        *_mark("y", result.measurement.ceiling_samples_per_second, "the step alone"),
        key="with the answer's step · lines: expected, by what was learned · points: measured",
        summary=f"The most is expected of {best.num_workers} workers: {rate_text(best.rate)} samples/s.",
    )


def _lines_and_points(
    frame: DataFrame, places: Sequence[int], colours: Mapping[str, str], dash: alt.StrokeDash
) -> Iterator[alt.Chart]:
    x = alt.X(f"{frame.columns[2]}:O").scale(domain=list(places))
    colour = alt.Color("what:N", **_legend(frame, colours, "stroke"))
    base = alt.Chart().encode(x=x, y=f"{RATE}:Q", color=colour, tooltip=f"{DETAILS}:N")
    there = set(frame["how"])
    if EXPECTED in there:
        lines = base.transform_filter(alt.FieldOneOfPredicate(field="how", oneOf=[EXPECTED, ALONE]))
        lines = lines.mark_line(point=alt.OverlayMarkDef(shape="stroke", filled=False, size=60))
        yield lines.encode(strokeDash=dash, detail="how:N")
    for how, symbol in ((MEASURED, "circle"), (UNKNOWN, "square"), (REFUSED, CROSS), (TOO_LARGE, "triangle-up")):
        if how in there:
            yield base.transform_filter(alt.datum.how == how).mark_point(shape=symbol)


def _step(config: Config, result: Answer) -> StepKey:
    threads = config.intra_op_threads or result.facts.intra_op_threads
    return config.step_key._replace(threads=threads)


def memory_chart(study: StudyRecord) -> alt.LayerChart | None:
    """Rate by peak memory, with the Pareto front; ``None`` where nothing was measured."""
    measured = sound(study.history)
    if not measured or not measured[0].measurement:
        return None
    room, largest = room_of(study), max(map(peak_bytes, measured))
    fitting = [trial for trial in measured if fits(trial, room)]
    front = pareto_front(tuple(fitting))[::-1]
    groups = {FRONT: front, MEASURED: fitting, TOO_LARGE: [trial for trial in measured if not fits(trial, room)]}
    frame = DataFrame(
        [(what, peak_bytes(each) / GIBIBYTE, each.rate, _trial_text(each)) for what in groups for each in groups[what]],
        columns=["what", f"peak memory, GiB of the {measured[0].measurement.memory}", RATE, DETAILS],
    )
    word = "may be used" if study.result and study.result.landscape else "there is"
    summary = f"Each point a measurement; the line joins those that no other beats in both. {gib(room)} GiB {word}."
    if front:
        ends = [f"{gib(peak_bytes(trial))} GiB for {rate_text(trial.rate or 0.0)} samples/s" for trial in front]
        summary += f" The smallest takes {ends[0]}, the fastest {ends[-1]}."
    looks = {FRONT: (GREEN, "stroke"), MEASURED: (BLUE, "circle"), TOO_LARGE: (RED, "triangle-up")}
    colour = alt.Color("what:N", **_legend(frame, {what: colour for what, (colour, _) in looks.items()}))
    shape = alt.Shape("what:N", **_legend(frame, {what: symbol for what, (_, symbol) in looks.items()}))
    x = alt.X(f"{frame.columns[1]}:Q").scale(zero=True)
    base = alt.Chart().encode(x=x, y=f"{RATE}:Q", color=colour, tooltip=f"{DETAILS}:N")
    layers = [base.transform_filter(alt.datum.what != FRONT).mark_point().encode(shape=shape)]
    if front:
        layers.insert(0, base.transform_filter(alt.datum.what == FRONT).mark_line())
    if room <= NEAR * largest:
        layers.extend(_mark("x", room / GIBIBYTE, word, middle=max(room, largest) / GIBIBYTE / 2))
    return _chart(frame, *layers, summary=summary)


def _trial_text(trial: Trial) -> str:
    found = trial.outcome if trial.rate is None else f"{rate_text(trial.rate)} samples/s, {gib(peak_bytes(trial))} GiB"
    return f"trial {trial.number}: {config_text(trial.config)}: {found}"


def _chart(frame: DataFrame, *layers: alt.Chart, summary: str, key: str = "", rows: int = 0) -> alt.LayerChart:
    """Layers over one table, with a description; transparent, so that it suits light and dark pages."""
    meaning = sentence(key[:1].upper() + key[1:]).replace(" · ", "; ") + " " if key else ""
    return alt.LayerChart(
        layer=layers,
        data=frame,
        title=alt.Title(text="", subtitle=key),
        description=meaning + summary,
        width="container",
        height=ROW_HEIGHT * rows or HEIGHT,
        autosize=alt.AutoSizeParams(type="fit-x", contains="padding"),
        background="transparent",
        config=CONFIG,
    )


def _rows(frame: DataFrame, column: str) -> alt.Y:
    return alt.Y(f"{column}:N", sort=list(frame[column].unique()), title=None)


def _legend(frame: DataFrame, looks: Mapping[str, Any], symbol: Any = alt.Undefined) -> dict[str, Any]:
    there = {what: look for what, look in looks.items() if what in set(frame["what"])}
    columns = 2 if max(map(len, there), default=0) < 18 else 1
    scale = alt.Scale(domain=list(there), range=list(there.values()))
    return {"scale": scale, "legend": alt.Legend(title=None, columns=columns, symbolType=symbol)}


def _mark(axis: Literal["x", "y"], at: float, text: str, middle: float = math.inf) -> tuple[alt.Chart, alt.Chart]:
    """Dotted line at a value of an axis, and its meaning on the side where there is more room."""
    once = alt.Chart(alt.InlineData(values=[{}])).encode(**{axis: alt.datum(at)})
    side: dict[str, Any] = {"align": "right", "dx": -5} if at > middle else {"align": "left", "dx": 5}
    side |= {"y": 6, "baseline": "top"} if axis == "x" else {"x": 0, "baseline": "bottom", "dy": -4}
    rule = once.mark_rule(color=TEXT, strokeDash=[3, 3], strokeWidth=1.5)
    return rule, once.mark_text(text=text, color=TEXT, fontSize=12, **side)


CHARTS = {
    "time": ("Where the time goes", time_chart),
    "confirmation": ("Is it proven?", confirmation_chart),
    "batch-size": ("Rate by batch size", batch_size_chart),
    "loader": ("Rate by workers and prefetch factor", loader_chart),
    "memory": ("Rate by peak memory", memory_chart),
}
"""Title and drawing of each chart, by its name."""
