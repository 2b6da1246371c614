"""Two sides measured by turns in fresh processes: two workloads, or the two configurations of a config file."""

from __future__ import annotations

import secrets
import shlex
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from itertools import filterfalse
from pathlib import Path
from typing import Any, Literal, NamedTuple

from autotune.config import Config, load_config
from autotune.errors import AutotuneError, ConfigFileError, NothingFeasibleError, UsageError, UserCodeError
from autotune.flags import installed_version
from autotune.knobs import as_baseline, fitted
from autotune.limits import GRACE, Budget, parse_duration, parse_share
from autotune.messages import Messages, Progress
from autotune.notes import on_uneven_workers
from autotune.proof import Comparison, Confirmation, Proof, confirmation_of, finalists_for, follow, shown_uneven
from autotune.records import Request, Runner, Trial
from autotune.report.text import rate_text
from autotune.result import Check
from autotune.runner.local import ProcessRunner
from autotune.runner.process import ProcessLostError, version_of
from autotune.runner.revision import resolve
from autotune.stats import Interval, shows_gain
from autotune.workload import Script, Workload, describe

WINDOW_SECONDS = 3.0
PROCESS_SECONDS = 6.0
"""Seconds of a measurement with its process, about, until the first is timed."""
LOSS_SECONDS = 30.0
"""Most seconds for the first losses of a script."""


class Side(NamedTuple):
    """One side of a comparison."""

    name: str
    config: Config
    runner: Runner


def compare(
    a: str | Workload | Script,
    b: str | Workload | Script | None = None,
    *,
    dataset: str | None = None,
    base: str | None = None,
    margin: float | str = 0.0,
    baseline: Config | Mapping[str, Any] | str | None = None,
    python: str | None = None,
    samples_per_step: int | None = None,
    device: str = "auto",
    budget: float | str = "2m",
    ranks: int | None = None,
    oversubscribe_ranks: bool = False,
    on_progress: Callable[[Progress], None] | None = None,
) -> Comparison:
    """Measure two workloads by turns, each at its own settings, and tell whether the second is faster or slower.

    Each is a ``Script``, its command line (``"train.py --epochs 9"``), or a workload as ``tune`` has it, whose settings
    are those of ``baseline``. Instead of ``b``, ``base`` is a revision of the git repository here: the first side is
    ``a`` with that revision's files. ``python`` is the interpreter of the second side. Where no DataLoader feeds a
    script, its optimizer's steps are counted, of ``samples_per_step`` samples each.

    With a ``margin``, a share such as 0.03 or ``"3%"``, the question is whether the second side is slower by more than
    that. ``budget`` is the wall time for everything; the other options are those of ``tune``.

    Raises ``UsageError``, ``UserCodeError``, and ``NothingFeasibleError`` when a side cannot be measured.
    """
    if (b is None) == (base is None):
        raise UsageError("compare takes two sides, or one and --base with the revision that it is compared with")
    share = parse_share("--margin", margin)
    time = Budget(parse_duration(budget))
    messages = Messages(time, on_progress or (lambda progress: None))
    messages.show(Progress(phase="inspect"))
    say = cache(messages.say)  # both sides often tell the same
    if python is not None and (version := version_of(python)) != installed_version():
        messages.note(f"{python} has autotune {version}, and this is {installed_version()}")
    given = [_workload(each, samples_per_step) for each in (a, a if b is None else b)]
    if base is not None:
        if not isinstance(given[0], Script):
            raise UsageError("--base: takes a script, such as train.py")
        given[0] = replace(given[0], base=resolve(base))
    sources = [describe(each, dataset) for each in given]
    options: dict[str, Any] = {"on_wait": say, "oversubscribe_ranks": oversubscribe_ranks}
    with ProcessRunner(sources[0], device, **options) as first:
        is_same = sources[0] == sources[1] and python is None
        second = first if is_same else ProcessRunner(sources[1], device, **options, beside=first, python=python)
        one = _side(_name(given[0]), first, as_baseline(baseline, ranks=ranks))
        two = one if is_same else _side(_name(given[1]), second, as_baseline(baseline, ranks=ranks))
        counted = [runner.script is not None and not runner.script.origins for runner in (first, second)]
        if counted[0] != counted[1] and samples_per_step is None:
            raise UsageError("one side has no DataLoader: name the samples of its steps, as in --samples-per-step 32")
        found, trials = in_rounds((one, two), time, messages, margin=share, seed=secrets.randbits(31))
        losses = tuple(_losses(runner, side.config, time) for runner, side in ((first, one), (second, two)))
    standings = (found.baseline, found.standing(two.config))
    uneven = shown_uneven(standings, trials)
    return Comparison(
        names=(one.name, two.name),
        a=standings[0],
        b=standings[1],
        verdict="undecided" if uneven else found.verdict(two.config),
        ratio=found.speedup(two.config),
        interval=found.interval(two.config),
        margin=share,
        rounds=found.rounds_of(two.config),
        losses=losses,
        unit="steps" if any(counted) and samples_per_step is None else "samples",
        notes=(*messages.notes, *(on_uneven_workers(uneven) if uneven else ())),
        history=trials,
        seconds=time.spent,
    )


def _workload(given: str | Workload | Script, samples_per_step: int | None) -> str | Workload | Script:
    words = shlex.split(given) if isinstance(given, str) else []
    if words and (words[0] == "-m" or ":" not in words[0]):
        given = Script.of(words)
    return replace(given, samples_per_step=samples_per_step or 1) if isinstance(given, Script) else given


def _name(given: str | Workload | Script) -> str:
    if not isinstance(given, Script):
        return given if isinstance(given, str) else type(given.model).__name__
    at = f" at {given.base[1][:9]}" if given.base else ""
    return shlex.join((*given.name.split(), *given.arguments)) + at


def _side(name: str, runner: ProcessRunner, settings: Config) -> Side:
    """Return a side with a workload's own settings. Raises ``UserCodeError`` with its name."""
    try:
        facts = runner.inspect(settings)
    except UserCodeError as error:
        raise UserCodeError(f"{name}: {error}", error.user_traceback) from None
    if runner.script is None:
        config = fitted(settings, facts, None)
    else:
        config = replace(runner.script.present, ranks=settings.ranks)
    return Side(name, config, runner)


def _losses(runner: ProcessRunner, config: Config, time: Budget) -> tuple[float, ...]:
    """Return the first losses of a script, where there is time; none of a function, whose random state is ours."""
    if runner.script is not None and time.left > 0:
        with suppress(AutotuneError, ProcessLostError, KeyboardInterrupt):  # the rates are there
            return runner.losses(config, min(LOSS_SECONDS, time.left))
    return ()


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
    """Compare a config file's baseline with its configuration again, and the gain with the file's promise.

    ``workload``, ``dataset``, ``device`` and ``oversubscribe_ranks`` are those of ``tune``; ``budget`` is the wall time
    for everything. ``ranks`` are those of the file, where they are given.

    Raises ``ConfigFileError`` for a file that cannot be read or promises no gain, ``UsageError``, ``UserCodeError``,
    and ``NothingFeasibleError`` when either configuration cannot be measured.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        config, baseline = read_promise(Path(path))
    made_on = config.made_on or {}
    notes = [str(warning.message) for warning in caught if warning.category is UserWarning]
    if ranks not in (None, config.ranks):
        raise UsageError(f"{path}: its number of ranks is {config.ranks}, not {ranks}: start it with {config.launcher}")
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
        facts = runner.inspect(baseline)
        if made_on.get("workload") not in (None, facts.fingerprint):
            parts = "script, arguments or dataset" if is_script else "model, dataset or training code"
            notes.append(f"{path}: {parts} are not those that the file was made for")
        found = {facts.loader_site, *facts.other_loader_sites}
        for gone in filterfalse(found.__contains__, (made_on.get("loader"), *made_on.get("other_loaders", ()))):
            notes.append(f"{path}: apply finds no DataLoader like {gone} any more: tune again to use it")
        sides = Side("baseline", baseline, runner), Side("answer", config, runner)
        return checked(sides, time, messages, tuple(notes), seed=secrets.randbits(31))


def checked(
    sides: tuple[Side, Side], budget: Budget, messages: Messages, notes: tuple[str, ...] = (), seed: int = 0
) -> Check:
    """Return the check of a baseline and an answer, for the part of an epoch that was seen.

    Raises ``NothingFeasibleError`` when one of the two cannot be measured.
    """
    baseline, config = (side.config for side in sides)
    promised = config.measured or {}
    found, trials = in_rounds(sides, budget, messages, seed=seed, later_epochs=bool(promised.get("later_epochs")))
    standing = found.standing(config)
    check = Check(
        config=config,
        baseline=baseline,
        verdict=_check_verdict(promised.get("speedup_ci95"), found.interval(config)),
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


def in_rounds(
    sides: tuple[Side, Side],
    budget: Budget,
    messages: Messages,
    *,
    margin: float | None = None,
    seed: int = 0,
    later_epochs: bool = False,
) -> tuple[Confirmation, tuple[Trial, ...]]:
    """Measure two sides by turns until it is clear, the clock ends it, or the user; return results and measurements.

    The first is the baseline of the second; ``margin`` is that of ``Proof``. Where in an epoch each begins follows from
    ``seed``. Raises ``NothingFeasibleError`` when one of them cannot be measured.
    """
    first, second = sides
    baselines = finalists_for(budget.left / PROCESS_SECONDS)[1] if margin is None else 1
    proof = Proof(
        name="rounds",
        finalists=(second.config,),
        baselines=baselines,
        seed=seed,
        seconds=PROCESS_SECONDS,
        margin=margin,
    )
    trials = list[Trial]()
    try:
        while turn := follow(proof, first.config, trials, budget.left):
            side = sides[turn.entry is not None]
            limit = budget.left + GRACE
            request = Request(
                seconds=WINDOW_SECONDS,
                time_limit=limit,
                fresh=True,
                seed=turn.seed,
                later_epochs=later_epochs,
                needs_ceiling=False,
            )
            attempt = side.runner.measure(turn.config, request)
            trials.append(turn.trial(attempt, len(trials)))
            rate = trials[-1].rate
            said = attempt.message or attempt.outcome if rate is None else f"{rate_text(rate)}/s"
            messages.show(Progress(phase="confirm", message=f"{side.name}: {said}"))
    except KeyboardInterrupt:
        first.runner.close()
        budget.choose(budget.spent)
    found = confirmation_of(proof, first.config, trials)
    if found is not None and found.answer is not None:
        return found, tuple(trials)
    failed = [each for each in trials if each.attempt.message][-1:]
    why = [f"{sides[each.entry is not None].name}: {each.outcome}: {each.attempt.message}" for each in failed]
    raise NothingFeasibleError(f"nothing could be compared; {why[0] if why else 'there was no time'}")


def _check_verdict(
    promised: Sequence[float] | None, interval: Interval | None
) -> Literal["holds", "broken", "undecided"]:
    if interval is None:
        return "undecided"
    if interval[1] < max(1.0, promised[0] if promised else 1.0):
        return "broken"
    return "holds" if shows_gain(interval) else "undecided"


def read_promise(path: Path) -> tuple[Config, Config]:
    """Read a config file: its configuration, whose ``measured`` is its promise, and its baseline.

    Raises ``ConfigFileError`` where it promises no gain over another configuration.
    """
    config = load_config(path)
    measured = config.measured or {}
    baseline = _baseline(path, measured["baseline"]) if "baseline" in measured else None
    if baseline is None or _is_same(baseline, config):
        told = "promises no gain over another configuration, so there is nothing to check; run looks for a gain"
        raise ConfigFileError(f"{path}: {told}")
    return config, baseline


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
