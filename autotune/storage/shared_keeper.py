"""Keeps a study on a database server, where several tuners may add to it at the same time.

The search does not depend on the server: where it fails, the tuner ends its run alone, with the study in a file.
"""

from __future__ import annotations

import copy
import logging
import os
import platform
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from optuna.distributions import BaseDistribution
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, TrialState

from autotune.config import Config
from autotune.encoding import to_json
from autotune.errors import StorageError
from autotune.records import Kind, Probe, Trial
from autotune.signals import shielded
from autotune.storage import study_records as stored
from autotune.storage.keeper import Keeper, Write, quiet_optuna
from autotune.storage.server import (
    HEARTBEAT,
    LIMITS,
    Heartbeat,
    Limits,
    is_shared,
    open_database,
    reason_of,
    require_driver,
    require_writable,
)
from autotune.storage.study_records import Kept
from autotune.storage.trial_claims import Claim, Claimed, Claims, planned_trial

LOCAL = Path("autotune.study")

Answer = TypeVar("Answer")


class SharedKeeper(Keeper):
    """Keeps one study on a server, and reads the trials of others.

    ``local`` is the file in which, with the tuner's own name added, the study lies once the server has failed.
    """

    def __init__(
        self, location: str, *, local: Path = LOCAL, heartbeat: Heartbeat = HEARTBEAT, limits: Limits = LIMITS
    ) -> None:
        super().__init__(location)
        self._url = location
        self._tuner = secrets.token_hex(4)
        self._by = f"{platform.node()}, process {os.getpid()}"
        self._heartbeat, self._limits = heartbeat, limits
        self._database: RDBStorage | None = None
        self._server: Claims | None = None
        self._claim = Claim()
        self._count = 0
        self._parsed: dict[object, Trial] = {}
        self._known, self._ended = Kept(), tuple[FrozenTrial, ...]()
        self._since: list[Write] = []
        self._local_path = local.with_name(f"{local.stem}-{self._tuner}.study")
        self._local: Keeper | None = None
        self._lost: str | None = None
        """The reason why the server has failed."""

    def refresh(self) -> Kept | None:
        """Return the study's content now, with the trials of others; ``None`` where the server has failed."""
        self.claims = ()
        return self._ask(lambda server: self._look_around(), None)

    def claim(
        self,
        config: Config,
        kind: Kind,
        settings: Mapping[str, Any],
        distributions: Mapping[str, BaseDistribution],
        most: int | None = None,
    ) -> bool:
        """Claim a configuration before its measurement; return whether no other has it, or the last of ``most``."""
        planned = planned_trial(Claimed(config=config, kind=kind, by=self._by), settings, distributions)

        def is_mine(server: Claims) -> bool:
            if server.is_needless(planned):  # most often it is known by now, and nothing need be withdrawn
                return False
            self._claim = server.begin(planned)
            return not server.is_needless(planned, self._claim, most)

        is_free = self._ask(is_mine, otherwise=True)
        if not is_free:
            self.withdraw()
        return is_free

    def withdraw(self) -> None:
        """Give the last claim back; where the server has failed it becomes stale."""
        claim, self._claim = self._claim, Claim()
        claim.is_over.set()
        if claim.trial_id is not None:
            self._ask(lambda server: server.withdraw(claim), None)

    @property
    def number(self) -> int | None:
        """The number of the trial that was claimed last; ``None`` where the server has failed."""
        return self._claim.number

    def trial(self, frozen: FrozenTrial, note: str = "") -> None:
        """Keep a trial that has ended, as the result of the last claim."""
        claim, self._claim = self._claim, Claim()
        frozen = copy.copy(frozen)
        frozen.user_attrs = {**frozen.user_attrs, "measured by": self._by}
        self._keep(
            lambda storage, study_id: stored.write_trial(storage, study_id, frozen, note),
            lambda server: server.complete(claim, frozen, note),
        )
        claim.is_over.set()  # also where the server did not take it: nobody need wait for this tuner

    def look(self, probe: Probe) -> None:
        """Keep a probe."""
        self._append(stored.LOOK, probe)

    def confirmation(self, trial: Trial) -> None:
        """Keep a confirming measurement."""
        self._append(stored.CONFIRMATION, trial)

    def keep(self, write: Write) -> None:
        """Write to the study, wherever it is."""

        def write_there(server: Claims) -> None:
            assert self._study_id is not None
            write(server.storage, self._study_id)

        self._keep(write, write_there)

    def close(self) -> None:
        """Give back the claim, and let others have the file."""
        if self._server is not None:
            self.withdraw()
            self._server.close()
        if self._database is not None:
            self._database.engine.dispose()
        if self._local is not None:
            self._local.close()
        self._server = self._database = None
        super().close()

    def _open_storage(self) -> None:
        self._database = open_database(self._url, self._heartbeat, self._limits)
        self._storage = self._database

    def _is_comparable(self, parts: Mapping[str, object]) -> bool:
        """Return whether another study is of the same workload: in a common database there are many of others."""
        return parts.get("workload") == self._identity.parts.get("workload")

    def _read(self, study_id: int) -> Kept:
        assert self._database is not None
        require_writable(self._database, study_id)
        self._server = Claims(self._database, study_id, self._heartbeat)
        self._storage = self._server.storage
        known = self._look_around()
        super()._read(study_id)
        return known

    def _look_around(self) -> Kept:
        """Read the study, once the claims of tuners that are gone have been failed."""
        assert self._server is not None
        assert self._study_id is not None
        self._server.fail_stale()
        trials = self._server.storage.get_all_trials(self._study_id, deepcopy=False)
        known = stored.read(self._server.storage, self._study_id, self._parsed, trials)
        self.claims = self._server.others(trials)
        self._count = max(self._count, len(known.probes) + len(known.confirmations))
        ended = (trial for trial in trials if trial.state in (TrialState.COMPLETE, TrialState.PRUNED))
        self._known, self._ended, self._since = known, tuple(ended), []
        return known

    def _append(self, kind: str, record: Probe | Trial) -> None:
        """Keep a record under a name that no other tuner uses."""
        self._count += 1
        key, values = stored.key_of(kind, self._count, self._tuner), to_json(record)
        self.keep(lambda storage, study_id: storage.set_study_system_attr(study_id, key, values))

    def _keep(self, write: Write, on_server: Callable[[Claims], None]) -> None:
        """Write to the server or, after its failure, to the file."""

        def keep_there(server: Claims) -> bool:
            on_server(server)
            return True

        with shielded():  # what is kept is on the server or in the file, and said to be
            self._since.append(write)
            if self._ask(keep_there, otherwise=False):
                return
            if self._local is None:
                self._local = self._begin_file()
            else:
                self._local.keep(write)
            self.failure = self._where_it_is_kept(self._local)

    def _ask(self, question: Callable[[Claims], Answer], otherwise: Answer) -> Answer:
        """Return the server's answer, or ``otherwise`` where it fails, or has failed."""
        if self._server is None or self._lost is not None:
            return otherwise
        try:
            with shielded(), quiet_optuna(logging.ERROR):  # what fails is told in one line
                return question(self._server)
        except Exception as error:
            self._lost = self._reason(error)
            self._claim.is_over.set()
            self._messages.say(f"{self.location}: {self._lost}; the run goes on without it and without other tuners")
            return otherwise

    def _begin_file(self) -> Keeper:
        """Put into the file the server's content when it was read last, and all writes since."""
        local = Keeper(self._local_path)
        try:
            local.open(self._identity)
        except StorageError as error:
            local.failure = str(error)
        for frozen in self._ended:
            local.trial(frozen)
        for probe in self._known.probes:
            local.look(probe)
        for confirmation in self._known.confirmations:
            local.confirmation(confirmation)
        for write in self._since:
            local.keep(write)
        self._messages.say(self._where_it_is_kept(local))
        return local

    def _where_it_is_kept(self, local: Keeper) -> str:
        path = self._local_path
        where = local.failure or (
            f"the whole study is kept in {path}: autotune report {path} shows it, --storage {path} continues it"
        )
        return f"{self.location}: {self._lost}; what was measured since could not be written there; {where}"

    def _reason(self, error: Exception) -> str:
        return reason_of(error, self._url)


def open_keeper(location: str | Path | None, local: Path = LOCAL) -> Keeper:
    """Return the keeper of a study at a location; ``local`` names the file for after a server's failure.

    Raises ``UsageError`` for a URL that cannot be read, and for another driver of PostgreSQL than psycopg.
    """
    stored.require_url(str(location))
    require_driver(str(location))
    if location is not None and is_shared(str(location)):
        return SharedKeeper(str(location), local=local)
    return Keeper(location)
