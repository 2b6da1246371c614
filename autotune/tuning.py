"""The whole program: describe the workload, measure the baseline, search, confirm, conclude."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.baseline import as_baseline, fitted
from autotune.budget import Clock, longer_budget, require_budget, told
from autotune.conclusion import conclude
from autotune.config import Config
from autotune.duration import format_duration, parse_duration
from autotune.errors import InterruptedRunError, UsageError
from autotune.host import Host, inspect_host
from autotune.options import parse_options
from autotune.records import Attempt, Measurement, Phase, Progress, Request, Runner, Trial, WorkloadFacts
from autotune.report.words import verdict_sentence
from autotune.result import Result
from autotune.room import DEFAULT_ROOM, MemoryRoom, parse_headroom, parse_size
from autotune.runner import ProcessRunner
from autotune.search.confirm import Confirmation, Place, confirm, finalists_for, has_failed
from autotune.search.explore import EXPLORE_SHARE, Explorer
from autotune.search.fitting import exceeds
from autotune.search.sequential import LEAST_ROUNDS, MAX_ROUNDS
from autotune.search.space import Space, build_space, parse_knob
from autotune.search.stopping import Ending, Stop
from autotune.workload import Workload, describe

if TYPE_CHECKING:
    import torch
    from torch.utils.data import Dataset, Sampler

    from autotune.accumulation import Reduction
    from autotune.search.keeping import Keeper
    from autotune.search.stages import Search
    from autotune.search.study import TuningStudy

__all__ = ["best_config", "tune"]

INTERRUPTED = "interrupted by the user"
ONCE_MORE = "interrupted: confirming what is known, in some {seconds:.0f} s; once more stops at once"
INTERRUPTED_SECONDS = 15.0
"""What confirmation may take after the user has stopped the search."""
LITTLE = 0.1
"""Share of the budget that is as good as nothing."""
WAIT_SHARE = 0.25
"""Share of the budget for which an accelerator is waited for that another run of autotune holds."""
GRACE = 10.0
"""Seconds after the end of the budget in which a confirmation that has begun may end."""


def best_config(
    model: torch.nn.Module,
    dataset: Dataset[Any],
    *,
    loss: Callable[[Any, Any], torch.Tensor] | None = None,
    optimizer: Callable[[Iterable[Any]], torch.optim.Optimizer] | torch.optim.Optimizer | None = None,
    collate_fn: Callable[[list[Any]], Any] | None = None,
    training_step: Callable[[torch.nn.Module, Any], torch.Tensor] | None = None,
    sampler: Sampler[Any] | None = None,
    batch_sampler: Callable[[int], Sampler[list[int]]] | None = None,
    loss_reduction: Reduction | None = None,
    max_grad_norm: float | None = None,
    parallelize: Callable[[torch.nn.Module], torch.nn.Module] | None = None,
    loader_options: Mapping[str, Any] | None = None,
    **options: Any,
) -> Config:
    """Return the fastest configuration that was proven, or is likely, for this model and dataset on this machine.

    Model and dataset are copied to another process; the caller's own are never trained, moved or changed. The
    arguments up to ``loader_options`` are those of ``Workload``, ``options`` those of ``tune``. Where a gain is
    neither proven nor likely by odds of 20 to 1, the baseline is returned; ``.measured`` holds verdict and evidence.
    Raises ``AutotuneError``.
    """
    workload = Workload(
        model,
        dataset,
        loss=loss,
        optimizer=optimizer,
        collate_fn=collate_fn,
        training_step=training_step,
        sampler=sampler,
        batch_sampler=batch_sampler,
        loss_reduction=loss_reduction,
        max_grad_norm=max_grad_norm,
        parallelize=parallelize,
        loader_options=loader_options,
    )
    return tune(workload, **options).config


def tune(
    workload: str | Workload,
    dataset: str | None = None,
    *,
    device: str = "auto",
    budget: float | str = "3m",
    trials: int | None = None,
    baseline: Config | Mapping[str, Any] | None = None,
    batch_size: Any = None,
    global_batch_size: int | None = None,
    ranks: int | None = None,
    oversubscribe_ranks: bool = False,
    num_workers: Any = None,
    prefetch_factor: Any = None,
    pin_memory: Any = None,
    persistent_workers: Any = None,
    amp: Any = None,
    threads: Any = None,
    headroom: float | str = 0.1,
    max_memory: float | str | None = None,
    explore: str | Iterable[str] | None = None,
    storage: str | Path | Keeper | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> Result:
    """Search for the fastest configuration and prove it against the baseline.

    ``workload`` is ``"module:attribute"``, ``"path/to/file.py:attribute"`` or a ``Workload``; ``dataset`` is a
    reference of the same kind, needed when the first names a model alone. ``budget`` is the wall time for
    everything, in seconds or as text (``"3m"``), ``trials`` the most trials of the search. ``baseline`` is what
    runs today: a ``Config`` or its fields (``threads`` for ``intra_op_threads``). Each knob takes a value, a
    sequence of values, or text as on the command line (``"32..512"``). ``global_batch_size`` keeps the samples of one
    step of the optimizer, of all ranks together: smaller batches are accumulated. ``ranks`` processes train together on
    this host, each on an accelerator of its own where there are some, as ``torchrun --nproc-per-node`` starts them:
    every knob and ``max_memory`` are for each of them, rates are those of all. More than the host has CPUs and GPUs are
    refused unless ``oversubscribe_ranks``. ``headroom`` is the share of the memory
    to leave free (0.1 or ``"10%"``), ``max_memory`` the most that training may take of the memory that limits it (bytes
    or ``"12GiB"``).
    ``explore`` names more of the step to try, some of ``autotune.options.OPTIONS`` or ``"all"``. ``storage`` is a file
    or an Optuna URL that keeps the study: what it has of the same workload, machine, versions and settings is
    continued. ``on_progress`` is called with each ``Progress``.

    Raises ``UsageError``, ``UserCodeError``, ``NothingFeasibleError``, ``StorageError`` and
    ``InterruptedRunError``.
    """
    knobs = {
        "batch_size": batch_size,
        "num_workers": num_workers,
        "prefetch_factor": prefetch_factor,
        "pin_memory": pin_memory,
        "persistent_workers": persistent_workers,
        "amp": amp,
        "threads": threads,
    }
    for knob, given in knobs.items():
        parse_knob(knob, given)  # before anything starts
    if trials is not None and trials < 1:
        raise UsageError(f"--trials {trials}: allowed: whole numbers from 1")
    room = MemoryRoom(headroom=parse_headroom(headroom), most=None if max_memory is None else parse_size(max_memory))
    options = () if explore is None else parse_options(explore)
    before = as_baseline(baseline, global_batch_size, ranks)
    clock = Clock(require_budget(parse_duration(budget)))
    tell = _one_at_a_time(on_progress or (lambda progress: None))
    tell(Progress(phase="inspect", seconds_left=clock.left))
    source = describe(workload, dataset)

    def say(message: str, phase: Phase = "inspect") -> None:
        tell(Progress(phase=phase, seconds_left=clock.left, message=message))

    with ProcessRunner(
        source,
        device,
        patience=WAIT_SHARE * clock.left,
        on_wait=say,
        oversubscribe_ranks=oversubscribe_ranks,
    ) as runner:
        begin = clock.spent
        with told(lambda seconds: say(f"loading your model and dataset has taken {seconds:.0f} s")):
            facts = runner.inspect(before)
        host, base, opening = inspect_host(), fitted(before, facts, global_batch_size), clock.spent - begin
        space = build_space(facts, host.for_rank(base.ranks).cpus, base, knobs, global_batch_size)
        return Run(runner, space, facts, host, clock, tell, options, opening).result(storage, trials, room)


@dataclass(slots=True)
class Run:
    """One run over one space: everything after the workload has been looked at."""

    runner: Runner
    space: Space
    facts: WorkloadFacts
    host: Host
    clock: Clock
    tell: Callable[[Progress], None]
    explore: tuple[str, ...] = ()
    """More of the step to try."""
    opening: float | None = None
    """Seconds that it took to load the workload; ``None`` for what has passed when the search begins."""
    confirmations: list[Trial] = field(default_factory=list)
    """The confirming measurements of this run."""

    def result(
        self, storage: str | Path | Keeper | None, max_trials: int | None, room: MemoryRoom = DEFAULT_ROOM
    ) -> Result:
        """Search, confirm and conclude; a storage that is opened here is closed again."""
        from autotune.search.keeping import Keeper
        from autotune.search.sharing import open_keeper

        if isinstance(storage, Keeper):
            return self._result(storage, max_trials, room)
        keeper = open_keeper(storage)
        try:
            return self._result(keeper, max_trials, room)
        finally:
            keeper.close()

    def _result(self, keeper: Keeper, max_trials: int | None, room: MemoryRoom) -> Result:
        search = self._open_search(keeper, max_trials, room)
        study = search.study
        keeper.tell = lambda message: self.tell(
            Progress(phase="confirm", seconds_left=self.clock.left, message=message)
        )
        for message in (*keeper.notes, *filter(None, [keeper.continues])):
            self.tell(Progress(phase="inspect", seconds_left=self.clock.left, message=message))
        stop, confirmation, explorer = self._find(search, keeper)
        result = conclude(
            study.trials,
            confirmation,
            facts=self.facts,
            host=self.host,
            history=study.history,
            confirmations=self.confirmations,
            stop_reason=self._in_words(stop, search),
            seconds=self.clock.spent,
            highest_limit=study.outlook.highest_limit,
            remaining=study.outlook.remaining if stop.ending is Ending.COMPLETE else None,
            wanted=self._wanted(stop, search),
            probes=study.probes,
            tried=tuple(explorer.tried) if explorer else (),
            distrusted=[why for amp in self.space.allowed["amp"] if (why := study.knowledge.distrust(amp))],
            landscape=study.landscape,
        )
        keeper.result(result, verdict_sentence(result))
        return replace(result, notes=(*result.notes, *keeper.notes, *filter(None, [keeper.failure])))

    def _find(self, search: Search, keeper: Keeper) -> tuple[Stop, Confirmation | None, Explorer | None]:
        """Search and confirm; search on with what confirmation has left of the time that was set aside for it."""
        explorer, confirmation, was_interrupted = None, None, False
        while True:
            known = len(search.study.trials)
            stop = self._search(search)
            keeper.search_ended(stop.text)
            was_interrupted = stop.ending is Ending.INTERRUPTED
            if explorer is None:
                explorer, was_interrupted = self._explore(search, interrupted=was_interrupted)
                search.reserved = 0.0
            if search.is_confirmed and len(search.study.trials) == known:
                return stop, confirmation, explorer
            confirmation, was_interrupted = self._confirm_what_runs(search, explorer, interrupted=was_interrupted)
            search.is_confirmed = True
            if was_interrupted:
                return Stop(Ending.INTERRUPTED, INTERRUPTED), confirmation, explorer
            if stop.ending is not Ending.BUDGET or not search.has_time:
                return stop, confirmation, explorer

    def _confirm_what_runs(
        self, search: Search, explorer: Explorer | None, *, interrupted: bool
    ) -> tuple[Confirmation | None, bool]:
        """Confirm, once more where all finalists have failed: others may be left."""
        while True:
            known = self._failed(search.study)
            confirmation, interrupted = self._confirm(search, explorer, interrupted=interrupted)
            has_answer = confirmation is not None and confirmation.answer is not None
            if has_answer or interrupted or self._failed(search.study) == known:
                return confirmation, interrupted

    def _failed(self, study: TuningStudy) -> set[Config]:
        """Return what has failed in a confirmation, of an earlier run too."""
        fits = partial(_fits, study.room)
        return {trial.config for trial in study.history if has_failed(trial, fits)}

    def _in_words(self, stop: Stop, search: Search) -> str:
        """Return why the run ended; where the budget is not spent, why what is left of it was no use."""
        if stop.ending is not Ending.BUDGET or self.clock.left < min(search.trial_cost, LITTLE * self.clock.budget):
            return stop.text
        left, budget = format_duration(self.clock.left), longer_budget(self.clock.budget)
        return f"the {left} left are not enough for another trial and its confirmation: --budget {budget}"

    def _wanted(self, stop: Stop, search: Search) -> str:
        """Return what would decide what this run leaves undecided."""
        rounds = {trial.round for trial in self.confirmations}
        if stop.ending is Ending.COMPLETE and not search.study.has_alternative and not rounds:
            return "something to compare: nothing else is allowed, or nothing else could run"
        if stop.ending is Ending.TRIALS:
            return f"more trials than {search.max_trials} (--trials)"
        if len(rounds) >= MAX_ROUNDS:
            return f"more rounds than {MAX_ROUNDS}: with --storage FILE, those of several runs add up"
        return f"more time (--budget {longer_budget(self.clock.budget)})"

    def _open_search(self, keeper: Keeper, max_trials: int | None, room: MemoryRoom) -> Search:
        """Open the study and return the search that fills it."""
        from autotune.search.stages import Search
        from autotune.search.study import open_study

        return Search(
            runner=self.runner,
            study=open_study(self.space, self.facts, self.host, keeper=keeper, room=room),
            space=self.space,
            clock=self.clock,
            tell=self.tell,
            max_trials=max_trials,
            reserved=EXPLORE_SHARE * self.clock.budget if self.explore else 0.0,
            opening=self.opening,
        )

    def _search(self, search: Search) -> Stop:
        """Run the search; the user may interrupt it once the baseline was measured."""
        try:
            return search.run()
        except KeyboardInterrupt:
            search.study.abandon()
            if not search.study.trials:
                raise InterruptedRunError("interrupted before the baseline was measured") from None
            message = ONCE_MORE.format(seconds=INTERRUPTED_SECONDS)
            self.tell(Progress(phase="confirm", seconds_left=INTERRUPTED_SECONDS, message=message))
            self._close_runner()
            return Stop(Ending.INTERRUPTED, INTERRUPTED)

    def _explore(self, search: Search, *, interrupted: bool) -> tuple[Explorer | None, bool]:
        """Try more of the step on the best configuration; say too whether the user has stopped the run by then."""
        if not self.explore or interrupted:
            return None, interrupted
        found = search.study.best
        assert found is not None
        explorer = Explorer(
            runner=self.runner,
            start=self.space.with_persistence(found),
            options=self.explore,
            room=search.study.room,
            clock=self.clock,
            end=self.clock.budget - search.confirmation_seconds,
            tell_running=lambda config: search.report("explore", running=config),
            tell_looked=lambda probe: search.report("explore", looked=probe),
        )
        try:
            explorer.run()
        except KeyboardInterrupt:
            self._close_runner()
            return explorer, True
        return explorer, False

    def _confirm(
        self, search: Search, explorer: Explorer | None, *, interrupted: bool
    ) -> tuple[Confirmation | None, bool]:
        """Return what was confirmed, ``None`` where nothing was, and whether the user has stopped the run by then.

        What exploring gave is measured beside the others, as the dearest, where there is time for it.
        """
        study, fits = search.study, partial(_fits, search.study.room)
        end = self.clock.spent + INTERRUPTED_SECONDS if interrupted else self.clock.budget
        count, with_control = finalists_for((end - self.clock.spent) / search.fresh_cost)
        explored = _worth_its_time(explorer, end - self.clock.spent, search.fresh_cost) if explorer else None
        likely = self._likely(study, count if explored is None else max(1, count - 1))
        entering = self._compared(likely, explored)
        finalists = self._compared(sorted(likely, key=study.cost), explored)
        if not finalists and not interrupted and search.max_trials is None:
            finalists = self._untried(study)
        if not finalists:
            return None, interrupted
        begin, taken = self.clock.spent, 0
        interruptions: list[bool] = [interrupted]

        def has_time(measurements: float, rounds: int) -> bool:
            cost = (self.clock.spent - begin) / taken if taken else search.fresh_cost
            if not rounds and not interrupted:
                measurements /= 2  # without a round nothing is compared
            return self.clock.spent + measurements * cost <= end

        def next_request() -> Request:
            limit = max(10.0, end + GRACE - self.clock.spent)
            return Request(seconds=search.longest_window, time_limit=limit, fresh=True)

        def may_answer(config: Config) -> bool:
            return study.may_answer(config) or config == explored

        def on_attempt(config: Config, attempt: Attempt, place: Place) -> None:
            nonlocal taken
            taken += 1
            self.confirmations.append(study.confirmed(attempt, config, *place))
            search.report("confirm", finished=self.confirmations[-1])

        def on_interrupt() -> None:
            interruptions.append(True)
            self._close_runner()

        search.report("confirm", running=finalists[0])
        found = confirm(
            self.runner,
            study.trials[0].config,
            finalists,
            next_request,
            has_time=has_time,
            with_control=with_control,
            history=study.history,
            entering=entering,
            fits=fits,
            may_answer=may_answer,
            on_attempt=on_attempt,
            on_interrupt=None if interrupted else on_interrupt,  # twice means: now
        )
        return found, any(interruptions)

    def _likely(self, study: TuningStudy, most: int) -> list[Trial]:
        """Return the trials that may be the answer, without what has failed in a confirmation."""
        failed = self._failed(study)
        return [*study.finalists(most, lambda t: not {t.config, self.space.with_persistence(t)} & failed)]

    def _untried(self, study: TuningStudy) -> list[Config]:
        """Return what there was no time to try before; whether its workers should live on nobody knows."""
        candidate = study.candidate
        if candidate is None or not self.space.decides_persistence or not candidate.num_workers:
            return [candidate] if candidate else []
        return [replace(candidate, persistent_workers=self.space.base.persistent_workers)]

    def _compared(self, trials: Sequence[Trial], explored: Config | None) -> list[Config]:
        """Return the configurations that trials would be the answer as, and what exploring gave."""
        configs = [self.space.with_persistence(trial) for trial in trials]
        return list(
            dict.fromkeys([*(config for config in configs if config != self.space.base), *filter(None, [explored])])
        )

    def _close_runner(self) -> None:
        """End a measurement that the user has interrupted."""
        close = getattr(self.runner, "close", None)
        if close:
            close()


def _fits(room: MemoryRoom, measured: Measurement) -> bool:
    return not exceeds(measured, room)


def _worth_its_time(explorer: Explorer, seconds: float, cost: float) -> Config | None:
    """Return what exploring gave, unless without it there is time to prove what the search has found."""
    return explorer.answer if seconds >= LEAST_ROUNDS * (cost + explorer.start_seconds) else None


def _one_at_a_time(tell: Callable[[Progress], object]) -> Callable[[Progress], None]:
    """Return what tells one thing after the other, whichever thread it comes from."""
    lock = threading.RLock()

    def tell_alone(progress: Progress) -> None:
        with lock:
            tell(progress)

    return tell_alone
