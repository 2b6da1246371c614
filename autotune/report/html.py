"""A study as one HTML file that needs no network: the page, its charts and its scripts.

Whatever was measured, and whatever the user's code calls itself, is text: the template escapes it, and a policy in the
page runs no script but its own two.
"""

from __future__ import annotations

import hashlib
import json
import math
import shlex
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from autotune.configfile import document_text
from autotune.exports import export
from autotune.limits import format_duration, percent
from autotune.output import GENERATOR, write_file
from autotune.report.drawing import missing_for_charts, vega_script
from autotune.report.memory import fastest_so_far
from autotune.report.table import COLUMNS, trial_row
from autotune.report.text import (
    COMMAND,
    HEADINGS,
    alternative_text,
    before_after,
    cause_text,
    change_text,
    config_text,
    counted,
    gibibytes_text,
    has_two_answers,
    other_steps_text,
    outcomes_text,
    own_gain_text,
    printable,
    rate_text,
    same_loss_pace,
    sentence,
    tried_line,
    verdict_details,
    verdict_title,
)
from autotune.result import StudyRecord, Verdict
from autotune.settings import SETTINGS

if TYPE_CHECKING:
    from autotune.records import Trial
    from autotune.result import Answer

FOLDER = Path(__file__).with_name("page")
TONES = {Verdict.FASTER: "gain", Verdict.NO_GAIN: "same", Verdict.UNDECIDED: "open"}
SHOWN = {
    "number": "trial",
    "kind": "kind",
    "outcome": "outcome",
    "samples_per_second": "samples/s",
    "predicted_samples_per_second": "expected",
    "bound_samples_per_second": "at most",
    **{field: each.heading for field, each in SETTINGS.items() if each.heading},
    "peak_memory_bytes": "memory, GiB",
    "data_wait_seconds": "waiting, %",
    "trial_seconds": "took, s",
    "message": "message",
}
"""The columns of a trial that the table shows, and their headings there."""


class _Tile(NamedTuple):
    name: str
    value: str
    detail: str = ""


class _Use(NamedTuple):
    name: str
    title: str
    answer: str
    """What it is, in a line; empty where there is one answer only."""
    code: str
    """Lines to copy: of a training script, or commands where the script stays as it is."""
    export: str
    """Command that converts it for another tool."""


def html_report(study: StudyRecord) -> str:
    """Return a study as the text of an HTML file; without the chart library it has all but the charts."""
    charts = _figures(study)
    script = (FOLDER / "page.js").read_text(encoding="utf-8")
    scripts = {"vega": vega_script() if charts else "", "script": script}
    hashes = [b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts.values() if text]
    return (
        _environment()
        .get_template("page.html")
        .render(
            **_content(study),
            **{name: Markup(text) for name, text in scripts.items()},
            style=Markup((FOLDER / "page.css").read_text(encoding="utf-8")),
            generator=Markup(GENERATOR),
            script_sources=Markup(" ".join(f"'sha256-{each}'" for each in hashes)),
            charts=charts,
            version=(study.result.host.versions if study.result else study.made_on).get("autotune", ""),
        )
    )


def save_report(study: StudyRecord, path: Path) -> None:
    """Write a study as an HTML file. Raises ``ConfigFileError`` where the file cannot be written."""
    write_file(path, html_report(study))


def html_summary(result: Answer) -> str:
    """Return a result as HTML for a notebook: verdict, before and after, limits."""
    return _environment().get_template("summary.html").render(**_finished(result, StudyRecord.of(result)))


def _environment() -> Environment:
    environment = Environment(loader=FileSystemLoader(FOLDER), autoescape=True, undefined=StrictUndefined)
    environment.finalize = lambda value: printable(value) if type(value) is str else value  # Markup is our own
    environment.globals |= {"cause_text": cause_text, "config_text": config_text, "sentence": sentence}
    environment.trim_blocks = environment.lstrip_blocks = True
    return environment


def _figures(study: StudyRecord) -> dict[str, dict[str, Any]]:
    if missing_for_charts():
        return {}
    import altair

    from autotune.report.charts import DETAILS, charts_of

    figures = {}
    for name, chart in charts_of(study).items():
        with altair.data_transformers.enable("default", max_rows=None):
            drawn = chart.to_dict()
        numbers: Any = chart.data
        numbers = numbers.drop(columns=[DETAILS, "order"], errors="ignore")
        table = numbers.to_html(index=False, border=0, na_rep="", float_format=_number)
        title, summary = drawn.pop("title")["text"], drawn["description"]
        figures[name] = {"name": name, "title": title, "summary": summary, "drawn": drawn, "table": Markup(table)}
    return figures


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _content(study: StudyRecord) -> dict[str, Any]:
    result = study.result
    content: dict[str, Any] = {
        "missing": missing_for_charts(),
        "comparison": None,
        "findings": (),
        "notes": (),
        "config": "",
        "uses": (),
        "path": "",
        "failures": _failures(study.history),
        "trials": _table(study.history),
        "machine": _machine(study),
        **(_unfinished(study) if result is None else _finished(result, study)),
    }
    tiles = len(content["tiles"])
    content["columns"] = math.ceil(tiles / math.ceil(tiles / 4))  # four in a row at most
    return content


def _finished(result: Answer, study: StudyRecord) -> dict[str, Any]:
    stopped = f"Stopped: {result.stop_reason.rstrip('.')}. Trials: {outcomes_text(result.history)}"
    return {
        "title": verdict_title(result),
        "lead": f"{verdict_details(result)} {stopped}, in {format_duration(result.seconds)}.",
        "tone": TONES[result.verdict],
        "subject": f"{result.facts.model_name} on {result.facts.dataset_name} · {result.facts.device_name}",
        "tiles": list(_tiles(result)),
        "comparison": before_after(result),
        "findings": result.findings,
        "notes": list(_notes(result, study)),
        "config": document_text(Path(study.path), json.loads(json.dumps(result.config.to_document()))),
        "uses": list(_uses(result, study.path)),
        "path": study.path,
    }


def _uses(result: Answer, path: str) -> Iterator[_Use]:
    is_script, other = bool(result.facts.loader_site), result.alternative
    code = _apply_line(result, path) if is_script else export(result.config, "python").text
    if other is None or not has_two_answers(result):
        title = "With the script as it is" if is_script else "In the training script"
        yield _Use("snippet", title, "", code, _export_line(path))
        return
    name, title = other.objective, f"Take this, {HEADINGS[result.objective]}: at the top of the file"
    yield _Use("snippet", title, _answer_line(result), code, _export_line(path))
    code = _apply_other_lines(other, path) if is_script else export(other.config, "python").text
    line = f"{_export_line(path)} --objective {name}"
    yield _Use("other-snippet", f"Or, {HEADINGS[name]}: under alternatives", _answer_line(other), code, line)


def _answer_line(result: Answer) -> str:
    return f"{verdict_title(result)}: {config_text(result.config)}"


def _export_line(path: str) -> str:
    return f"{COMMAND} export {shlex.quote(path)} --to TOOL"


def _apply_line(result: Answer, path: str) -> str:
    return f"{result.config.launcher} -m autotune apply {shlex.quote(path)} SCRIPT  # with its own arguments\n"


def _apply_other_lines(other: Answer, path: str) -> str:
    """Commands that give an answer from under ``alternatives`` a file of its own, and train a script with that."""
    own = str(Path(path).with_name(f"{other.objective}{Path(path).suffix}"))
    python = f"import autotune; autotune.load_config({path!r}, {other.objective!r}).save({own!r})"
    return f"python -c {shlex.quote(python)}\n{_apply_line(other, own)}"


def _notes(result: Answer, study: StudyRecord) -> Iterator[str]:
    if study.since:
        yield f"the study has gone on since, by {counted(study.since, 'measurement')}: this is the earlier answer"
    if change := change_text(result):
        yield change
    if other := alternative_text(result):
        yield other
    for tried in result.tried:
        yield f"option {tried_line(tried, tried.option in result.config.options)}"
    yield from result.notes


def _unfinished(study: StudyRecord) -> dict[str, Any]:
    ran = study.history
    best, first = fastest_so_far(study), next((trial.rate for trial in ran if trial.rate is not None), None)
    tiles = [_Tile("measurements", str(len(ran)), outcomes_text(study.history))]
    if best is not None and first is not None:
        tiles.append(_Tile("fastest so far", rate_text(best), f"{best / first:.2f} times the first, unconfirmed"))
    if first is not None:
        lead = "This run goes on, or was cut off: the same command continues it. What was measured so far:"
    elif ran:
        lead = "Nothing could be measured so far; the errors are below."
    else:
        lead = "Nothing was measured so far."
    return {
        "title": "No answer yet",
        "lead": lead,
        "tone": "open",
        "subject": study.made_on.get("device", ""),
        "tiles": tiles,
    }


def _tiles(result: Answer) -> Iterator[_Tile]:
    before, after = result.baseline_measurement, result.measurement
    changes = result.config != result.baseline
    interval = "95 %: {} to {}".format(*map(rate_text, result.ci95)) if result.ci95 else ""
    was = f"was {rate_text(result.baseline_samples_per_second, result.baseline_ci95)}" if changes else ""
    yield _Tile("samples/s", rate_text(result.samples_per_second, result.ci95), _joined(was, interval))
    if found := same_loss_pace(result):
        yield _Tile("as fast to the same loss", *found)
    if (other := result.alternative) and other.config != result.config:
        rate = rate_text(other.samples_per_second, other.ci95)
        yield _Tile(f"{HEADINGS[other.objective]}, samples/s", rate, verdict_title(other))
    if samples := after.epoch_samples:
        earlier = f"was {_long(samples / result.baseline_samples_per_second)}" if changes else ""
        yield _Tile("an epoch takes", _long(samples / result.samples_per_second), earlier)
    used = f"was {gibibytes_text(before.peak_memory_bytes)}" if changes else ""
    whole = f"of {gibibytes_text(after.memory_limit_bytes)} GiB {after.memory}"
    yield _Tile("peak memory", f"{gibibytes_text(after.peak_memory_bytes)} GiB", _joined(used, whole))
    own = own_gain_text(result).replace(" %", "\N{NO-BREAK SPACE}%")
    yield _Tile("a perfect data loader would gain", own, other_steps_text(result))
    if after.device_idle_share is not None:
        was = f"was {percent(before.device_idle_share or 0.0)}" if changes else ""
        yield _Tile("accelerator idle", percent(after.device_idle_share), was)
    if result.bottleneck:
        yield _Tile("limited by", result.bottleneck.replace("_", " "))


def _joined(*texts: str) -> str:
    return "; ".join(filter(None, texts))


def _long(seconds: float) -> str:
    return f"{seconds:.2g} s" if seconds < 10 else format_duration(seconds)


def _failures(history: Sequence[Trial]) -> list[tuple[tuple[str, str], list[Trial]]]:
    alike: dict[tuple[str, str], list[Trial]] = {}
    for trial in history:
        if trial.rate is None:
            alike.setdefault((str(trial.outcome), " ".join(trial.attempt.message.split())), []).append(trial)
    return sorted(alike.items(), key=lambda item: -len(item[1]))


def _table(history: Sequence[Trial]) -> dict[str, Any]:
    rows = [trial_row(trial) for trial in sorted(history, key=lambda trial: trial.number)]
    shown = [name for name in SHOWN if any(row[name] not in (None, "") for row in rows)]
    return {
        "columns": [{"title": SHOWN[name], "is_number": _is_number(name)} for name in shown],
        "rows": [{"outcome": row["outcome"], "cells": [_cell(name, row) for name in shown]} for row in rows],
        "outcomes": sorted({row["outcome"] for row in rows}),
    }


def _is_number(name: str) -> bool:
    return bool(COLUMNS[name].unit) or name == "number"


def _cell(name: str, row: Mapping[str, Any]) -> tuple[str, float | str | None]:
    """Return the text of a cell, and the key by which numbers are sorted."""
    value = row[name]
    if isinstance(value, bool):
        return "yes" if value else "no", None
    if not _is_number(name):
        return "" if value is None else str(value), None
    if value is None:
        return "", ""
    if name == "peak_memory_bytes":
        value = value / 2**30
    if name == "data_wait_seconds":
        value = 100 * value / row["step_seconds"] if row["step_seconds"] else 0.0
    return f"{value:,.0f}" if isinstance(value, int) or value >= 100 else f"{value:.3g}", value


def _machine(study: StudyRecord) -> list[tuple[str, str]]:
    result = study.result
    if result is None:
        return list(study.made_on.items())
    facts = result.facts
    samples = "unknown" if facts.dataset_length is None else f"{facts.dataset_length:,}"
    return [
        ("model", f"{facts.model_name}, {facts.parameters:,} parameters"),
        ("dataset", f"{facts.dataset_name}, {samples} samples"),
        ("trained on", f"{facts.device_name} ({facts.device})"),
        *result.host.traits.items(),
        ("platform", result.host.platform),
        *sorted({**result.host.versions, **facts.versions}.items()),
        ("workload", facts.fingerprint),
        ("date", str((result.config.made_on or {}).get("date", "unknown"))),
    ]
