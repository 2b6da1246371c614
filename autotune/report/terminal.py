"""A run as text for a terminal: a trial, the moment, and the result.

Only ``say`` and the displays of progress print; rates are samples per second.
"""

from __future__ import annotations

import io
import shlex
import sys
import time
from contextlib import nullcontext, suppress
from statistics import fmean
from typing import TYPE_CHECKING, Self

from rich.console import Console, Group, RenderHook
from rich.live import Live
from rich.padding import Padding
from rich.segment import Segment
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from autotune.config import beginning_text
from autotune.limits import format_duration, format_size, percent, percent_up
from autotune.outcome import Outcome
from autotune.report.text import (
    COMMAND,
    RATE,
    TIMES,
    SideBySide,
    alternative_text,
    answer_text,
    before_after,
    capital,
    cause_text,
    change_text,
    config_text,
    counted,
    gibibytes_text,
    in_python,
    one_configuration,
    outcomes_text,
    printable,
    rate_text,
    rate_with_interval,
    remaining_gain_text,
    sentence,
    tried_line,
)
from autotune.result import Verdict
from autotune.workload import Script

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager
    from types import TracebackType

    from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderableType

    from autotune.config import Config
    from autotune.diagnosis.findings import Diagnosis, Finding, Remedy
    from autotune.messages import Progress
    from autotune.proof import Comparison
    from autotune.records import Probe, Trial, WorkloadFacts
    from autotune.result import Answer, Check

BAR_WIDTH = 12
"""Character cells of a full bar in the step-time rows."""
_PHASES = {
    "inspect": "inspecting",
    "baseline": "baseline",
    "probe": "probing",
    "search": "searching",
    "confirm": "confirming",
}
INDENT = (0, 0, 0, 3)
"""Padding below a numbered line: top, right, bottom, left."""
FRAMES_PER_SECOND = 4
"""Low on purpose: the display shares the CPUs with the measurements."""


def trial_line(trial: Trial, baseline_rate: float | None) -> Text:
    """Return a finished trial on one line: number, kind or outcome, rate, ratio to the baseline, configuration."""
    line = Text().append(f"{trial.number:>3} ", style="dim")
    is_ok = trial.outcome is Outcome.OK
    label = trial.kind if is_ok and trial.kind in ("baseline", "confirm") else str(trial.outcome)
    if trial.rate is None:
        line.append(f"{label:<27}", style="yellow")
    else:
        line.append(f"{label:<8}", style="green" if is_ok else "yellow")
        line.append(f" {rate_text(trial.rate):>8}/s {_ratio_text(trial.rate, baseline_rate):>6} ")
    return line.append(f" {config_text(trial.config)}")


def probe_line(probe: Probe) -> Text:
    """Return a probe and its figures on one line."""
    line = Text("  · ", style="dim")
    again = ", looked at again" if probe.again else ""
    taken = f"; others took {percent(probe.taken_share)} meanwhile" if probe.taken_share else ""
    style = "yellow" if probe.taken_share else ""
    if loader := probe.attempt.loader:
        build = 1000 * fmean(loader.build_seconds)
        built = f"loader   {build:>7.3g} ms for a worker to build a batch of {loader.batch_size}"
        line.append(f"{built}{again}{taken}", style=style)
    elif compute := probe.attempt.compute:
        rate, peak = rate_text(compute.samples_per_second), gibibytes_text(compute.peak_memory_bytes)
        bound = "least" if probe.taken_share else "most"
        step = f"step     {rate:>7}/s at {bound}, {peak} GiB:  {_step_text(probe.config)}"
        line.append(f"{step}{again}{taken}", style=style)
    elif check := probe.attempt.numerics:
        arithmetic = " · ".join((probe.config.precision, *probe.config.options))
        found = probe.attempt.message or f"{arithmetic} trains like fp32 over {len(check.losses)} steps"
        line.append(f"numerics {found}", style="yellow" if probe.attempt.message else "")
    elif noise := probe.attempt.noise:
        small, large = noise.batch_size, noise.batch_size * noise.parts
        line.append(f"noise    gradients of {small} and of {large} samples, over {noise.trained_samples:,} samples")
    elif losses := probe.attempt.losses:
        line.append(f"losses   {len(losses)} of a start of the script:  {config_text(probe.config)}")
    else:
        failed = f"{_step_text(probe.config)}: {_on_one_line(probe.attempt.message)}"
        line.append(f"{probe.attempt.outcome:<8} {failed}", style="yellow")
    return line


def message_line(message: str) -> Text:
    """Return a message of a run on one line."""
    return Text(sentence(_on_one_line(capital(message))), style="yellow")


def _step_text(config: Config) -> str:
    return config_text(config).replace(" · no workers", "")


def status(progress: Progress, *, number: int, last_rate: float | None, seconds_left: float | None) -> Text:
    """Return the moment on two lines: the running trial, and the best so far.

    ``number`` is the running trial's; ``seconds_left`` counts down between two ``Progress`` records.
    """
    now = Text(_PHASES[progress.phase], style="bold")
    if progress.running:
        is_probe = progress.phase == "probe"
        running = _step_text(progress.running) if is_probe else f"trial {number} · {config_text(progress.running)}"
        now.append(f" · {running}", style="not bold")
    parts = list(_standing(progress, last_rate))
    if seconds_left is not None:
        parts.append((f"{format_duration(seconds_left)} of the budget left", "dim"))
    now.append("\n")
    for place, (text, style) in enumerate(parts):
        now.append(f"{' · ' if place else ''}{text}", style=f"not bold {style}")
    return now


def _standing(progress: Progress, last_rate: float | None) -> Iterator[tuple[str, str]]:
    if last_rate is not None:
        yield f"last {rate_text(last_rate)}/s", ""
    if progress.best_rate is not None:
        ratio = _ratio_text(progress.best_rate, progress.baseline_rate)
        yield (f"best {rate_text(progress.best_rate)}/s" + (f" ({ratio} the baseline)" if ratio else ""), "green")


def summary(result: Answer, words: Callable[[str], str] = str) -> Group:
    """Return the table of a result, its limits and its notes, in the words of the command line or of Python."""
    facts = Table.grid(padding=(0, 2))
    facts.add_column(no_wrap=True)
    facts.add_column(overflow="fold")
    for heading, text in _facts(result):
        style = "yellow" if heading == "Note" else ""
        facts.add_row(Text(heading, style=style), Text(words(text), style=style))
    return Group(Text(), comparison_table(before_after(result)), Text(), facts, Text())


def _facts(result: Answer) -> Iterator[tuple[str, str]]:
    for finding in result.findings:
        if finding.is_limit:
            yield "Limited by", sentence(cause_text(finding))
            yield "To do", sentence(finding.advice)
    yield "Left to gain", remaining_gain_text(result)
    for tried in result.tried:
        yield "Option", tried_line(tried, tried.option in result.config.options)
    yield "Stopped", sentence(result.stop_reason)
    yield "Trials", f"{outcomes_text(result.history)}, in {format_duration(result.seconds)}"
    yield from (("Note", sentence(note)) for note in result.notes)


def result_text(result: Answer) -> str:
    """Return a result as plain text, for Python."""
    console = Console(file=io.StringIO(), width=100, color_system=None, highlight=False)
    console.print(summary(result, in_python), *_verdict(result, in_python), sep="\n")
    return printable(console.file.getvalue())  # type: ignore[attr-defined]


def _verdict(result: Answer, words: Callable[[str], str] = str) -> Iterator[Text]:
    yield Text(words(answer_text(result)), style="bold green" if result.verdict is Verdict.FASTER else "bold")
    if change := change_text(result):
        yield Text(words(change), style="yellow")
    if other := alternative_text(result):
        yield Text(words(other))


def ending(result: Answer, path: str | None = None, study: Sequence[str] = (), script: Sequence[str] = ()) -> Group:
    """Return the verdict, what changes training, the file and the next commands.

    ``path`` is ``None`` where no file was written; ``study`` are the arguments with which ``report`` shows it.
    ``script`` are the script that was tuned and its arguments.
    """
    lines = [*_verdict(result)]
    if script and result.facts.loader_call and result.config != result.baseline:
        from autotune.exports.patch import patch_of  # takes a while to import

        patch = patch_of(result.config, Script.of(script))
        lines += [Text(f"Change:  {each}") for each in (*patch.edits, *patch.remarks)]
    if path:
        lines.append(Text(f"Written: {path}"))
    if path and result.config != result.baseline:
        use = f"{COMMAND} export {shlex.quote(path)} --to python"
        if script:
            use = f"{result.config.launcher} -m autotune apply {shlex.join([path, *script])}"
        lines.append(Text(f"Use it:  {use}"))
    if study:
        lines.append(Text(f"See it:  {COMMAND} report {shlex.join(study)}"))
    return Group(*lines)


def script_text(facts: WorkloadFacts, present: Config, *, is_fixed: bool) -> str:
    """Return the training loader that was found in a script, and the settings that would be varied.

    ``is_fixed`` says that its batch size cannot be one of them.
    """
    samples = "" if facts.dataset_length is None else f", {facts.dataset_length:,} samples"
    is_cast = present.amp != "off"
    precision = ", precision" if is_cast else ""
    size, others = f"batch size {present.batch_size}", ", ".join(facts.other_loader_calls)
    if facts.batch_samples is not None:
        size = f"batches of {facts.batch_samples} samples, as they come"
    kept = size + ("" if is_fixed else " (--batch-size varies it)") + ("" if is_cast else ", fp32 (no autocast)")
    lines = [
        f"Found: {facts.loader_call}, {facts.dataset_name}{samples}; {facts.model_name} trains on {facts.device}.",
        f"Today: {config_text(present)}.",
        f"Would vary: workers, prefetch factor, pinning, persistent workers, threads{precision}.",
        f"Would keep: {kept}, and everything else.",
    ]
    if others:
        lines.insert(1, f"Together with it: {others}. They get the same settings; its samples are those that count.")
    return printable("\n".join(lines))


def check_text(check: Check, path: str) -> str:
    """Return the outcome of a check in a few lines."""
    seen = beginning_text(check.beginning_samples)
    verdicts = {
        "holds": f"The promise holds{seen}.",
        "broken": "The promise does not hold here any more: tune again.",
        "undecided": "Undecided: measure an epoch that is short enough to be seen whole."
        if check.is_uneven
        else "Undecided: stop other programs, or give a larger --budget.",
    }
    promised = check.config.measured or {}
    then = _claim_text(promised.get("speedup", 1.0), promised.get("speedup_ci95"), promised.get("samples_per_second"))
    now = _claim_text(check.speedup, check.speedup_ci95, check.samples_per_second)
    lines = [
        f"{path} promises {then}{beginning_text(promised.get('beginning_samples'))}.",
        f"Now it is {now}, in {counted(check.rounds, 'round')} of fresh processes{seen}.",
        *(f"Note: {sentence(note)}" for note in check.notes),
        verdicts[check.verdict],
    ]
    return printable("\n".join(lines))


def _claim_text(speedup: float, interval: Sequence[float] | None, rate: float | None) -> str:
    limits = f" (95 % interval {interval[0]:.2f} to {interval[1]:.2f})" if interval else ""
    at = "" if rate is None else f", {rate_text(rate)} samples/s"
    return f"{speedup:.2f} times the baseline{limits}{at}"


def comparison_text(found: Comparison) -> str:
    """Return a comparison as a table of Markdown, and its verdict."""
    unit, limit = f"{found.unit}/s", f"{100 * found.margin:g} %"
    ends = found.interval or (found.ratio, found.ratio)
    verdicts = {
        "faster": "b is faster.",
        "slower": f"b is slower by more than {limit}." if found.margin else "b is slower.",
        "not slower": f"b is not slower by more than {limit}.",
        "no difference": f"No difference above {percent_up(max(ends[1] - 1, 1 - ends[0]))}.",
        "undecided": "Undecided: stop other programs, or give a larger --budget.",
    }
    peaks = [side.typical.peak_memory_bytes for side in (found.a, found.b)]
    rows = [
        (
            f"{letter}: `{name}`",
            rate_with_interval(side.rate, side.rate_ci95),
            format_size(peak),
            f"{losses[0]:.4g} → {losses[-1]:.4g}" if losses else "",
        )
        for letter, name, side, peak, losses in zip(
            "ab", found.names, (found.a, found.b), peaks, found.losses, strict=True
        )
    ]
    interval = f" ({ends[0]:.3f} to {ends[1]:.3f})" if found.interval else ""
    rows.append(("b / a", f"**{found.ratio:.3f}**{interval}", f"{peaks[1] / max(1, peaks[0]):.2f}", ""))
    head = ("", f"{unit} (95 %)", f"peak of {found.a.typical.memory} memory", "first losses")
    used = [column for column in range(4) if any(row[column] for row in rows)]
    lines = [head, ("---",) * 4, *rows]
    table = [f"| {' | '.join(line[column] for column in used)} |" for line in lines]
    notes = (f"Note: {sentence(note)}" for note in found.notes)
    rounds = f"In {counted(found.rounds, 'round')} of fresh processes, {format_duration(found.seconds)}."
    return printable("\n".join([*table, "", *notes, f"{verdicts[found.verdict]} {rounds}"]))


def comparison_table(comparison: SideBySide) -> Table:
    """Return the table of configurations side by side, with a bar for each share of the time."""
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
    table.add_column("")
    for heading in comparison.columns:
        table.add_column(heading, overflow="fold")
    for row in comparison.rows:
        cells = [Text(cell) for cell in row.cells]
        for cell, share in zip(cells, row.shares, strict=False):  # a setting has no shares
            cell.append(" ").append("━" * round(BAR_WIDTH * share), style="cyan")
        table.add_row(row.name, *cells, style="bold" if row.name == RATE else "")
    return table


def _ratio_text(rate: float, baseline_rate: float | None) -> str:
    return f"{rate / baseline_rate:.2f}{TIMES}" if baseline_rate else ""


def _on_one_line(text: str) -> str:
    return " ".join(text.split())


def progress_display(*, is_log: bool = False) -> AbstractContextManager[Callable[[Progress], None] | None]:
    """Return a live display where standard error is a terminal, lines in a notebook or a log, otherwise nothing."""
    console = open_console()
    lines = PlainProgress(console) if is_log or console.is_jupyter else None
    is_live = sys.stderr.isatty() and not console.is_dumb_terminal
    return LiveProgress(console) if is_live else nullcontext(lines)


def say(text: str) -> None:
    """Print a line on standard error, or in a notebook; nothing where that is closed."""
    with suppress(OSError, SystemExit):
        open_console().print(Text(text))


def open_console(*, stderr: bool = True) -> Console:
    """Return a console on standard error, or on standard output."""
    console = Console(stderr=stderr, highlight=False)
    console.push_render_hook(_OnlyPrintable())
    return console


class _OnlyPrintable(RenderHook):
    """Makes text printable before the console adds its colours."""

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [_Printable(each) for each in renderables]


class _Printable:
    def __init__(self, inner: ConsoleRenderable) -> None:
        self._inner = inner

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for segment in console.render(self._inner, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)


def diagnosis_report(diagnosis: Diagnosis) -> Group:
    """Return the limits of training with evidence and advice, then further observations."""
    limits = [finding for finding in diagnosis.findings if finding.is_limit]
    besides = [finding for finding in diagnosis.findings if not finding.is_limit]
    return Group(
        comparison_table(one_configuration(diagnosis.config, diagnosis.measurement)),
        Text(),
        *_section("What limits training", limits),
        *_section("Worth knowing", besides),
        *(_remedy_lines(diagnosis.remedies) if diagnosis.remedies else ()),
        *(Text(f"Note: {note}", style="yellow") for note in diagnosis.notes),
    )


def _section(heading: str, findings: Sequence[Finding]) -> Iterator[RenderableType]:
    if not findings:
        return
    yield Text(heading, style="bold")
    for number, finding in enumerate(findings, start=1):
        cause, _, text = cause_text(finding).partition(": ")
        yield Text(f"{number}. ").append(cause, style="bold cyan").append(f": {text}")
        for figure in finding.evidence:
            yield Padding(Text(f"· {figure}", style="dim"), INDENT, expand=False)
        yield Padding(Text(f"To do: {finding.advice}"), INDENT, expand=False)
    yield Text()


def _remedy_lines(remedies: Sequence[Remedy]) -> Iterator[RenderableType]:
    yield Text("What a remedy for waiting would gain", style="bold")
    for remedy in remedies:
        yield Text(f"  {remedy.name:<10} {_remedy_text(remedy)}")
    if (way := remedies[0]).is_worth:
        before = f', before="{way.before}"' if way.before else ""
        todo = f'To do: dataset = autotune.stored(dataset, "cache/"{before}), which the first epoch fills'
        yield Padding(Text(f"{todo}; at scale litdata, webdataset, DALI and FFCV do the like"), INDENT, expand=False)
    yield Text()


def _remedy_text(remedy: Remedy) -> str:
    sizes = ""
    if remedy.total_bytes is not None:
        sizes = (
            f"; all items take {format_size(remedy.total_bytes)}, and {format_duration(remedy.seconds or 0)} to make"
        )
    if remedy.ratio is None:
        return f"not measured: {remedy.reason}{sizes}"
    worth = {True: "", False: "not worth it: ", None: "undecided: "}[remedy.is_worth]
    interval = " ({:.2f} to {:.2f})".format(*remedy.interval) if remedy.interval else ""
    saved = remedy.saved_seconds if remedy.is_worth else None
    epoch = "" if saved is None else f", {format_duration(saved)} less for each epoch"
    remark = remedy.reason and f"; {remedy.reason}"
    return f"{worth}{remedy.ratio:.2f} times as fast{interval}{epoch}{sizes}{remark}"


class PlainProgress:
    """Writes one line for each finished trial; for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def __call__(self, progress: Progress) -> None:
        """Write the message, probe or trial of this moment."""
        if progress.message:
            self._console.print(message_line(progress.message), soft_wrap=True)
        if progress.looked:
            self._console.print(probe_line(progress.looked), soft_wrap=True)
        if progress.finished:
            line = trial_line(progress.finished, progress.baseline_rate)
            remark = _on_one_line(progress.finished.attempt.message)
            self._console.print(line.append(f": {remark}" if remark else "", style="dim"), soft_wrap=True)


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
            self._console.print(trial_line(trial, progress.baseline_rate), no_wrap=True, overflow="ellipsis")
            if remark := _on_one_line(trial.attempt.message):
                self._console.print(Padding(Text(remark, style="dim"), (0, 0, 0, 32)))  # below its configuration

    def render(self) -> RenderableType:
        """Return the foot of the terminal now; the time left counts down by the clock."""
        if self._progress:
            left = self._progress.seconds_left
            if left is not None:
                left -= self._clock() - self._received
            text = status(self._progress, number=self._number, last_rate=self._last_rate, seconds_left=left)
        else:
            text = Text("starting", style="bold")
        grid = Table.grid(padding=(0, 1))
        grid.add_column()
        grid.add_column(no_wrap=True, overflow="ellipsis")
        grid.add_row(self._spinner, text)
        return grid
