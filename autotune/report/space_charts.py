"""The charts of trials, and of the whole space as the search sees it at its end. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import accumulate, cycle
from typing import TYPE_CHECKING

from autotune.records import Outcome
from autotune.report.text import config_text, gibibytes_text, rate_text, sentence
from autotune.report.vega import Axis, Chart, Mark, Series
from autotune.result import pareto_front

if TYPE_CHECKING:
    from autotune.config import Config
    from autotune.records import Trial, WorkloadFacts
    from autotune.report.vega import Colour, Dashes, Symbol
    from autotune.result import Landscape, LoaderForecast, RecordedStudy, Result, StepForecast

PRECISIONS: dict[str, tuple[str, Colour]] = {
    "off": ("fp32", "blue"),
    "bf16": ("bf16", "orange"),
    "fp16": ("fp16", "green"),
}
COLOURS: tuple[Colour, ...] = ("blue", "orange", "green", "purple", "teal", "brown", "red", "grey")
KNOB_NAMES = {
    "batch_size": "batch size",
    "num_workers": "workers",
    "prefetch_factor": "prefetch factor",
    "pin_memory": "pinned memory",
    "persistent_workers": "persistent workers",
    "amp": "amp",
    "threads": "threads",
}


_DASHES: tuple[Dashes, ...] = ("solid", "dashed", "dotted")
RATE = "samples/s"
GIBIBYTE = 2**30
NEAR = 3.0
"""A limit that is so many times further away than anything measured is not drawn."""


def batch_size_chart(result: Result) -> Chart | None:
    """Return the rate by batch size and precision, with the ceiling; ``None`` without a landscape."""
    if result.landscape is None:
        return None
    steps, history = result.landscape.steps, _searched(result)
    sizes = tuple(str(size) for size in sorted({step.batch_size for step in steps}))
    series: list[Series] = []
    for amp in dict.fromkeys(step.amp for step in steps):
        series += _of_precision(amp, [step for step in steps if step.amp == amp], history)
    usable = {step.amp for step in steps if not step.refusal}
    unusable = list(dict.fromkeys(step.amp for step in steps if step.amp not in usable))
    if refused := [step for step in steps if step.refusal and step.amp in usable]:
        series.append(
            Series(
                name="does not fit, or fails",
                kind="points",
                colour="red",
                symbol="cross",
                x=tuple(str(step.batch_size) for step in refused),
                y=(0.0,) * len(refused),
                labels=tuple(f"{PRECISIONS[step.amp][0]}, batch {step.batch_size}: {step.refusal}" for step in refused),
            )
        )
    return Chart(
        name="batch-size",
        title="Rate by batch size",
        key=" · ".join(
            (
                "solid: expected with the best loader",
                "dashed: the step alone",
                f"points: measured{_without(result)}",
                *(f"{PRECISIONS[amp][0]} may not be used" for amp in unusable),
            )
        ),
        summary=" ".join(("No loader can bring more than the step alone.", *_remarks(steps, unusable))),
        x=Axis(title="batch size", categories=sizes),
        y=Axis(title=RATE),
        series=tuple(series),
    )


def _remarks(steps: Sequence[StepForecast], unusable: Sequence[str]) -> Iterator[str]:
    """Yield which step is the fastest, and which precisions are not shown."""
    best = max((step for step in steps if not step.refusal), key=lambda step: step.ceiling, default=None)
    if best is not None:
        which = f"batch {best.batch_size} in {PRECISIONS[best.amp][0]}"
        yield f"The fastest step: {rate_text(best.ceiling)} samples/s, {which}."
    for amp in unusable:
        why = next(step.refusal for step in steps if step.amp == amp)
        yield sentence(f"{PRECISIONS[amp][0]} may not be used: {why}")


def _searched(result: Result) -> list[Trial]:
    """Return the sound trials whose step the search knows: without the options that were tried after it."""
    return [trial for trial in sound(result.history) if trial.config.options == result.baseline.options]


def _without(result: Result) -> str:
    """Return what is left out of the charts of the space, as the end of a key."""
    tried = [option for option in result.config.options if option not in result.baseline.options]
    return f" · without {', '.join(tried)}" if tried else ""


def _ceiling(result: Result, landscape: Landscape) -> float:
    """Return the rate of the answer's step alone as the search expects it, like the lines beside it."""
    step = result.config.amp, result.config.batch_size
    found = (each.ceiling for each in landscape.steps if (each.amp, each.batch_size) == step)
    return next(found, result.measurement.ceiling_samples_per_second)


def _of_precision(amp: str, steps: Sequence[StepForecast], history: Sequence[Trial]) -> Iterator[Series]:
    name, colour = PRECISIONS[amp]
    fitting = [step for step in steps if not step.refusal]
    sizes = tuple(str(step.batch_size) for step in fitting)
    if fitting:
        alone = tuple(step.ceiling for step in fitting)
        yield Series(
            name=f"{name}: step alone", kind="line", colour=colour, dashes="dashed", in_legend=False, x=sizes, y=alone
        )
        yield Series(name=name, kind="line", colour=colour, x=sizes, y=tuple(step.rate for step in fitting))
    known = {(step.amp, step.batch_size) for step in steps}
    measured = [trial for trial in history if (trial.config.amp, trial.config.batch_size) in known]
    if measured:
        yield _measured(name, colour, measured, tuple(str(trial.config.batch_size) for trial in measured))


def _measured(name: str, colour: Colour, trials: Sequence[Trial], x: tuple[str, ...]) -> Series:
    return Series(
        name=f"{name}: measured",
        kind="points",
        colour=colour,
        in_legend=False,
        x=x,
        y=tuple(trial.rate or 0.0 for trial in trials),
        labels=tuple(map(trial_text, trials)),
    )


def loader_chart(result: Result) -> Chart | None:
    """Return expected and measured rate over workers and prefetch factor; ``None`` without a landscape."""
    if result.landscape is None or not result.landscape.loaders:
        return None
    loaders = result.landscape.loaders
    fitting = [loader for loader in loaders if not loader.refusal]
    counts = tuple(str(count) for count in sorted({loader.num_workers for loader in loaders}))
    factors = sorted({loader.prefetch_factor for loader in loaders if loader.prefetch_factor}) or [0]
    alike = [trial for trial in _searched(result) if _is_alike(trial.config, result.config, result.facts)]
    alike = [trial for trial in alike if str(trial.config.num_workers) in counts]
    series: list[Series] = []
    for factor, colour, dashes in zip(factors, cycle(COLOURS), cycle(_DASHES)):
        name = f"prefetch {factor}" if factor else "expected"
        line = [each for each in fitting if each.prefetch_factor in (None, factor)]
        if line:
            series.append(_expected(name, colour, dashes, line))
        points = [trial for trial in alike if trial.config.prefetch_factor in (None, factor)]
        if points:
            series.append(_measured(name, colour, points, tuple(str(trial.config.num_workers) for trial in points)))
    best = max(fitting or loaders, key=lambda each: each.rate)
    return Chart(
        name="loader",
        title="Rate by workers and prefetch factor",
        key=f"with the answer's step · lines: expected, by what was learned · points: measured{_without(result)}",
        summary=f"The most is expected of {best.num_workers} workers: {rate_text(best.rate)} samples/s.",
        x=Axis(title="workers", categories=counts),
        y=Axis(title=RATE),
        series=tuple(series),
        marks=(Mark(axis="y", at=_ceiling(result, result.landscape), text="the step alone"),),
    )


def _expected(name: str, colour: Colour, dashes: Dashes, line: Sequence[LoaderForecast]) -> Series:
    labels = (
        f"workers {each.num_workers}, {name}: {rate_text(each.rate)} samples/s "
        f"({rate_text(each.low)} to {rate_text(each.high)})"
        for each in line
    )
    return Series(
        name=name,
        kind="line",
        colour=colour,
        dashes=dashes,
        x=tuple(str(each.num_workers) for each in line),
        y=tuple(each.rate for each in line),
        labels=tuple(labels),
    )


def _is_alike(config: Config, answer: Config, facts: WorkloadFacts) -> bool:
    """Return whether two configurations differ in their loaders alone."""

    def step(each: Config) -> tuple[object, ...]:
        return each.batch_size, each.amp, each.accumulation_steps, each.intra_op_threads or facts.intra_op_threads

    return step(config) == step(answer)


def importance_chart(result: Result) -> Chart | None:
    """Return how much each knob matters; ``None`` where only one varies, or nothing is expected to matter."""
    importances = result.landscape.importances if result.landscape else ()
    if len(importances) < 2:
        return None
    names = tuple(KNOB_NAMES[each.knob] for each in importances)
    shares = tuple(100 * each.share for each in importances)
    return Chart(
        name="importances",
        title="What matters",
        summary=(
            "How much of the differences between all configurations each knob explains by itself, in what the search "
            f"expects of them (functional ANOVA). Most: {names[0]}, {shares[0]:.0f} %."
        ),
        x=Axis(title="share of the variance, %"),
        y=Axis(title="", categories=names),
        series=(
            Series(
                name="share",
                kind="bars",
                colour="blue",
                x=shares,
                y=names,
                labels=tuple(f"{name}: {share:.1f} %" for name, share in zip(names, shares, strict=True)),
                in_legend=False,
            ),
        ),
    )


def memory_chart(study: RecordedStudy) -> Chart | None:
    """Return rate by peak memory, with the Pareto front; ``None`` where nothing was measured."""
    measured = sound(study.history)
    if not measured or measured[0].measurement is None:
        return None
    room, kind = _room(study), measured[0].measurement.memory
    fitting, too_large = _by_room(study, measured)
    front = pareto_front(tuple(fitting))[::-1]
    line = Series(
        name="Pareto front", kind="line", colour="green", x=tuple(_peak(t) / GIBIBYTE for t in front), y=_rates(front)
    )
    groups = (_by_memory("measured", fitting, "blue"), _by_memory("takes more than it may", too_large, "red", "cross"))
    word = "may be used" if study.result and study.result.landscape else "there is"
    is_near = room <= NEAR * max(map(_peak, measured))
    return Chart(
        name="memory",
        title="Rate by peak memory",
        summary=(
            "Each point a measurement; the line joins those that no other beats in both. "
            f"{gibibytes_text(room)} GiB {word}. {_ends_text(front)}"
        ).strip(),
        x=Axis(title=f"peak memory, GiB of the {kind}"),
        y=Axis(title=RATE),
        series=tuple(each for each in (line, *groups) if each.x),
        marks=(Mark(axis="x", at=room / GIBIBYTE, text=word),) if is_near else (),
    )


def _ends_text(front: Sequence[Trial]) -> str:
    if not front:
        return ""
    ends = [f"{gibibytes_text(_peak(trial))} GiB for {rate_text(trial.rate or 0.0)} samples/s" for trial in front]
    return f"The smallest takes {ends[0]}, the fastest {ends[-1]}."


def history_chart(study: RecordedStudy) -> Chart | None:
    """Return what became of every trial, in order; ``None`` where there was none."""
    ran = [trial for trial in study.history if trial.kind != "skipped"]
    if not ran:
        return None
    searched, too_large = _by_room(study, [trial for trial in sound(ran) if trial.kind != "confirm"])
    confirmed = [trial for trial in sound(ran) if trial.kind == "confirm"]
    disturbed = [trial for trial in ran if trial.rate is not None and trial.outcome is not Outcome.OK]
    groups = (
        _by_number("search", searched, "blue"),
        _by_number("confirmation", confirmed, "purple", "diamond"),
        _by_number("takes more memory than it may", too_large, "red", "open circle"),
        _by_number("disturbed", disturbed, "grey", "open circle"),
        _by_number("failed", [trial for trial in ran if trial.rate is None], "red", "cross"),
    )
    best = Series(
        name="best so far",
        kind="steps",
        colour="green",
        x=tuple(float(trial.number) for trial in searched),
        y=tuple(accumulate(_rates(searched), max)),
    )
    counts = ", ".join(f"{len(group.x)} {group.name}" for group in groups if group.x)
    return Chart(
        name="history",
        title="The study, trial by trial",
        summary=f"{len(ran)} measurements: {counts}. What failed stands at zero, with its outcome.",
        x=Axis(title="trial"),
        y=Axis(title=RATE),
        series=tuple(each for each in (best, *groups) if each.x),
    )


def fastest_so_far(study: RecordedStudy) -> float | None:
    """Return the highest rate of the search that takes no more memory than it may; ``None`` where there is none."""
    fitting, _ = _by_room(study, sound(study.history))
    return max((trial.rate or 0.0 for trial in fitting if trial.kind != "confirm"), default=None)


def _room(study: RecordedStudy) -> float:
    """Return how much of the memory that limits the run may be used, in bytes, or at least how much there is."""
    if study.result and study.result.landscape:
        return study.result.landscape.memory_bytes
    measured = sound(study.history)
    return measured[0].measurement.memory_limit_bytes if measured and measured[0].measurement else math.inf


def _by_room(study: RecordedStudy, trials: Sequence[Trial]) -> tuple[list[Trial], list[Trial]]:
    """Return those that fit, the user's own among them in any case, and those that take too much."""
    room = _room(study)
    fits = [trial.kind == "baseline" or _peak(trial) <= room for trial in trials]
    return [t for t, fit in zip(trials, fits, strict=True) if fit], [
        t for t, fit in zip(trials, fits, strict=True) if not fit
    ]


def sound(history: Sequence[Trial]) -> list[Trial]:
    """Return the trials that gave an undisturbed number."""
    return [trial for trial in history if trial.outcome is Outcome.OK and trial.measurement is not None]


def trial_text(trial: Trial) -> str:
    """Return what a trial says when it is pointed at."""
    found = str(trial.outcome)
    if trial.rate is not None:
        found = f"{rate_text(trial.rate)} samples/s, {gibibytes_text(_peak(trial))} GiB"
    return f"trial {trial.number}: {config_text(trial.config)}: {found}"


def _by_number(name: str, trials: Sequence[Trial], colour: Colour, symbol: Symbol = "circle") -> Series:
    return _points(name, trials, colour, symbol, tuple(float(trial.number) for trial in trials))


def _by_memory(name: str, trials: Sequence[Trial], colour: Colour, symbol: Symbol = "circle") -> Series:
    return _points(name, trials, colour, symbol, tuple(_peak(trial) / GIBIBYTE for trial in trials))


def _points(name: str, trials: Sequence[Trial], colour: Colour, symbol: Symbol, x: tuple[float, ...]) -> Series:
    labels = tuple(map(trial_text, trials))
    return Series(name=name, kind="points", colour=colour, symbol=symbol, x=x, y=_rates(trials), labels=labels)


def _rates(trials: Sequence[Trial]) -> tuple[float, ...]:
    return tuple(trial.rate or 0.0 for trial in trials)


def _peak(trial: Trial) -> int:
    return trial.measurement.epoch_peak_bytes if trial.measurement else 0
