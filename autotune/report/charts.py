"""The charts of a result: where the time goes, whether the gain is proven, and all others. Pure."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.errors import UsageError
from autotune.report.space_charts import batch_size_chart, history_chart, importance_chart, loader_chart, memory_chart
from autotune.report.text import LEAST_SHARE, TIME_PARTS, compared, config_text, counted, rate_text, time_parts
from autotune.report.vega import MISSING, Axis, Chart, Mark, Series, require_vega, specification
from autotune.result import RecordedStudy

if TYPE_CHECKING:
    from autotune.records import Measurement
    from autotune.report.vega import Colour
    from autotune.result import Control, Finalist, Result

PART_COLOURS: dict[str, Colour] = {
    "data_wait": "orange",
    "host_to_device": "purple",
    "forward": "blue",
    "backward": "teal",
    "communication": "red",
    "optimizer": "green",
    "other": "grey",
    "restart": "brown",
}
MICROSECONDS = 1e6
PNG_SCALE = 3.0
"""Pixels of a PNG for each of those: some 300 to the inch of a printed page."""
WIDTH = 720
"""Of a chart in a file, in pixels."""
SUFFIXES = (".svg", ".png", ".pdf")


def charts_of(study: RecordedStudy) -> tuple[Chart, ...]:
    """Return every chart that a study has something to show in."""
    result = study.result
    found: list[Chart | None] = [memory_chart(study), history_chart(study)]
    if result:
        first = (time_chart, confirmation_chart, batch_size_chart, loader_chart)
        found = [*(chart(result) for chart in first), *found, importance_chart(result)]
    return tuple(chart for chart in found if chart is not None)


def time_chart(result: Result) -> Chart:
    """Return where the time for a sample goes, before and after."""
    columns = {name: _microseconds(measured) for name, (_, measured) in compared(result).items()}
    totals = {name: sum(parts.values()) for name, parts in columns.items()}
    rows = tuple(columns)
    series = tuple(
        Series(
            name=heading,
            kind="bars",
            colour=PART_COLOURS[part],
            x=tuple(columns[row][part] for row in rows),
            y=rows,
            labels=tuple(f"{row}: {heading} {_part_text(columns[row][part], totals[row])}" for row in rows),
        )
        for part, heading in TIME_PARTS.items()
        if any(columns[row][part] >= LEAST_SHARE * totals[row] for row in rows)
    )
    return Chart(
        name="time",
        title="Where the time goes",
        summary=" ".join(_time_text(row, columns[row], totals[row]) for row in rows),
        x=Axis(title="microseconds for each sample"),
        y=Axis(title="", categories=rows),
        series=series,
    )


def _microseconds(measurement: Measurement) -> dict[str, float]:
    return {part: MICROSECONDS * seconds for part, seconds in time_parts(measurement).items()}


def _time_text(row: str, parts: dict[str, float], total: float) -> str:
    longest = max(parts, key=lambda part: parts[part])
    most = f"{TIME_PARTS[longest]} ({100 * parts[longest] / total:.0f} %)"
    return f"{row.capitalize()}: a sample takes {rate_text(total)} µs, most of it {most}."


def _part_text(microseconds: float, total: float) -> str:
    return f"{rate_text(microseconds)} µs a sample, {100 * microseconds / total:.0f} %"


def confirmation_chart(result: Result) -> Chart | None:
    """Return the ratio of every confirming round, with the intervals; ``None`` where nothing was confirmed."""
    if not result.finalists:
        return None
    names = {finalist.config: _named(finalist, result) for finalist in result.finalists}
    rows = [*names.values()]
    rounds = [(ratio, names[finalist.config]) for finalist in result.finalists for ratio in finalist.ratios]
    found = [
        Series(
            name=name,
            kind="points",
            colour="green",
            symbol="diamond",
            x=tuple(each.speedup for each in those),
            y=tuple(names[each.config] for each in those),
            spread=tuple(each.interval for each in those if each.interval),
            labels=tuple(f"{config_text(each.config)}: {_ratio_text(each)}" for each in those),
        )
        for name, has_interval in (("with its interval", True), ("without one yet", False))
        if (those := [each for each in result.finalists if (each.interval is not None) is has_interval])
    ]
    if control := result.control:
        rows.append("baseline again")
        rounds += [(ratio, rows[-1]) for ratio in control.ratios]
        found.append(_control_series(control, rows[-1]))
    x, y = zip(*rounds, strict=True)
    each_round = Series(name="a round", kind="points", colour="grey", symbol="open circle", x=x, y=y)
    best = max(result.finalists, key=lambda finalist: finalist.speedup)
    return Chart(
        name="confirmation",
        title="Is it proven?",
        summary=(
            "Each finalist beside the baseline, in fresh processes, in random order. A gain is claimed where it is at "
            "least 2 % and the whole interval lies right of 1, and of what the machine alone makes of the baseline. "
            f"The fastest: {_ratio_text(best)}, in {counted(len(best.ratios), 'round')}."
        ),
        x=Axis(title="times as fast as the baseline", from_zero=False),
        y=Axis(title="", categories=tuple(rows)),
        series=(each_round, *found),
        marks=(Mark(axis="x", at=1.0, text="as fast"),),
    )


def _control_series(control: Control, row: str) -> Series:
    return Series(
        name="the baseline against itself",
        kind="points",
        colour="blue",
        symbol="diamond",
        x=(control.ratio,),
        y=(row,),
        spread=(control.ci99 or (control.ratio,) * 2,),
        labels=(f"{control.ratio:.3f}, of {counted(control.pairs, 'pair')}",),
    )


def _named(finalist: Finalist, result: Result) -> str:
    position = result.finalists.index(finalist) + 1
    is_answer = result.config != result.baseline and result.speedup == finalist.speedup
    return "the answer" if is_answer else f"finalist {position}"


def _ratio_text(finalist: Finalist) -> str:
    interval = " ({:.2f} to {:.2f})".format(*finalist.interval) if finalist.interval else ""
    failed = ", but it failed once" if finalist.has_failed else ""
    return f"{finalist.speedup:.2f} times{interval}{failed}"


def plot(name: str, result: Result) -> Any:
    """Draw one of the charts of ``autotune.report.charts``, such as ``history_chart``, as an ``altair.LayerChart``.

    Raises ``UsageError`` where there is nothing to show, or Altair is not installed.
    """
    of_study = {chart.__name__: chart for chart in (memory_chart, history_chart)}
    of_result = {
        chart.__name__: chart
        for chart in (time_chart, confirmation_chart, batch_size_chart, loader_chart, importance_chart)
    }
    chart = of_study[name](RecordedStudy.of(result)) if name in of_study else of_result[name](result)
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
    for chart in charts_of(RecordedStudy.of(result)):
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
