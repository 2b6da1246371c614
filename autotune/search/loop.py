"""The stages of a search: the baseline, probes of the parts, then trials until a stopping rule holds."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from statistics import median

from autotune.config import Config
from autotune.errors import NothingFeasibleError, UsageError
from autotune.limits import SHARE_GRACE, Budget, MemoryLimit, format_size
from autotune.messages import Messages, Progress
from autotune.outcome import Outcome
from autotune.records import Part, Request, Runner, Trial
from autotune.runner.attempt import SMALLER, measure_once_more, require_numbers
from autotune.search.observations import GAIN
from autotune.search.plan import LOOK_SECONDS, Plan
from autotune.search.probe_plan import NUMERICS_SECONDS, next_probe, untried_precision
from autotune.search.stopping import Ending, Stop, reason_to_stop
from autotune.search.study import TuningStudy
from autotune.stats import LEAST_ROUNDS

CONFIRM_SHARE, CONFIRM_ROUNDS = 0.4, 12
"""Share of the budget that is set aside for the proof where there is enough of it, and the most rounds."""
PROOF_SHARE = 0.7
"""Share of the budget that is set aside at most for three rounds, below which nothing is proven."""
PROBE_SHARE = 0.3
"""Share of the budget left after the baseline, after which no further probe is taken."""
OPTIONS_SHARE = 0.15
"""The addition to it where further options of the step may be used."""
FIRST_TRIALS = 3
"""Trials, the baseline included, before which the time of a proof is kept free only for a gain."""
LEAST_CAP, LARGEST_CAP = 1.5, 5.0
"""Bounds on a trial's longest window, in seconds."""
LOOK_LIMIT, LOOK_SHARE, LEAST_LOOK = 60.0, 0.15, 8.0
"""Seconds after which a probe is given up, and a trial like a failed one: a share of the budget at most, unless the
baseline took as long."""
HANG_FACTOR, LEAST_HANG = 10.0, 30.0
"""A trial is stuck when it takes so many times as long as the longest before, and this many seconds at least."""
POLL, LOST_POLL = 1.0, 5.0
"""Seconds between two looks at other tuners, and before a probe is taken again that others made fail."""
MOST_RETAKEN = 12
"""Most probes that are taken again for that."""


@dataclass(slots=True, kw_only=True)
class Search:
    """One search over one space."""

    runner: Runner
    study: TuningStudy
    budget: Budget
    messages: Messages
    max_trials: int | None = None
    """Most trials, where the user gave a number."""
    sleep: Callable[[float], object] = time.sleep
    """Waits for others that share the study, so many seconds."""
    opening: float | None = None
    """Seconds that it took to load the workload; ``None`` for the time until the search begins."""
    seed: int = 0
    """Decides where in an epoch all its trials begin, so that like is compared with like."""
    is_confirmed: bool = False
    """Whether a confirmation has ended: the time set aside for it is free."""
    _looks_end: float | None = field(default=None, init=False)
    _done_looking: bool = field(default=False, init=False)
    _retaken: int = field(default=0, init=False)
    _waits_for: str | None = field(default=None, init=False)

    def run(self) -> Stop:
        """Measure until a stopping rule holds, and return which.

        Raises ``UserCodeError`` and ``NothingFeasibleError`` when the baseline cannot be measured, ``UsageError`` when
        it takes more memory than training may.
        """
        self._measure_baseline()
        self._fit_budget()
        while True:
            self._refresh()
            if self._looks_again():
                continue
            stop = self._stop()
            if self._waits_for_others(stop):
                continue
            if stop is None:
                self._run_trial()
            elif not self._looks_again(stop):
                return stop

    def _measure_baseline(self) -> None:
        """Have the baseline measured, here or by others, unless it is known."""
        self.messages.phase = "search" if self.study.trials else "baseline"
        if self.opening is None:
            self.opening = self.budget.spent  # loading the workload is most of it
        self._refresh()
        while not self.study.trials:
            if not self._waits_for_others(None):
                self._run_trial()
            self._refresh()

    def _fit_budget(self) -> None:
        """Choose the budget where the user gave none, or say what a short one is enough for."""
        budget, plan = self.budget, self.plan
        if not budget.is_given:
            budget.choose(plan.budget(budget.spent))
            self.messages.say(plan.chosen(budget.seconds))
        elif shortage := plan.shortage(budget.seconds, budget.left, budget.spent):
            self.messages.say(shortage)

    def _refresh(self) -> None:
        """Take in the trials of others; one of them may have measured the baseline."""
        self.study.refresh()
        for baseline in self.study.trials[:1]:
            _require_baseline(baseline, self.study.setup.memory_limit)

    def _waits_for_others(self, stop: Stop | None) -> bool:
        """Wait a moment where all depends on the running measurements of other tuners; return whether that was so.

        That is the baseline, and any trial that could still give a reason to go on.
        """
        others, done = self.study.others, self.study.trials
        if not others or (done and (stop is None or not self.has_time)):
            self._waits_for = None
            return False
        who = "; ".join(sorted({by for by, _ in others}))
        if not done and self.budget.left <= 0:
            raise NothingFeasibleError(
                f"the budget is spent while {who} still measures the baseline; pass a larger --budget"
            )
        message = f"waiting for {who} to measure {'a configuration that may be faster' if done else 'the baseline'}"
        if message != self._waits_for:
            self.messages.say(message)
        self._waits_for = message
        self.sleep(POLL)
        return True

    def _looks_again(self, stop: Stop | None = None) -> bool:
        """Take the next probe; return whether there was one.

        Probes have a share of the budget, and the rest after the search for a half precision or options not yet tried,
        and for what others' memory made fail.
        """
        options = self.study.setup.space.options
        if self._looks_end is None:  # the baseline has just been measured
            share = PROBE_SHARE + (OPTIONS_SHARE if options else 0.0)
            self._looks_end = self.budget.spent + share * self.budget.left
        lost = self.study.observations.lost if stop and self._retaken < MOST_RETAKEN else None
        if stop is None:
            is_over = self._done_looking or self.budget.spent > self._looks_end
        else:
            wanted = lost or (not self._done_looking and (self.untried_precision or options))
            is_over = not (stop.ending is Ending.COMPLETE and wanted and self.has_time)
        if is_over or self.budget.left < LOOK_SECONDS + self.plan.base_round:
            return False
        planned = next_probe(self.study.observations, self.study.setup.space)
        if planned is None and lost:
            if not self._retaken:
                self.messages.say(f"waiting, to try again: {lost.attempt.message}")
            self.sleep(LOST_POLL)
            self._retaken += 1
            planned, self._looks_end = (lost.part, lost.config), None  # what follows has its share again
        self._done_looking = planned is None
        if planned is not None:
            self._look(*planned)
        return planned is not None

    def _look(self, part: Part, config: Config) -> None:
        """Take a probe."""
        self.report(Progress(phase="probe", running=config))
        seconds = NUMERICS_SECONDS if part == "numerics" else LOOK_SECONDS
        request = Request(seconds=seconds, time_limit=min(self._patience, self._time_limit), part=part, seed=self.seed)
        decides = config.options != self.study.setup.space.base.options  # by this number alone whether options are used
        attempt = measure_once_more(
            self.runner, config, request, lambda seen: decides and self.has_time, if_disturbed=True
        )
        self.report(Progress(phase="probe", looked=self.study.looked(part, config, attempt)))

    def _stop(self) -> Stop | None:
        if self._has_all_trials:
            return Stop(Ending.TRIALS, f"all {self.max_trials} trials that were asked for are done")
        if self.study.is_exhausted:
            return Stop(Ending.COMPLETE, "the sampler has nothing new to propose")
        if reason := None if self.study.candidate else reason_to_stop(self.study.forecast):
            return Stop(Ending.COMPLETE, reason)
        return None if self.has_time else Stop(Ending.BUDGET, "the budget is spent")

    @property
    def has_time(self) -> bool:
        """Whether there is time for another trial, and for the stages after it."""
        return self.left >= self.trial_cost

    def _run_trial(self) -> None:
        asked = self.study.ask(self.max_trials)
        if asked is None:  # another tuner was faster
            if not self.study.is_exhausted:
                self.sleep(POLL)
            return
        config, kind = asked
        first = not self.study.trials
        self.report(Progress(phase="baseline" if first else "search", running=config))
        request, patience = self._request(config)
        waiting = self.messages.waiting("measuring the baseline") if first else nullcontext()
        with waiting, self.study.beating():
            attempt = measure_once_more(self.runner, config, request, lambda seen: self.budget.left > 4 * seen.seconds)
        if attempt.outcome is Outcome.TIMEOUT and not first and request.time_limit < patience:
            self.study.abandon()  # the end of the budget cut it off: that says nothing about it
            return
        trial = self.study.tell(attempt, config, kind)
        if first:
            _require_baseline(trial, self.study.setup.memory_limit)
        self.report(Progress(phase="search", finished=trial))

    def _request(self, config: Config) -> tuple[Request, float]:
        """Return how a trial is to be measured, and the seconds after which it is stuck."""
        request = Request(seconds=self.longest_window, seed=self.seed)
        if not self.study.trials:
            limit = max(60.0, self.budget.left)
            return replace(request, time_limit=limit), limit
        known, forecast, best = self.study.observations, self.study.forecast, self.study.best
        low = best.measurement.ci95[0] if best and best.measurement and best.measurement.ci95 else None
        took = [trial.attempt.seconds for trial in known.trials if trial.measurement is not None]
        looks = known.looks if config.options else ()  # options may take long to begin with
        took += [look.first_step_seconds for own, look in looks if own.options == config.options]
        is_doubtful = forecast.is_doubtful[forecast.position[config]]
        stuck = self._patience if is_doubtful else max(LEAST_HANG, HANG_FACTOR * max(took))
        # training without workers must not find what a trial before it has read
        fresh = not config.num_workers and any(trace.keeps_samples for trace in known.traces)
        return replace(request, time_limit=min(stuck, self._time_limit), least_rate=low, fresh=fresh), stuck

    @property
    def _patience(self) -> float:
        """The seconds after which a probe is given up, and a trial with workers where these have failed."""
        share = max(LEAST_LOOK, LOOK_SHARE * self.budget.seconds, 2 * self.study.trials[0].attempt.seconds)
        return min(LOOK_LIMIT, share)

    @property
    def untried_precision(self) -> str | None:
        """An untried half precision that is allowed and may be faster."""
        return untried_precision(self.study.observations, self.study.setup.space)

    @property
    def _has_all_trials(self) -> bool:
        begun = {trial.config for trial in self.study.trials} | {config for _, config in self.study.others}
        return self.max_trials is not None and len(begun) >= self.max_trials

    @property
    def plan(self) -> Plan:
        """The seconds that measurements take here, by the baseline's."""
        base = self.study.trials[0]
        assert base.measurement is not None
        return Plan(
            opening=self.opening or 0.0,
            window=self.longest_window,
            epoch_samples=base.measurement.epoch_samples,
            base=base.config,
            base_rate=base.measurement.samples_per_second,
            base_seconds=base.attempt.seconds,
        )

    @property
    def longest_window(self) -> float:
        """Seconds that a window may last, by the budget."""
        return min(LARGEST_CAP, max(LEAST_CAP, self.budget.seconds / 60))

    @property
    def left(self) -> float:
        """The seconds left before the stages after the search must begin."""
        return self.budget.left - self.confirmation_seconds

    @property
    def confirmation_seconds(self) -> float:
        """Seconds set aside for the proof: one round at first, then its usual time, three rounds for a gain."""
        is_gain = self._fastest is not self.study.trials[0]
        if not is_gain and len(self.study.trials) <= FIRST_TRIALS:
            return self.plan.base_round
        if self.is_confirmed:
            return self.proof_seconds
        usual = min(CONFIRM_SHARE * self.budget.seconds, CONFIRM_ROUNDS * self.plan.base_round)
        return max(usual, min(self.proof_seconds, PROOF_SHARE * self.budget.seconds) if is_gain else 0.0)

    @property
    def proof_seconds(self) -> float:
        """Seconds of three rounds of the fastest trial so far."""
        return LEAST_ROUNDS * self.round_seconds(self._fastest)

    def round_seconds(self, trial: Trial) -> float:
        """Return the seconds of a round of a trial: as measured, or as planned."""
        took = [each.attempt.seconds for each in self.study.history if each.kind == "confirm" and each.measurement]
        planned = self.plan.round(trial.config, trial.rate or self.plan.base_rate)
        return planned if not took else max(2 * median(took), planned)

    @property
    def _fastest(self) -> Trial:
        """The fastest trial where it gains more than measurements can tell apart, else the baseline."""
        trials = self.study.trials
        fastest = max(trials, key=lambda trial: trial.rate or 0.0)
        return fastest if (fastest.rate or 0.0) >= (1 + GAIN) * (trials[0].rate or 0.0) else trials[0]

    @property
    def trial_cost(self) -> float:
        """Seconds of the next trial: a usual one, and what whole bursts and epochs add; a hung one tells nothing."""
        trials, following = self.study.trials, self.study.following
        took = [trial.attempt.seconds for trial in trials[1:] if trial.outcome is not Outcome.TIMEOUT]
        usual = median(took or [trials[0].attempt.seconds])
        return usual + (self.plan.excess(following, self.study.forecast.rate_of(following)) if following else 0.0)

    @property
    def _time_limit(self) -> float:
        return max(0.0, self.left) + SHARE_GRACE

    def report(self, moment: Progress) -> None:
        """Show the running or finished measurement, with the standing of the run."""
        done, best = self.study.trials, self.study.best
        best_rate, baseline_rate = best.rate if best else None, done[0].rate if done else None
        self.messages.show(replace(moment, best_rate=best_rate, baseline_rate=baseline_rate))


def _require_baseline(trial: Trial, memory_limit: MemoryLimit) -> None:
    """Raise when the baseline gave no number, so that nothing could be compared with it, or takes too much memory."""
    peak = require_numbers(trial.attempt).peak_memory_bytes
    if memory_limit.most is not None and peak > memory_limit.most:
        raise UsageError(
            f"--max-memory {format_size(memory_limit.most)}: the baseline takes {format_size(peak)}; {SMALLER}"
        )
