"""A run as text for a terminal: a trial, the moment, and the result.

Every function returns text or a rich renderable and prints nothing; rates are samples per second.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator
from statistics import fmean
from typing import TYPE_CHECKING, Self

from rich.console import Console, Group, RenderHook
from rich.live import Live
from rich.padding import Padding
from rich.segment import Segment
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from autotune.limits import format_duration
from autotune.records import Outcome
from autotune.report.text import (
    LEAST_SHARE,
    TIME_PARTS,
    TIMES,
    cause_text,
    compared,
    config_text,
    counted,
    finding_text,
    gibibytes_text,
    measured_rows,
    outcomes_text,
    printable,
    rate_text,
    remaining_gain_text,
    sentence,
    settings_rows,
    time_parts,
    tried_line,
    verdict_sentence,
)
from autotune.result import Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import TracebackType

    from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderableType

    from autotune.config import Config
    from autotune.diagnosis.diagnose import Diagnosis
    from autotune.diagnosis.findings import Finding
    from autotune.messages import Progress
    from autotune.probes import Trace
    from autotune.records import Measurement, Probe, Trial
    from autotune.result import Result
    from autotune.search.check import Check

BAR_WIDTH = 12
"""Character cells of a full bar in the step-time rows."""
_PHASES = {
    "inspect": "inspecting",
    "baseline": "baseline",
    "probe": "looking",
    "search": "searching",
    "explore": "exploring",
    "confirm": "confirming",
}
INDENT = (0, 0, 0, 3)
"""Padding of what belongs to a numbered line: top, right, bottom, left."""
FRAMES_PER_SECOND = 4
"""Low on purpose: the display shares the CPUs with what is being timed."""


def trial_line(trial: Trial, baseline_rate: float | None) -> Text:
    """Return a finished trial on one line: number, outcome, rate, ratio to the baseline, configuration."""
    line = Text().append(f"{trial.number:>3} ", style="dim")
    if trial.rate is None:
        line.append(f"{trial.outcome:<26}", style="yellow")
    else:
        line.append(f"{trial.outcome:<7}", style="green" if trial.outcome is Outcome.OK else "yellow")
        line.append(f" {rate_text(trial.rate):>8}/s {_ratio_text(trial.rate, baseline_rate):>6} ")
    line.append(f" {config_text(trial.config)}")
    if trial.kind in ("baseline", "confirm"):
        line.append(f" ({trial.kind})", style="dim")
    if trial.attempt.message:
        line.append(f": {_on_one_line(trial.attempt.message)}", style="dim")
    return line


def probe_line(probe: Probe) -> Text:
    """Return a short look on one line: at what, what it found."""
    line = Text("  · ", style="dim")
    if loader := probe.attempt.loader:
        build = 1000 * fmean(loader.build_seconds)
        line.append(f"loader   {build:>7.3g} ms for one worker to build a batch of {loader.batch_size}")
    elif compute := probe.attempt.compute:
        rate, peak = rate_text(compute.samples_per_second), gibibytes_text(compute.peak_memory_bytes)
        line.append(f"step     {rate:>7}/s at most, {peak} GiB:  {_step_text(probe.config)}")
    elif check := probe.attempt.numerics:
        arithmetic = " · ".join((probe.config.precision, *probe.config.options))
        found = probe.attempt.message or f"{arithmetic} trains like fp32 over {len(check.losses)} steps"
        line.append(f"numerics {found}", style="yellow" if probe.attempt.message else "")
    else:
        what = f"{_step_text(probe.config)}: {_on_one_line(probe.attempt.message)}"
        line.append(f"{probe.attempt.outcome:<8} {what}", style="yellow")
    return line


def message_line(message: str) -> Text:
    """Return what the user should know during a run, on one line."""
    return Text(sentence(_on_one_line(f"{message[:1].upper()}{message[1:]}")), style="yellow")


def _step_text(config: Config) -> str:
    """Return what a step depends on: the configuration without its loader."""
    return config_text(config).replace(" · no workers", "")


def status(progress: Progress, *, number: int, last_rate: float | None, seconds_left: float) -> Text:
    """Return the moment on two lines: what runs now, and how it stands.

    ``number`` is the running trial's; ``seconds_left`` counts down between two ``Progress`` records.
    """
    now = Text(_PHASES[progress.phase], style="bold")
    if progress.running:
        is_look = progress.phase in ("probe", "explore")
        what = _step_text(progress.running) if is_look else config_text(progress.running)
        position = "" if is_look else f"trial {number} · "
        now.append(f" · {position}{what}", style="not bold")
    now.append("\n")
    for text, style in _standing(progress, last_rate):
        now.append(f"{text} · ", style=f"not bold {style}")
    return now.append(f"{format_duration(seconds_left)} of the budget left", style="not bold dim")


def _standing(progress: Progress, last_rate: float | None) -> Iterator[tuple[str, str]]:
    if last_rate is not None:
        yield f"last {rate_text(last_rate)}/s", ""
    if progress.best_rate is not None:
        ratio = _ratio_text(progress.best_rate, progress.baseline_rate)
        yield (f"best {rate_text(progress.best_rate)}/s" + (f" ({ratio} the baseline)" if ratio else ""), "green")


def summary(result: Result, path: str | None = None, study: Sequence[str] = ()) -> Group:
    """Return what a run found: table, verdict, why it stopped, what is left to gain, notes, the file written.

    ``path`` is ``None`` where no file was written; ``study`` are the arguments with which ``report`` shows it.
    """
    verdict = Text(verdict_sentence(result), style="bold green" if result.verdict is Verdict.FASTER else "bold")
    facts = [
        f"Stopped: {sentence(result.stop_reason)}",
        f"Were no batch ever late, it would be faster by {remaining_gain_text(result)}",
        *(finding_text(finding) for finding in result.findings if finding.is_limit),
        f"Trials: {outcomes_text(result.history)}, in {format_duration(result.seconds)}.",
    ]
    if result.control and result.control.ci99 and not result.control.is_off:
        low, high = result.control.ci99
        facts.insert(0, f"Control: the baseline against itself {result.control.ratio:.2f} ({low:.2f} to {high:.2f}).")
    facts.extend(tried_line(tried, tried.option in result.config.options) for tried in result.tried)
    notes = [Text(f"Note: {sentence(note)}", style="yellow") for note in result.notes]
    file = [Text(f"Written: {path}", style="bold")] if path else []
    more = [Text(f"See it: python -m autotune report {shlex.join(study)}", style="bold")] if study else []
    blank = Text()
    return Group(blank, before_after(result), blank, verdict, *map(Text, facts), *notes, *file, *more, blank)


def check_text(check: Check, path: str) -> str:
    """Return what became of a config file's promise, in a few lines."""
    verdicts = {
        "holds": "The promise holds.",
        "broken": "The promise does not hold here any more: tune again.",
        "undecided": "That does not tell whether it holds: close what else is running, or give a larger --budget.",
    }
    promise = check.promise
    if check.speedup is None:
        rate, interval = rate_text(promise.samples_per_second or 0.0), promise.next_run_95
        limits = " ({} to {} in one further run)".format(*map(rate_text, interval)) if interval else ""
        then = f"{rate} samples/s{limits}, and no gain over another configuration"
        now = f"{rate_text(check.samples_per_second)} samples/s"
    else:
        then = _claim_text(promise.speedup, promise.speedup_ci95, promise.samples_per_second)
        now = _claim_text(check.speedup, check.speedup_ci95, check.samples_per_second)
    lines = [
        f"{path} promises {then}.",
        f"Now it is {now}, in {counted(check.rounds, 'round')} of fresh processes.",
        *(f"Note: {sentence(note)}" for note in check.notes),
        verdicts[check.verdict],
    ]
    return printable("\n".join(lines))


def _claim_text(speedup: float, interval: tuple[float, float] | None, rate: float | None) -> str:
    limits = f" (95 % interval {interval[0]:.2f} to {interval[1]:.2f})" if interval else ""
    at = "" if rate is None else f", {rate_text(rate)} samples/s"
    return f"{speedup:.2f} times the baseline{limits}{at}"


def measured_table(config: Config, measurement: Measurement) -> Table:
    """Return the table of one configuration: settings, rate, memory and step time."""
    table = _settings_table({"your configuration": config})
    table.add_row("samples/s (95 %)", _rate(measurement.samples_per_second, measurement.ci95))
    table.add_row("on a batch that is there", rate_text(measurement.ceiling_samples_per_second))
    _add_measured(table, [measurement])
    return table


def before_after(result: Result) -> Table:
    """Return the table of settings, rate, memory and step time; one column where nothing changes."""
    columns = compared(result)
    table = _settings_table({heading: config for heading, (config, _) in columns.items()})
    rates = [_rate(result.baseline_samples_per_second, result.baseline_ci95)] if len(columns) > 1 else []
    table.add_row("samples/s (95 %)", *rates, _rate(result.samples_per_second, result.ci95, style="bold"))
    _add_measured(table, [measurement for _, measurement in columns.values()])
    return table


def _rate(rate: float, interval: tuple[float, float] | None, style: str = "") -> Text:
    """Return a rate with its interval."""
    text = Text(rate_text(rate), style=style)
    if interval:
        text.append(" ({} to {})".format(*map(rate_text, interval)), style="not bold")
    return text


def _settings_table(columns: Mapping[str, Config]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
    table.add_column("")
    for heading in columns:
        table.add_column(heading, overflow="fold")
    for name, cells in settings_rows(list(columns.values())).items():
        table.add_row(name, *cells)
    return table


def _add_measured(table: Table, measurements: list[Measurement]) -> None:
    """Add memory, the slowest rank, and the time of a step with its parts."""
    for name, cells in measured_rows(measurements).items():
        table.add_row(name, *cells)
    parts = [time_parts(each) for each in measurements]
    totals = [sum(each.values()) for each in parts]
    for part, heading in TIME_PARTS.items():
        shares = [each[part] / total if total else 0.0 for each, total in zip(parts, totals, strict=True)]
        if max(shares) >= LEAST_SHARE:
            table.add_row(f"  {heading}", *map(_bar, shares))


def _bar(share: float) -> RenderableType:
    return Text(f"{100 * share:>3.0f} % ").append("━" * round(BAR_WIDTH * share), style="cyan")


def _ratio_text(rate: float, baseline_rate: float | None) -> str:
    return f"{rate / baseline_rate:.2f}{TIMES}" if baseline_rate else ""


def _on_one_line(text: str) -> str:
    return " ".join(text.split())


def open_console(*, stderr: bool = True) -> Console:
    """Return a console on standard error, or on standard output."""
    console = Console(stderr=stderr, highlight=False)
    console.push_render_hook(_OnlyPrintable())
    return console


class _OnlyPrintable(RenderHook):
    """Makes printable what the console is given, before it adds its own colours."""

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [_Printable(each) for each in renderables]


class _Printable:
    def __init__(self, inner: ConsoleRenderable) -> None:
        self._inner = inner

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for segment in console.render(self._inner, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)


def diagnosis_report(diagnosis: Diagnosis) -> Group:
    """Return what limits training, with its evidence and what to do, then what is worth knowing besides."""
    limits = [finding for finding in diagnosis.findings if finding.is_limit]
    besides = [finding for finding in diagnosis.findings if not finding.is_limit]
    return Group(
        measured_table(diagnosis.config, diagnosis.measurement),
        Text(),
        *_section("What limits training", limits),
        *_section("Worth knowing", besides),
        *(_trace_lines(diagnosis.trace) if diagnosis.trace else ()),
        *(Text(f"Note: {note}", style="yellow") for note in diagnosis.notes),
    )


def _section(heading: str, findings: Sequence[Finding]) -> Iterator[RenderableType]:
    if not findings:
        return
    yield Text(heading, style="bold")
    for number, finding in enumerate(findings, start=1):
        cause, _, what = cause_text(finding).partition(": ")
        yield Text(f"{number}. ").append(cause, style="bold cyan").append(f": {what}")
        for figure in finding.evidence:
            yield Padding(Text(f"· {figure}", style="dim"), INDENT, expand=False)
        yield Padding(Text(f"To do: {finding.advice}"), INDENT, expand=False)
    yield Text()


def _trace_lines(trace: Trace) -> Iterator[RenderableType]:
    yield Text("Longest operations, in a step", style="bold")
    for operation in trace.operations:
        yield Text(f"  {1000 * operation.seconds:>8.3g} ms {operation.calls:>6.4g} times  {operation.name}")
    yield Text(f"Written: {trace.path} (open it in ui.perfetto.dev or chrome://tracing)", style="bold")
    yield Text()


class PlainProgress:
    """Writes one line for each finished trial; for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def __call__(self, progress: Progress) -> None:
        """Write the look or the trial that has just finished, if one has, and what the user should know."""
        if progress.message:
            self._console.print(message_line(progress.message), soft_wrap=True)
        if progress.looked:
            self._console.print(probe_line(progress.looked), soft_wrap=True)
        if progress.finished:
            self._console.print(trial_line(progress.finished, progress.baseline_rate), soft_wrap=True)


class LiveProgress:
    """Keeps two lines about the moment at the foot of a terminal; finished trials scroll above them."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._spinner = Spinner("dots", style="green")
        self._progress: Progress | None = None
        self._received = 0.0
        self._number = 0
        self._last_rate: float | None = None
        self._live = Live(
            console=console, get_renderable=self.render, refresh_per_second=FRAMES_PER_SECOND, transient=True
        )

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def __call__(self, progress: Progress) -> None:
        """Show this moment; a finished trial also gets a line that stays."""
        self._progress, self._received = progress, self._clock()
        trial = progress.finished
        if progress.message:
            self._console.print(message_line(progress.message))
        if progress.looked:
            self._console.print(probe_line(progress.looked), no_wrap=True, overflow="ellipsis")
        if trial:
            self._number = trial.number + 1
            self._last_rate = trial.rate
            may_be_cut = not trial.attempt.message  # a configuration; what went wrong is read to its end
            self._console.print(trial_line(trial, progress.baseline_rate), no_wrap=may_be_cut, overflow="ellipsis")

    def render(self) -> RenderableType:
        """Return what stands at the foot of the terminal now; the time left counts down by the clock."""
        if self._progress:
            left = self._progress.seconds_left - (self._clock() - self._received)
            text = status(self._progress, number=self._number, last_rate=self._last_rate, seconds_left=left)
        else:
            text = Text("starting", style="bold")
        grid = Table.grid(padding=(0, 1))
        grid.add_column()
        grid.add_column(no_wrap=True, overflow="ellipsis")
        grid.add_row(self._spinner, text)
        return grid
