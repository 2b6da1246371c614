"""One run: it takes the steps of the agenda until that is at its end, and answers."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from optuna.samplers import BaseSampler

from autotune.config import Config
from autotune.diagnosis.notes import on_losses
from autotune.errors import InterruptedRunError, UsageError, UserCodeError
from autotune.limits import GRACE, Budget, MemoryLimit, Pace, format_size
from autotune.messages import Messages, Progress
from autotune.outcome import Outcome
from autotune.proof import Confirmation, Place, Rounds
from autotune.records import Attempt, Request, Runner, Trial
from autotune.report.result import Result
from autotune.runner.attempt import SMALLER, measure_once_more, require_numbers
from autotune.runner.process import ProcessLostError
from autotune.search.agenda import LOST_POLL, PAIR, POLL, Agenda, Look, Measure, Prove, Run, Settle, Wait, next_step
from autotune.search.answer import answer
from autotune.search.known import OTHER, End
from autotune.search.setup import Setup
from autotune.search.stopping import Stop
from autotune.search.study import TuningStudy, open_study
from autotune.storage.open import StudyStorage

ENDING = "interrupted: finishing with the trials so far; interrupt again to stop at once"
CONFIRMING = "confirming the best so far, in about {seconds:.0f} s"
UNCONFIRMED = "nothing is confirmed: a round of the proof takes {seconds:.0f} s; start again to go on with the study"
SEARCHING_OTHER = {
    "samples": "the search is over; in the time that is left an answer with your batch is looked for",
    "same-batch": "the search is over; in the time that is left an answer with any batch is looked for",
}
INTERRUPTED_SECONDS = 15.0
"""Seconds for the proof after the user has stopped the search; its only round may take twice as long."""
ALONE = "baseline-"
"""Begin of the name of a round in which the baseline alone is measured."""
LEAST_LIMIT = 10.0
"""Seconds that a confirming measurement may take at least."""
LOSSES, STARTS = 20, 2.5
"""Losses of a script that are compared, and the starts for which there must be time."""
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
    """Most trials of the search, where the user gave a number."""
    sampler: BaseSampler | None = None
    """The sampler that proposes; ``None`` for the predictive one."""
    opening: float | None = None
    """Seconds that it took to load the workload; ``None`` for the time until the search begins."""
    seed: int = 0
    """Decides where in an epoch measurements begin."""
    losses: Callable[[Config, float], tuple[float, ...]] | None = None
    """Returns the first losses of a script that is started anew with a configuration, within so many seconds."""
    loading: float | None = None
    """The part of ``opening`` after the start of Python and torch; ``None`` for all of it."""
    sleep: Callable[[float], object] = time.sleep
    """Waits so many seconds for others."""
    _run: Run | None = field(default=None, init=False)
    """The run so far, at its last change."""

    def result(self, storage: StudyStorage | None = None) -> Result:
        """Search, confirm and answer; ``storage`` holds the study.

        Raises ``UserCodeError``, ``NothingFeasibleError``, ``UsageError``, ``StorageError``, and
        ``InterruptedRunError`` where the user stops it before the baseline was measured.
        """
        storage = storage or StudyStorage()
        study = open_study(self.setup, storage=storage, sampler=self.sampler, messages=self.messages)
        confirmation: Confirmation | None = None
        while not isinstance(step := self._until_proof(study), Stop):
            confirmation = self._prove(study)
        agenda = self.agenda(study)
        stop_reason, wanted = agenda.in_words(step), agenda.wanted(step, confirmation)
        other = self._prove_other(study, confirmation)
        known, agenda = study.known, self.agenda(study)
        end = End(
            ending=step.ending,
            stop_reason=stop_reason,
            seconds=self.budget.spent,
            date=datetime.now(UTC).isoformat(timespec="seconds"),
            wanted="" if agenda.run.is_interrupted else wanted,
            notes=tuple(self.messages.notes),
            trials=tuple(trial.number for trial in known.history),
            looks=len(known.probes),
            confirmed=agenda.run.confirmed,
            rounds=tuple(one.name for one in confirmation.complete) if confirmation else (),
            entries=confirmation.finalists if confirmation else (),
            other_rounds=tuple(one.name for one in other.complete) if other else (),
            other_entries=other.finalists if other else (),
            is_cut=agenda.run.is_interrupted,
        )
        known = replace(known, observations=replace(known.observations, claimed=()), end=end)
        result = answer(known)
        if told := self._compare_losses(result):
            end = replace(end, notes=(*end.notes, told), seconds=self.budget.spent)
            result = answer(replace(known, end=end))
        with suppress(KeyboardInterrupt):  # the answer is there
            study.write_end(end, result)
        return replace(result, notes=(*result.notes, *filter(None, [storage.failure])))

    def _compare_losses(self, result: Result) -> str | None:
        """Return how a script's first losses change with the answer; ``None`` where they have to, or nothing is known.

        Both starts have the answer's threads, which decide in what order sums are made.
        """
        own, new = result.baseline, result.config
        is_interrupted = self._run is not None and self._run.is_interrupted
        if self.losses is None or is_interrupted or own.dataloader_kwargs() == new.dataloader_kwargs():
            return None
        if (own.batch_size, own.amp) != (new.batch_size, new.amp):
            return None
        steps = LOSSES * own.samples_per_step / result.baseline_samples_per_second
        if self.budget.left < STARTS * ((self.opening or 0.0) + steps):
            return "There was no time to compare the first losses with those of your settings."
        own = replace(own, intra_op_threads=new.intra_op_threads, inter_op_threads=new.inter_op_threads)
        with suppress(UserCodeError, UsageError, ProcessLostError):
            first, second = (self.losses(config, self.budget.left + GRACE) for config in (own, new))
            again = None if first == second else self.losses(own, self.budget.left + GRACE)
            return on_losses(first, second, again)
        return None

    def _until_proof(self, study: TuningStudy) -> Prove | Stop:
        """Search; the user may interrupt it once the baseline was measured."""
        try:
            return self.search(study)
        except KeyboardInterrupt:
            study.abandon()
            if not study.known.trials:
                raise InterruptedRunError("interrupted before the baseline was measured") from None
            self.messages.say(ENDING)
            self._interrupt(study)
            return self.search(study)

    def search(self, study: TuningStudy) -> Prove | Stop:
        """Take all steps up to the next proof, or the end."""
        said: str | None = None
        self.messages.phase = "search" if study.known.trials else "baseline"
        while True:
            study.refresh()
            self._take_in_baseline(study)
            step = next_step(study.known, self.agenda(study).run)
            if isinstance(step, Prove | Stop):
                return step
            if isinstance(step, Measure):
                self._measure(study)
                continue
            if isinstance(step, Settle):
                self._settle(study)
                continue
            if step.why and step.why != said:
                self.messages.say(step.why)
            said = step.why
            if isinstance(step, Wait):
                self.sleep(POLL)
            else:
                self._look(study, step)

    def agenda(self, study: TuningStudy) -> Agenda:
        """Return what is known and the time, now."""
        if self._run is None:
            opening = self.budget.spent if self.opening is None else self.opening  # loading the workload is most of it
            self._run = Run(
                budget=self.budget.seconds,
                spent=self.budget.spent,
                opening=opening,
                loading=opening if self.loading is None else self.loading,
                most_trials=self.max_trials,
                seed=self.seed,
                looks=len(study.known.probes),
            )
        now = replace(self._run, budget=self.budget.seconds, spent=self.budget.spent, is_exhausted=study.is_exhausted)
        return Agenda(known=study.known, run=now)

    def _change(self, study: TuningStudy, **changes: Any) -> None:
        """Note a change of the run."""
        self._run = replace(self.agenda(study).run, **changes)

    def _take_in_baseline(self, study: TuningStudy) -> None:
        """Once the baseline is known, choose the budget where the user gave none, or say what a short one allows."""
        agenda, budget = self.agenda(study), self.budget
        for baseline in agenda.known.trials[:1]:
            _require_baseline(baseline, self.setup.memory_limit)
            if agenda.run.looking is not None or (agenda.known.needs_baseline and agenda.has_time):
                return
            if not budget.is_given:
                budget.choose(agenda.plan.budget(budget.spent))
                self.messages.say(agenda.plan.chosen(budget.seconds))
            elif shortage := agenda.plan.shortage(budget.seconds, budget.left, budget.spent):
                self.messages.say(shortage)
            self._change(study, looking=budget.spent)

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

    def _measure(self, study: TuningStudy) -> None:
        """Measure the configuration that the sampler proposes."""
        first = not study.known.trials
        asked = study.ask(self.max_trials)
        if asked is None:  # another tuner was faster
            if not study.is_exhausted:
                self.sleep(POLL)
            return
        config, kind = asked
        self._report(study, Progress(phase="baseline" if first else "search", running=config))
        request, stuck = self.agenda(study).trial_request(config)
        waiting = self.messages.waiting("measuring the baseline") if first else nullcontext()
        with waiting, study.beating():
            may_repeat: Callable[[Attempt], bool] = lambda seen: self.budget.left > REPEATED * seen.seconds  # noqa: E731
            attempt = measure_once_more(self.runner, config, request, may_repeat)
        if attempt.outcome is Outcome.TIMEOUT and not first and request.time_limit < stuck:
            study.abandon()  # the end of the budget cut it off: that says nothing about it
            return
        trial = study.tell(attempt, config, kind)
        if first:
            _require_baseline(trial, self.setup.memory_limit)
        self._report(study, Progress(phase="search", finished=trial))

    def _settle(self, study: TuningStudy) -> None:
        """Measure the baseline alone as a round does, at another place of the epoch."""
        agenda, config = self.agenda(study), self.setup.space.base
        self._report(study, Progress(phase="confirm", running=config))
        limit = max(LEAST_LIMIT, agenda.run.left + GRACE)
        seed = self.seed + 1 + agenda.rounds
        request = replace(agenda.request, time_limit=limit, fresh=True, seed=seed)
        attempt = self.runner.measure(config, request)
        trial = study.confirmed(attempt, config, Place(f"{ALONE}{seed}", None))
        self._change(study, confirmed=(*self.agenda(study).run.confirmed, trial.number))
        self._report(study, Progress(phase="confirm", finished=trial))

    def _prove(self, study: TuningStudy) -> Confirmation | None:
        """Confirm, once more where all finalists have failed: others may be left."""
        while True:
            failed = self.agenda(study).failed
            confirmation = self._confirm(study)
            agenda = self.agenda(study)
            has_answer = confirmation is not None and confirmation.answer is not None
            if has_answer or agenda.run.is_interrupted or agenda.failed == failed:
                self._change(study, proven=len(agenda.known.trials))
                return confirmation

    def _prove_other(self, study: TuningStudy, confirmation: Confirmation | None) -> Confirmation | None:
        """Find and prove the answer for the other objective in the time that is left; ``None`` where there is none.

        The cost of a larger batch is looked at first, or last where only this answer has one. The user may interrupt
        it all: the answer is there.
        """
        index = confirmation.answer if confirmation else None
        is_proven = confirmation is not None and index is not None and confirmation.is_proven(index)
        base = self.setup.space.base
        answer = confirmation.finalists[index].config if confirmation and is_proven and index is not None else base
        found: Confirmation | None = None
        try:
            self._look_at_noise(study)
            self._search_other(study, answer)
            if finalist := self.agenda(study).other_finalist(answer):
                found = self._confirm(study, finalist)
                self._look_at_noise(study)
        except KeyboardInterrupt:
            self._interrupt(study)
        return found

    def _look_at_noise(self, study: TuningStudy) -> None:
        if look := self.agenda(study).noise_look:
            self._look(study, look)

    def _search_other(self, study: TuningStudy, answer: Config) -> None:
        """Measure a few configurations that may be the answer for the other objective."""
        known = len(study.known.trials)
        while config := self.agenda(study).other_proposal(answer):
            if len(study.known.trials) == known:
                self.messages.say(SEARCHING_OTHER[self.setup.space.objective])
            self._report(study, Progress(phase="search", running=config))
            request, stuck = self.agenda(study).other_request(config)
            attempt = measure_once_more(self.runner, config, request, lambda seen: False)
            if attempt.outcome is Outcome.TIMEOUT and request.time_limit < stuck:
                return  # the end of the budget cut it off: that says nothing about it
            self._report(study, Progress(phase="search", finished=study.measured(attempt, config)))

    def _confirm(self, study: TuningStudy, other: Config | None = None) -> Confirmation | None:
        """Return the confirmation, or that of the other objective's finalist; ``None`` without complete rounds."""
        agenda = self.agenda(study)
        known, is_interrupted = agenda.known, agenda.run.is_interrupted
        end = self.budget.spent + INTERRUPTED_SECONDS if is_interrupted else self.budget.seconds
        pace = Pace(self.budget, end, agenda.measurement_seconds)
        finalists, entering, baselines = ([other], [other], 1) if other else agenda.finalists(pace.left)
        if not finalists:
            return None

        def next_request() -> Request:
            limit = max(LEAST_LIMIT, pace.left + GRACE)
            return replace(agenda.request, time_limit=limit, fresh=True)

        def on_attempt(config: Config, attempt: Attempt, place: Place) -> None:
            pace.measured += 1
            trial = study.confirmed(attempt, config, place)
            self._change(study, confirmed=(*self.agenda(study).run.confirmed, trial.number))
            self._report(study, Progress(phase="confirm", finished=trial))

        self._report(study, Progress(phase="confirm", running=finalists[0]))
        if is_interrupted:
            told = CONFIRMING if pace.allows(PAIR, 0) else UNCONFIRMED
            self.messages.say(told.format(seconds=max(INTERRUPTED_SECONDS, PAIR * pace.cost)))
        return Rounds(
            self.runner,
            known.baseline.config,
            finalists,
            next_request,
            has_time=pace.allows,
            baselines=baselines,
            seed=self.seed + agenda.rounds,
            prefix=OTHER if other else "",
            history=known.compared(other=other is not None),
            entering=entering,
            fits=known.fits,
            may_answer=(lambda config: config == other) if other else known.may_answer,
            on_attempt=on_attempt,
        ).run(None if is_interrupted else lambda: self._interrupt(study))  # twice means: now

    def _interrupt(self, study: TuningStudy) -> None:
        """Note that the user has interrupted, and end the running measurement."""
        self._change(study, is_interrupted=True)
        self.runner.close()

    def _report(self, study: TuningStudy, moment: Progress) -> None:
        """Show the running or finished measurement, with the standing of the run."""
        known = study.known
        best_rate = known.best.rate if known.best else None
        baseline_rate = known.baseline.rate if known.best and not known.baseline.is_disturbed else None
        self.messages.show(replace(moment, best_rate=best_rate, baseline_rate=baseline_rate))


def _require_baseline(trial: Trial, memory_limit: MemoryLimit) -> None:
    """Raise when the baseline gave no number, so that nothing could be compared with it, or takes too much memory."""
    peak = require_numbers(trial.attempt).peak_memory_bytes
    if memory_limit.most is not None and peak > memory_limit.most:
        raise UsageError(
            f"--max-memory {format_size(memory_limit.most)}: the baseline takes {format_size(peak)}; {SMALLER}"
        )
