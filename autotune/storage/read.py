"""Reads a kept study, and changes nothing: a run may be going on in it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from optuna.storages import BaseStorage, JournalStorage, RDBStorage, get_storage
from sqlalchemy.engine import make_url

from autotune.errors import StorageError
from autotune.records import EARLIEST_SCHEMA, SCHEMA
from autotune.result import DEFAULT_PATH, RecordedStudy
from autotune.storage import study_records as stored
from autotune.storage.server import is_shared, read_database, reason_of
from autotune.storage.study_file import RecordedFile


def read_study(location: str | Path, name: str | None = None) -> RecordedStudy:
    """Return the study in a file or behind an Optuna URL in which something was measured last, or the one of this name.

    Raises ``StorageError`` when there is none or it cannot be read, ``UsageError`` for a URL that cannot.
    """
    text = str(location)
    stored.require_url(text)
    shown = stored.without_password(text)
    try:
        return _read(_open(text), shown, name)
    except StorageError as error:
        raise StorageError(f"{shown}: {error}") from None
    except OSError as error:
        raise StorageError(f"{shown}: cannot be read: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, AssertionError, RecursionError) as error:
        raise StorageError(f"{shown}: is damaged: {' '.join(str(error).split())[:300]}") from None
    except Exception as error:  # whatever a database's driver raises
        raise StorageError(f"{shown}: cannot be read: {reason_of(error, text)}") from None


def _open(location: str) -> BaseStorage:
    if "://" not in location:
        return JournalStorage(RecordedFile(Path(location)))
    if location.startswith("redis"):
        return get_storage(location)
    url = make_url(location)
    if url.get_backend_name() == "sqlite" and url.database and not Path(url.database).is_file():
        raise FileNotFoundError(2, "there is no such file")  # connecting would create it
    return read_database(location) if is_shared(location) else RDBStorage(location, skip_table_creation=True)


def _read(storage: BaseStorage, location: str, name: str | None) -> RecordedStudy:
    studies = {each.study_name: each for each in storage.get_all_studies() if each.study_name.startswith("autotune-")}
    if not studies:
        raise StorageError("holds no study of autotune")
    if name is not None and name not in studies:
        raise StorageError(f"holds no study {name}; there are {', '.join(studies)}")
    study = studies[name or _newest(storage, {name: study._study_id for name, study in studies.items()})]
    parts = study.user_attrs.get(stored.IDENTITY, {})
    if parts.get("records") not in map(str, range(EARLIEST_SCHEMA, SCHEMA + 1)):
        raise StorageError(f"{study.study_name} was written by another version of autotune")
    kept = stored.read(storage, study._study_id)
    history = (*kept.trials, *kept.confirmations) or stored.failed_baselines(storage, study._study_id)
    result, since = stored.read_result(storage, study._study_id, history)
    return RecordedStudy(
        location=location,
        name=study.study_name,
        others=tuple(other for other in studies if other != study.study_name),
        made_on={str(key): str(value) for key, value in parts.items()},
        history=history,
        result=result,
        since=since,
        path=str(study.user_attrs.get(stored.FILE, DEFAULT_PATH)),
    )


def _newest(storage: BaseStorage, studies: Mapping[str, int]) -> str:
    """Return the name of the study in which something was measured last."""
    ended = ((stored.ended_at(storage, study_id), name) for name, study_id in studies.items())
    times = [(when, name) for when, name in ended if when is not None]
    if not times:
        raise StorageError("holds no measurement yet")
    return max(times)[1]
