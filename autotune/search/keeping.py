"""Keeps what a search finds, as it finds it: in a file, or behind any URL that Optuna knows.

The search itself needs no storage, so the answer never depends on a disk: a storage that fails while the search goes
on is given up, and the result says so.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import BaseStorage, JournalStorage
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from autotune.encoding import probe_from_json, to_json, trial_from_json
from autotune.errors import StorageError
from autotune.interrupts import shielded
from autotune.records import Probe, Trial
from autotune.search.identity import Identity
from autotune.search.journal import StudyFile

__all__ = ["Keeper", "Kept"]

IDENTITY, SEARCH_ENDED, FINISHED = "identity", "search_ended", "finished"
"""Attributes of a study: what it belongs to, why its search ended last, when its answer was delivered."""
LOOK, CONFIRMATION = "look", "confirmation"
"""The same, each with a number."""
MOST = 1e15
"""No rate, time or memory is as large."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What a study knew when it was opened."""

    trials: tuple[Trial, ...] = ()
    """The trials of the search, the baseline first."""
    probes: tuple[Probe, ...] = ()
    """The short looks."""
    confirmations: tuple[Trial, ...] = ()
    """The confirming measurements of earlier runs."""


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
        self._counts = {LOOK: 0, CONFIRMATION: 0}
        self._storage: BaseStorage | None = None
        self._file: StudyFile | None = None
        self._study: Study | None = None
        self._is_replaced = False
        self.failure: str | None = None
        """Why the study could not be kept, once that is so."""
        self.notes: tuple[str, ...] = ()
        """What the user should know of the storage as it was found."""
        self.continues: str | None = None
        """Which study goes on, once there is one."""

    def open(self, identity: Identity) -> Kept:
        """Open the storage and return what it knows of a study with this identity.

        Raises ``StorageError`` when it cannot be opened, is damaged, or is being written by another run.
        """
        self._identity = identity
        if self._location is None or (self._for_one_run and not Path(self._location).exists()):
            return Kept()
        try:
            with _quiet_optuna():
                return self._open()
        except Exception as error:
            self.close()
            if self._for_one_run and isinstance(error, OSError):
                self._give_up(error)
                return Kept()
            raise StorageError(f"{self._named}: cannot be opened: {self._reason(error)}{self._way_out}") from error

    def trial(self, frozen: FrozenTrial) -> None:
        """Keep a trial that has ended, with its record."""
        self._keep(lambda study: study.add_trial(frozen))

    def look(self, probe: Probe) -> None:
        """Keep a short look."""
        self._keep(lambda study: self._append(study, LOOK, to_json(probe)))

    def confirmation(self, trial: Trial) -> None:
        """Keep a confirming measurement."""
        self._keep(lambda study: self._append(study, CONFIRMATION, to_json(trial)))

    def search_ended(self, reason: str) -> None:
        """Keep why the search has ended."""
        self._keep(lambda study: study.set_user_attr(SEARCH_ENDED, reason))

    def finish(self) -> None:
        """Say that the answer was delivered."""
        if self._study is not None or self._storage is not None:
            self._keep(lambda study: study.set_user_attr(FINISHED, _now()))

    def close(self) -> None:
        """Let others have the storage."""
        if self._file is not None:
            self._file.close()
        self._storage = self._file = self._study = None

    @property
    def is_kept(self) -> bool:
        """Whether there is a study to be continued."""
        return self._study is not None and self.failure is None

    @property
    def location(self) -> str:
        """Where it is kept, without a password."""
        return re.sub(r"(://[^/:@]*):[^/]*@", r"\1:***@", self._location or "")

    def _open(self) -> Kept:
        self._open_storage()
        runs = self._runs()
        self._run = max(runs, default=0) + 1
        is_over = self._for_one_run and FINISHED in runs.get(self._run - 1, {})
        if runs and not is_over:
            self._run -= 1
        elif not runs:
            self._say_what_differs()
        self._is_replaced = self._for_one_run and self._is_finished
        if is_over or (self._for_one_run and not runs):
            return Kept()
        return self._read(self._begin())

    @property
    def _is_finished(self) -> bool:
        """Whether the storage holds nothing but studies of autotune whose answers were delivered."""
        assert self._storage is not None
        ours, known = self._studies(), self._storage.get_all_studies()
        return len(ours) == len(known) and all(FINISHED in attrs for attrs in ours.values())

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
            self.notes += (f"{location}: {lines} left out; as it was: {self._file.backup}",)

    def _studies(self) -> dict[str, dict[str, Any]]:
        """Return name and attributes of all studies of autotune in the storage, the newest last."""
        assert self._storage is not None
        studies = self._storage.get_all_studies()
        return {study.study_name: study.user_attrs for study in studies if study.study_name.startswith("autotune-")}

    def _runs(self) -> dict[int, dict[str, Any]]:
        """Return the attributes of the studies with this identity by the number of their run."""
        pattern = re.compile(rf"{self._identity.name}-(\d{{1,9}})")
        return {int(match[1]): attrs for name, attrs in self._studies().items() if (match := pattern.fullmatch(name))}

    def _say_what_differs(self) -> None:
        """Say why the newest study in the storage is not continued."""
        others = [attrs[IDENTITY] for attrs in self._studies().values() if isinstance(attrs.get(IDENTITY), dict)]
        if others and (differences := self._identity.differences(others[-1])):
            self.notes += (
                f"{self.location} was made with {'; '.join(differences)}: it is not continued, a new study begins",
            )

    def _begin(self) -> Study:
        """Return the study to write to; it is created where there is none."""
        if self._is_replaced:
            self.close()
            Path(str(self._location)).unlink(missing_ok=True)
            self._is_replaced, self._run = False, 1
        if self._storage is None:
            self._open_storage()
        assert self._storage is not None
        name = f"{self._identity.name}-{self._run}"
        if name in self._studies():
            self._study = optuna.load_study(study_name=name, storage=self._storage)
        else:
            self._study = optuna.create_study(study_name=name, storage=self._storage, direction="maximize")
        if IDENTITY not in self._study.user_attrs:
            self._study.set_user_attr(IDENTITY, dict(self._identity.parts))
        return self._study

    def _read(self, study: Study) -> Kept:
        frozen = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED))
        records = [trial_from_json(each.user_attrs["record"]) for each in frozen if "record" in each.user_attrs]
        trials = tuple(record for record in records if record.kind != "baseline" or record.measurement is not None)
        if trials and trials[0].kind != "baseline":
            raise ValueError("the baseline's trial is missing")
        kept = Kept(
            trials=trials,
            probes=tuple(map(probe_from_json, self._numbered(study, LOOK))),
            confirmations=tuple(map(trial_from_json, self._numbered(study, CONFIRMATION))),
        )
        _require_plausible(kept)
        if ran := [trial for trial in trials if trial.kind != "skipped"]:
            ended = max((each.datetime_complete for each in frozen if each.datetime_complete), default=None)
            when = f", the last of {ended.astimezone():%Y-%m-%d %H:%M}" if ended else ""
            how = "delete it" if self._for_one_run else "name another --storage"
            count = "1 trial" if len(ran) == 1 else f"{len(ran)} trials"
            self.continues = f"continuing {self.location}: {count}{when}; to start anew, {how}"
        return kept

    def _numbered(self, study: Study, kind: str) -> list[Any]:
        """Return what was appended of one kind, in order."""
        found = {key: value for key, value in study.user_attrs.items() if key.startswith(f"{kind}:")}
        self._counts[kind] = max((int(key.partition(":")[2]) + 1 for key in found), default=0)
        return [found[key] for key in sorted(found)]

    def _append(self, study: Study, kind: str, values: dict[str, Any]) -> None:
        study.set_user_attr(f"{kind}:{self._counts[kind]:05d}", values)
        self._counts[kind] += 1

    def _keep(self, write: Callable[[Study], None]) -> None:
        if self._location is None or self.failure is not None:
            return
        try:
            with shielded(), _quiet_optuna():
                write(self._study or self._begin())
        except Exception as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        self.failure = f"the study could not be kept: {self.location}: {self._reason(error)}"

    def _reason(self, error: Exception) -> str:
        """Return what went wrong in one line, without the URL's password."""
        text = getattr(error, "strerror", None) or str(error) or type(error).__name__
        if isinstance(error, (KeyError, AttributeError, TypeError, AssertionError, RecursionError, IndexError)):
            text = f"it is damaged ({type(error).__name__}: {error})"
        return " ".join(text.replace(str(self._location), self.location).split())[:300]

    @property
    def _named(self) -> str:
        return self.location if self._for_one_run else f"--storage {self.location}"

    @property
    def _way_out(self) -> str:
        if self._for_one_run:
            return "; move it away, or name another file with --output or --storage"
        return "" if "://" in self.location else "; name another file"


@contextmanager
def _quiet_optuna() -> Iterator[None]:
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(verbosity)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _require_plausible(kept: Kept) -> None:
    """Raise ``ValueError`` where a number is none that can have been measured."""
    for trial in (*kept.trials, *kept.confirmations):
        where = f"trial {trial.number}"
        if measured := trial.measurement:
            _require(where, 1e-9, measured.samples_per_second, measured.ceiling_samples_per_second)
            _require(where, 0.0, trial.number, trial.seconds, measured.memory_limit_bytes, measured.peak_memory_bytes)
            _require(where, -MOST, *(measured.ci95 or ()))
    for probe in kept.probes:
        if compute := probe.compute:
            _require("a look", 1e-9, compute.samples_per_second, compute.memory_limit_bytes)
            _require("a look", 0.0, compute.host_seconds, compute.cpu_seconds, compute.peak_memory_bytes)
        if loader := probe.loader:
            _require("a look", 1, loader.batch_size, len(loader.build_seconds))
            _require("a look", 0.0, loader.inline_seconds, loader.cpu_seconds, *loader.build_seconds)


def _require(where: str, least: float, *values: float) -> None:
    for value in values:
        if not least <= value < MOST:  # false for what is not a number
            raise ValueError(f"{where}: {value} was never measured")
