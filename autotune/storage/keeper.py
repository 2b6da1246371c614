"""Keeps the trials of a search as they end: in a file, or behind any URL that Optuna knows.

The search itself needs no storage, so the answer never depends on a disk. A storage that fails during the search is
given up, and the result says so.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.exceptions import DuplicatedStudyError, ExperimentalWarning
from optuna.storages import BaseStorage, JournalStorage
from optuna.trial import FrozenTrial

from autotune.config import Config
from autotune.errors import StorageError
from autotune.messages import Messages, Progress
from autotune.records import Kind, Part, Probe, Trial
from autotune.result import RecordedStudy, Result
from autotune.signals import shielded
from autotune.storage import study_records as stored
from autotune.storage.study_file import StudyFile
from autotune.storage.study_records import FILE, FINISHED, IDENTITY, SEARCH_ENDED, Identity, Kept
from autotune.storage.trial_claims import Claimed

Write = Callable[[BaseStorage, int], None]
"""A function that writes to a study of a storage, by its number there."""


class Keeper:
    """Keeps one study.

    ``location`` is a file, an Optuna URL, or ``None`` to keep nothing. With ``for_one_run`` it is a file that belongs
    to one command: it is created when there is something to keep, and after ``finish`` the next run starts anew.
    """

    def __init__(self, location: str | Path | None = None, *, for_one_run: bool = False) -> None:
        self._location = None if location is None else str(location)
        self._for_one_run = for_one_run
        self._identity = Identity(parts={})
        self._run = 1
        self._tuner = ""
        self._storage: BaseStorage | None = None
        self._file: StudyFile | None = None
        self._study_id: int | None = None
        self._is_replaced = False
        self._failed: tuple[Trial, ...] = ()
        self._messages = Messages()
        self.failure: str | None = None
        """The reason why the study could not be saved, after a failure."""
        self.claims: tuple[Claimed, ...] = ()
        """Configurations that others are measuring now, where several share the study."""

    def open(self, identity: Identity, messages: Messages | None = None) -> Kept:
        """Open the storage, return its study with this identity, and tell the user about it.

        Raises ``StorageError`` when it cannot be opened, is damaged, or is being written by another run.
        """
        messages = messages or Messages()
        self._identity, self._messages = identity, messages
        if self._location is None or (self._for_one_run and not Path(self._location).exists()):
            return Kept()
        said: list[Progress] = []
        found = self._messages = Messages(on_progress=said.append)  # whoever hears them may raise anything
        try:
            with quiet_optuna():
                kept = self._open()
        except Exception as error:
            self.close()
            if self._for_one_run and isinstance(error, OSError):
                self._give_up(error)
                return Kept()
            named = self.location if self._for_one_run else f"--storage {self.location}"
            raise StorageError(f"{named}: cannot be opened: {self._reason(error)}{self._way_out}") from error
        self._messages = messages
        messages.notes += found.notes
        for progress in said:
            messages.say(str(progress.message))
        return kept

    def refresh(self) -> Kept | None:
        """Return the study's content now; ``None`` where no other tuner can have added to it."""
        return None

    def claim(
        self,
        config: Config,
        kind: Kind,
        settings: Mapping[str, Any],
        distributions: Mapping[str, BaseDistribution],
        most: int | None = None,
    ) -> bool:
        """Claim a configuration before its measurement; return whether no other has it, or the last of ``most``."""
        return True

    def withdraw(self) -> None:
        """Give the last claim back: nothing came of it."""

    def claim_look(self, part: Part, config: Config) -> bool:
        """Claim a probe before it is taken; return whether no other tuner takes it or has just taken it."""
        return True

    @property
    def number(self) -> int | None:
        """The number of the trial that was claimed last; ``None`` where the search counts by itself."""
        return None

    def trial(self, frozen: FrozenTrial, note: str = "") -> None:
        """Keep a trial that has ended, with its record; ``note`` is shown beside it, in Markdown."""
        self.keep(lambda storage, study_id: stored.write_trial(storage, study_id, frozen, note))

    def failed_baseline(self, trial: Trial, frozen: FrozenTrial, note: str) -> None:
        """Keep a baseline that could not be measured; no file is created for it where the file is for one run."""
        self._failed += (trial,)
        if self._study_id is not None or not self._for_one_run:
            self.trial(frozen, note)

    @property
    def failed_study(self) -> RecordedStudy | None:
        """The study of a run whose baseline could not be measured; ``None`` otherwise."""
        if not self._failed:
            return None
        return RecordedStudy(
            location=self.location,
            name=self.name,
            others=(),
            made_on=self._identity.parts,
            history=self._failed,
            result=None,
        )

    def look(self, probe: Probe) -> None:
        """Keep a probe."""
        self.keep(lambda storage, study_id: stored.append(storage, study_id, stored.LOOK, probe))

    def confirmation(self, trial: Trial) -> None:
        """Keep a confirming measurement."""
        self.keep(lambda storage, study_id: stored.append(storage, study_id, stored.CONFIRMATION, trial))

    def search_ended(self, reason: str) -> None:
        """Keep why the search has ended."""
        self.keep(lambda storage, study_id: storage.set_study_user_attr(study_id, SEARCH_ENDED, reason))

    def result(self, result: Result) -> None:
        """Keep the result of the run; its verdict is shown beside the study."""

        def write(storage: BaseStorage, study_id: int) -> None:
            stored.write_result(storage, study_id, result, self._tuner)
            stored.save_note(storage, study_id, result.sentence)

        self.keep(write)

    def delivered(self, path: Path) -> None:
        """Keep where the answer was written."""
        self._keep_there(FILE, str(path))

    def finish(self) -> None:
        """Say that the run is over: the same command begins another one."""
        self._keep_there(FINISHED, datetime.now(UTC).isoformat(timespec="seconds"))

    def _keep_there(self, name: str, value: str) -> None:
        """Keep an attribute of a study that there is already."""
        if self._study_id is not None or self._storage is not None:
            self.keep(lambda storage, study_id: storage.set_study_user_attr(study_id, name, value))

    def close(self) -> None:
        """Let others have the storage."""
        if self._file is not None:
            self._file.close()
        self._storage = self._file = self._study_id = None

    @property
    def is_kept(self) -> bool:
        """Whether there is a study to be continued."""
        return self._study_id is not None and self.failure is None

    @property
    def location(self) -> str:
        """Where it is kept, without a password."""
        return stored.without_password(self._location or "")

    @property
    def name(self) -> str:
        """The study's name there."""
        return f"{self._identity.name}-{self._run}"

    def _open(self) -> Kept:
        self._open_storage()
        assert self._storage is not None
        ours, pattern = self._studies(), re.compile(rf"{self._identity.name}-(\d{{1,9}})")
        runs = {int(match[1]): attrs for name, attrs in ours.items() if (match := pattern.fullmatch(name))}
        self._run = max(runs, default=0) + 1
        is_over = self._for_one_run and FINISHED in runs.get(self._run - 1, {})
        if runs and not is_over:
            self._run -= 1
        elif not runs:
            self._say_what_differs()
        self._is_replaced = (  # where it holds nothing but studies of autotune whose answers were delivered
            self._for_one_run
            and len(ours) == len(self._storage.get_all_studies())
            and all(FINISHED in attrs for attrs in ours.values())
        )
        if is_over or (self._for_one_run and not runs):
            return Kept()
        return self._read(self._begin())

    def _open_storage(self) -> None:
        location = self._location
        assert location is not None
        if "://" in location:
            self._storage = optuna.storages.get_storage(location)
            return
        self._file = StudyFile(Path(location))
        self._storage = JournalStorage(self._file)
        if self._file.left_out:
            lines = "1 damaged line was" if self._file.left_out == 1 else f"{self._file.left_out} damaged lines were"
            self._messages.note(f"{location}: {lines} left out; the original is {self._file.backup}")

    def _studies(self) -> dict[str, dict[str, Any]]:
        """Return name and attributes of all studies of autotune in the storage, the newest last."""
        assert self._storage is not None
        studies = self._storage.get_all_studies()
        return {study.study_name: study.user_attrs for study in studies if study.study_name.startswith("autotune-")}

    def _say_what_differs(self) -> None:
        """Tell the user why the newest study in the storage is not continued."""
        found = [attrs[IDENTITY] for attrs in self._studies().values() if isinstance(attrs.get(IDENTITY), dict)]
        others = [parts for parts in found if self._is_comparable(parts)]
        if others and (differences := self._identity.differences(others[-1])):
            self._messages.note(
                f"{self.location} was made with {'; '.join(differences)}: it is not continued, a new study begins"
            )

    def _is_comparable(self, parts: Mapping[str, object]) -> bool:
        """Return whether the differences to another study's identity are worth a note."""
        return True

    def _begin(self) -> int:
        """Return the study to write to, as the storage numbers it; it is created where there is none."""
        if self._is_replaced:
            self.close()
            Path(str(self._location)).unlink(missing_ok=True)
            self._is_replaced, self._run = False, 1
        if self._storage is None:
            self._open_storage()
        assert self._storage is not None
        if self.name not in self._studies():
            with suppress(DuplicatedStudyError):  # another tuner has just done the same
                study = optuna.create_study(study_name=self.name, storage=self._storage, direction="maximize")
                with warnings.catch_warnings(action="ignore", category=ExperimentalWarning):
                    study.set_metric_names(["samples/s"])
        self._study_id = self._storage.get_study_id_from_name(self.name)
        if IDENTITY not in self._storage.get_study_user_attrs(self._study_id):
            self._storage.set_study_user_attr(self._study_id, IDENTITY, dict(self._identity.parts))
        return self._study_id

    def _read(self, study_id: int) -> Kept:
        assert self._storage is not None
        kept = stored.read(self._storage, study_id)
        if ran := [trial for trial in kept.trials if trial.kind != "skipped"]:
            ended = stored.ended_at(self._storage, study_id)
            when = f", the last of {ended.astimezone():%Y-%m-%d %H:%M}" if ended else ""
            how = "delete it" if self._for_one_run else "name another --storage"
            count = "1 trial" if len(ran) == 1 else f"{len(ran)} trials"
            self._messages.say(f"continuing {self.location}: {count}{when}; to start anew, {how}")
        return kept

    def keep(self, write: Write) -> None:
        """Write to the study; a storage that fails is given up."""
        if self._location is None or self.failure is not None:
            return
        try:
            with shielded(), quiet_optuna():
                study_id = self._begin() if self._study_id is None else self._study_id
                assert self._storage is not None
                write(self._storage, study_id)
        except Exception as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        self.failure = f"the study could not be saved: {self.location}: {self._reason(error)}"

    def _reason(self, error: Exception) -> str:
        """Return the error in one line, without the URL's password."""
        text = getattr(error, "strerror", None) or str(error) or type(error).__name__
        if isinstance(error, (KeyError, AttributeError, TypeError, AssertionError, RecursionError, IndexError)):
            text = f"it is damaged ({type(error).__name__}: {error})"
        return " ".join(text.replace(str(self._location), self.location).split())[:300]

    @property
    def _way_out(self) -> str:
        if self._for_one_run:
            return "; move it away, or name another file with --output or --storage"
        return "" if "://" in self.location else "; name another file"


@contextmanager
def quiet_optuna(level: int = optuna.logging.WARNING) -> Iterator[None]:
    """Let Optuna say nothing below a level meanwhile."""
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(level)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(verbosity)
