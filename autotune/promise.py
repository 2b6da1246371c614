"""The promise of a config file, and whether it still holds: its configuration against its baseline, here and now."""

from __future__ import annotations

import secrets
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from autotune.config import Config, load_config
from autotune.errors import ConfigFileError, NothingFeasibleError, UsageError
from autotune.limits import GRACE, Budget, parse_duration
from autotune.messages import Messages, Progress
from autotune.notes import on_uneven_workers
from autotune.proof import (
    Confirmation,
    Proof,
    Standing,
    Turn,
    confirmation_of,
    finalists_for,
    follow,
    has_time,
    shown_uneven,
    standing_of,
)
from autotune.records import Measurement, Request, Runner, Trial
from autotune.result import Check, Promise
from autotune.runner.local import ProcessRunner
from autotune.stats import Interval, around, mean_rate, shows_gain
from autotune.workload import Script, Workload, describe

WINDOW_SECONDS = 3.0
PROCESS_SECONDS = 6.0
"""Seconds of a measurement with its process, about, until the first is timed."""
DIFFERENCE = 0.2
"""Share by which a further run may be slower where the file does not say."""
RUNS_ALONE = 5
"""Fresh processes in which a configuration is measured that is its own baseline."""


def check(
    path: str | Path,
    workload: str | Workload | Script,
    dataset: str | None = None,
    *,
    device: str = "auto",
    budget: float | str = "1m",
    ranks: int | None = None,
    oversubscribe_ranks: bool = False,
    on_progress: Callable[[Progress], None] | None = None,
) -> Check:
    """Measure a config file's configuration and baseline side by side again, and compare with the file's promise.

    ``workload``, ``dataset``, ``device`` and ``oversubscribe_ranks`` are those of ``tune``; ``budget`` is the wall time
    for everything. ``ranks`` are those of the file, where they are given.

    Raises ``ConfigFileError`` for a file that cannot be read or promises nothing, ``UsageError``, ``UserCodeError``,
    and ``NothingFeasibleError`` when either configuration cannot be measured.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        promise = read_promise(Path(path))
    notes = [str(warning.message) for warning in caught if warning.category is UserWarning]
    if ranks not in (None, promise.config.ranks):
        own = promise.config
        raise UsageError(f"{path}: its number of ranks is {own.ranks}, not {ranks}: start it with {own.launcher}")
    if is_script := isinstance(workload, Script):
        workload = replace(workload, loop=(promise.config.made_on or {}).get("loop"))
    if is_script != (promise.site is not None):
        made_for, way = ("a function", "--model mymod:build") if is_script else ("a script", "train.py")
        raise UsageError(f"{path}: was made for {made_for}: name it, as in check {path} {way}")
    time = Budget(parse_duration(budget))
    messages = Messages(time, on_progress or (lambda progress: None))
    messages.show(Progress(phase="inspect"))
    source = describe(workload, dataset)
    with ProcessRunner(source, device, on_wait=messages.say, oversubscribe_ranks=oversubscribe_ranks) as runner:
        facts = runner.inspect(promise.baseline or promise.config)
        if promise.workload not in (None, facts.fingerprint):
            parts = "script, arguments or dataset" if is_script else "model, dataset or training code"
            notes.append(f"{path}: {parts} are not those that the file was made for")
        found = {facts.loader_site, *facts.other_loader_sites}
        for gone in (site for site in (promise.site, *promise.other_sites) if site not in found):
            notes.append(f"{path}: apply finds no DataLoader like {gone} any more: tune again to use it")
        return compare(runner, promise, time, messages, tuple(notes), seed=secrets.randbits(31))


def compare(
    runner: Runner, promise: Promise, budget: Budget, messages: Messages, notes: tuple[str, ...] = (), seed: int = 0
) -> Check:
    """Measure a promise's configurations for as long as the clock allows, or until the user interrupts it.

    Where in an epoch each begins follows from ``seed``.

    Raises ``NothingFeasibleError`` when one of them cannot be measured.
    """
    base, config = promise.baseline, promise.config
    baselines = finalists_for(budget.left / PROCESS_SECONDS)[1]
    proof = Proof(name="check", finalists=(config,), baselines=baselines, seed=seed, seconds=PROCESS_SECONDS)
    trials: list[Trial] = []
    try:
        while turn := _turn(promise, proof, trials, budget.left):
            limit = budget.left + GRACE
            request = Request(seconds=WINDOW_SECONDS, time_limit=limit, fresh=True, later_epochs=promise.later_epochs)
            attempt = runner.measure(turn.config, replace(request, seed=turn.seed))
            trials.append(turn.trial(attempt, len(trials)))
            messages.show(Progress(phase="confirm", finished=trials[-1]))
    except KeyboardInterrupt:
        runner.close()
    measured = [trial.measurement for trial in trials if trial.measurement]
    found = confirmation_of(proof, base, trials) if base else None
    if found is not None and found.answer is not None:
        return _limited(_check(promise, found, measured, notes), [found.standing(config), found.baseline], trials)
    if base is None and measured and len(measured) == len(trials):  # what fails now and then is not to be trusted
        return _limited(_check(promise, None, measured, notes), [standing_of(config, measured)], trials)
    said = [f"{trial.outcome}: {trial.attempt.message}" for trial in trials if trial.attempt.message]
    raise NothingFeasibleError(f"nothing could be compared; {said[-1] if said else 'there was no time'}")


def _turn(promise: Promise, proof: Proof, trials: Sequence[Trial], left: float) -> Turn | None:
    """Return the next turn of a check; of a configuration that is its own baseline a few, and none after a failure."""
    if promise.baseline is not None:
        return follow(proof, promise.baseline, trials, left)
    took = [trial.attempt.seconds for trial in trials]
    is_over = len(trials) == RUNS_ALONE or not all(trial.measurement for trial in trials)
    if is_over or not has_time(left, took, proof.seconds, 1, len(trials)):
        return None
    return Turn(promise.config, proof.seed + len(trials), f"{proof.name}-{len(trials)}")


def _limited(check: Check, standings: Sequence[Standing], trials: Sequence[Trial]) -> Check:
    """Return a check with the part of an epoch that it is for; it does not hold where the rest is open."""
    check = replace(check, beginning_samples=standings[0].typical.beginning_samples)
    uneven = shown_uneven(standings, trials)
    if uneven is None or check.verdict == "broken":
        return check
    return replace(check, verdict="undecided", is_uneven=True, notes=(*check.notes, *on_uneven_workers(uneven)))


def _check(promise: Promise, found: Confirmation | None, measured: list[Measurement], notes: tuple[str, ...]) -> Check:
    config, speedup, interval = promise.config, None, None
    if found is not None:
        rate, rounds = found.standing(config).rate, found.rounds_of(config)
        speedup, interval = found.speedup(config), found.interval(config)
        verdict = _verdict(promise, interval)
    else:
        (rate, width), rounds = mean_rate([each.samples_per_second for each in measured]), len(measured)
        verdict = _verdict_on_rate(promise, rate, around(rate, width))
    return Check(
        promise=promise,
        verdict=verdict,
        samples_per_second=rate,
        speedup=speedup,
        speedup_ci95=interval,
        rounds=rounds,
        notes=notes,
    )


def _verdict_on_rate(
    promise: Promise, rate: float, interval: Interval | None
) -> Literal["holds", "broken", "undecided"]:
    promised = promise.next_run_95[0] if promise.next_run_95 else 0.0
    least = promised or promise.samples_per_second  # an interval from 0 on promises nothing
    if least is None:
        return "undecided"
    if rate >= least:
        return "holds"
    certainly = promised or least * (1 - DIFFERENCE)
    return "broken" if interval and interval[1] < certainly else "undecided"


def _verdict(promise: Promise, interval: Interval | None) -> Literal["holds", "broken", "undecided"]:
    if interval is None:
        return "undecided"
    least = promise.speedup_ci95[0] if promise.speedup_ci95 else 1.0
    if interval[1] < max(1.0, least):
        return "broken"
    return "holds" if shows_gain(interval) else "undecided"


def read_promise(path: Path) -> Promise:
    """Read a config file and its promise: a gain over a baseline or, without one, a rate.

    Raises ``ConfigFileError`` where it says nothing of either.
    """
    config = load_config(path)
    measured: Mapping[str, Any] = config.measured or {}
    if "samples_per_second" not in measured and "baseline" not in measured:
        raise ConfigFileError(f"{path}: promises neither a rate nor a gain, so there is nothing to check")
    baseline = _baseline(path, measured["baseline"]) if "baseline" in measured else None
    return Promise(
        config=config,
        baseline=None if baseline is None or _is_same(baseline, config) else baseline,
        samples_per_second=measured.get("samples_per_second"),
        next_run_95=_interval(measured.get("next_run_95")),
        speedup=float(measured.get("speedup", 1.0)),
        speedup_ci95=_interval(measured.get("speedup_ci95")),
        workload=(config.made_on or {}).get("workload"),
        site=(config.made_on or {}).get("loader"),
        beginning_samples=measured.get("beginning_samples"),
        later_epochs=bool(measured.get("later_epochs")),
        other_sites=tuple((config.made_on or {}).get("other_loaders") or ()),
    )


def _is_same(baseline: Config, config: Config) -> bool:
    threads = {
        name: getattr(baseline, name) or getattr(config, name) for name in ("intra_op_threads", "inter_op_threads")
    }
    return replace(baseline, **threads) == config


def _interval(values: Sequence[float] | None) -> Interval | None:
    return (float(values[0]), float(values[1])) if values else None


def _baseline(path: Path, section: Mapping[str, Any]) -> Config:
    fields = {name: value for name, value in section.items() if name != "samples_per_second"}
    try:
        return Config(**fields)
    except (TypeError, UsageError) as error:
        raise ConfigFileError(f"{path}: measured: baseline: {error}") from None
