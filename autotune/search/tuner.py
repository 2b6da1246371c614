"""One run: it takes the steps of the agenda until that is at its end, and answers."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from optuna.samplers import BaseSampler

from autotune.errors import InterruptedRunError, UsageError
from autotune.limits import Budget, MemoryLimit, format_size
from autotune.messages import Messages, Progress
from autotune.outcome import Outcome
from autotune.proof import Turn
from autotune.records import Attempt, Kind, Runner, Trial
from autotune.report.result import Result
from autotune.search.agenda import LOST_POLL, POLL, Agenda, Look, Measure, Prove, Settle, Step, Wait, next_step
from autotune.search.answer import answer
from autotune.search.attempt import SMALLER, measure_once_more, require_numbers
from autotune.search.run import ALONE, SECOND, Run, Stop
from autotune.search.setup import Setup
from autotune.search.study import TuningStudy, open_study
from autotune.storage.open import StudyStorage

SEARCH: Kind = "search"
REPEATED = 4.0
"""A disturbed trial is measured once more where so many times its seconds are left."""


@dataclass(slots=True)
class Tuner:
    """Searches and confirms with a runner, within a budget."""

    runner: Runner
    setup: Setup
    budget: Budget
    messages: Messages
    max_trials: int | None = None
    sampler: BaseSampler | None = None
    """The sampler that proposes; ``None`` for the predictive one."""
    opening: float | None = None
    """Seconds that it took to load the workload; ``None`` for the time until the search begins."""
    seed: int = 0
    """Decides where in an epoch measurements begin."""
    loading: float | None = None
    """The part of ``opening`` after the start of Python and torch; ``None`` for all of it."""
    sleep: Callable[[float], object] = time.sleep
    """Waits so many seconds for others."""
    _run: Run | None = field(default=None, init=False)
    """The run so far, at its last change."""
    _said: str | None = field(default=None, init=False)
    """The reason for a step that was said last."""

    def result(self, storage: StudyStorage | None = None) -> Result:
        """Search, confirm and answer; ``storage`` holds the study.

        Raises ``UserCodeError``, ``NothingFeasibleError``, ``UsageError``, ``StorageError``, and
        ``InterruptedRunError`` where the user stops it before the baseline was measured.
        """
        storage = storage or StudyStorage()
        study = open_study(self.setup, storage=storage, sampler=self.sampler, messages=self.messages)
        self._run_to_its_end(study)
        end = self.agenda(study).end
        end = replace(end, date=datetime.now(UTC).isoformat(timespec="seconds"), notes=tuple(self.messages.notes))
        result = answer(replace(study.known, others=(), end=end))
        with suppress(KeyboardInterrupt):  # the answer is there
            study.write_end(end, result)
        return replace(result, notes=(*result.notes, *filter(None, [storage.failure])))

    def _run_to_its_end(self, study: TuningStudy) -> None:
        while True:
            try:
                while not isinstance(step := self.next(study), Stop):
                    self.take(study, step)
                return
            except KeyboardInterrupt:
                self._interrupt(study)

    def next(self, study: TuningStudy) -> Step:
        """Return the next step, by all that is known now."""
        study.refresh()
        self._take_in_baseline(study)
        return next_step(study.known, self.agenda(study).run)

    def take(self, study: TuningStudy, step: Step) -> None:
        """Take a step."""
        why = getattr(step, "why", None)
        if why and why != self._said:
            self.messages.say(why)
        self._said = why
        match step:
            case Wait():
                self.sleep(POLL)
            case Look():
                self._look(study, step)
            case Measure():
                self._measure(study, step)
            case Prove():
                self._begin_proof(study, step)
            case Turn():
                self._confirm(study, step)
            case Settle():
                searched, looked = len(study.known.trials), len(study.known.probes)
                self._change(study, stop=step.stop, wanted=step.wanted, searched=searched, looked=looked)
                study.write_run(self.agenda(study).run)

    def agenda(self, study: TuningStudy) -> Agenda:
        """Return what is known and the time, now."""
        if self._run is None:
            self._run = self._begun(study)
        now = replace(self._run, budget=self.budget.seconds, spent=self.budget.spent, is_exhausted=study.is_exhausted)
        return Agenda(known=study.known, run=now)

    def _begun(self, study: TuningStudy) -> Run:
        budget, opening = self.budget, self.opening
        opening = budget.spent if opening is None else opening  # loading the workload is most of it
        kept = study.open_run
        if kept is None or (budget.is_given and kept.budget != budget.seconds):
            kept = Run(name=secrets.token_hex(4), budget=0.0, seed=self.seed, looks=len(study.known.probes))
        return replace(
            kept,
            budget=budget.seconds,
            opening=opening,
            loading=opening if self.loading is None else self.loading,
            most_trials=self.max_trials,
            looking=None,
            interrupted=None,
            proofs=tuple(proof for proof in kept.proofs if not proof.is_short),
        )

    def _change(self, study: TuningStudy, **changes: Any) -> None:
        self._run = replace(self.agenda(study).run, **changes)

    def _take_in_baseline(self, study: TuningStudy) -> None:
        """Once the baseline is known, choose the budget where the user gave none, or say what a short one allows."""
        agenda, budget = self.agenda(study), self.budget
        for baseline in agenda.known.trials[:1]:
            _require_baseline(baseline, self.setup.memory_limit)
            if agenda.run.looking is not None or (agenda.known.needs_baseline and agenda.has_time):
                return
            kept = 0.0
            if not budget.is_given:
                first = agenda.plan.budget(budget.spent)
                kept = agenda.plan.second(first) if self.setup.space.second else 0.0
                budget.choose(first + kept)
                self.messages.say(agenda.plan.chosen(budget.seconds))
            elif shortage := agenda.plan.shortage(budget.seconds, budget.left, budget.spent):
                self.messages.say(shortage)
            self._change(study, looking=budget.spent, kept=kept)

    def _look(self, study: TuningStudy, look: Look) -> None:
        """Take a look; one that others made fail after a pause, and what follows has its share of the time again."""
        if look.why:
            self.sleep(LOST_POLL)
        self._report(study, Progress(phase="probe", running=look.config))
        request = self.agenda(study).look_request(look)
        decides = look.config.options != self.setup.space.base.options  # by it alone whether options are used
        attempt = measure_once_more(
            self.runner,
            look.config,
            request,
            lambda seen: decides and self.agenda(study).has_time,
            if_disturbed=True,
        )
        self._report(study, Progress(phase="probe", looked=study.looked(look.part, look.config, attempt, look.again)))
        if look.why:
            self._change(study, looking=self.budget.spent)

    def _measure(self, study: TuningStudy, step: Measure) -> None:
        first = not study.known.trials
        asked = study.ask(self.max_trials) if step.config is None else (step.config, SEARCH)
        if asked is None:  # another tuner was faster
            if not study.is_exhausted:
                self.sleep(POLL)
            return
        config, kind = asked
        self._report(study, Progress(phase="baseline" if first else "search", running=config))
        request, stuck = self.agenda(study).trial_request(config)
        waiting = self.messages.waiting("measuring the baseline") if first else nullcontext()
        with waiting, study.beating():
            may_repeat: Callable[[Attempt], bool] = lambda seen: (  # noqa: E731
                step.config is None and self.budget.left > REPEATED * seen.seconds
            )
            attempt = measure_once_more(self.runner, config, request, may_repeat)
        if attempt.outcome is Outcome.TIMEOUT and not first and request.time_limit < stuck:
            study.abandon()  # the end of the budget cut it off: that says nothing about it
            return
        trial = study.tell(attempt, config, kind)
        if first:
            _require_baseline(trial, self.setup.memory_limit)
        self._report(study, Progress(phase="search", finished=trial))

    def _begin_proof(self, study: TuningStudy, step: Prove) -> None:
        """Note the begin of a proof, in the study too: a run that is killed goes on with it."""
        proofs = self.agenda(study).run.proofs
        is_second = step.proof.name.startswith(SECOND)
        self._change(study, **({"second": step.proof} if is_second else {"proofs": (*proofs, step.proof)}))
        study.write_run(self.agenda(study).run)
        if step.proof.finalists:
            self._report(study, Progress(phase="confirm", running=step.proof.finalists[0]))

    def _confirm(self, study: TuningStudy, turn: Turn) -> None:
        if turn.round.startswith(ALONE):
            self._report(study, Progress(phase="confirm", running=turn.config))
        attempt = self.runner.measure(turn.config, self.agenda(study).turn_request(turn))
        self._report(study, Progress(phase="confirm", finished=study.confirmed(attempt, turn)))

    def _interrupt(self, study: TuningStudy) -> None:
        agenda, run = self.agenda(study), self.agenda(study).run
        study.abandon()
        if run.is_interrupted and run.stop is None:
            raise KeyboardInterrupt
        if not study.known.trials:
            raise InterruptedRunError("interrupted before the baseline was measured")
        if run.stop is None and agenda.turn is None:
            self.messages.say("interrupted: finishing with the trials so far; interrupt again to stop at once")
        self._change(study, interrupted=self.budget.spent)
        self.runner.close()

    def _report(self, study: TuningStudy, moment: Progress) -> None:
        known = study.known
        best_rate = known.best.rate if known.best else None
        baseline_rate = known.baseline.rate if known.best and not known.baseline.is_disturbed else None
        self.messages.show(replace(moment, best_rate=best_rate, baseline_rate=baseline_rate))


def _require_baseline(trial: Trial, memory_limit: MemoryLimit) -> None:
    peak = require_numbers(trial.attempt).peak_memory_bytes
    if memory_limit.most is not None and peak > memory_limit.most:
        raise UsageError(
            f"--max-memory {format_size(memory_limit.most)}: the baseline takes {format_size(peak)}; {SMALLER}"
        )
