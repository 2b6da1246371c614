"""Statements of the terminal and of the report, each beside the figure in the study that it follows from.

    python -m studies.report.statements

Reads the standard error and the study of three runs (``RUNS``), and writes ``statements.md``. A
statement that differs from its figure by more than its rounding is marked. The figures are computed here, from trials
and looks alone.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

import autotune
from autotune.config import Config
from autotune.records import Measurement, Probe
from autotune.report.html import html_report
from autotune.search.read import RecordedStudy
from autotune.storage.trials import looks_of, system_attributes

FOLDER = Path(__file__).resolve().parent
DEMO = FOLDER.parent / "demo" / "recorded"
RUNS = {
    "demo": (DEMO / "alone-1.txt", DEMO / "autotune.study"),
    "script": (FOLDER / "runs" / "script.txt", FOLDER / "runs" / "script.study"),
    "no gain": (FOLDER / "runs" / "no-gain.txt", FOLDER / "runs" / "no-gain.study"),
}
"""Standard error and study of each run."""
NUMBER = r"([\d.,]+)"
ROUNDING = 0.006
"""Relative difference that three figures leave."""


@dataclass(frozen=True)
class Run:
    """A run's standard error, page and study."""

    name: str

    @cached_property
    def terminal(self) -> str:
        """Text that the terminal showed, on one line."""
        return " ".join(RUNS[self.name][0].read_text(encoding="utf-8").split())

    @cached_property
    def page(self) -> str:
        """Text of the report and of its charts."""
        return " ".join(re.sub(r"<[^>]+>", " ", html_report(self.study)).replace("\N{NO-BREAK SPACE}", " ").split())

    @cached_property
    def study(self) -> RecordedStudy:
        """The study."""
        return autotune.read_study(RUNS[self.name][1])

    @cached_property
    def answer(self) -> Any:
        """The result that the study holds."""
        return self.study.result

    @cached_property
    def looks(self) -> tuple[Probe, ...]:
        """Looks at the parts of training, in order."""
        storage = JournalStorage(JournalFileBackend(str(RUNS[self.name][1])))
        return looks_of(system_attributes(optuna.load_study(study_name=None, storage=storage)), {})

    def rounds_of(self, config: Config) -> list[Measurement]:
        """Measurements of a configuration in the rounds of the answer."""
        confirming = [trial for trial in self.study.history if trial.kind == "confirm" and trial.measurement]
        threads = self.answer.facts.intra_op_threads
        names = {trial.round for trial in confirming if alike(trial.config, self.answer.config, threads)}
        own = (trial for trial in confirming if trial.round in names and alike(trial.config, config, threads))
        return [trial.measurement for trial in own if trial.measurement]


def alike(one: Config, other: Config, threads: int) -> bool:
    """Whether two configurations are one, with torch's own number of threads in figures."""
    given, full = (
        replace(
            each,
            intra_op_threads=each.intra_op_threads or threads,
            inter_op_threads=each.inter_op_threads or threads,
        )
        for each in (one, other)
    )
    return given == full


class Statement(NamedTuple):
    """One statement: where it stands, its pattern with one number, and the figure it follows from."""

    place: str
    pattern: str
    source: str
    figure: Callable[[Run], float]


def first(run: Run) -> Measurement:
    """Measurement of the present settings in the search."""
    return next(trial.measurement for trial in run.study.history if trial.number == 0 and trial.measurement)


def look(run: Run, part: str) -> Any:
    """First look at a part."""
    return next(found for each in run.looks if (found := getattr(each.attempt, part)) is not None)


def part(measured: Measurement, name: str) -> float:
    """Share of a part in the time of an epoch, in percent."""
    steady = max(measured.samples_per_second, measured.steady_samples_per_second)
    return 100 * measured.samples_per_second / steady * getattr(measured.step_time, name) / measured.step_time.total


def ratio(run: Run) -> float:
    """Mean rate of the answer over that of the baseline, over the rounds."""
    rates = [fmean(each.samples_per_second for each in run.rounds_of(config)) for config in sides(run)]
    return rates[1] / rates[0]


def sides(run: Run) -> tuple[Config, Config]:
    """Baseline and answer."""
    return run.answer.baseline, run.answer.config


def rate_of(run: Run) -> float:
    """Rate of the first look at the step, in samples a second."""
    probe = next(each for each in run.looks if each.attempt.compute is not None)
    assert probe.attempt.compute is not None
    return probe.attempt.compute.samples_per_second


def ms(run: Run) -> float:
    """Milliseconds of a step of the typical measurement of the baseline."""
    return 1000 * run.answer.baseline_measurement.step_time.total


def outcomes(run: Run, outcome: str) -> float:
    """Number of trials of an outcome."""
    return sum(str(trial.outcome) == outcome for trial in run.study.history)


def most_gain(run: Run) -> float:
    """Largest gain that was not excluded, in percent, rounded up."""
    return math.ceil(round(100 * (run.answer.most_gain or 0.0), 6))


ALL = [
    Statement(
        "terminal", rf"0 baseline {NUMBER}/s", "trial 0: samples_per_second", lambda r: first(r).samples_per_second
    ),
    Statement(
        "terminal",
        rf"loader {NUMBER} ms for a worker to build",
        "look at the loader: mean build time",
        lambda r: 1000 * fmean(look(r, "loader").build_seconds),
    ),
    Statement(
        "terminal", rf"step {NUMBER}/s at (?:most|least)", "look at the step: rate on a batch in memory", rate_of
    ),
    Statement("terminal", r"time per step ([\d.]+) ms", "median round of the baseline: step_time.total", ms),
    Statement("terminal", rf"Trials {NUMBER} ok", "trials with outcome ok", lambda r: outcomes(r, "ok")),
]
ALL += [
    Statement(
        "terminal",
        r"peak memory ([\d.]+) of",
        "typical measurement of the present settings: peak_memory_bytes",
        lambda r: r.answer.baseline_measurement.peak_memory_bytes / 2**30,
    ),
    Statement("terminal", rf"No gain above {NUMBER} %", "most_gain: the largest gain that was not excluded", most_gain),
]
PROVEN = [
    Statement(
        "terminal",
        rf"samples/s \(95 %\) {NUMBER} \(",
        "rounds: mean rate of the baseline",
        lambda r: fmean(each.samples_per_second for each in r.rounds_of(r.answer.baseline)),
    ),
    Statement(
        "terminal",
        rf"samples/s \(95 %\) [\d.,]+ \([\d.,]+ to [\d.,]+\) {NUMBER} \(",
        "rounds: mean rate of the answer",
        lambda r: fmean(each.samples_per_second for each in r.rounds_of(r.answer.config)),
    ),
    Statement("terminal", rf"{NUMBER} times the samples a second", "rounds: ratio of the means", ratio),
    Statement(
        "terminal",
        rf"confirmed in {NUMBER} rounds",
        "rounds with both measured",
        lambda r: len(r.rounds_of(r.answer.config)),
    ),
    Statement(
        "terminal",
        r"waiting for data (\d+) %",
        "typical round of the baseline: data_wait",
        lambda r: part(r.answer.baseline_measurement, "data_wait"),
    ),
    Statement(
        "report",
        rf"was {NUMBER}; 95 %",
        "rounds: mean rate of the baseline",
        lambda r: fmean(each.samples_per_second for each in r.rounds_of(r.answer.baseline)),
    ),
    Statement("report", rf"The fastest: {NUMBER} times", "rounds: ratio of the means", ratio),
    Statement(
        "report",
        rf"Before: a sample takes {NUMBER} µs",
        "typical round of the baseline: 1 / samples_per_second",
        lambda r: 1e6 / r.answer.baseline_measurement.samples_per_second,
    ),
]
PAGE = [
    Statement(
        "report",
        rf"The fastest step: {NUMBER} samples/s",
        "steps of the landscape that may be used: highest rate of the step alone",
        lambda r: max(step.ceiling for step in r.answer.landscape.steps if not step.refusal),
    ),
    Statement(
        "report",
        rf"The most is expected of \d+ workers: {NUMBER} samples/s",
        "loader settings of the landscape that fit: highest expected rate",
        lambda r: max(each.rate for each in r.answer.landscape.loaders if not each.refusal),
    ),
    Statement(
        "report",
        r"peak memory ([\d.]+) GiB",
        "typical measurement of the answer: peak_memory_bytes",
        lambda r: r.answer.measurement.peak_memory_bytes / 2**30,
    ),
    Statement("report", rf"Trials: {NUMBER} ok", "trials with outcome ok", lambda r: outcomes(r, "ok")),
]


def rows(run: Run) -> Iterator[str]:
    """Rows of the table for a run."""
    is_proven = run.answer.config != run.answer.baseline
    for place, pattern, source, figure in (*ALL, *(PROVEN if is_proven else ()), *PAGE):
        found = re.search(pattern, getattr(run, "terminal" if place == "terminal" else "page"))
        if found is None:
            continue
        said, value = float(found[1].replace(",", "")), figure(run)
        step = 10.0 ** -len(found[1].partition(".")[2])
        agrees = abs(said - value) <= max(ROUNDING * abs(value), 0.51 * step)
        text = found[0].replace("|", "/")
        yield f"| {run.name} | {place} | {text} | {source} | {value:,.4g} | {'yes' if agrees else '**no**'} |"


def main() -> None:
    """Write the table."""
    head = "| run | where | says | follows from | figure | agrees |\n|---|---|---|---|---|---|"
    found = [row for name in RUNS if RUNS[name][1].exists() for row in rows(Run(name))]
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    text = "\n".join((head, *found)) + "\n"
    (FOLDER / "statements.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
