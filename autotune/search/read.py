"""Reads a kept study, and changes nothing: a run may be going on in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import BaseStorage, JournalStorage
from optuna.study import Study
from optuna.trial import FrozenTrial
from sqlalchemy.engine import make_url

from autotune.encoding import from_json
from autotune.errors import StorageError
from autotune.records import SCHEMA
from autotune.report.result import RecordedStudy
from autotune.result import DEFAULT_PATH
from autotune.search.answer import answer
from autotune.search.known import Known
from autotune.search.run import End
from autotune.search.sampler import PredictiveSampler, Seen
from autotune.storage.journal import RecordedFile
from autotune.storage.open import FILE, IDENTITY, is_ours, quiet_optuna
from autotune.storage.server import read_database, reason_of, require_url, without_password
from autotune.storage.trials import END, LOOK, ended_at, history_of, system_attributes


def read_study(location: str | Path, name: str | None = None) -> RecordedStudy:
    """Return the study in a file or behind an Optuna URL in which something was measured last, or the one of this name.

    Raises ``StorageError`` when there is none or it cannot be read, ``UsageError`` for a URL that cannot.
    """
    text = str(location)
    require_url(text)
    shown = without_password(text)
    try:
        with quiet_optuna():
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
        return optuna.storages.get_storage(location)
    url = make_url(location)
    if url.get_backend_name() == "sqlite" and url.database and not Path(url.database).is_file():
        raise FileNotFoundError(2, "there is no such file")  # connecting would create it
    return read_database(location)


def _read(storage: BaseStorage, location: str, name: str | None) -> RecordedStudy:
    names = [each.study_name for each in storage.get_all_studies() if is_ours(each.study_name)]
    if not names:
        raise StorageError("holds no study of autotune")
    if name is not None and name not in names:
        raise StorageError(f"holds no study {name}; there are {', '.join(names)}")
    study = _newest([optuna.load_study(study_name=each, storage=storage) for each in names if name in (None, each)])
    parts = study.user_attrs.get(IDENTITY, {})
    if parts.get("records") != str(SCHEMA):
        raise StorageError(f"{study.study_name} was written by another version of autotune")
    frozen, attributes = study.get_trials(deepcopy=False), system_attributes(study)
    history = history_of(frozen)
    result, since = None, len(history)
    if END in attributes:
        known = _known(frozen, attributes)
        result, since = answer(known), len(history) - len(known.history)
    return RecordedStudy(
        location=location,
        name=study.study_name,
        others=tuple(other for other in names if other != study.study_name),
        made_on={str(key): str(value) for key, value in parts.items()},
        history=history,
        result=result,
        since=since,
        path=str(study.user_attrs.get(FILE, DEFAULT_PATH)),
    )


def _known(frozen: Sequence[FrozenTrial], attributes: Mapping[str, Any]) -> Known:
    end = from_json(End, attributes[END])
    then = [each for each in frozen if each.number in end.trials]
    looks = {key: look for key, look in attributes.items() if not key.startswith(LOOK) or look["number"] < end.looks}
    known = PredictiveSampler().known(Seen(then, looks))
    return replace(known, others=(), end=end)


def _newest(studies: list[Study]) -> Study:
    times = [(ended_at(study.get_trials(deepcopy=False)), study) for study in studies]
    known = [(when, study) for when, study in times if when is not None]
    if not known:
        raise StorageError("holds no measurement yet")
    return max(known, key=lambda each: each[0])[1]
