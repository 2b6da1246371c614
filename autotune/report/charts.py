"""The charts of a result: where the time goes, whether the gain is proven, and all others. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.report.chart import Axis, Chart, Mark, Series
from autotune.report.space import batch_size_chart, importance_chart, loader_chart
from autotune.report.trials import history_chart, memory_chart
from autotune.report.words import LEAST_SHARE, TIME_PARTS, compared, config_text, counted, rate_text, time_parts

if TYPE_CHECKING:
    from autotune.records import Measurement
    from autotune.report.chart import Colour
    from autotune.result import Finalist, RecordedStudy, Result

__all__ = [
    "batch_size_chart",
    "charts_of",
    "confirmation_chart",
    "history_chart",
    "importance_chart",
    "loader_chart",
    "memory_chart",
    "time_chart",
]

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
        found.append(
            Series(
                name="the baseline against itself",
                kind="points",
                colour="blue",
                symbol="diamond",
                x=(control.ratio,),
                y=(rows[-1],),
                spread=(control.ci99 or (control.ratio,) * 2,),
                labels=(f"{control.ratio:.3f}, of {counted(control.pairs, 'pair')}",),
            )
        )
    each_round = Series(
        name="a round",
        kind="points",
        colour="grey",
        symbol="open circle",
        x=tuple(ratio for ratio, _ in rounds),
        y=tuple(row for _, row in rounds),
    )
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


def _named(finalist: Finalist, result: Result) -> str:
    position = result.finalists.index(finalist) + 1
    is_answer = result.config != result.baseline and result.speedup == finalist.speedup
    return "the answer" if is_answer else f"finalist {position}"


def _ratio_text(finalist: Finalist) -> str:
    interval = " ({:.2f} to {:.2f})".format(*finalist.interval) if finalist.interval else ""
    failed = ", but it failed once" if finalist.has_failed else ""
    return f"{finalist.speedup:.2f} times{interval}{failed}"
