"""The running measurements of a shared study's tuners: Optuna trials in state RUNNING, with a heartbeat each.

A configuration is claimed before it is measured, and whoever finds it claimed or measured by then, by an earlier trial,
withdraws. The claim of a tuner that is gone is failed by the others, so it stands in no one's way.
"""

from __future__ import annotations

import copy
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.exceptions import ExperimentalWarning, UpdateFinishedTrialError
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, TrialState, create_trial
from sqlalchemy import text

from autotune.config import Config
from autotune.errors import UsageError
from autotune.records import Kind
from autotune.storage import study_records as stored
from autotune.storage.server import Heartbeat
from autotune.storage.study_records import RECORD

CLAIM = "autotune:claim"
"""System attribute of a trial that is being measured: its configuration, why, and who measures it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """The running measurement of a tuner."""

    config: Config
    """The configuration."""
    kind: Kind
    """Why it is measured."""
    by: str
    """Which tuner measures it: host and process."""


@dataclass(slots=True)
class Claim:
    """A trial of this tuner's own."""

    trial_id: int | None = None
    """How the storage numbers it; ``None`` where it is not there yet."""
    number: int | None = None
    """Its number in the study."""
    is_over: threading.Event = field(default_factory=threading.Event)
    """Ends its heartbeat."""


class Claims:
    """The claims in one study of a database, which was opened with a heartbeat."""

    def __init__(
        self, database: RDBStorage, study_id: int, heartbeat: Heartbeat, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._database = database
        self.storage = optuna.storages.get_storage(database)
        """The database, whose ended trials are read only once."""
        self._study_id = study_id
        self._heartbeat = heartbeat
        self._now = now
        self._seen: dict[int, float] = {}
        self._own: list[Claim] = []
        self._study = optuna.load_study(study_name=database.get_study_name_from_id(study_id), storage=database)

    def begin(self, planned: FrozenTrial) -> Claim:
        """Claim a configuration before its measurement: from now on others see it."""
        trial_id = self._database.create_new_trial(self._study_id, template_trial=planned)
        claim = Claim(trial_id, self._database.get_trial(trial_id).number)
        self._own.append(claim)
        self._database.record_heartbeat(trial_id)
        threading.Thread(target=self._beat, args=(claim, trial_id), daemon=True).start()
        return claim

    def is_needless(self, planned: FrozenTrial, claim: Claim | None = None, most: int | None = None) -> bool:
        """Return whether another tuner was faster: it has measured the same, or claimed it, before ``claim`` if any.

        With a claim also whether ``most`` configurations were begun before.
        """
        trials = self.storage.get_all_trials(self._study_id, deepcopy=False)
        trial_id = claim.trial_id if claim else None
        others = [other for other in trials if other._trial_id != trial_id]
        if trial_id is not None and most is not None:
            before = [other for other in others if other._trial_id < trial_id]
            if count_begun(before) >= most:
                return True
        return any(conflicts(planned, trial_id, other) for other in others)

    def withdraw(self, claim: Claim) -> None:
        """Give a claim back: nothing came of it."""
        claim.is_over.set()
        if claim.trial_id is not None:
            with suppress(UpdateFinishedTrialError):  # the others have taken this tuner for gone
                self._database.set_trial_user_attr(claim.trial_id, "outcome", "withdrawn")
                self._database.set_trial_state_values(claim.trial_id, TrialState.FAIL)

    def complete(self, claim: Claim, frozen: FrozenTrial, note: str = "") -> None:
        """Write the result of a claim: into the same trial, or a new one where others failed it meanwhile.

        May be called again where it was cut off.
        """
        try:
            self._fill(claim, frozen, note)
        except UpdateFinishedTrialError:
            assert claim.trial_id is not None
            if self._database.get_trial(claim.trial_id).state is TrialState.FAIL:
                claim.trial_id = None
                self._fill(claim, frozen, note)
        claim.is_over.set()

    def others(self, trials: Sequence[FrozenTrial] | None = None) -> tuple[Claimed, ...]:
        """Return the running measurements of other tuners, of ``trials`` if just read; this tuner has no claim."""
        trials = self.storage.get_all_trials(self._study_id, deepcopy=False) if trials is None else trials
        found = [claimed(trial) for trial in trials if trial.state is TrialState.RUNNING]
        return tuple(claim for claim in found if claim and claim.kind != "skipped")

    def fail_stale(self) -> None:
        """Fail the claims of tuners that are gone."""
        with warnings.catch_warnings(action="ignore", category=ExperimentalWarning):
            optuna.storages.fail_stale_trials(self._study)
        now = self._now()
        trials = self._database.get_all_trials(self._study_id, deepcopy=False, states=(TrialState.RUNNING,))
        seen = {trial._trial_id: self._seen.setdefault(trial._trial_id, now) for trial in trials}
        if late := {trial_id for trial_id, first in seen.items() if now - first > self._heartbeat.grace}:
            query = "SELECT trial_id FROM trial_heartbeats JOIN trials USING (trial_id) WHERE study_id = :study"
            with self._database.engine.connect() as connection:
                alive = set(connection.execute(text(query), {"study": self._study_id}).scalars())
            for trial_id in late - alive:
                # Its tuner was killed before the first sign of life, without which Optuna waits for ever.
                self._database.record_heartbeat(trial_id)
            self._seen.update(dict.fromkeys(late, float("inf")))

    def close(self) -> None:
        """Let the remaining claims become stale."""
        for claim in self._own:
            claim.is_over.set()

    def _fill(self, claim: Claim, frozen: FrozenTrial, note: str) -> None:
        if claim.trial_id is None:
            planned = copy.copy(frozen)
            planned.state, planned.value, planned.datetime_complete = TrialState.RUNNING, None, None
            claim.trial_id = self._database.create_new_trial(self._study_id, template_trial=planned)
            claim.number = self._database.get_trial(claim.trial_id).number
        assert claim.number is not None
        numbered = _renumbered(frozen, claim.number)
        for key, value in numbered.user_attrs.items():
            self._database.set_trial_user_attr(claim.trial_id, key, value)
        for key, value in numbered.system_attrs.items():
            self._database.set_trial_system_attr(claim.trial_id, key, value)
        if note:
            stored.save_note(self._database, self._study_id, note, claim.trial_id)
        self._database.set_trial_state_values(claim.trial_id, frozen.state, frozen.values)

    def _beat(self, claim: Claim, trial_id: int) -> None:
        """Show that this tuner is alive; where the server is away, once it is back."""
        while not claim.is_over.wait(self._heartbeat.interval):
            with suppress(Exception):  # whatever the driver raises; the search itself hears of it when it writes
                self._database.record_heartbeat(trial_id)
        self._database.remove_session()  # of this thread


def planned_trial(
    claim: Claimed, settings: Mapping[str, Any], distributions: Mapping[str, BaseDistribution]
) -> FrozenTrial:
    """Return a trial that is about to be measured as Optuna keeps it."""
    return create_trial(
        state=TrialState.RUNNING,
        params=dict(settings),
        distributions=dict(distributions),
        user_attrs={"kind": claim.kind, "measured by": claim.by},
        system_attrs={CLAIM: {"config": claim.config.to_document(), "kind": claim.kind, "by": claim.by}},
    )


def claimed(trial: FrozenTrial) -> Claimed | None:
    """Return the claim in a trial; ``None`` where the trial is not autotune's, or damaged: it blocks no tuner."""
    found: Any = trial.system_attrs.get(RECORD) or trial.system_attrs.get(CLAIM)
    try:
        by = trial.user_attrs.get("measured by", "")
        return Claimed(config=Config.from_document(found["config"]), kind=found["kind"], by=str(by))
    except (AttributeError, KeyError, TypeError, UsageError):
        return None


def conflicts(planned: FrozenTrial, trial_id: int | None, other: FrozenTrial) -> bool:
    """Return whether another trial makes a planned one needless; of two claims the earlier one counts.

    ``trial_id`` is the id of the planned trial; ``None`` before its claim, where every running trial counts. A running
    trial that only marks a configuration as skipped, left by a killed tuner, keeps no other tuner from measuring.
    """
    if planned.params != other.params:
        return False
    mine, theirs = claimed(planned), claimed(other)
    if mine is None or theirs is None or mine.config != theirs.config:
        return False
    if other.state is TrialState.RUNNING:
        is_earlier = trial_id is None or other._trial_id < trial_id
        return is_earlier and (theirs.kind != "skipped" or mine.kind == "skipped")
    if other.state not in (TrialState.COMPLETE, TrialState.PRUNED) or RECORD not in other.system_attrs:
        return False
    if theirs.kind == "baseline":
        return other.system_attrs[RECORD].get("measurement") is not None  # one that failed is measured again
    return theirs.kind != "skipped" or mine.kind == "skipped"


def is_begun(trial: FrozenTrial) -> bool:
    """Return whether a trial counts where their number is limited: it is being measured, or was."""
    about = claimed(trial)
    if about is None or about.kind == "skipped" or trial.state is TrialState.FAIL:
        return False
    failed = trial.state is not TrialState.RUNNING and trial.system_attrs.get(RECORD, {}).get("measurement") is None
    return about.kind != "baseline" or not failed  # a baseline that failed is measured again


def count_begun(trials: Iterable[FrozenTrial]) -> int:
    """Return how many configurations are being measured or were."""
    return len({about.config for trial in trials if is_begun(trial) and (about := claimed(trial))})


def _renumbered(frozen: FrozenTrial, number: int) -> FrozenTrial:
    """Return an ended trial with its number in the storage."""
    record = frozen.system_attrs[RECORD]
    if record["number"] == number:
        return frozen
    found = copy.copy(frozen)
    found.system_attrs = {**frozen.system_attrs, RECORD: {**record, "number": number}}
    found.user_attrs = {**frozen.user_attrs, "trial": number}
    return found
