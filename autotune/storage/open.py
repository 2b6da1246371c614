"""The one Optuna study of a search, in the storage that the user names: a file, or any URL that Optuna knows.

The answer never depends on a disk or a server. A storage that fails during the search is given up: the study goes on in
memory, or in a file where a server has failed, and the result says so.
"""

from __future__ import annotations

import os
import platform
import secrets
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import optuna
from optuna.samplers import BaseSampler
from optuna.storages import BaseStorage, InMemoryStorage, JournalStorage, RDBStorage
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from autotune.errors import AutotuneError, StorageError
from autotune.machine.signals import shielded
from autotune.messages import Messages
from autotune.records import Trial
from autotune.report.result import RecordedStudy
from autotune.report.text import counted
from autotune.storage.identity import Identity
from autotune.storage.journal import StudyFile
from autotune.storage.server import HEARTBEAT, Heartbeat, open_database, reason_of, require_url, without_password
from autotune.storage.trials import BY, ended_at, history_of, is_record, looks_of, system_attributes

IDENTITY, FINISHED, FILE, COMMAND = "identity", "finished", "config file", "command"
"""User attributes of a study: its identity, when and where its answer was delivered, and to which command."""

Answer = TypeVar("Answer")


class StudyStorage:
    """The place of one study.

    ``location`` is a file, an Optuna URL, or ``None`` for memory. With ``for_one_run`` it is a file for one study at a
    time: after ``finish`` the next run of the same ``command`` replaces it, and that of another one moves it aside.
    ``local`` is the file in which, with a name of its own added,
    the study goes on where a database has failed. Raises ``UsageError`` for a URL that cannot be used.
    """

    def __init__(
        self,
        location: str | Path | None = None,
        *,
        for_one_run: bool = False,
        command: str = "",
        local: Path = Path("autotune.study"),
        heartbeat: Heartbeat = HEARTBEAT,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        require_url(str(location))
        self._path = None if location is None else str(location)
        self.location = without_password(self._path or "")
        """Where it is kept, without a password."""
        self._for_one_run, self._command = for_one_run, command
        self._local, self._heartbeat, self._now = local, heartbeat, now
        self._identity = Identity(parts={})
        self._messages = Messages()
        self._file: StudyFile | None = None
        self._is_new = False
        self._database: RDBStorage | None = None
        self._study: Study | None = None
        self._seen_silent: dict[int, float] = {}
        self.by = f"{platform.node()}, process {os.getpid()}"
        """The name of this tuner among those that share a study."""
        self.trials: tuple[FrozenTrial, ...] = ()
        """The study's trials as they were read last."""
        self.attributes: Mapping[str, Any] = {}
        """The system attributes of the study as they were read last."""
        self.failure: str | None = None
        """The reason why the study could not be kept, after a failure."""

    def open(
        self, identity: Identity, sampler: BaseSampler | None = None, messages: Messages | None = None
    ) -> StudyStorage:
        """Open the study with this identity, or begin it, and tell the user about it.

        Raises ``StorageError`` when the storage cannot be opened, is damaged, or is being written by another run.
        """
        self._identity, self._messages = identity, messages or Messages()
        try:
            with quiet_optuna():
                notes = self._open(sampler)
                found = history_of(self.trials)
                looks_of(self.attributes, {})  # a damaged one is said now
        except Exception as error:
            self.close()
            if self._for_one_run and isinstance(error, OSError):
                self._begin_anew(error, sampler)
                return self
            named, remedy = f"--storage {self.location}", "; move it away, or name another file"
            if self._for_one_run:
                named, remedy = self.location, f"{remedy} with --output or --storage"
            elif "://" in self.location:
                remedy = ""
            raise StorageError(f"{named}: cannot be opened: {self._reason(error)}{remedy}") from error
        for note in notes:
            self._messages.note(note)
        if self._path is not None and any(trial.measurement for trial in found):
            self._say_what_goes_on(found)
        return self

    @property
    def study(self) -> Study:
        """The study, once it is open."""
        assert self._study is not None
        return self._study

    def do(self, action: Callable[[Study], Answer]) -> Answer:
        """Return the answer of an action on the study, which is repeated elsewhere where its storage fails."""
        with shielded(), quiet_optuna():  # what has ended is known and kept, or neither
            try:
                answer = action(self.study)
                self._read()
            except AutotuneError:
                raise
            except Exception as error:  # whatever a file system or the driver of a database raises
                if self.failure is not None or self._path is None:
                    raise
                self._begin_anew(error, self.study.sampler)
                answer = action(self.study)
                self._read()
        return answer

    def refresh(self) -> None:
        """Read the study, once the running trials of tuners that are gone have been failed."""
        if self._database is not None:
            self.do(self._fail_stale)

    def beat(self, trial: optuna.Trial) -> None:
        """Show the others who measures a trial, and that this tuner is alive."""
        if self._database is not None:
            self._database.record_heartbeat(trial._trial_id)
        trial.set_user_attr(BY, self.by)

    @contextmanager
    def beating(self, trial: optuna.Trial) -> Iterator[None]:
        """Show the others that a trial is being measured for as long as this lasts."""
        is_over, database = threading.Event(), self._database
        if database is None:
            yield
            return

        def beat() -> None:
            while not is_over.wait(self._heartbeat.interval):
                with suppress(Exception):  # the search itself hears of it when it writes
                    database.record_heartbeat(trial._trial_id)
            database.remove_session()

        beats = threading.Thread(target=beat, daemon=True)
        beats.start()
        try:
            yield
        finally:
            is_over.set()
            beats.join(self._heartbeat.interval)  # a connection that it holds would outlive the pool

    def delivered(self, path: Path) -> None:
        """Write down where the answer was written."""
        self._write(FILE, str(path))

    def finish(self) -> None:
        """Write down that the run is over: the same command begins another one."""
        self._write(FINISHED, datetime.now(UTC).isoformat(timespec="seconds"))

    def _write(self, name: str, value: str) -> None:
        if self._study is not None:
            self.do(lambda study: study.set_user_attr(name, value))

    def close(self) -> None:
        """Let others have the storage; a new file of one run without any measurement goes."""
        if self._file is not None:
            if self._for_one_run and self._is_new and not self._is_begun:
                self._own_file.unlink(missing_ok=True)
            self._file.close()
        if self._database is not None:
            self._database.engine.dispose()
        self._file = self._database = self._study = None

    @property
    def is_kept(self) -> bool:
        """Whether there is a study to be continued."""
        return self._study is not None and self._path is not None and self.failure is None and self._is_begun

    @property
    def is_own(self) -> bool:
        """Whether nobody else can write to it, so that a run that has not ended there was killed."""
        return self._file is not None

    @property
    def name(self) -> str:
        """The study's name there."""
        return self._identity.name

    @property
    def failed_study(self) -> RecordedStudy | None:
        """The study of a run whose baseline could not be measured; ``None`` otherwise."""
        history = history_of(self.trials)
        if not history or any(trial.measurement for trial in history):
            return None
        parts = self._identity.parts
        return RecordedStudy(
            location=self.location, name=self.name, others=(), made_on=parts, history=history, result=None
        )

    @property
    def _is_begun(self) -> bool:
        return any(each.state is TrialState.COMPLETE for each in self.trials)

    def _open(self, sampler: BaseSampler | None) -> list[str]:
        storage = self._backend()
        notes: list[str] = []
        found = {each.study_name: each.user_attrs for each in storage.get_all_studies()}
        ours = {name: attributes for name, attributes in found.items() if is_ours(name)}
        if self.name not in ours:
            notes += self._differences(ours)
        if self._for_one_run and ours == found and ours and all(FINISHED in each for each in ours.values()):
            self.close()
            notes = self._make_room(ours) or notes
            storage, ours = self._backend(), {}
        elif self._for_one_run and FINISHED in ours.get(self.name, {}):
            optuna.delete_study(study_name=self.name, storage=storage)
            del ours[self.name]
        if self.name in ours:  # creating it would write
            self._study = optuna.load_study(study_name=self.name, storage=storage, sampler=sampler)
        else:
            self._study = optuna.create_study(
                study_name=self.name, storage=storage, direction="maximize", load_if_exists=True, sampler=sampler
            )
        if IDENTITY not in self._study.user_attrs:
            self._study.set_metric_names(["samples/s"])
            self._study.set_user_attr(IDENTITY, dict(self._identity.parts))
        if self._command and self._study.user_attrs.get(COMMAND) != self._command:
            self._study.set_user_attr(COMMAND, self._command)
        if self._database is None:  # nobody else can be measuring them
            for left in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING, TrialState.WAITING)):
                storage.set_trial_state_values(left._trial_id, TrialState.FAIL)
        self._read()
        return notes

    def _make_room(self, finished: Mapping[str, Mapping[str, Any]]) -> list[str]:
        """Remove the file of finished studies of this command, or move that of another one aside and say so."""
        if all(each.get(COMMAND, "") == self._command for each in finished.values()):
            self._own_file.unlink()
            return []
        file = self._own_file if os.path.islink(str(self._path)) else Path(str(self._path))
        names = (file.with_name(f"{file.stem}.{number}{file.suffix}") for number in count(1))
        aside = next(name for name in names if not os.path.lexists(name))
        self._own_file.rename(aside)
        return [f"{self.location} was the study of another command: it is kept as {aside}, and a new one begins"]

    @property
    def _own_file(self) -> Path:
        return Path(os.path.realpath(str(self._path)))

    def _backend(self) -> BaseStorage:
        if self._path is None:
            return InMemoryStorage()
        if "://" not in self._path:
            self._is_new = not Path(self._path).exists()
            self._file = StudyFile(Path(self._path))
            return JournalStorage(self._file)
        if self._path.startswith("redis"):
            return optuna.storages.get_storage(self._path)
        self._database = open_database(self._path, self._heartbeat)
        return self._database

    def _differences(self, ours: Mapping[str, Mapping[str, Any]]) -> list[str]:
        """Say why the newest study in the storage is not continued; in a common database, of the same workload."""
        found = [parts for each in ours.values() if isinstance(parts := each.get(IDENTITY), dict)]
        if self._database is not None and self._database.engine.name != "sqlite":
            found = [parts for parts in found if parts.get("workload") == self._identity.parts.get("workload")]
        differences = self._identity.differences(found[-1]) if found else []
        made = f"{self.location} was made with {'; '.join(differences)}"
        return [f"{made}: it is not continued, a new study begins"] if differences else []

    def _say_what_goes_on(self, found: tuple[Trial, ...]) -> None:
        ended, ran = ended_at(self.trials), sum(trial.kind != "confirm" for trial in found)
        when = f", the last of {ended.astimezone():%Y-%m-%d %H:%M}" if ended else ""
        how = "delete it" if self._for_one_run else "name another --storage"
        self._messages.say(f"continuing {self.location}: {counted(ran, 'trial')}{when}; to start anew, {how}")

    def _read(self) -> None:
        self.trials = tuple(self.study.get_trials(deepcopy=False))
        self.attributes = system_attributes(self.study)

    def _fail_stale(self, study: Study) -> None:
        if self._database is None:  # it has just failed
            return
        optuna.storages.fail_stale_trials(study)
        running = study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        for each in (trial for trial in running if BY not in trial.user_attrs):
            first = self._seen_silent.setdefault(each.number, self._now())
            if self._now() - first > self._heartbeat.grace:
                # Its tuner was killed before the first sign of life, without which Optuna waits for ever.
                self._database.record_heartbeat(each._trial_id)
                self._seen_silent[each.number] = float("inf")

    def _begin_anew(self, error: Exception, sampler: BaseSampler | None) -> None:
        """Put what was read last into another storage: a file where a database has failed, else memory."""
        reason, path = self._reason(error), self._local.with_name(f"{self._local.stem}-{secrets.token_hex(4)}.study")
        self.failure = f"the study could not be saved: {self.location}: {reason}"
        storage: BaseStorage = InMemoryStorage()
        if self._database is not None:
            self._database.engine.dispose()
            self._database = None
            with suppress(OSError, StorageError):
                self._file = StudyFile(path)
                storage = JournalStorage(self._file)
                self.failure = (
                    f"{self.location}: {reason}; the run goes on without it and without other tuners, in {path}: "
                    f"autotune report {path} shows it, --storage {path} continues it"
                )
        study = optuna.create_study(study_name=self.name, storage=storage, direction="maximize", sampler=sampler)
        study.set_user_attr(IDENTITY, dict(self._identity.parts))
        for key, value in self.attributes.items():
            storage.set_study_system_attr(study._study_id, key, value)
        study.add_trials(each for each in self.trials if is_record(each))
        self._study = study
        self._messages.say(self.failure)

    def _reason(self, error: Exception) -> str:
        if "://" in str(self._path):
            return reason_of(error, str(self._path))
        text = getattr(error, "strerror", None) or str(error) or type(error).__name__
        if isinstance(error, (KeyError, AttributeError, TypeError, AssertionError, RecursionError, IndexError)):
            text = f"it is damaged ({type(error).__name__}: {error})"
        return " ".join(text.split())[:300]


def is_ours(name: str) -> bool:
    """Return whether a study of this name is autotune's."""
    return name.startswith("autotune-")


@contextmanager
def quiet_optuna() -> Iterator[None]:
    """Let Optuna say nothing but errors meanwhile, and warn of nothing."""
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        optuna.logging.set_verbosity(verbosity)
