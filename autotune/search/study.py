"""The search as one Optuna study: what is measured next, and what is recorded of it.

Optuna asks a sampler that recomputes its state from what is known, so a study that is opened again continues. The study
itself is in memory; each trial, look and confirmation goes to the keeper as soon as it has ended.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, IntDistribution
from optuna.samplers import BaseSampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState, create_trial

from autotune.config import Config
from autotune.encoding import to_json
from autotune.errors import StorageError
from autotune.host import Host
from autotune.interrupts import shielded
from autotune.records import Attempt, Kind, Outcome, Part, Probe, Trial, WorkloadFacts
from autotune.room import DEFAULT_ROOM, MemoryRoom
from autotune.search.identity import identify
from autotune.search.keeping import Keeper, Kept
from autotune.search.knowledge import Knowledge
from autotune.search.outlook import Outlook, cost, feasible, look_ahead
from autotune.search.soundness import reason_against
from autotune.search.space import KNOBS, Space
from autotune.search.stopping import GAIN

__all__ = ["TuningStudy", "open_study"]

WORTH_CONFIRMING = 0.005
"""Logarithm of the least gain that must be expected of the best for it to be measured again beside the baseline."""
PLAUSIBLE = 1.5
"""Standard deviations by which a trial's expected rate may lie below the best for it to be measured again."""


class TuningStudy:
    """An Optuna study over a space, with typed records in and out."""

    def __init__(
        self, space: Space, facts: WorkloadFacts, host: Host, room: MemoryRoom, keeper: Keeper, kept: Kept
    ) -> None:
        self._space = space
        self._facts = facts
        self._host = host
        self.room = room
        self._keeper = keeper
        self._records, self._probes = list(kept.trials), list(kept.probes)
        self._confirmations = list(kept.confirmations)
        self._outlook: tuple[int, Outlook] | None = None
        self._study = optuna.create_study(direction="maximize", sampler=_Sampler(self))
        self._asked: optuna.Trial | None = None

    @property
    def trials(self) -> tuple[Trial, ...]:
        """The trials that ran, in order."""
        return tuple(record for record in self._records if record.kind != "skipped")

    @property
    def skipped(self) -> tuple[Trial, ...]:
        """The configurations that were never run, and why."""
        return tuple(record for record in self._records if record.kind == "skipped")

    @property
    def probes(self) -> tuple[Probe, ...]:
        """The short looks at steps and at the loader, in order."""
        return tuple(self._probes)

    @property
    def knowledge(self) -> Knowledge:
        """All that was found out so far."""
        return Knowledge(facts=self._facts, host=self._host, room=self.room, trials=self.trials, probes=self.probes)

    @property
    def outlook(self) -> Outlook:
        """The whole space as it looks now; only after the baseline was measured."""
        version = len(self._records) + len(self._probes)
        if self._outlook is None or self._outlook[0] != version:
            self._outlook = version, look_ahead(self.knowledge, self._space)
        return self._outlook[1]

    @property
    def best(self) -> Trial | None:
        """The measured configuration that is expected to be the fastest, given all measurements."""
        return self.outlook.best if self.trials else None

    def finalists(self, most: int) -> tuple[Trial, ...]:
        """Return the trials that may be the answer, ``most`` at most, the cheapest first; the baseline is none.

        Chosen first is the cheapest of those that are as fast as the best, within what counts as a gain, then those
        whose rate may well be as high, the fastest first.
        """
        outlook, baseline = self.outlook, self.trials[0]
        if outlook.best_log - math.log(outlook.rate_of(baseline.config)) < WORTH_CONFIRMING:
            return ()
        gaps = [(outlook.best_log - math.log(outlook.rate_of(trial.config)), trial) for trial in self._rivals]
        first = min((trial for gap, trial in gaps if gap <= math.log(1 + GAIN)), key=self._cost, default=None)
        if first is None:
            return ()
        near = [
            (gap, trial.number, trial)
            for gap, trial in gaps
            if gap <= max(math.log(1 + GAIN), PLAUSIBLE * outlook.error_of(trial.config)) and trial != first
        ]
        return tuple(sorted([first, *(trial for *_, trial in sorted(near)[: most - 1])], key=self._cost))

    @property
    def _rivals(self) -> list[Trial]:
        """What the baseline is compared with: a study that goes on may hold what is not allowed any more."""
        known, position = self.knowledge, self.outlook.position
        trials = [trial for trial in feasible(known) if trial.number and trial.config in position]
        return [trial for trial in trials if known.distrust(trial.config.amp) is None]

    def _cost(self, trial: Trial) -> tuple[Any, ...]:
        """Order trials of equal speed: by what the configuration takes, then by memory."""
        peak = trial.measurement.peak_memory_bytes if trial.measurement else 0
        return (*cost(trial.config, self._space.base), peak)

    def ask(self) -> tuple[Config, Kind]:
        """Return the next configuration to measure, never one that was measured before.

        Raises ``ValueError`` when none is left that could win.
        """
        kind: Kind = "search" if self.trials else "baseline"
        if kind == "search" and self.outlook.proposal() is None:
            raise ValueError("no configuration is left that could win")
        self._asked = trial = self._study.ask(self._distributions())
        return self._space.config(tuple(trial.params[knob] for knob in KNOBS)), kind

    def tell(self, attempt: Attempt, config: Config, kind: Kind) -> Trial:
        """Record what became of the configuration that was asked for last."""
        assert self._asked is not None
        trial, self._asked = self._asked, None
        record = _record(len(self.history), kind, config, attempt)
        if kind == "search":
            record = replace(record, predicted=self.outlook.rate_of(config), bound=self.outlook.bound(config))
        with shielded():  # what has ended is known and kept, or neither
            trial.set_user_attr("record", to_json(record))
            trial.set_constraint("feasible", self._violation(record))
            if record.outcome is Outcome.OK and record.rate is not None:
                frozen = self._study.tell(trial, record.rate)
            else:
                frozen = self._study.tell(trial, state=TrialState.PRUNED)
            if record.kind != "baseline" or record.measurement is not None:  # it is measured again until it works
                self._records.append(record)
                self._keeper.trial(frozen)
        return record

    def _violation(self, record: Trial) -> float:
        """Return by which share a trial exceeds the memory that may be used; 1 where it gave no number."""
        if record.outcome is not Outcome.OK or record.measurement is None:
            return 1.0
        measured = record.measurement
        return measured.peak_memory_bytes / self.room.of(measured.memory_limit_bytes) - 1

    def record_skipped(self) -> None:
        """Record what was left out although it might be missed, and why."""
        known = {record.config for record in self._records}
        for config, message, bound in self.outlook.left_out(self.knowledge):
            if config not in known:
                self._skip(config, message, bound)

    def _skip(self, config: Config, message: str, bound: float) -> None:
        attempt = Attempt(outcome=Outcome.SKIPPED, message=message)
        expected = self.outlook.rate_of(config)
        record = replace(_record(len(self.history), "skipped", config, attempt), bound=bound, predicted=expected)
        frozen = create_trial(
            state=TrialState.PRUNED,
            params=dict(zip(KNOBS, self._space.point(config), strict=True)),
            distributions=self._distributions(),
            user_attrs={"record": to_json(record)},
            constraints={"feasible": 1.0},
        )
        with shielded():
            self._records.append(record)
            self._keeper.trial(frozen)

    def looked(self, part: Part, config: Config, attempt: Attempt) -> Probe:
        """Record a short look beside the study's trials."""
        message = attempt.message
        if part == "numerics":
            message = _reason_against(attempt, config.amp)
        probe = Probe(
            part=part,
            config=config,
            outcome=attempt.outcome,
            compute=attempt.compute,
            loader=attempt.loader,
            numerics=attempt.numerics,
            message=message,
            seconds=attempt.seconds,
        )
        with shielded():
            self._probes.append(probe)
            self._keeper.look(probe)
        return probe

    def confirmed(self, attempt: Attempt, config: Config) -> Trial:
        """Record a confirmation beside the study's trials, out of the sampler's sight."""
        record = _record(len(self.history), "confirm", config, attempt)
        with shielded():
            self._confirmations.append(record)
            self._keeper.confirmation(record)
        return record

    @property
    def history(self) -> tuple[Trial, ...]:
        """Every trial, confirmations last."""
        return (*self._records, *self._confirmations)

    def abandon(self) -> None:
        """Give up the trial that was asked for, as when the user interrupts it."""
        if self._asked is not None:
            self._study.tell(self._asked, state=TrialState.FAIL)
            self._asked = None

    def next_indices(self) -> dict[str, int]:
        """Return the next point to measure: the baseline, then what is likely to win most."""
        config = self.outlook.proposal() if self.trials else self._space.base
        assert config is not None
        return dict(zip(KNOBS, self._space.point(config), strict=True))

    def _distributions(self) -> dict[str, BaseDistribution]:
        return {knob: IntDistribution(0, len(self._space.values[knob]) - 1) for knob in KNOBS}


class _Sampler(BaseSampler):
    """Proposes what the study's outlook does: a Gaussian process around the prediction, over the whole space.

    Optuna's own samplers know nothing of the machine; on simulated ones they are far behind for thirty trials.
    """

    def __init__(self, owner: TuningStudy) -> None:
        self._owner = owner

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """Return the whole space: every knob is always suggested."""
        return self._owner._distributions()

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Return the indices of the next point."""
        return dict(self._owner.next_indices())

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Return a knob of the next point; reached only where Optuna asks for one knob alone."""
        return self._owner.next_indices()[param_name]


def open_study(
    space: Space,
    facts: WorkloadFacts,
    host: Host,
    *,
    keeper: Keeper | None = None,
    room: MemoryRoom = DEFAULT_ROOM,
) -> TuningStudy:
    """Open a study; what the keeper has of the same workload, machine, versions and settings is continued.

    Raises ``StorageError`` when what is kept cannot be used.
    """
    keeper = keeper or Keeper()
    kept = keeper.open(identify(facts, host, space))
    if kept.trials and kept.trials[0].config != space.base:
        keeper.close()
        raise StorageError(f"{keeper.location}: is damaged: its first trial is not the baseline; name another file")
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        return TuningStudy(space, facts, host, room, keeper, kept)
    finally:
        optuna.logging.set_verbosity(verbosity)


def _reason_against(attempt: Attempt, amp: str) -> str:
    if attempt.numerics is None:
        return f"whether {amp} trains this model like fp32 could not be checked: {attempt.message or attempt.outcome}"
    return reason_against(attempt.numerics, amp) or ""


def _record(number: int, kind: Kind, config: Config, attempt: Attempt) -> Trial:
    return Trial(
        number=number,
        kind=kind,
        config=config,
        outcome=attempt.outcome,
        measurement=attempt.measurement,
        message=attempt.message,
        details=attempt.details,
        seconds=attempt.seconds,
    )
