"""The study in a local file, for as long as the server is away that it belongs to."""

from __future__ import annotations

import glob
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from optuna.storages import JournalStorage
from optuna.trial import FrozenTrial, TrialState

from autotune.errors import StorageError
from autotune.search import stored
from autotune.search.identity import Identity
from autotune.search.journal import StudyFile
from autotune.search.keeping import Keeper, Write
from autotune.search.stored import Kept

__all__ = ["LeftBehind", "LocalCopy", "left_behind"]


class LocalCopy:
    """Knows what the server held when it was read last and what was written since, and puts it into a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        """The file."""
        self._known, self._ended = Kept(), tuple[FrozenTrial, ...]()
        self._since: list[Write] = []
        self._keeper: Keeper | None = None
        self._problem: str | None = None

    @property
    def problem(self) -> str | None:
        """Why there is no such file, where that is so."""
        return self._problem or (self._keeper.failure if self._keeper else None)

    def read(self, known: Kept, ended: Sequence[FrozenTrial]) -> None:
        """Take note of what the server holds; ``ended`` are its trials as Optuna keeps them."""
        self._known, self._ended, self._since = known, tuple(ended), []

    def add(self, write: Write) -> None:
        """Take note of what is to be written, and write it where the file is there."""
        self._since.append(write)
        if self._keeper is not None:
            self._keeper.keep(write)

    def begin(self, identity: Identity) -> None:
        """Create the file, with all that is known."""
        self._problem = None
        keeper = Keeper(self.path)
        try:
            keeper.open(identity)
        except StorageError as error:
            self._problem = str(error)
            return
        self._keeper = keeper
        for frozen in self._ended:
            keeper.trial(frozen)
        for probe in self._known.probes:
            keeper.look(probe)
        for confirmation in self._known.confirmations:
            keeper.confirmation(confirmation)
        for write in self._since:
            keeper.keep(write)

    def remove(self) -> None:
        """Remove the file: the server has all of it."""
        if self._keeper is not None:
            self.close()
            self.path.unlink(missing_ok=True)

    def close(self) -> None:
        """Let others have the file."""
        if self._keeper is not None:
            self._keeper.close()
        self._keeper = None


class LeftBehind:
    """What a tuner has left in its file: it was killed while the server was away, or the server did not come back.

    No other process may have the file meanwhile. Raises ``StorageError`` where one has it, ``LookupError`` where it
    holds no study with this identity, and ``ValueError`` where it is damaged.
    """

    def __init__(self, path: Path, identity: Identity) -> None:
        self._path, self._file = path, StudyFile(path)
        try:
            storage = JournalStorage(self._file)
            known = storage.get_all_studies()
            studies = [each for each in known if each.study_name.startswith(f"{identity.name}-")]
            if not known:  # it was removed and, by this, made anew
                path.unlink(missing_ok=True)
                raise StorageError("holds nothing")
            if not studies:
                raise LookupError("holds a study of something else")
            study_id = studies[-1]._study_id
            self.kept: Kept = stored.read(storage, study_id)
            """What it knows."""
            found = storage.get_all_trials(study_id, states=(TrialState.COMPLETE, TrialState.PRUNED))
            self.trials: Sequence[FrozenTrial] = [trial for trial in found if _has_run(trial)]
            """Its trials that ran, as Optuna keeps them."""
            attributes = storage.get_study_system_attrs(study_id)
            self.results: Mapping[str, Any] = {
                key: value for key, value in attributes.items() if key.startswith(f"{stored.RESULT}:")
            }
            """What runs came to, by the attribute of the study that holds it."""
        except BaseException:
            self.close()
            raise

    def remove(self) -> None:
        """Remove the file: the server has all of it."""
        self._path.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        """Let others have the file."""
        self._file.close()


def _has_run(trial: FrozenTrial) -> bool:
    return stored.RECORD in trial.system_attrs and trial.system_attrs[stored.RECORD]["kind"] != "skipped"


def left_behind(aside: Path) -> list[Path]:
    """Return the files of tuners that write, or wrote, their results to the same place, without empty ones."""
    found = sorted(aside.parent.glob(f"{glob.escape(aside.stem)}-????????.study"))
    return [path for path in found if path.is_file() and path.stat().st_size]
