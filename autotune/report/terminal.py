"""A run as text for a terminal: a trial, the moment, and the result.

Every function returns text or a rich renderable and prints nothing; rates are samples per second.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import asdict
from statistics import fmean
from typing import TYPE_CHECKING

from rich.console import Group
from rich.table import Table
from rich.text import Text

from autotune.duration import format_duration
from autotune.records import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import RenderableType

    from autotune.checking import Check
    from autotune.config import Config
    from autotune.records import Measurement, Probe, Progress, Result, Trial

__all__ = [
    "before_after",
    "check_text",
    "config_text",
    "probe_line",
    "snippet",
    "status",
    "summary",
    "trial_line",
    "verdict_sentence",
    "waiting_line",
]

TIMES = "\N{MULTIPLICATION SIGN}"
BAR_WIDTH = 12
"""Character cells of a full bar in the step-time rows."""
LEAST_PAIRS = 3
"""A control of fewer pairs has too wide an interval to say anything."""
LEAST_SHARE = 0.005
"""Parts of the step below this share in every column are left out: they would read 0 %."""

_PHASES = {
    "inspect": "inspecting",
    "baseline": "baseline",
    "probe": "looking",
    "search": "searching",
    "confirm": "confirming",
}
_STEP_PARTS = {
    "data_wait": "waiting for data",
    "host_to_device": "copy to device",
    "forward": "forward, loss",
    "backward": "backward",
    "optimizer": "optimizer",
    "other": "other",
}
_LIMITED_BY = {
    "compute": "the model's own compute",
    "loader": "loading the data",
    "transfer": "copying batches to the device",
    "cpu": "the Python loop on the CPU",
}


def config_text(config: Config) -> str:
    """Return a configuration in short form; what is left at torch's default is left out."""
    parts = [f"batch {config.batch_size}", "no workers"]
    if config.num_workers:
        parts[1] = f"workers {config.num_workers}{TIMES}{config.prefetch_factor}"
        if not config.persistent_workers:
            parts.append("not persistent")
    if config.pin_memory:
        parts.append("pin")
    parts.append("fp32" if config.amp == "off" else config.amp)
    if config.accumulation_steps > 1:
        parts.append(f"accumulate {config.accumulation_steps}")
    if _threads_text(config):
        parts.append(f"threads {_threads_text(config)}")
    return " · ".join(parts)


def trial_line(trial: Trial, baseline_rate: float | None) -> Text:
    """Return a finished trial on one line: number, outcome, rate, ratio to the baseline, configuration."""
    line = Text().append(f"{trial.number:>3} ", style="dim")
    if trial.rate is None:
        line.append(f"{trial.outcome:<26}", style="yellow")
    else:
        line.append(f"{trial.outcome:<7}", style="green" if trial.outcome is Outcome.OK else "yellow")
        line.append(f" {_rate_text(trial.rate):>8}/s {_ratio_text(trial.rate, baseline_rate):>6} ")
    line.append(f" {config_text(trial.config)}")
    if trial.kind in ("baseline", "confirm"):
        line.append(f" ({trial.kind})", style="dim")
    if trial.message:
        line.append(f": {_on_one_line(trial.message)}", style="dim")
    return line


def probe_line(probe: Probe) -> Text:
    """Return a short look on one line: at what, what it found."""
    line = Text("  · ", style="dim")
    if probe.loader:
        build = 1000 * fmean(probe.loader.build_seconds)
        line.append(f"loader   {build:>7.3g} ms for one worker to build a batch of {probe.loader.batch_size}")
    elif probe.compute:
        rate, peak = _rate_text(probe.compute.samples_per_second), _gibibytes_text(probe.compute.peak_memory_bytes)
        line.append(f"step     {rate:>7}/s at most, {peak} GiB:  {_step_text(probe.config)}")
    elif probe.numerics:
        found = probe.message or f"{probe.config.amp} trains like fp32 over {len(probe.numerics.losses)} steps"
        line.append(f"numerics {found}", style="yellow" if probe.message else "")
    else:
        line.append(f"{probe.outcome:<8} {_step_text(probe.config)}: {_on_one_line(probe.message)}", style="yellow")
    return line


def waiting_line(holder: str) -> Text:
    """Return which other run of autotune is waited for."""
    return Text(f"waiting for the accelerator: another autotune measures on it, {holder}", style="yellow")


def _step_text(config: Config) -> str:
    """Return what a step depends on: the configuration without its loader."""
    return config_text(config).replace(" · no workers", "")


def status(progress: Progress, *, number: int, last_rate: float | None, seconds_left: float) -> Text:
    """Return the moment on two lines: what runs now, and how it stands.

    ``number`` is the running trial's; ``seconds_left`` counts down between two ``Progress`` records.
    """
    now = Text(_PHASES[progress.phase], style="bold")
    if progress.running:
        what = _step_text(progress.running) if progress.phase == "probe" else config_text(progress.running)
        position = "" if progress.phase == "probe" else f"trial {number} · "
        now.append(f" · {position}{what}", style="not bold")
    now.append("\n")
    for text, style in _standing(progress, last_rate):
        now.append(f"{text} · ", style=f"not bold {style}")
    return now.append(f"{format_duration(seconds_left)} of the budget left", style="not bold dim")


def _standing(progress: Progress, last_rate: float | None) -> Iterator[tuple[str, str]]:
    if last_rate is not None:
        yield f"last {_rate_text(last_rate)}/s", ""
    if progress.best_rate is not None:
        ratio = _ratio_text(progress.best_rate, progress.baseline_rate)
        yield (
            f"best {_rate_text(progress.best_rate)}/s" + (f" ({ratio} the baseline)" if ratio else ""),
            "green",
        )


def summary(result: Result, path: str | None) -> Group:
    """Return what a run found: table, verdict, why it stopped, what is left to gain, notes, the file written.

    ``path`` is ``None`` where no file was written.
    """
    verdict = Text(verdict_sentence(result), style="bold green" if result.verdict == "faster" else "bold")
    facts = [
        f"Stopped: {_sentence(result.stop_reason)}",
        f"Largest remaining gain: {_remaining_gain_text(result)}",
        f"Trials: {_outcomes_text(result)}, in {format_duration(result.seconds)}.",
    ]
    if result.control and result.control.ci99 and result.control.pairs >= LEAST_PAIRS and not result.control.is_off:
        low, high = result.control.ci99
        facts.insert(0, f"Control: the baseline against itself {result.control.ratio:.2f} ({low:.2f} to {high:.2f}).")
    notes = [Text(f"Note: {_sentence(note)}", style="yellow") for note in result.notes]
    file = [Text(f"Written: {path}", style="bold")] if path else []
    blank = Text()
    return Group(blank, before_after(result), blank, verdict, *map(Text, facts), *notes, *file, blank)


def check_text(check: Check, path: str) -> str:
    """Return what became of a config file's promise, in a few lines."""
    verdicts = {
        "holds": "The promise holds.",
        "broken": "The promise does not hold here any more: tune again.",
        "undecided": "That does not tell whether it holds: close what else is running, or give a larger --budget.",
    }
    then = _claim_text(check.promise.speedup, check.promise.speedup_ci95, check.promise.samples_per_second)
    now = _claim_text(check.speedup, check.speedup_ci95, check.samples_per_second)
    lines = [
        f"{path} promises {then}.",
        f"Now it is {now}, in {_counted(check.rounds, 'round')} of fresh processes.",
        *(f"Note: {_sentence(note)}" for note in check.notes),
        verdicts[check.verdict],
    ]
    return "\n".join(lines)


def _claim_text(speedup: float, interval: tuple[float, float] | None, rate: float | None) -> str:
    limits = f" (95 % interval {interval[0]:.2f} to {interval[1]:.2f})" if interval else ""
    at = "" if rate is None else f", {_rate_text(rate)} samples/s"
    return f"{speedup:.2f} times the baseline{limits}{at}"


def verdict_sentence(result: Result) -> str:
    """Return the verdict in one sentence, with its interval and how it was confirmed."""
    if result.verdict != "faster":
        return "No proven gain: keep what you have."
    interval = "no interval"
    if result.speedup_ci95:
        low, high = result.speedup_ci95
        interval = f"95 % interval {low:.2f} to {high:.2f}"
    confirmed = f", confirmed in {_counted(result.rounds, 'round')} of fresh processes"
    return f"{result.speedup:.2f} times faster ({interval}){confirmed}."


def before_after(result: Result) -> Table:
    """Return the table of settings, rate, memory and step time; one column where nothing changes."""
    columns = [("before", result.baseline, result.baseline_measurement)]
    if result.config == result.baseline:
        columns = [("your configuration", result.config, result.measurement)]
    else:
        columns.append(("after", result.config, result.measurement))
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
    table.add_column("")
    for heading, _, _ in columns:
        table.add_column(heading, overflow="fold")
    _add_settings(table, [config for _, config, _ in columns])
    _add_rates(table, result)
    measurements = [measurement for _, _, measurement in columns]
    table.add_row("peak memory", *map(_memory_text, measurements))
    _add_step_times(table, measurements)
    return table


def snippet(result: Result, path: str) -> str:
    """Return the lines of a training script, valid Python, that load the file at ``path`` and use it."""
    device, steps = result.facts.device, _counted(result.config.accumulation_steps, "batch", "batches")
    shuffle = "" if result.facts.iterable else ", shuffle=True"
    reduction = ', reduction="sum"' if result.facts.loss_reduction == "sum" else ""
    quoted = '"' + path.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return f"""\
import autotune

config = autotune.load_config({quoted})
config.apply_threads()  # before torch is imported
accumulator = config.accumulator(optimizer, "{device}"{reduction})
for batch in config.dataloader(dataset{shuffle}):
    with config.autocast("{device}"):  # around forward and loss, never backward
        loss = training_step(model, batch)
    accumulator.backward(loss)
    accumulator.step()  # the optimizer, every {steps}; fp16 is scaled
"""


def _add_settings(table: Table, configs: list[Config]) -> None:
    rows: dict[str, Callable[[Config], str]] = {
        "batch size": lambda config: str(config.batch_size),
        "workers (prefetch)": _workers_text,
        "pinned memory": lambda config: "yes" if config.pin_memory else "no",
        "amp": lambda config: config.amp,
        "threads": lambda config: _threads_text(config) or "torch's own choice",
    }
    if any(config.accumulation_steps > 1 for config in configs):
        rows["accumulation steps"] = lambda config: str(config.accumulation_steps)
    for heading, shown in rows.items():
        table.add_row(heading, *map(shown, configs))


def _add_rates(table: Table, result: Result) -> None:
    rate = Text(_rate_text(result.samples_per_second), style="bold")
    if result.ci95:
        rate.append(" ({} to {})".format(*map(_rate_text, result.ci95)), style="not bold")
    before = () if result.config == result.baseline else (_rate_text(result.baseline_samples_per_second),)
    table.add_row("samples/s (95 %)", *before, rate)


def _add_step_times(table: Table, measurements: list[Measurement]) -> None:
    table.add_row("time per step", *(f"{1000 * each.step_time.total:.3g} ms" for each in measurements))
    for part, heading in _STEP_PARTS.items():
        shares = [_share(each, part) for each in measurements]
        if max(shares) >= LEAST_SHARE:
            table.add_row(f"  {heading}", *map(_bar, shares))


def _share(measurement: Measurement, part: str) -> float:
    total = measurement.step_time.total
    return float(asdict(measurement.step_time)[part]) / total if total else 0.0


def _bar(share: float) -> RenderableType:
    return Text(f"{100 * share:>3.0f} % ").append("━" * round(BAR_WIDTH * share), style="cyan")


def _workers_text(config: Config) -> str:
    if not config.num_workers:
        return "none"
    kept = "" if config.persistent_workers else ", new each epoch"
    return f"{config.num_workers} ({config.prefetch_factor}){kept}"


def _threads_text(config: Config) -> str:
    """Return ``intra`` or ``intra+inter``; empty where both are torch's own choice."""
    if config.inter_op_threads is None:
        return str(config.intra_op_threads or "")
    return f"{config.intra_op_threads or 'auto'}+{config.inter_op_threads}"


def _memory_text(measurement: Measurement) -> str:
    peak, limit = measurement.peak_memory_bytes, measurement.memory_limit_bytes
    return f"{_gibibytes_text(peak)} of {_gibibytes_text(limit)} GiB {measurement.memory}"


def _gibibytes_text(count: int) -> str:
    size = count / 2**30
    return f"{size:.1f}" if size >= 1 else f"{size:.2f}"


def _rate_text(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 1000 else f"{rate:.3g}"


def _ratio_text(rate: float, baseline_rate: float | None) -> str:
    return f"{rate / baseline_rate:.2f}{TIMES}" if baseline_rate else ""


def _remaining_gain_text(result: Result) -> str:
    limited = _LIMITED_BY.get(result.measurement.bottleneck, result.measurement.bottleneck)
    if not math.isfinite(result.remaining_gain):
        return f"unknown; the rate is now limited by {limited}."
    return f"at most {max(0.0, 100 * result.remaining_gain):.0f} %; the rate is now limited by {limited}."


def _outcomes_text(result: Result) -> str:
    counts = Counter(trial.outcome for trial in result.history)
    return ", ".join(f"{counts[outcome]} {outcome}" for outcome in Outcome if counts[outcome]) or "none"


def _counted(count: int, noun: str, several: str | None = None) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {several or noun + 's'}"


def _sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."


def _on_one_line(text: str) -> str:
    return " ".join(text.split())
