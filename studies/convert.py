"""Convert studies that earlier versions of autotune recorded, with records 6 to 10, to records 11.

    python -m studies.convert studies/*/recorded/*.study

Each file is replaced. Configurations that were never measured are left out; confirming measurements become trials.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial

from autotune.config import Config
from autotune.encoding import PAYLOADS, from_json
from autotune.knobs import KNOBS
from autotune.records import SCHEMA, Attempt, Probe, Trial
from autotune.search.sampler import add_look
from autotune.storage.identity import Identity
from autotune.storage.open import IDENTITY, StudyStorage
from autotune.storage.trials import ENDED, RECORD, RESULT, frozen_trial

FIELDS = {"threads": "intra_op_threads"}
OF_ATTEMPT = {*PAYLOADS, *Attempt.__dataclass_fields__}


def main() -> None:
    for name in sys.argv[1:]:
        path = Path(name)
        new = path.with_suffix(".converted")
        convert(path, new)
        new.replace(path)


def convert(old: Path, new: Path) -> None:
    """Write the studies of a file to another one."""
    storage = JournalStorage(JournalFileBackend(str(old)))
    for name in optuna.get_all_study_names(storage):
        study = optuna.load_study(study_name=name, storage=storage)
        if study.user_attrs[IDENTITY]["records"] == str(SCHEMA):
            raise SystemExit(f"{old} has records {SCHEMA} already")
        kept = StudyStorage(new).open(Identity(parts=study.user_attrs[IDENTITY] | {"records": str(SCHEMA)}))
        fill(study, kept.study)
        kept.close()


def fill(old: optuna.Study, new: optuna.Study) -> None:
    """Add everything that an old study holds to a new one."""
    attributes = old._storage.get_study_system_attrs(old._study_id)
    trials = [each for each in old.get_trials(deepcopy=False) if RECORD in each.system_attrs]
    records = [(each.system_attrs[RECORD], each) for each in trials]
    records += [(value, None) for key, value in attributes.items() if key.startswith("autotune:confirmation")]
    known = {knob: found for each in trials for knob, found in each.distributions.items()}
    for record, frozen in sorted(records, key=lambda each: each[0]["number"]):
        if record["kind"] != "skipped":
            new.add_trial(converted(nested(record), frozen, known))
    for key, value in sorted(attributes.items()):
        if key.startswith("autotune:look"):
            add_look(new, from_json(Probe, nested(value)))
    result: dict[str, Any] = next(value for key, value in attributes.items() if key.startswith(RESULT))
    kept = {"measurements": len(new.get_trials(deepcopy=False)), "result": result["result"]}
    new._storage.set_study_system_attr(new._study_id, RESULT, kept)
    for key, value in old.user_attrs.items():
        if key not in (IDENTITY, "search ended"):
            new.set_user_attr(key, value)


def nested(record: dict[str, Any]) -> dict[str, Any]:
    """Return a trial or probe with its attempt as a record of its own."""
    attempt = {key: value for key, value in record.items() if key in OF_ATTEMPT}
    payload = {name: attempt.pop(name) for name in PAYLOADS if name in attempt}
    attempt["payload"] = next(({name: value} for name, value in payload.items() if value is not None), None)
    if attempt["outcome"] == "lost":
        attempt["outcome"] = "crashed"
    rest = {key: value for key, value in record.items() if key not in OF_ATTEMPT and key != "host"}
    return {**rest, "attempt": attempt}


def converted(record: dict[str, Any], frozen: FrozenTrial | None, known: dict[str, Any]) -> FrozenTrial:
    """Return a trial of today; the parameters of a confirming measurement are those of its configuration."""
    trial = from_json(Trial, record)
    if frozen is None:
        settings = {knob: value for knob in KNOBS if (value := value_of(trial.config, knob, known)) is not None}
        settings = {knob: value for knob, value in settings.items() if contains(known[knob], value)}
    else:
        settings = frozen.params
    violation = 1.0 if trial.measurement is None else -1.0
    found = frozen_trial(trial, settings, {knob: known[knob] for knob in settings}, violation)
    if frozen is not None:  # when a confirming measurement ended was not written down
        found.datetime_start, found.datetime_complete = frozen.datetime_start, frozen.datetime_complete
        found.system_attrs |= {ENDED: frozen.system_attrs[ENDED]} if ENDED in frozen.system_attrs else {}
    return found


def contains(distribution: Any, value: Any) -> bool:
    """Return whether a parameter may have a value."""
    choices = getattr(distribution, "choices", None)
    return value in choices if choices is not None else bool(distribution.low <= value <= distribution.high)


def value_of(config: Config, knob: str, known: dict[str, Any]) -> Any:
    return getattr(config, FIELDS.get(knob, knob)) if knob in known else None


if __name__ == "__main__":
    main()
