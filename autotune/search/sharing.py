"""Keeps a study on a database server, where several tuners may add to it at the same time.

The search does not depend on the server: while it is away the tuner goes on alone; what it finds waits to be written,
and lies in a file meanwhile.
"""

from __future__ import annotations

import copy
import logging
import os
import platform
import secrets
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from optuna.distributions import BaseDistribution
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, TrialState

from autotune.config import Config
from autotune.encoding import to_json
from autotune.errors import StorageError
from autotune.interrupts import shielded
from autotune.records import Kind, Probe, Trial
from autotune.result import Result
from autotune.search import stored
from autotune.search.aside import LeftBehind, LocalCopy, left_behind
from autotune.search.claims import Claim, Claimed, Claims, planned_trial
from autotune.search.database import (
    HEARTBEAT,
    LIMITS,
    Heartbeat,
    Limits,
    is_lasting,
    is_shared,
    open_database,
    reason_of,
    require_driver,
    require_writable,
)
from autotune.search.keeping import Keeper, Write, quiet_optuna
from autotune.search.stored import Kept

__all__ = ["SharedKeeper", "open_keeper"]

ASIDE = Path("autotune.study")
RETRY_AFTER = 10.0
"""Seconds after which a server that is away is asked again."""
PATIENCE = 30.0
"""Seconds for which a server that is away is waited for at the end of a run."""
BETWEEN_ATTEMPTS = 0.5
"""Seconds between two questions then."""


class SharedKeeper(Keeper):
    """Keeps one study on a server, and reads what others add to it.

    ``aside`` is the file in which, with the tuner's own name added, the study lies while the server is away.
    """

    def __init__(
        self,
        location: str,
        *,
        aside: Path = ASIDE,
        heartbeat: Heartbeat = HEARTBEAT,
        limits: Limits = LIMITS,
        retry_after: float = RETRY_AFTER,
        patience: float = PATIENCE,
    ) -> None:
        super().__init__(location)
        self._url = location
        self._tuner = secrets.token_hex(4)
        self._aside = aside
        self._by = f"{platform.node()}, process {os.getpid()}"
        self._heartbeat, self._limits, self._retry_after, self._patience = heartbeat, limits, retry_after, patience
        self._database: RDBStorage | None = None
        self._server: Claims | None = None
        self._claim = Claim()
        self._count = 0
        self._waiting: deque[Write] = deque()
        self._parsed: dict[object, Trial] = {}
        self._copy = LocalCopy(aside.with_name(f"{aside.stem}-{self._tuner}.study"))
        self._news: list[str] = []
        self._away: str | None = None
        self._is_lasting = False
        self._lost_at = self._tried_at = 0.0

    def refresh(self) -> Kept | None:
        """Return what the study knows now, with what others have added; ``None`` while the server is away."""
        self.claims = ()
        if not self._flush():
            return None
        try:
            with _undisturbed():
                return self._look_around()
        except Exception as error:
            self._lose(error)
            return None

    def news(self) -> tuple[str, ...]:
        """Return what the user should know of the server and was not told yet."""
        found, self._news = tuple(self._news), []
        return found

    def claim(
        self,
        config: Config,
        kind: Kind,
        settings: Mapping[str, Any],
        distributions: Mapping[str, BaseDistribution],
        most: int | None = None,
    ) -> bool:
        """Claim a configuration before it is measured; tell whether no other tuner has it, or the last of ``most``."""
        if self._server is None or self._away:
            return True
        planned = planned_trial(Claimed(config=config, kind=kind, by=self._by), settings, distributions)
        try:
            with _undisturbed():
                if self._server.is_needless(planned):  # most often it is known by now, and nothing need be withdrawn
                    return False
                self._claim = self._server.begin(planned)
                is_needless = self._server.is_needless(planned, self._claim, most)
        except Exception as error:
            self._lose(error)
            return True
        if is_needless:
            self.withdraw()
        return not is_needless

    def withdraw(self) -> None:
        """Give the last claim back; while the server is away it becomes stale."""
        claim, self._claim = self._claim, Claim()
        claim.is_over.set()
        if self._server is None or self._away:
            return
        try:
            with _undisturbed():
                self._server.withdraw(claim)
        except Exception as error:
            self._lose(error)

    @property
    def is_kept(self) -> bool:
        """Whether there is a study to be continued, and the server has all of it."""
        return super().is_kept and not (self._away and self._waiting)

    @property
    def number(self) -> int | None:
        """The number of the trial that was claimed last; ``None`` while the server is away."""
        return self._claim.number

    def trial(self, frozen: FrozenTrial, note: str = "") -> None:
        """Keep a trial that has ended, as what came of the last claim."""
        server, claim, self._claim = self._server, self._claim, Claim()
        assert server is not None
        frozen = copy.copy(frozen)
        frozen.user_attrs = {**frozen.user_attrs, "measured by": self._by}
        self._keep_both(
            lambda storage, study_id: stored.write_trial(storage, study_id, frozen, note),
            lambda storage, study_id: server.complete(claim, frozen, note),
        )

    def look(self, probe: Probe) -> None:
        """Keep a short look."""
        self._append(stored.LOOK, probe)

    def confirmation(self, trial: Trial) -> None:
        """Keep a confirming measurement."""
        self._append(stored.CONFIRMATION, trial)

    def result(self, result: Result, note: str) -> None:
        """Keep what the run came to, and wait for a server that is away."""
        try:
            with shielded():
                super().result(result, note)
            self._settle(self._patience)
        except KeyboardInterrupt:  # the answer is there, and the user does not want to wait
            self._settle(0.0)

    def keep(self, write: Write) -> None:
        """Write to the study as soon as the server is there."""
        self._keep_both(write, write)

    def close(self) -> None:
        """Give back what was claimed, and write what waits or leave it in the file."""
        if self._server is not None:
            self.withdraw()
            self._settle(0.0)
            self._copy.close()
            self._server.close()
        if self._database is not None:
            self._database.engine.dispose()
        self._server = self._database = None
        super().close()

    def _open_storage(self) -> None:
        self._database = open_database(self._url, self._heartbeat, self._limits)
        self._storage = self._database

    def _is_comparable(self, parts: Mapping[str, object]) -> bool:
        """Tell whether another study is of the same workload: in a common database there are many of others."""
        return parts.get("workload") == self._identity.parts.get("workload")

    def _read(self, study_id: int) -> Kept:
        assert self._database is not None
        require_writable(self._database, study_id)
        self._server = Claims(self._database, study_id, self._heartbeat)
        self._storage = self._server.storage
        known = self._look_around()
        for path in left_behind(self._aside):
            known = self._take_over(path, known)
        super()._read(study_id)
        return known

    def _take_over(self, path: Path, known: Kept) -> Kept:
        """Write to the server what a tuner has left in a file; return what is known then."""
        shows = f"autotune report {path} shows it"
        try:
            left = LeftBehind(path, self._identity)
        except (StorageError, FileNotFoundError):  # its tuner is there, or another one was faster
            return known
        except Exception as error:
            self.notes += (f"{path}: a tuner has left it while the server was away; {self._reason(error)}; {shows}",)
            return known
        try:
            if self._adopt(left, known):
                left.remove()
                said = "the server has all of it now, and the file is removed"
            else:
                said = f"some of it is being measured again now, so it stays there; {shows}"
            self.notes += (f"{path}: a tuner has left it while the server was away; {said}",)
        finally:
            left.close()
        return self._look_around()

    def _adopt(self, left: LeftBehind, known: Kept) -> bool:
        """Add to the study what it does not have; tell whether it has all of it then."""
        assert self._server is not None
        assert self._storage is not None
        assert self._study_id is not None
        missing = [frozen for frozen in left.trials if not self._server.adopt(frozen)]
        confirmed = {replace(trial, number=0) for trial in known.confirmations}
        new: list[Probe | Trial] = [probe for probe in left.kept.probes if probe not in known.probes]
        new += [trial for trial in left.kept.confirmations if replace(trial, number=0) not in confirmed]
        for record in new:
            self._count += 1
            kind = stored.LOOK if isinstance(record, Probe) else stored.CONFIRMATION
            key = stored.key_of(kind, self._count, self._tuner)
            self._storage.set_study_system_attr(self._study_id, key, to_json(record))
        there = self._storage.get_study_system_attrs(self._study_id)
        for key, result in left.results.items():
            if key not in there:
                self._storage.set_study_system_attr(self._study_id, key, result)
        return not missing

    def _look_around(self) -> Kept:
        """Read what is there, once the claims of tuners that are gone have been failed."""
        assert self._server is not None
        assert self._storage is not None
        assert self._study_id is not None
        self._server.fail_stale()
        trials = self._storage.get_all_trials(self._study_id, deepcopy=False)
        known = stored.read(self._storage, self._study_id, self._parsed, trials)
        self.claims = self._server.others(trials)
        self._count = max(self._count, len(known.probes) + len(known.confirmations))
        self._copy.read(known, [trial for trial in trials if trial.state in (TrialState.COMPLETE, TrialState.PRUNED)])
        return known

    def _append(self, kind: str, record: Probe | Trial) -> None:
        """Keep a record under a name that no other tuner uses, and the same one however often it is written."""
        self._count += 1
        key, values = stored.key_of(kind, self._count, self._tuner), to_json(record)
        self.keep(lambda storage, study_id: storage.set_study_system_attr(study_id, key, values))

    def _keep_both(self, aside: Write, write: Write) -> None:
        self._copy.add(aside)
        if self.failure is None:
            self._waiting.append(write)
            self._flush()

    def _flush(self, *, at_once: bool = False) -> bool:
        """Write what waits; tell whether all is written. A server that was away just now is not asked again."""
        is_early = self._is_lasting or time.monotonic() < self._tried_at + self._retry_after
        if self._away and not at_once and is_early:
            return False
        try:
            with _undisturbed():
                self._write_what_waits()
        except Exception as error:
            self._lose(error)
            return False
        self._find_again()
        return True

    def _write_what_waits(self) -> None:
        assert self._storage is not None
        assert self._study_id is not None
        if self._away:
            stored.read(self._storage, self._study_id, self._parsed)  # Optuna itself tries for long
        while self._waiting:
            self._waiting[0](self._storage, self._study_id)
            self._waiting.popleft()

    def _lose(self, error: Exception) -> None:
        """Go on without the server."""
        self._tried_at = time.monotonic()
        self._is_lasting = is_lasting(error)
        is_new, self._away = self._away is None, self._reason(error)
        if not is_new:
            return
        self._lost_at = self._tried_at
        with shielded():  # the file is whole, or not there
            self._copy.begin(self._identity)
        where = self._copy.problem or f"what it finds is kept in {self._copy.path} until the server is back"
        self._news.append(
            f"{self.location}: {self._away}; the search goes on without it and does not see other tuners; {where}"
        )

    def _find_again(self) -> None:
        """Say that the server is back, where it was away."""
        if self._away is None:
            return
        self._away = None
        self._copy.remove()
        seconds = time.monotonic() - self._lost_at
        self._news.append(f"{self.location}: is back, and has all that was measured meanwhile")
        self.notes += (f"{self.location}: was away for {seconds:.0f} s, in which other tuners were not seen",)

    def _settle(self, patience: float) -> None:
        """Write what waits within so many seconds, or say where it is kept instead."""
        end, is_told = time.monotonic() + patience, False
        while self.failure is None and not self._flush(at_once=True):
            if self._is_lasting or time.monotonic() >= end:
                self._give_up_server()
                break
            if not is_told:
                self._news.append(f"{self.location}: waiting up to {patience:.0f} s for the server")
                self._tell_news()
            is_told = True
            time.sleep(BETWEEN_ATTEMPTS)
        self._tell_news()

    def _tell_news(self) -> None:
        for message in self.news():
            self.tell(message)

    def _give_up_server(self) -> None:
        if not self._waiting:  # all that was measured is there
            self._copy.remove()
            return
        path = self._copy.path
        where = self._copy.problem or (
            f"the whole study is kept in {path}: autotune report {path} shows it, --storage {path} continues it"
        )
        self.failure = f"{self.location}: {self._away}; what was measured since could not be written there; {where}"

    def _reason(self, error: Exception) -> str:
        return reason_of(error, self._url)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Let no interrupt come between, and Optuna say nothing: what fails is told in one line."""
    with shielded(), quiet_optuna(logging.ERROR):
        yield


def open_keeper(location: str | Path | None, aside: Path = ASIDE) -> Keeper:
    """Return what keeps a study at a location; ``aside`` names the file for when a server is away.

    Raises ``UsageError`` for a URL that cannot be read, and for another driver of PostgreSQL than psycopg.
    """
    stored.require_url(str(location))
    require_driver(str(location))
    if location is not None and is_shared(str(location)):
        return SharedKeeper(str(location), aside=aside)
    return Keeper(location)
