"""The promise of a config file, and whether it still holds: its configuration against its baseline, here and now."""

from __future__ import annotations

import secrets
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import filterfalse
from pathlib import Path
from typing import Any, Literal

from autotune.config import Config, load_config
from autotune.errors import ConfigFileError, NothingFeasibleError, UsageError
from autotune.limits import GRACE, Budget, parse_duration
from autotune.messages import Messages, Progress
from autotune.notes import on_uneven_workers
from autotune.proof import Confirmation, Proof, confirmation_of, finalists_for, follow, shown_uneven
from autotune.records import Request, Runner, Trial
from autotune.result import Check, Promise
from autotune.runner.local import ProcessRunner
from autotune.stats import Interval, shows_gain
from autotune.workload import Script, Workload, describe

WINDOW_SECONDS = 3.0
PROCESS_SECONDS = 6.0
"""Seconds of a measurement with its process, about, until the first is timed."""


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

    Raises ``ConfigFileError`` for a file that cannot be read or promises no gain, ``UsageError``, ``UserCodeError``,
    and ``NothingFeasibleError`` when either configuration cannot be measured.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        promise = read_promise(Path(path))
    made_on = promise.config.made_on or {}
    notes = [str(warning.message) for warning in caught if warning.category is UserWarning]
    if ranks not in (None, promise.config.ranks):
        own = promise.config
        raise UsageError(f"{path}: its number of ranks is {own.ranks}, not {ranks}: start it with {own.launcher}")
    if is_script := isinstance(workload, Script):
        workload = replace(workload, loop=made_on.get("loop"))
    if is_script != (made_on.get("loader") is not None):
        made_for, way = ("a function", "--model mymod:build") if is_script else ("a script", "train.py")
        raise UsageError(f"{path}: was made for {made_for}: name it, as in check {path} {way}")
    time = Budget(parse_duration(budget))
    messages = Messages(time, on_progress or (lambda progress: None))
    messages.show(Progress(phase="inspect"))
    source = describe(workload, dataset)
    with ProcessRunner(source, device, on_wait=messages.say, oversubscribe_ranks=oversubscribe_ranks) as runner:
        facts = runner.inspect(promise.baseline)
        if made_on.get("workload") not in (None, facts.fingerprint):
            parts = "script, arguments or dataset" if is_script else "model, dataset or training code"
            notes.append(f"{path}: {parts} are not those that the file was made for")
        found = {facts.loader_site, *facts.other_loader_sites}
        for gone in filterfalse(found.__contains__, (made_on.get("loader"), *(made_on.get("other_loaders") or ()))):
            notes.append(f"{path}: apply finds no DataLoader like {gone} any more: tune again to use it")
        return compare(runner, promise, time, messages, tuple(notes), seed=secrets.randbits(31))


def compare(
    runner: Runner, promise: Promise, budget: Budget, messages: Messages, notes: tuple[str, ...] = (), seed: int = 0
) -> Check:
    """Measure a promise's configurations for as long as the clock allows, or until the user interrupts it.

    Where in an epoch each begins follows from ``seed``.

    Raises ``NothingFeasibleError`` when one of them cannot be measured.
    """
    baselines = finalists_for(budget.left / PROCESS_SECONDS)[1]
    proof = Proof(name="check", finalists=(promise.config,), baselines=baselines, seed=seed, seconds=PROCESS_SECONDS)
    trials: list[Trial] = []
    try:
        while turn := follow(proof, promise.baseline, trials, budget.left):
            limit = budget.left + GRACE
            request = Request(seconds=WINDOW_SECONDS, time_limit=limit, fresh=True, later_epochs=promise.later_epochs)
            attempt = runner.measure(turn.config, replace(request, seed=turn.seed))
            trials.append(turn.trial(attempt, len(trials)))
            messages.show(Progress(phase="confirm", finished=trials[-1]))
    except KeyboardInterrupt:
        runner.close()
    found = confirmation_of(proof, promise.baseline, trials)
    if found is not None and found.answer is not None:
        return _check(promise, found, trials, notes)
    said = [f"{trial.outcome}: {trial.attempt.message}" for trial in trials if trial.attempt.message]
    raise NothingFeasibleError(f"nothing could be compared; {said[-1] if said else 'there was no time'}")


def _check(promise: Promise, found: Confirmation, trials: Sequence[Trial], notes: tuple[str, ...]) -> Check:
    """Return a check with the part of an epoch that it is for; it does not hold where the rest is open."""
    config, standing = promise.config, found.standing(promise.config)
    check = Check(
        promise=promise,
        verdict=_verdict(promise, found.interval(config)),
        samples_per_second=standing.rate,
        speedup=found.speedup(config),
        speedup_ci95=found.interval(config),
        rounds=found.rounds_of(config),
        notes=notes,
        beginning_samples=standing.typical.beginning_samples,
    )
    uneven = shown_uneven([standing, found.baseline], trials)
    if uneven is None or check.verdict == "broken":
        return check
    return replace(check, verdict="undecided", is_uneven=True, notes=(*notes, *on_uneven_workers(uneven)))


def _verdict(promise: Promise, interval: Interval | None) -> Literal["holds", "broken", "undecided"]:
    if interval is None:
        return "undecided"
    least = promise.speedup_ci95[0] if promise.speedup_ci95 else 1.0
    if interval[1] < max(1.0, least):
        return "broken"
    return "holds" if shows_gain(interval) else "undecided"


def read_promise(path: Path) -> Promise:
    """Read a config file and its promise.

    Raises ``ConfigFileError`` where it promises no gain over another configuration.
    """
    config = load_config(path)
    measured: Mapping[str, Any] = config.measured or {}
    baseline = _baseline(path, measured["baseline"]) if "baseline" in measured else None
    if baseline is None or _is_same(baseline, config):
        told = "promises no gain over another configuration, so there is nothing to check; run looks for a gain"
        raise ConfigFileError(f"{path}: {told}")
    ends = measured.get("speedup_ci95")
    return Promise(
        config=config,
        baseline=baseline,
        samples_per_second=measured.get("samples_per_second"),
        speedup=float(measured.get("speedup", 1.0)),
        speedup_ci95=(float(ends[0]), float(ends[1])) if ends else None,
        beginning_samples=measured.get("beginning_samples"),
        later_epochs=bool(measured.get("later_epochs")),
    )


def _is_same(baseline: Config, config: Config) -> bool:
    threads = {
        name: getattr(baseline, name) or getattr(config, name) for name in ("intra_op_threads", "inter_op_threads")
    }
    return replace(baseline, **threads) == config


def _baseline(path: Path, section: Mapping[str, Any]) -> Config:
    fields = {name: value for name, value in section.items() if name != "samples_per_second"}
    try:
        return Config(**fields)
    except (TypeError, UsageError) as error:
        raise ConfigFileError(f"{path}: measured: baseline: {error}") from None
