"""The agenda of a run: the next step, by all that is known and the time. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean, median, median_low
from typing import Any

from autotune.config import Config
from autotune.errors import NothingFeasibleError
from autotune.limits import GRACE, SHARE_GRACE, format_duration, longer_budget, percent
from autotune.outcome import Outcome
from autotune.proof import Confirmation, Proof, Turn, finalists_for, follow, has_failed, has_time
from autotune.records import Part, Request, Trial
from autotune.search.answer import answer, losses_to_read
from autotune.search.bound import NOTHING_LEFT
from autotune.search.forecast import Forecast
from autotune.search.known import Known
from autotune.search.observations import GAIN
from autotune.search.plan import LOOK_SECONDS, Plan
from autotune.search.probe_plan import NUMERICS_SECONDS, next_probe, untried_precision
from autotune.search.run import ALONE, FIRST, INTERRUPTED_SECONDS, SECOND, End, Ending, Run, Stop
from autotune.stats import LEAST_ROUNDS, MAX_ROUNDS

CONFIRM_SHARE, CONFIRM_ROUNDS = 0.4, 12
"""Share of the budget that is set aside for the proof where there is enough of it, and the most rounds."""
PROOF_SHARE = 0.7
"""Share of the budget that is set aside at most for three rounds, below which nothing is proven."""
PROBE_SHARE = 0.3
"""Share of the budget left after the baseline, after which no further probe is taken."""
OPTIONS_SHARE = 0.15
"""Share of the budget added to ``PROBE_SHARE`` where further options of the step may be used."""
LEAST_LOOKS = 2
"""Looks without which nothing is proposed: at the loader and at the step."""
FIRST_TRIALS = 3
"""Trials, the baseline included, before which the time of a proof is kept free only for a gain."""
LEAST_CAP, LARGEST_CAP = 1.0, 5.0
"""Bounds on a trial's longest window, in seconds."""
LOOK_LIMIT, LOOK_SHARE, LEAST_LOOK = 60.0, 0.15, 8.0
"""Seconds after which a probe is given up, and a trial like a failed one: a share of the budget at most, unless the
baseline took as long."""
HANG_FACTOR, LEAST_HANG, LEAST_BASELINE = 10.0, 30.0, 60.0
"""A trial is stuck when it takes so many times as long as the longest before, and this many seconds at least; the
seconds that a baseline may take at least."""
NOISE_SECONDS = 4.0
"""Seconds of the training that shows the gradients' noise."""
STARTS = 3
"""Starts of a script in which a precision is compared with fp32."""
LOSSES_STARTS = 2.5
"""Starts of a script for which there must be time before its first losses are compared."""
POLL, LOST_POLL = 1.0, 5.0
"""Seconds between two looks at other tuners, and before a probe is taken again that others made fail."""
MOST_SECOND_TRIALS, MOST_SECOND_LOOKS = 8, 10
"""Most trials and looks for the other objective, after the proof of the answer."""
LEEWAY, SECOND_LEEWAY = 1.5, 1.1
"""Ratios of the seconds that are kept for measurements to those that they took so far: before a gain is known, and for
the answer for the other objective, whose rounds end in time by themselves."""
MOST_RETAKEN = 12
"""Most probes repeated because others made them fail."""
LITTLE = 0.1
"""Share of the budget that is as good as nothing."""
PAIR = 2
"""Measurements of a round at least: the baseline and one finalist."""
MOST_SETTLING = 2
"""Measurements of the baseline alone at most."""
LEAST_LIMIT = 10.0
"""Seconds that a confirming measurement may take at least."""
INTERRUPTED = Stop(Ending.INTERRUPTED, "interrupted by the user")
CONFIRMING = "confirming the best so far, in about {seconds:.0f} s"
UNCONFIRMED = "nothing is confirmed: a round of the proof takes {seconds:.0f} s; start again to go on with the study"
SEARCHING_SECOND = {
    "samples": "the search is over; in the time that is left an answer with your batch is looked for",
    "same-batch": "the search is over; in the time that is left an answer with any batch is looked for",
}


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait a moment for the other tuners that share the study."""

    why: str


@dataclass(frozen=True, slots=True)
class Look:
    """Look at one part of training."""

    part: Part
    config: Config
    again: int = 0
    """Times that it has given numbers so far."""
    why: str | None = None
    """The reason why it is taken again, after a pause: others made the look before it fail."""


@dataclass(frozen=True, slots=True)
class Measure:
    """Measure a configuration: the one that the sampler proposes, the baseline first."""

    config: Config | None = None
    """A configuration for the other objective, which no sampler proposes."""
    why: str | None = None
    """A message for the user."""


@dataclass(frozen=True, slots=True)
class Prove:
    """Begin to measure baseline and finalists side by side, since the search has come to an end for now."""

    proof: Proof
    stop: Stop
    why: str | None = None


@dataclass(frozen=True, slots=True)
class Settle:
    """Keep the answer as it is, with the reason; the answer for the other objective follows."""

    stop: Stop
    wanted: str


Step = Wait | Look | Measure | Prove | Turn | Settle | Stop


def next_step(known: Known, run: Run) -> Step:
    """Return the next step of a run.

    The baseline, looks at the parts of training, then trials until a stopping rule holds; then the proof. In the time
    that it has left the search goes on; at last comes the answer for the other objective, likewise. Raises
    ``NothingFeasibleError`` where the budget ends before the baseline is known.
    """
    return Agenda(known=known, run=run).step


@dataclass(frozen=True, kw_only=True)
class Agenda:
    """The steps of a run by what is known, and the seconds that they may take."""

    known: Known
    run: Run

    @property
    def step(self) -> Step:
        """The next step."""
        if self.run.stop is not None:
            return self._second_step or self._losses_look or self.run.stop
        if turn := self.turn:
            return turn
        step = self._first_step
        return Settle(replace(step, text=self._in_words(step)), self._wanted(step)) if isinstance(step, Stop) else step

    @property
    def turn(self) -> Turn | None:
        """The next turn of the last proof of the answer."""
        return self._turn(self.run.proof)

    def _turn(self, proof: Proof | None) -> Turn | None:
        is_cut = proof is not None and self.run.is_interrupted and not proof.is_short
        if proof is None or is_cut:
            return None
        trials = self.known.compared(second=proof == self.run.second)
        return follow(proof, self.known.baseline.config, trials, self.run.proof_left(proof))

    @property
    def _first_step(self) -> Step:
        if self.run.is_interrupted:
            return self._proof(INTERRUPTED)
        if not self.known.trials:
            return self._wait(None) or Measure()
        if self.known.needs_baseline and self.has_time:
            return Measure()
        if look := self._look(None):
            return look
        if self.known.leaves_nothing and not self.known.is_settled and (turn := self._baseline_elsewhere):
            return turn
        stop = self._stop
        return self._wait(stop) or (self._look(stop) or self._proof(stop) if stop else Measure())

    @property
    def _baseline_elsewhere(self) -> Turn | None:
        """The baseline at another place of the epoch; ``None`` without time, or where that was tried in vain."""
        base, run = self.known.baseline.config, self.run
        tried = sum(run.holds(trial) and trial.config == base for trial in self.known.history)
        if tried >= MOST_SETTLING or run.left < self.measurement_seconds:
            return None
        seed = run.seed + 1 + self.rounds
        return Turn(self.known.setup.space.base, seed, run.named(ALONE, seed))

    @property
    def _second_step(self) -> Step | None:
        """The cost of a larger batch is looked at first, or last where only this answer has one."""
        run, is_first = self.run, len(self.known.trials) == self.run.searched
        if run.is_interrupted:
            return None
        if run.second is not None:
            return self._turn(run.second) or self.noise_look
        if is_first and (look := self.noise_look):
            return look
        if look := self._second_look:
            return look
        if config := self._second_proposal:
            return Measure(config, SEARCHING_SECOND[self.known.setup.space.objective] if is_first else None)
        if run.left < self._second_seconds or run.stop is None:
            return None
        finalist = self.known.second_finalist(self._first_answer, self.failed)
        return Prove(self._new_proof(SECOND, [finalist], 1), run.stop) if finalist else None

    @property
    def _losses_look(self) -> Look | None:
        if self.run.is_interrupted or self.known.setup.facts.loader_site is None:
            return None
        wanted = losses_to_read(answer(replace(self.known, end=self.end)), self.known)
        if wanted is None:
            return None
        config, steps_seconds = wanted
        is_first = not any(probe.part == "losses" for probe in self.known.probes)
        if is_first and self.run.left < LOSSES_STARTS * (self.run.opening + steps_seconds):
            return None
        return self._planned_look("losses", config)

    @property
    def end(self) -> End:
        """The end of the run, if it were now."""
        numbers = tuple(trial.number for trial in self.known.history)
        return End(run=self.run, date="", notes=(), trials=numbers, looks=len(self.known.probes))

    @cached_property
    def confirmation(self) -> Confirmation | None:
        """The results of the last proof; ``None`` without complete rounds."""
        return self.known.confirmation(self.run.proof)

    @property
    def _others_are_left(self) -> bool:
        """Whether all finalists of the last proof have failed, and it is not known yet of others."""
        proof = self.run.proof
        if proof is None or self.run.is_interrupted or (self.confirmation and self.confirmation.answer is not None):
            return False
        return any(has_failed(trial) and trial.number >= proof.since for trial in self.known.compared())

    @property
    def proven(self) -> int | None:
        """Trials of the search that were known to the last proof; ``None`` without any."""
        return self.run.proof.searched if self.run.proof else None

    def _proof(self, stop: Stop) -> Prove | Stop:
        is_proven = self.proven == len(self.known.trials) and not self._others_are_left
        if is_proven or self.known.is_settled:
            return stop
        known, is_short, left = self.known, self.run.is_interrupted, self.run.proof_left()
        finalists, entering, baselines = self.finalists(left)
        compared = (trial.config for trial in known.compared() if trial.entry is not None)
        earlier = tuple(config for config in dict.fromkeys(compared) if known.may_answer(config))
        proof = self._new_proof(
            FIRST, finalists, baselines, entering=tuple(entering), earlier=earlier, is_short=is_short
        )
        why = CONFIRMING if has_time(left, (), proof.seconds, PAIR, 0) else UNCONFIRMED
        seconds = max(INTERRUPTED_SECONDS, PAIR * proof.seconds)
        return Prove(proof, stop, why.format(seconds=seconds) if finalists and is_short else None)

    def _new_proof(self, kind: str, finalists: Iterable[Config], baselines: int, **more: Any) -> Proof:
        number = 1 + max(trial.number for trial in self.known.history)
        return Proof(
            name=self.run.named(kind, number),
            finalists=tuple(finalists),
            baselines=baselines,
            seed=self.run.seed + self.rounds,
            seconds=self.measurement_seconds,
            since=number,
            searched=len(self.known.trials),
            **more,
        )

    def _wait(self, stop: Stop | None) -> Wait | None:
        """Return a pause while other tuners measure the baseline, or a trial that could give a reason to go on."""
        others, done = self.known.others, self.known.trials
        if not others or (done and (stop is None or not self.has_time)):
            return None
        who = "; ".join(sorted({by for by, _ in others}))
        if not done and self.run.left <= 0:
            raise NothingFeasibleError(
                f"the budget is spent while {who} still measures the baseline; pass a larger --budget"
            )
        return Wait(f"waiting for {who} to measure {'a configuration that may be faster' if done else 'the baseline'}")

    def _look(self, stop: Stop | None) -> Look | None:
        """Return the next look: in its share of the budget, or after the search for what is untried or was lost."""
        run, space, known = self.run, self.known.setup.space, self.known.observations
        lost = known.lost if stop and self._retaken < MOST_RETAKEN else None
        if stop is None:
            share = PROBE_SHARE + (OPTIONS_SHARE if space.options else 0.0)
            since = run.spent if run.looking is None else run.looking
            is_over = run.spent > since + share * (run.budget - since)
        else:
            wanted = lost or self.untried_precision or space.options
            is_over = not (stop.ending is Ending.COMPLETE and wanted and self.has_time)
        if is_over or run.left < LOOK_SECONDS + self.plan.base_round:
            return None
        unsure = self.known.unsure_step if stop is None else None
        if planned := next_probe(known, space) or (unsure and ("compute", unsure)):
            is_needed = stop is not None or len(self.known.probes) < LEAST_LOOKS
            if not is_needed and run.left < self._look_seconds(planned[1]) + self._least_proof:
                return None
            return self._planned_look(*planned)
        return Look(lost.part, lost.config, why=f"waiting, to try again: {lost.attempt.message}") if lost else None

    def _planned_look(self, part: Part, config: Config) -> Look:
        again = sum(bool(each.attempt.found) for each in self.known.observations.looks_at(part, config))
        return Look(part, config, again)

    @property
    def noise_look(self) -> Look | None:
        """The look at the gradients' noise, where an answer may have another batch, and time is left for it."""
        known, space = self.known, self.known.setup.space
        is_over = self.run.is_interrupted or self.run.left < NOISE_SECONDS + self.run.opening
        if is_over or known.setup.facts.loader_site is not None or known.noise_look or known.best is None:
            return None
        likely = (known.best.config, known.second_finalist(known.best.config))
        others = (each for each in likely if each and each.samples_per_update != space.base.samples_per_update)
        return Look("noise", space.base) if any(others) else None

    @property
    def _retaken(self) -> int:
        looks = [(each.part, each.config) for each in self.known.probes[self.run.looks :]]
        return len(looks) - len(set(looks))

    @property
    def _stop(self) -> Stop | None:
        known, most = self.known, self.run.most_trials
        begun = {trial.config for trial in known.trials} | {config for _, config in known.others}
        if most is not None and len(begun) >= most:
            return Stop(Ending.TRIALS, f"all {most} trials that were asked for are done")
        if self.known.is_settled:
            return Stop(Ending.COMPLETE, f"no setting that may vary gains {percent(NOTHING_LEFT)}")
        if self.run.is_exhausted:
            return Stop(Ending.COMPLETE, "the sampler has nothing new to propose")
        if reason := None if known.candidate else known.forecast.reason_to_stop:
            return Stop(Ending.COMPLETE, reason)
        return None if self.has_time else Stop(Ending.BUDGET, "the budget is spent")

    @property
    def has_time(self) -> bool:
        """Whether there is time for another trial, and for the stages after it."""
        return self.left >= self.trial_cost

    def look_request(self, look: Look) -> Request:
        """Return how a look is to be taken."""
        if look.part == "losses":
            return Request(seconds=0.0, time_limit=self.run.left + GRACE, part=look.part)
        seconds = {"numerics": NUMERICS_SECONDS, "noise": NOISE_SECONDS}.get(look.part, LOOK_SECONDS)
        is_started = look.part == "numerics" and self.known.setup.facts.loader_site is not None  # anew for each run
        limit = min(self._patience + is_started * STARTS * self.run.opening, self._time_limit)
        is_again = look.again > 0  # a session that is open keeps its step, and would tell the same
        return Request(seconds=seconds, time_limit=limit, part=look.part, seed=self.run.seed, fresh=is_again)

    def trial_request(self, config: Config) -> tuple[Request, float]:
        """Return how a trial is to be measured, and the seconds after which it is stuck."""
        request = replace(self.request, seed=self.run.seed)
        if self.run.stop is not None:  # of the other objective
            limit = min(self._patience, max(0.0, self.run.left - self._second_seconds) + SHARE_GRACE)
            return replace(request, time_limit=limit, fresh=self._is_fresh(config)), self._patience
        if not self.known.trials:
            limit = max(LEAST_BASELINE, self.run.left)
            return replace(request, time_limit=limit), limit
        known, forecast, best = self.known.observations, self.known.forecast, self.known.best
        low = best.measurement.ci95[0] if best and best.measurement and best.measurement.ci95 else None
        if config == known.baseline.config:
            low = None  # its whole window counts
        took = [trial.attempt.seconds for trial in known.trials if trial.measurement is not None]
        looks = known.looks if config.options else ()  # options may take long to begin with
        took += [look.first_step_seconds for own, look in looks if own.options == config.options]
        is_doubtful = forecast.is_doubtful[forecast.position[config]]
        stuck = self._patience if is_doubtful else max(LEAST_HANG, HANG_FACTOR * max(took))
        limit = min(stuck, self._time_limit)
        return replace(request, time_limit=limit, least_rate=low, fresh=self._is_fresh(config)), stuck

    def turn_request(self, turn: Turn) -> Request:
        """Return how a confirming measurement is to be made."""
        run = self.run
        proofs = (proof for proof in (run.second, run.proof) if proof and turn.round.startswith(f"{proof.name}-"))
        limit = max(LEAST_LIMIT, run.proof_left(next(proofs, None)) + GRACE)
        return replace(self.request, time_limit=limit, fresh=True, seed=turn.seed)

    @property
    def _patience(self) -> float:
        """The seconds after which a probe is given up, and a trial with workers where these have failed."""
        share = max(LEAST_LOOK, LOOK_SHARE * self.run.budget, 2 * self.known.baseline.attempt.seconds)
        return min(LOOK_LIMIT, share)

    @property
    def _time_limit(self) -> float:
        return max(0.0, self.left) + SHARE_GRACE

    @property
    def untried_precision(self) -> str | None:
        """An untried half precision that is allowed and may be faster."""
        return untried_precision(self.known.observations, self.known.setup.space)

    @property
    def plan(self) -> Plan:
        """The seconds that measurements take here, by the baseline's and by all openings so far.

        The lower median of these leaves out the few in which a process imports torch.
        """
        base = self.known.baseline
        assert base.measurement is not None
        attempts = [trial.attempt for trial in self.known.history] + [look.attempt for look in self.known.probes]
        openings = [each.opening for each in attempts if each.opening]
        return Plan(
            start=self.run.opening,
            opening=median_low([self.run.loading, *openings]),
            window=self.longest_window,
            epoch_samples=base.measurement.epoch_samples,
            base=base.config,
            base_rate=base.measurement.samples_per_second,
            base_seconds=base.attempt.seconds - base.attempt.opening,
        )

    @property
    def request(self) -> Request:
        """A measurement of training, as long and in the state that is due by now."""
        return Request(seconds=self.longest_window, later_epochs=self.known.observations.is_own_cache)

    @property
    def longest_window(self) -> float:
        """Seconds that a window may last, by the budget."""
        return min(LARGEST_CAP, max(LEAST_CAP, self.run.budget / 60))

    @property
    def left(self) -> float:
        """The seconds left before the stages after the search must begin."""
        return self.run.left - self.confirmation_seconds

    @property
    def confirmation_seconds(self) -> float:
        """Seconds set aside for the proof: three rounds at first, then its usual time, three rounds for a gain.

        After the first proof, those of the answer for the other objective too: it comes before a little more gain.
        """
        is_gain = self._fastest is not self.known.baseline
        if not is_gain and len(self.known.trials) <= FIRST_TRIALS:
            return self._least_proof + self.run.kept
        if self.proven is not None:
            return self.proof_seconds + (self._second_seconds if self.known.setup.space.second else 0.0)
        usual = min(CONFIRM_SHARE * self.run.budget, CONFIRM_ROUNDS * self.plan.base_round)
        return self.run.kept + max(usual, min(self.proof_seconds, PROOF_SHARE * self.run.budget) if is_gain else 0.0)

    def _look_seconds(self, config: Config) -> float:
        base, keys = self.known.baseline.config, self.known.observations.step_key
        is_open = keys(config).threads == keys(base).threads
        return LOOK_SECONDS + (0.0 if is_open else self.plan.start)

    @property
    def _least_proof(self) -> float:
        """Seconds set aside before any gain is known: three rounds where there was time for them, else one."""
        run, one = self.run, self.plan.base_round
        since = run.spent if run.looking is None else run.looking
        most = min(run.budget - since - LEAST_LOOKS * LOOK_SECONDS, PROOF_SHARE * run.budget)
        return min(most, LEEWAY * LEAST_ROUNDS * one) if LEEWAY * most >= LEAST_ROUNDS * one else one

    @property
    def proof_seconds(self) -> float:
        """Seconds of three rounds of the fastest trial so far."""
        return LEAST_ROUNDS * self.round_seconds(self._fastest)

    def round_seconds(self, trial: Trial) -> float:
        """Return the seconds of a round of the baseline and a trial."""
        return self._fresh_seconds(self.known.baseline) + self._fresh_seconds(trial)

    def _fresh_seconds(self, trial: Trial) -> float:
        """Return the seconds of a trial in a fresh process: as the rounds' took, before the first by its own."""
        config, plan = self.known.setup.space.with_persistence(trial), self.plan
        confirmed = [each for each in self.known.history if each.kind == "confirm" and each.measurement]
        if took := [each.attempt.seconds for each in confirmed if each.config == config]:
            return median(took)
        own = trial.attempt.seconds - trial.attempt.opening
        return plan.fresh(max(own, plan.trial(trial.config, trial.rate or plan.base_rate)))

    @property
    def _fastest(self) -> Trial:
        baseline = self.known.baseline
        fastest = max(self.known.trials, key=lambda trial: trial.rate or 0.0)
        return fastest if (fastest.rate or 0.0) >= (1 + GAIN) * (baseline.rate or 0.0) else baseline

    @property
    def trial_cost(self) -> float:
        """Seconds of the next trial of the search."""
        return self._trial_seconds(self.known.following, self.known.forecast)

    def _trial_seconds(self, config: Config | None, forecast: Forecast) -> float:
        """Return the seconds of a trial: a usual one's, but a hung one's, and what whole bursts and epochs add."""
        took = [trial.attempt.seconds for trial in self.known.trials[1:] if trial.outcome is not Outcome.TIMEOUT]
        usual = median(took or [self.known.baseline.attempt.seconds])
        return usual + (self.plan.excess(config, forecast.rate_of(config)) if config else 0.0)

    @property
    def measurement_seconds(self) -> float:
        """Seconds of a confirming measurement, about; after an interrupt its process imports torch anew."""
        start = self.run.opening - self.run.loading if self.run.is_interrupted else 0.0
        return self.round_seconds(self._fastest) / PAIR + start

    def finalists(self, seconds: float) -> tuple[list[Config], list[Config], int]:
        """Return the finalists for a proof of so many seconds, cheapest first; the same in order of entry.

        The third are the measurements of the baseline in each round.
        """
        known, space, failed = self.known, self.known.setup.space, self.failed
        most, baselines = finalists_for(seconds / self.measurement_seconds)
        likely = known.finalists(most, lambda trial: not {trial.config, space.with_persistence(trial)} & failed)
        finalists, entering = (
            list(dict.fromkeys(config for trial in trials if (config := space.with_persistence(trial)) != space.base))
            for trials in (sorted(likely, key=known.cost), likely)
        )
        untried = known.candidate
        if untried is None or self.run.is_interrupted or self.run.most_trials is not None:
            return finalists, entering, baselines
        if space.decides_persistence and untried.num_workers:  # whether its workers should live on is not known
            untried = replace(untried, persistent_workers=space.base.persistent_workers)
        return [untried], entering, baselines

    @property
    def _first_answer(self) -> Config:
        found = self.confirmation
        is_proven = found is not None and found.answer is not None and found.is_proven(found.answer)
        return found.answer if is_proven and found and found.answer else self.known.setup.space.base

    @property
    def _second_look(self) -> Look | None:
        known, space = self.known.observations, self.known.setup.space.second
        is_over = len(known.probes) - self.run.looked >= MOST_SECOND_LOOKS
        if space is None or is_over or not (planned := next_probe(known, space)):
            return None
        is_of_options = planned[1].options != space.base.options  # which the first search has looked at
        if is_of_options or self.run.left < self._look_seconds(planned[1]) + self._second_seconds:
            return None
        return self._planned_look(*planned)

    @property
    def _second_proposal(self) -> Config | None:
        trials, most = self.known.trials, self.run.most_trials
        since = self.proven if self.proven is not None else len(trials)
        is_over = len(trials) - since >= MOST_SECOND_TRIALS or (most is not None and len(trials) >= most)
        config, forecast = self.known.second_proposal(self._first_answer), self.known.second_forecast
        if is_over or config is None or forecast is None:
            return None
        return config if self.run.left >= self._trial_seconds(config, forecast) + self._second_seconds else None

    @property
    def _second_seconds(self) -> float:
        """Seconds of three rounds of the answer for the other objective: as those with its batch took, where known."""
        keeps_batch, base = self.known.setup.space.objective == "samples", self.known.baseline.config
        confirmed = [each for each in self.known.history if each.kind == "confirm" and each.measurement]
        took = [each.attempt.seconds for each in confirmed if each.config == base or not keeps_batch]
        return LEAST_ROUNDS * PAIR * (SECOND_LEEWAY * fmean(took) if took else self.measurement_seconds)

    def _is_fresh(self, config: Config) -> bool:
        """Return whether a process of its own is needed: without workers it would find what a trial before has read."""
        return not config.num_workers and any(trace.keeps_samples for trace in self.known.observations.traces)

    @property
    def failed(self) -> set[Config]:
        """The configurations that failed in a proof, of earlier runs too."""
        known = self.known
        compared = (*known.compared(), *known.compared(second=True))
        return {trial.config for trial in compared if has_failed(trial)}

    @property
    def rounds(self) -> int:
        """Rounds of the proof that this run has begun."""
        return len({trial.round for trial in self.known.history if self.run.holds(trial)})

    def _in_words(self, stop: Stop) -> str:
        left = self.run.left
        if stop.ending is not Ending.BUDGET or left < min(self.trial_cost, LITTLE * self.run.budget):
            return stop.text
        rest, longer = format_duration(left), self._longer_budget
        return f"{rest} are left, too little for another trial and its confirmation (--budget {longer} allows more)"

    def _wanted(self, stop: Stop) -> str:
        """Return the remedy for an undecided run; empty after an interrupt, and where the alternative was slower."""
        if stop.ending is Ending.INTERRUPTED:
            return ""
        longer, found = self._longer_budget, self.confirmation
        if amp := self.untried_precision:
            needs_memory = self.known.observations.halvings(amp)
            return f"memory to compare {amp} with fp32" if needs_memory else f"time to try {amp} (--budget {longer})"
        if stop.ending is Ending.COMPLETE and not self.known.rivals and not self.rounds:
            return "another configuration (no other is allowed, or none could run)"
        if stop.ending is Ending.TRIALS:
            return f"more than {self.run.most_trials} trials (--trials)"
        if self.rounds >= MAX_ROUNDS:
            return f"more than {MAX_ROUNDS} rounds (with --storage FILE the rounds of several runs add up)"
        if found is not None and found.is_hopeless:
            return "rounds that differ less: the gain is smaller than their differences"
        is_slower = found is not None and found.answer is not None and found.speedup(found.answer) < 1
        return "" if is_slower else f"more time (--budget {longer})"

    @property
    def _longer_budget(self) -> str:
        return longer_budget(self.run.budget, self.plan.budget(self.run.opening))
