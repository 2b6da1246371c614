"""The search as one Optuna study: it proposes configurations and records their trials."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from typing import Any

import optuna
from optuna.distributions import IntDistribution
from optuna.exceptions import UpdateFinishedTrialError
from optuna.samplers import BaseSampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from autotune.config import WITHOUT_WORKERS, Config
from autotune.encoding import from_json, to_json
from autotune.errors import StorageError
from autotune.messages import Messages
from autotune.probes import reason_against
from autotune.proof import Turn
from autotune.records import Attempt, Kind, Part, Probe, Trial
from autotune.report.result import Result
from autotune.search.known import Known
from autotune.search.run import End, Run
from autotune.search.sampler import PredictiveSampler, Seen, running, says_what_it_measures
from autotune.search.setup import SETUP, Setup
from autotune.storage.identity import identify
from autotune.storage.open import StudyStorage, quiet_optuna
from autotune.storage.trials import END, FEASIBLE, RUN, frozen_trial, write_end, write_look, write_trial

LONGEST_MESSAGE, LONGEST_DETAILS = 1000, 4000
"""Characters of the user's own messages in a record, each of up to 12 bytes as JSON: MySQL takes 64 KiB for a whole."""
MOST_REPEATS = 200
"""Proposals in a row that were measured before, or would not fit, after which another sampler has nothing new."""
UNCLEAR_SECONDS, AGAIN = 5.0, 0.05
"""Seconds for which a tuner waits at most for an earlier one to say what it measures, and between two looks at it."""


class TuningStudy:
    """An Optuna study over a space, with typed records in and out."""

    def __init__(self, storage: StudyStorage, setup: Setup, sampler: BaseSampler) -> None:
        self._storage = storage
        self.setup = setup
        self._sampler = sampler
        self._predictive = sampler if isinstance(sampler, PredictiveSampler) else PredictiveSampler()
        self._asked: tuple[Study, optuna.Trial] | None = None
        self.is_exhausted = False
        """Whether the sampler had nothing new to propose."""
        self.open_run = _open_run(storage, setup)
        """The run of this study that was killed, where it asked the same; ``None`` where others may still go on."""
        storage.do(setup.write)

    @property
    def known(self) -> Known:
        """All that is known now."""
        mine = self._asked[1].number if self._asked else None
        return self._predictive.known(Seen(self._storage.trials, self._storage.attributes, mine))

    def refresh(self) -> None:
        """Take in the trials of other tuners of a shared study."""
        self._storage.refresh()

    def ask(self, most: int | None = None) -> tuple[Config, Kind] | None:
        """Begin a trial of the next configuration, never one that was measured before but for the baseline.

        ``None`` where another tuner of a shared study has just taken it, or the last of ``most`` trials: ``refresh``
        tells what is next then. Raises ``ValueError`` when none is left that could win, or the sampler has none.
        """
        kind: Kind = "baseline" if self.known.needs_baseline else "search"
        if kind == "search" and self.known.following is None:
            raise ValueError("no configuration is left that could win")
        for _ in range(MOST_REPEATS):
            config, number = self._storage.do(self._begin)
            if self._is_taken(config, number, most):
                self.abandon()
                return None
            if kind == "baseline" or not self._is_refused(config):
                return config, kind
        self.is_exhausted = True
        return None

    def _begin(self, study: Study) -> tuple[Config, int]:
        if self.known.needs_baseline and self._sampler is not self._predictive:
            study.enqueue_trial(self.setup.settings(self.setup.space.base))
        trial, settings = study.ask(), dict[str, Any]()
        self._asked = study, trial
        for knob, known in self.setup.distributions.items():
            if knob in WITHOUT_WORKERS and not settings["num_workers"]:
                continue
            if isinstance(known, IntDistribution):
                settings[knob] = trial.suggest_int(knob, known.low, known.high, step=known.step)
            else:
                settings[knob] = trial.suggest_categorical(knob, known.choices)
        self._storage.beat(trial)
        return self.setup.config(settings), trial.number

    def _is_taken(self, config: Config, number: int, most: int | None) -> bool:
        """Return whether an earlier trial of another tuner measures the same, or was the last of ``most``."""
        for _ in range(round(UNCLEAR_SECONDS / AGAIN)):
            earlier = [each for each in self._storage.trials if each.number < number]
            if all(each.state is not TrialState.RUNNING or says_what_it_measures(each, self.setup) for each in earlier):
                break
            time.sleep(AGAIN)  # one of them does not say yet what it measures
            self.refresh()
        taken = {other for _, other in running(self.setup, earlier)}
        begun = taken.union(trial.config for trial in self.known.trials)
        return config in taken or (most is not None and config not in begun and len(begun) >= most)

    def _is_refused(self, config: Config) -> bool:
        """Return whether a proposal is not to be measured; the sampler then hears the rate of a trial alike, if any."""
        assert self._asked is not None
        known = self.known
        same = next((trial for trial in known.trials if trial.config == config), None)
        is_allowed = config in known.forecast.position and known.forecast.refusal(config) is None
        if same is None and is_allowed:
            return False
        rate = same.rate if same else None
        if same is None:
            self._asked[1].set_constraint(FEASIBLE, 1.0)
        state = TrialState.PRUNED if rate is None else TrialState.COMPLETE
        self._end(lambda study, trial: study.tell(trial, rate, state=state))
        return True

    def _end(
        self, write: Callable[[Study, optuna.Trial], object], otherwise: Callable[[Study], object] | None = None
    ) -> None:
        """End the trial that was asked for; otherwise where others took this tuner for gone, or its storage failed."""
        assert self._asked is not None
        (begun_in, trial), self._asked = self._asked, None

        def end(study: Study) -> None:
            if study is begun_in:
                with suppress(UpdateFinishedTrialError):
                    write(study, trial)
                    return
            if otherwise is not None:
                otherwise(study)

        self._storage.do(end)

    def abandon(self) -> None:
        """Give up the trial that was asked for, as when the user interrupts it."""
        if self._asked is not None:
            self._end(lambda study, trial: study.tell(trial, state=TrialState.FAIL))

    def beating(self) -> AbstractContextManager[None]:
        """Show the others that the trial that was asked for is being measured for as long as this lasts."""
        return self._storage.beating(self._asked[1]) if self._asked else nullcontext()

    def tell(self, attempt: Attempt, config: Config, kind: Kind) -> Trial:
        """Record the outcome of a configuration: the one that was asked for last, or one that no sampler proposed."""
        if self._asked is None:
            return self._add(Trial(number=0, kind=kind, config=config, attempt=_bounded(attempt)))
        record = Trial(number=self._asked[1].number, kind=kind, config=config, attempt=_bounded(attempt))
        if kind == "search":
            forecast = self.known.forecast
            record = replace(record, predicted=forecast.rate_of(config), bound=forecast.bound(config))
        self._end(
            lambda study, trial: write_trial(study, trial, record, self._violation(record)),
            lambda study: study.add_trial(self._frozen(record)),
        )
        return record

    def _frozen(self, record: Trial) -> FrozenTrial:
        settings, values = self.setup.settings(record.config), self.setup.space.values
        if record.config.batch_size not in values["batch_size"]:  # of the other objective
            del settings["batch_size"]
        known = {knob: found for knob, found in self.setup.distributions.items() if knob in settings}
        return frozen_trial(record, settings, known, self._violation(record))

    def _violation(self, record: Trial) -> float:
        measured = record.measurement
        if measured is None:
            return 1.0
        return measured.epoch_peak_bytes / self.setup.memory_limit.of(measured.memory_limit_bytes) - 1

    def looked(self, part: Part, config: Config, attempt: Attempt, again: int = 0) -> Probe:
        """Record a probe beside the study's trials, which was taken ``again`` times before."""
        further = ", ".join(option for option in self.setup.space.options if option in config.options)
        message = _reason_against(attempt, config.amp, further) if part == "numerics" else attempt.message
        probe = Probe(
            part=part,
            config=config,
            attempt=_bounded(replace(attempt, message=message)),
            after=len(self._storage.trials),
            again=again,
        )
        self._storage.do(lambda study: write_look(study, probe))
        return probe

    def confirmed(self, attempt: Attempt, turn: Turn) -> Trial:
        """Record a measurement of a round of confirmation as a trial that has ended."""
        return self._add(turn.trial(_bounded(attempt)))

    def _add(self, record: Trial) -> Trial:
        self._storage.do(lambda study: study.add_trial(self._frozen(record)))
        alike = (
            each for each in reversed(self.known.measured) if (each.kind, each.round) == (record.kind, record.round)
        )
        return next(each for each in alike if each.config == record.config)

    def write_run(self, run: Run) -> None:
        """Write a run as far as it has come."""
        self._storage.do(lambda study: study._storage.set_study_system_attr(study._study_id, RUN, to_json(run)))

    def write_end(self, end: End, result: Result) -> None:
        """Write the end of the run to the study, and its result for people."""
        self._storage.do(lambda study: write_end(study, to_json(end), result))


def open_study(
    setup: Setup,
    *,
    storage: StudyStorage | None = None,
    sampler: BaseSampler | None = None,
    messages: Messages | None = None,
) -> TuningStudy:
    """Open a study, continued from the storage's for the same workload, machine, versions and settings.

    Raises ``StorageError`` when the kept study cannot be used.
    """
    storage, sampler = storage or StudyStorage(), sampler or PredictiveSampler()
    if not isinstance(sampler, PredictiveSampler):
        with quiet_optuna():
            sampler = setup.fixed(sampler)
    storage.open(identify(setup.facts, setup.host, setup.space.fingerprint), sampler, messages)
    study = TuningStudy(storage, setup, sampler)
    if study.known.trials and study.known.baseline.config != setup.space.base:
        storage.close()
        raise StorageError(f"{storage.location}: is damaged: its first trial is not the baseline; name another file")
    return study


def _open_run(storage: StudyStorage, setup: Setup) -> Run | None:
    attributes = storage.attributes
    if not storage.is_own or RUN not in attributes or Setup.of(attributes[SETUP]).space != setup.space:
        return None
    run = from_json(Run, attributes[RUN])
    is_over = END in attributes and from_json(End, attributes[END]).run.name == run.name
    return None if is_over else run


def _reason_against(attempt: Attempt, amp: str, further: str) -> str:
    if attempt.numerics is None:
        why = attempt.message or attempt.outcome
        return f"whether {further or amp} trains this model like fp32 could not be checked: {why}"
    return reason_against(attempt.numerics, amp, further) or ""


def _bounded(attempt: Attempt) -> Attempt:
    """Return an attempt with texts that any database takes: the begin of a message, the end of details."""
    return replace(attempt, message=attempt.message[:LONGEST_MESSAGE], details=attempt.details[-LONGEST_DETAILS:])
