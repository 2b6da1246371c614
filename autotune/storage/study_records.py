"""The form of a study in Optuna's storage: values for people in Optuna's tools, autotune's records beside them.

Parameters, values, constraints and user attributes are for people and Optuna. The records are system attributes, which
those tools do not show: from them a study goes on and a report is made.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial, TrialState, create_trial
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from autotune.encoding import from_json, result_from_json, to_json
from autotune.errors import UsageError
from autotune.host import Host
from autotune.records import SCHEMA, Probe, Trial, WorkloadFacts
from autotune.result import Result, verdict_text
from autotune.stats import LEAST_ROUNDS

IDENTITY, SEARCH_ENDED, FINISHED, FILE = "identity", "search ended", "finished", "config file"
"""User attributes of a study: its identity, why its search ended last, when and where its answer was delivered."""
RECORD = "autotune:record"
"""System attribute of a trial: the whole of it."""
ENDED = "autotune:ended"
"""System attribute of a trial: when it ended, in UTC. Optuna's own times are the local ones of each host."""
LOOK, CONFIRMATION, RESULT = "autotune:look", "autotune:confirmation", "autotune:result"
"""System attributes of a study; the first two with a number. In a shared study the tuner's own name follows."""
NOTE_VERSION, NOTE_PART, NOTE_LENGTH = "note_ver", "note_str", 2045
"""Where optuna-dashboard keeps a note, and how many characters it puts into an attribute
(``optuna_dashboard._note`` of 0.21; a test reads the notes with the package)."""
UNREADABLE = (
    "the URL of the study cannot be read; write postgresql://user@host:5432/database, and in a name or password "
    "%40 for @, %2F for / and %3A for :"
)
"""Message for a URL that may hold a password anywhere."""
MOST = 1e15
"""No rate, time or memory is as large."""
LONGEST = 60
"""Characters of a value that are shown."""
IN_WORDS = {
    "workload": "another model, dataset or training code",
    "settings": "another baseline or other values to search",
    "records": "another version of autotune",
}
"""Parts known by a hash or a number, and the words for a difference in them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """The content of a study."""

    trials: tuple[Trial, ...] = ()
    """The trials of the search, the baseline first."""
    probes: tuple[Probe, ...] = ()
    """The probes."""
    confirmations: tuple[Trial, ...] = ()
    """The confirming measurements of earlier runs."""


def distribution(values: tuple[Any, ...]) -> BaseDistribution:
    """Return the distribution of a knob with these values."""
    if isinstance(values[0], int) and not isinstance(values[0], bool):
        return IntDistribution(min(values), max(values))
    return CategoricalDistribution(values)


def frozen_trial(
    trial: Trial, settings: Mapping[str, Any], distributions: Mapping[str, BaseDistribution], violation: float
) -> FrozenTrial:
    """Return a trial as Optuna keeps it; ``violation`` is positive where it is infeasible."""
    frozen = create_trial(
        state=TrialState.COMPLETE if trial.rate is not None else TrialState.PRUNED,
        value=trial.rate,
        params=dict(settings),
        distributions=dict(distributions),
        user_attrs=_in_words(trial),
        system_attrs={RECORD: to_json(trial), ENDED: datetime.now(UTC).isoformat()},
        constraints={"feasible": violation},
    )
    if frozen.datetime_complete:
        frozen.datetime_start = frozen.datetime_complete - timedelta(seconds=trial.attempt.seconds)
    return frozen


def _in_words(trial: Trial) -> dict[str, Any]:
    """Return the attributes of a trial to show beside its parameters."""
    words: dict[str, Any] = {"trial": trial.number, "outcome": str(trial.outcome), "kind": trial.kind}
    if trial.attempt.message:
        words["message"] = trial.attempt.message
    if trial.predicted is not None:
        words["expected samples/s"] = _rounded(trial.predicted)
    if trial.bound is not None:
        words["samples/s at most"] = _rounded(trial.bound)
    if measured := trial.measurement:
        words["samples/s"] = _rounded(measured.samples_per_second)
        words["samples/s of the step alone"] = _rounded(measured.ceiling_samples_per_second)
        words["peak memory in GiB"] = _rounded(measured.peak_memory_bytes / 2**30)
        step = measured.step_time
        words["waiting for data in %"] = _rounded(100 * step.data_wait / step.total) if step.total else 0.0
    return words


def describe_result(result: Result) -> dict[str, Any]:
    """Return the attributes of a result to show at its study."""
    document = result.config.to_document()
    return {
        "verdict": verdict_text(result.verdict, result.most_gain),
        "times faster": _rounded(result.speedup),
        "confirmed samples/s": _rounded(result.samples_per_second),
        "answer": {name: part for name, part in document.items() if name in ("dataloader", "training", "threads")},
        "limited by": result.bottleneck or "unknown",
        "tuned": f"{result.facts.model_name} on {result.facts.dataset_name}",
    }


def read(
    storage: BaseStorage,
    study_id: int,
    parsed: dict[object, Trial] | None = None,
    frozen: Iterable[FrozenTrial] | None = None,
) -> Kept:
    """Return the content of a study. Raises ``ValueError`` where it is damaged.

    For whoever reads often ``parsed`` holds what was read before, which never changes, and ``frozen`` are all its
    trials as the storage has them now.
    """
    parsed = {} if parsed is None else parsed
    frozen = storage.get_all_trials(study_id, deepcopy=False) if frozen is None else frozen
    trials = tuple(trial for trial in _trials(frozen, parsed) if not _is_failed_baseline(trial))
    if trials and trials[0].kind != "baseline":
        raise ValueError("the baseline's trial is missing")
    attributes = storage.get_study_system_attrs(study_id)
    confirmations = [_parsed(parsed, key, attributes[key]) for key in _keys(attributes, CONFIRMATION)]
    kept = Kept(
        trials=trials,
        probes=tuple(from_json(Probe, attributes[key]) for key in _keys(attributes, LOOK)),
        confirmations=numbered_apart(trials, confirmations),
    )
    _require_plausible(kept)
    return kept


def numbered_apart(trials: Iterable[Trial], confirmations: Iterable[Trial]) -> tuple[Trial, ...]:
    """Return confirmations with numbers of their own: where several tuners count, a trial may have the same one."""
    confirmations, taken = tuple(confirmations), {trial.number for trial in trials}
    free = itertools.count(max((*taken, *(trial.number for trial in confirmations)), default=0) + 1)
    found = []
    for trial in confirmations:
        number = next(free) if trial.number in taken else trial.number
        taken.add(number)
        found.append(replace(trial, number=number))
    return tuple(found)


def failed_baselines(storage: BaseStorage, study_id: int) -> tuple[Trial, ...]:
    """Return the trials of a baseline that gave no number, counted on. Raises ``ValueError`` where one is damaged."""
    failed = filter(_is_failed_baseline, _trials(storage.get_all_trials(study_id, deepcopy=False), {}))
    return tuple(replace(trial, number=number) for number, trial in enumerate(failed))


def _is_failed_baseline(trial: Trial) -> bool:
    return trial.kind == "baseline" and trial.measurement is None


def _trials(frozen: Iterable[FrozenTrial], parsed: dict[object, Trial]) -> Iterator[Trial]:
    """Yield the trials of the search that have ended."""
    for each in frozen:
        if each.state in (TrialState.COMPLETE, TrialState.PRUNED) and RECORD in each.system_attrs:
            yield _parsed(parsed, each.number, each.system_attrs[RECORD])


def _parsed(parsed: dict[object, Trial], key: object, values: object) -> Trial:
    if key not in parsed:
        parsed[key] = from_json(Trial, values)
    return parsed[key]


def write_trial(storage: BaseStorage, study_id: int, frozen: FrozenTrial, note: str = "") -> None:
    """Keep a trial that has ended, with its record; ``note`` is shown beside it, in Markdown."""
    trial_id = storage.create_new_trial(study_id, template_trial=frozen)
    if note:
        save_note(storage, study_id, note, trial_id)


def read_result(storage: BaseStorage, study_id: int, history: tuple[Trial, ...]) -> tuple[Result | None, int]:
    """Return the result of the last run that has ended, and how many measurements there are since.

    Raises ``ValueError`` where it is damaged.
    """
    attributes = storage.get_study_system_attrs(study_id)
    results = [value for key, value in attributes.items() if key == RESULT or key.startswith(f"{RESULT}:")]
    if not results:
        return None, _measurements(history)
    kept = max(results, key=lambda result: str(result.get("at", "")))
    return result_from_json(kept["result"], history), max(0, _measurements(history) - int(kept["measurements"]))


def write_result(storage: BaseStorage, study_id: int, result: Result, tuner: str = "") -> None:
    """Keep a result; its trials are there already. In a shared study each tuner has its own, and the latest counts."""
    kept: dict[str, Any] = {"measurements": _measurements(result.history), "result": to_json(result)}
    if tuner:
        kept["at"] = datetime.now(UTC).isoformat()
    storage.set_study_system_attr(study_id, f"{RESULT}:{tuner}" if tuner else RESULT, kept)
    for name, value in describe_result(result).items():
        storage.set_study_user_attr(study_id, name, value)


def _measurements(history: tuple[Trial, ...]) -> int:
    return sum(trial.kind != "skipped" for trial in history)


def ended_at(storage: BaseStorage, study_id: int) -> datetime | None:
    """Return when the last trial ended of which there is a record, in UTC."""
    trials = storage.get_all_trials(study_id, deepcopy=False)
    return max(filter(None, (_ended(trial) for trial in trials if RECORD in trial.system_attrs)), default=None)


def _ended(trial: FrozenTrial) -> datetime | None:
    with suppress(KeyError, TypeError, ValueError):
        return datetime.fromisoformat(trial.system_attrs[ENDED]).astimezone(UTC)
    return trial.datetime_complete.astimezone(UTC) if trial.datetime_complete else None


def append(storage: BaseStorage, study_id: int, kind: str, record: Trial | Probe) -> None:
    """Keep one more probe or confirmation."""
    numbers = [number for number, _ in _numbers(storage.get_study_system_attrs(study_id), kind)]
    storage.set_study_system_attr(study_id, key_of(kind, max(numbers, default=-1) + 1), to_json(record))


def key_of(kind: str, number: int, tuner: str = "") -> str:
    """Return the attribute's name of a probe or a confirmation."""
    return f"{kind}:{number:05d}:{tuner}" if tuner else f"{kind}:{number:05d}"


def save_note(storage: BaseStorage, study_id: int, text: str, trial_id: int | None = None) -> None:
    """Keep a note, in Markdown, where optuna-dashboard looks for it."""
    place = "dashboard" if trial_id is None else f"dashboard:{trial_id}"
    known = storage.get_study_system_attrs(study_id)
    parts = [text[at : at + NOTE_LENGTH] for at in range(0, len(text), NOTE_LENGTH)]
    old = sum(key.startswith(f"{place}:{NOTE_PART}:") for key in known)
    for index, part in enumerate([*parts, *[""] * (old - len(parts))]):
        storage.set_study_system_attr(study_id, f"{place}:{NOTE_PART}:{index}", part)
    version = f"{place}:{NOTE_VERSION}"
    storage.set_study_system_attr(study_id, version, known.get(version, 0) + 1)


def _numbers(attributes: Mapping[str, Any], kind: str) -> list[tuple[int, str]]:
    """Return the keys of one kind with their numbers."""
    found = (re.fullmatch(rf"{kind}:(\d{{1,9}})(:\w+)?", key) for key in attributes)
    return [(int(match[1]), match[0]) for match in found if match]


def _keys(attributes: Mapping[str, Any], kind: str) -> list[str]:
    """Return the attributes' names of one kind, in order."""
    return [key for _, key in sorted(_numbers(attributes, kind))]


def parse_url(location: str) -> URL | None:
    """Return the parts of a URL; ``None`` where they cannot be told apart, as with an @ in a password."""
    userinfo_and_place = re.sub(r"\?[\w.]+=.*", "", location.partition("://")[2], flags=re.DOTALL)
    if "://" not in location or userinfo_and_place.count("@") > 1:
        return None
    try:
        return make_url(location)
    except (ArgumentError, ValueError):
        return None


def require_url(location: str) -> None:
    """Raise ``UsageError`` where the parts of a URL cannot be told apart; the message shows none of them."""
    if "://" in location and parse_url(location) is None:
        raise UsageError(UNREADABLE)


def without_password(location: str) -> str:
    """Return a URL that may be shown; a file as it is."""
    if "://" not in location:
        return location
    url = parse_url(location)
    if url is None:  # it cannot be opened, but it may hold a password all the same
        masked = re.sub(r"://.*@", "://***@", location, flags=re.DOTALL)
        return re.sub(r"((?:pass|pwd)\w*=)[^&]*", r"\1***", masked, flags=re.IGNORECASE)
    secret = {name: "***" for name in url.query if "pass" in name.lower() or "pwd" in name.lower()}
    if url.password is None and not secret:
        return location
    return url.update_query_dict(secret).render_as_string(hide_password=True).replace("%2A%2A%2A", "***")


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def _require_plausible(kept: Kept) -> None:
    """Raise ``ValueError`` where a number is none that can have been measured."""
    for trial in (*kept.trials, *kept.confirmations):
        where = f"trial {trial.number}"
        if measured := trial.measurement:
            _require(where, 1e-9, measured.samples_per_second, measured.ceiling_samples_per_second)
            _require(
                where, 0.0, trial.number, trial.attempt.seconds, measured.memory_limit_bytes, measured.peak_memory_bytes
            )
            _require(where, -MOST, *(measured.ci95 or ()))
        if trial.planned is not None:
            _require(where, LEAST_ROUNDS, trial.planned)
    for probe in kept.probes:
        if compute := probe.attempt.compute:
            _require("a look", 1e-9, compute.samples_per_second, compute.memory_limit_bytes)
            _require("a look", 0.0, compute.host_seconds, compute.cpu_seconds, compute.peak_memory_bytes)
        if loader := probe.attempt.loader:
            _require("a look", 1, loader.batch_size, len(loader.build_seconds))
            _require("a look", 0.0, loader.inline_seconds or 0.0, loader.cpu_seconds, *loader.build_seconds)


def _require(where: str, least: float, *values: float) -> None:
    for value in values:
        if not least <= value < MOST:  # false for what is not a number
            raise ValueError(f"{where}: {value} was never measured")


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The identity of a study."""

    parts: Mapping[str, str]
    """Name and value of everything that makes measurements comparable."""

    @property
    def name(self) -> str:
        """The name of such a study, without the number of the run."""
        return f"autotune-{hashlib.sha256(json.dumps(sorted(self.parts.items())).encode()).hexdigest()[:16]}"

    def differences(self, other: Mapping[str, object]) -> list[str]:
        """Say in what the parts of another study differ, such as "torch 2.12, here is 2.13"."""
        names = [name for name in self.parts if str(other.get(name)) != self.parts[name]]
        if "Python" in names and "workload" in names:
            names.remove("workload")  # its byte code is another, whether or not it was edited
        return [
            IN_WORDS.get(name) or f"{name} {str(other.get(name))[:LONGEST]}, here is {self.parts[name][:LONGEST]}"
            for name in names
        ]


def identify(facts: WorkloadFacts, host: Host, settings: str) -> Identity:
    """Return the identity of a study; ``settings`` is the fingerprint of its space."""
    versions = {**host.versions, **facts.versions}
    return Identity(
        parts={
            "records": str(SCHEMA),
            "workload": facts.fingerprint,
            "settings": settings,
            "device": facts.device_name,
            **host.traits,
            "torch": versions.get("torch", "unknown"),
            "driver": versions.get("driver", "none"),
            "Python": ".".join(versions.get("python", "unknown").split(".")[:2]),
            "optuna": versions.get("optuna", "unknown").partition(".")[0],
            "autotune": versions.get("autotune", "unknown"),
        }
    )
