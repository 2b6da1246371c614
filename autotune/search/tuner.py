"""One run: search, confirm, conclude."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from optuna.samplers import BaseSampler

from autotune.config import Config
from autotune.errors import InterruptedRunError
from autotune.limits import GRACE, Budget, Pace, format_duration, longer_budget
from autotune.messages import Messages, Progress
from autotune.proof import Confirmation, Place, Rounds, finalists_for, has_failed
from autotune.records import Attempt, Measurement, Request, Runner, Trial
from autotune.report.result import Result
from autotune.search.answer import End, answer
from autotune.search.feasibility import exceeds
from autotune.search.loop import Search
from autotune.search.sampler import Setup
from autotune.search.stopping import Ending, Stop
from autotune.search.study import open_study
from autotune.stats import MAX_ROUNDS
from autotune.storage.open import StudyStorage

INTERRUPTED = "interrupted by the user"
ENDING = "interrupted: finishing with the trials so far; interrupt again to stop at once"
CONFIRMING = "confirming the best so far, in about {seconds:.0f} s"
INTERRUPTED_SECONDS = 15.0
"""Seconds for confirmation after the user has stopped the search."""
LITTLE = 0.1
"""Share of the budget that is as good as nothing."""
PAIR = 2
"""Measurements of a round at least: the baseline and one finalist."""
LEAST_LIMIT = 10.0
"""Seconds that a confirming measurement may take at least."""


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
    confirmations: list[Trial] = field(default_factory=list, init=False)
    """The confirming measurements of this run."""
    _search: Search = field(init=False)
    _is_interrupted: bool = field(default=False, init=False)

    def result(self, storage: StudyStorage | None = None) -> Result:
        """Search, confirm and conclude; ``storage`` holds the study.

        Raises ``UserCodeError``, ``NothingFeasibleError``, ``UsageError``, ``StorageError``, and
        ``InterruptedRunError`` where the user stops it before the baseline was measured.
        """
        storage, setup = storage or StudyStorage(), self.setup
        study = open_study(setup, storage=storage, sampler=self.sampler, messages=self.messages)
        self._search = Search(
            runner=self.runner,
            study=study,
            budget=self.budget,
            messages=self.messages,
            max_trials=self.max_trials,
            opening=self.opening,
            seed=self.seed,
        )
        stop, confirmation = self._find()
        end = End(
            ending=stop.ending,
            stop_reason=self._in_words(stop),
            seconds=self.budget.spent,
            date=datetime.now(UTC).isoformat(timespec="seconds"),
            wanted=self._wanted(stop, confirmation),
            notes=tuple(self.messages.notes),
            trials=tuple(trial.number for trial in study.history),
            looks=len(study.probes),
            confirmed=tuple(trial.number for trial in self.confirmations),
            rounds=tuple(one.name for one in confirmation.complete) if confirmation else (),
            entries=confirmation.finalists if confirmation else (),
        )
        result = answer(study.known(end))
        with suppress(KeyboardInterrupt):  # the answer is there
            study.write_end(end, result)
        return replace(result, notes=(*result.notes, *filter(None, [storage.failure])))

    def _find(self) -> tuple[Stop, Confirmation | None]:
        """Search and confirm; search on in the time that confirmation has left."""
        search, confirmation = self._search, None
        while True:
            known = len(search.study.trials)
            stop = self._stop()
            if search.is_confirmed and len(search.study.trials) == known:
                return stop, confirmation
            confirmation = self._confirm_what_runs()
            search.is_confirmed = True
            if self._is_interrupted:
                return Stop(Ending.INTERRUPTED, INTERRUPTED), confirmation
            if stop.ending is not Ending.BUDGET or not search.has_time:
                return stop, confirmation

    def _stop(self) -> Stop:
        """Run the search; the user may interrupt it once the baseline was measured."""
        study = self._search.study
        try:
            return self._search.run()
        except KeyboardInterrupt:
            study.abandon()
            if not study.trials:
                raise InterruptedRunError("interrupted before the baseline was measured") from None
            self.messages.say(ENDING)
            self._interrupt()
            return Stop(Ending.INTERRUPTED, INTERRUPTED)

    def _interrupt(self) -> None:
        """Note that the user has interrupted, and end the running measurement."""
        self._is_interrupted = True
        self.runner.close()

    def _confirm_what_runs(self) -> Confirmation | None:
        """Confirm, once more where all finalists have failed: others may be left."""
        while True:
            known = self._failed
            confirmation = self._confirm()
            has_answer = confirmation is not None and confirmation.answer is not None
            if has_answer or self._is_interrupted or self._failed == known:
                return confirmation

    def _confirm(self) -> Confirmation | None:
        """Return the confirmation; ``None`` without complete rounds."""
        search, study = self._search, self._search.study
        end = self.budget.spent + INTERRUPTED_SECONDS if self._is_interrupted else self.budget.seconds
        measurement = search.round_seconds(search.study.trials[0]) / PAIR
        pace = Pace(self.budget, end, measurement, may_halve=not self._is_interrupted)
        most, baselines = finalists_for(pace.left / measurement)
        finalists, entering = self._finalists(most)
        if not finalists:
            return None

        def next_request() -> Request:
            limit = max(LEAST_LIMIT, pace.left + GRACE)
            return Request(seconds=search.longest_window, time_limit=limit, fresh=True)

        def on_attempt(config: Config, attempt: Attempt, place: Place) -> None:
            pace.measured += 1
            self.confirmations.append(study.confirmed(attempt, config, place))
            search.report(Progress(phase="confirm", finished=self.confirmations[-1]))

        search.report(Progress(phase="confirm", running=finalists[0]))
        if self._is_interrupted and pace.allows(PAIR, 0):
            self.messages.say(CONFIRMING.format(seconds=INTERRUPTED_SECONDS))
        return Rounds(
            self.runner,
            study.trials[0].config,
            finalists,
            next_request,
            has_time=pace.allows,
            baselines=baselines,
            seed=self.seed + len({trial.round for trial in self.confirmations}),
            history=study.history,
            entering=entering,
            fits=self._fits,
            may_answer=study.may_answer,
            on_attempt=on_attempt,
        ).run(None if self._is_interrupted else self._interrupt)  # twice means: now

    def _finalists(self, most: int) -> tuple[list[Config], list[Config]]:
        """Return the finalists, cheapest first; the same in order of entry."""
        study, failed, space = self._search.study, self._failed, self.setup.space
        likely = study.finalists(most, lambda trial: not {trial.config, space.with_persistence(trial)} & failed)
        finalists, entering = (
            list(dict.fromkeys(config for trial in trials if (config := space.with_persistence(trial)) != space.base))
            for trials in (sorted(likely, key=study.cost), likely)
        )
        untried = study.candidate
        if untried is None or self._is_interrupted or self.max_trials is not None:
            return finalists, entering
        if space.decides_persistence and untried.num_workers:  # whether its workers should live on is not known
            untried = replace(untried, persistent_workers=space.base.persistent_workers)
        return [untried], entering

    @property
    def _failed(self) -> set[Config]:
        """The configurations that failed in a confirmation, of earlier runs too."""
        return {trial.config for trial in self._search.study.history if has_failed(trial, self._fits)}

    def _fits(self, measured: Measurement) -> bool:
        return not exceeds(measured, self._search.study.observations)

    def _in_words(self, stop: Stop) -> str:
        """Return why the run ended; where the budget is not spent, why the rest of it was no use."""
        left = self.budget.left
        if stop.ending is not Ending.BUDGET or left < min(self._search.trial_cost, LITTLE * self.budget.seconds):
            return stop.text
        rest, longer = format_duration(left), self._longer_budget
        return f"{rest} are left, too little for another trial and its confirmation (--budget {longer} allows more)"

    def _wanted(self, stop: Stop, confirmation: Confirmation | None) -> str:
        """Return the remedy for an undecided run."""
        search, longer = self._search, self._longer_budget
        if amp := search.untried_precision:
            needs_memory = search.study.observations.halvings(amp)
            return f"memory to compare {amp} with fp32" if needs_memory else f"time to try {amp} (--budget {longer})"
        rounds = {trial.round for trial in self.confirmations}
        if stop.ending is Ending.COMPLETE and not search.study.has_alternative and not rounds:
            return "another configuration (no other is allowed, or none could run)"
        if stop.ending is Ending.TRIALS:
            return f"more than {search.max_trials} trials (--trials)"
        if len(rounds) >= MAX_ROUNDS:
            return f"more than {MAX_ROUNDS} rounds (with --storage FILE the rounds of several runs add up)"
        if confirmation is not None and confirmation.is_hopeless:
            return "rounds that differ less: the gain is smaller than their differences"
        return f"more time (--budget {longer})"

    @property
    def _longer_budget(self) -> str:
        """A budget that is half as long again at least, and enough for a usual search and its proof."""
        return longer_budget(self.budget.seconds, self._search.plan.budget(self._search.opening or 0.0))
