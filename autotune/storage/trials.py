"""The form of a search in an Optuna study: values for people in Optuna's tools, autotune's records beside them.

Parameters, values, constraints and user attributes are for people and Optuna. The records are system attributes, which
those tools do not show: from them a study goes on and a report is made.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState, create_trial

from autotune.encoding import from_json, to_json
from autotune.records import Probe, Trial
from autotune.report.result import Result
from autotune.result import verdict_text

RECORD = "autotune:record"
"""System attribute of a trial: the whole of it, but for its number."""
ENDED = "autotune:ended"
"""System attribute of a trial: when it ended, in UTC. Optuna's own times are the local ones of each host."""
LOOK, RUN, END = "autotune:look", "autotune:run", "autotune:end"
"""System attributes of a study. The subject of a look follows, so that two tuners write the same look once."""
BY = "measured by"
"""User attribute of a trial that is or was measured: host and process."""
FEASIBLE = "memory"
"""Constraint of a trial: by which share it exceeds the memory that may be used."""
MOST = 1e15
"""No rate, time or memory is as large."""


def is_record(frozen: FrozenTrial) -> bool:
    """Return whether a trial is one of autotune's that has ended."""
    return frozen.state in (TrialState.COMPLETE, TrialState.PRUNED) and RECORD in frozen.system_attrs


def trial_of(frozen: FrozenTrial) -> Trial:
    """Return the record in a trial that has ended. Raises ``ValueError`` where it is damaged."""
    values = frozen.system_attrs[RECORD]
    if not isinstance(values, Mapping):
        raise ValueError(f"trial {frozen.number}: holds no record")
    trial = from_json(Trial, {**values, "number": frozen.number})
    if (measured := trial.measurement) and not 0 < measured.samples_per_second < MOST:
        raise ValueError(f"trial {trial.number}: {measured.samples_per_second} was never measured")
    return trial


def write_trial(study: Study, running: optuna.Trial, trial: Trial, violation: float) -> None:
    """End a running trial with its record; ``violation`` is positive where it is infeasible."""
    ended = frozen_trial(trial, {}, {}, violation)
    for key, value in ended.user_attrs.items():
        running.set_user_attr(key, value)
    for key, value in ended.system_attrs.items():
        study._storage.set_trial_system_attr(running._trial_id, key, value)
    study.tell(running, ended.value, state=ended.state)


def frozen_trial(
    trial: Trial, settings: Mapping[str, Any], distributions: Mapping[str, BaseDistribution], violation: float
) -> FrozenTrial:
    """Return a trial as Optuna keeps it; ``violation`` is positive where it is infeasible."""
    record = to_json(trial)
    del record["number"]
    frozen = create_trial(
        state=TrialState.COMPLETE if trial.rate is not None else TrialState.PRUNED,
        value=trial.rate,
        params=dict(settings),
        distributions=dict(distributions),
        user_attrs=_in_words(trial),
        system_attrs={RECORD: record, ENDED: datetime.now(UTC).isoformat()},
        constraints={FEASIBLE: violation},
    )
    if frozen.datetime_complete:
        frozen.datetime_start = frozen.datetime_complete - timedelta(seconds=trial.attempt.seconds)
    return frozen


def _in_words(trial: Trial) -> dict[str, Any]:
    words: dict[str, Any] = {"kind": trial.kind, "outcome": str(trial.outcome)}
    if trial.attempt.message:
        words["message"] = trial.attempt.message
    if trial.round is not None:
        words["round"] = trial.round
    if trial.predicted is not None:
        words["expected samples/s"] = _rounded(trial.predicted)
    if trial.bound is not None:
        words["samples/s at most"] = _rounded(trial.bound)
    if measured := trial.measurement:
        words["samples/s of the step alone"] = _rounded(measured.ceiling_samples_per_second)
        words["peak memory in GiB"] = _rounded(measured.peak_memory_bytes / 2**30)
        step = measured.step_time
        words["waiting for data in %"] = _rounded(100 * step.data_wait / step.total) if step.total else 0.0
    return words


def write_look(study: Study, probe: Probe) -> None:
    """Add a look at a part of training to a study."""
    config, attributes = probe.config, system_attributes(study)
    settings = [config.batch_size, config.amp, config.intra_op_threads or 0, *config.options]
    settings += config.dataloader_kwargs().values()
    times = [f"again {probe.again}"] if probe.again else []
    subject = ":".join(map(str, [LOOK, probe.part, *settings, *times]))
    known = {key: look for key, look in attributes.items() if key.rpartition(":")[0] == subject}
    same = next((key for key, look in known.items() if look["attempt"]["payload"]), f"{subject}:{len(known)}")
    number = sum(key.startswith(f"{LOOK}:") for key in attributes)
    study._storage.set_study_system_attr(study._study_id, same, {"number": number, **to_json(probe)})


def system_attributes(study: Study) -> dict[str, Any]:
    """Return the attributes of a study that Optuna's tools do not show."""
    return study._storage.get_study_system_attrs(study._study_id)


def looks_of(attributes: Mapping[str, Any], parsed: dict[str, tuple[object, Probe]]) -> tuple[Probe, ...]:
    """Return the looks among a study's system attributes, in order; ``parsed`` holds those that were read before.

    Raises ``ValueError`` where one is damaged.
    """
    numbered = sorted((look["number"], key) for key, look in attributes.items() if key.startswith(f"{LOOK}:"))
    for _, key in numbered:
        look = attributes[key]
        if key not in parsed or parsed[key][0] != look:
            parsed[key] = look, from_json(Probe, {name: value for name, value in look.items() if name != "number"})
    return tuple(parsed[key][1] for _, key in numbered)


def write_end(study: Study, end: Mapping[str, Any], result: Result) -> None:
    """Write the end of a run, as JSON, and its result for people; trials and looks are there already."""
    study._storage.set_study_system_attr(study._study_id, END, end)
    document = result.config.to_document()
    words = {
        "verdict": verdict_text(result.verdict, result.most_gain),
        "sentence": result.sentence,
        "times the samples a second": _rounded(result.speedup),
        "confirmed samples/s": _rounded(result.samples_per_second),
        "answer": {name: part for name, part in document.items() if name in ("dataloader", "training", "threads")},
        "limited by": result.bottleneck or "unknown",
        "tuned": f"{result.facts.model_name} on {result.facts.dataset_name}",
    }
    for name, value in words.items():
        study.set_user_attr(name, value)


def history_of(frozen: Iterable[FrozenTrial]) -> tuple[Trial, ...]:
    """Return all trials that have ended, in the order of ``ordered``. Raises ``ValueError`` where one is damaged."""
    return ordered([trial_of(each) for each in frozen if is_record(each)])


def searched(ended: Iterable[Trial]) -> tuple[Trial, ...]:
    """Return the trials of the search, first the baseline that counts: undisturbed if there is one, else the fastest.

    A disturbed baseline is measured again, and one of a first epoch where later ones are faster.
    """
    trials = [trial for trial in ended if trial.kind != "confirm" and not is_failed_baseline(trial)]
    baselines = [trial for trial in trials if trial.kind == "baseline"]
    counted = sorted(baselines, key=_rank)[:1]
    return (*counted, *(trial for trial in trials if trial not in baselines))


def ordered(ended: Sequence[Trial]) -> tuple[Trial, ...]:
    """Return the trials of a study, confirmations last; failed baselines only where no baseline worked.

    Raises ``ValueError`` where the baseline is missing.
    """
    worked = [trial for trial in ended if not is_failed_baseline(trial)]
    searched = [trial for trial in worked if trial.kind != "confirm"]
    if worked and (not searched or searched[0].kind != "baseline"):
        raise ValueError("the baseline's trial is missing")
    return (*searched, *(trial for trial in worked if trial.kind == "confirm")) if worked else tuple(ended)


def _rank(baseline: Trial) -> tuple[bool, bool, float]:
    measured = baseline.measurement
    return not (measured and measured.later_epochs), baseline.is_disturbed, -(baseline.rate or 0.0)


def is_failed_baseline(trial: Trial) -> bool:
    """Return whether a trial is a baseline without numbers: it is measured again."""
    return trial.kind == "baseline" and trial.measurement is None


def ended_at(frozen: Iterable[FrozenTrial]) -> datetime | None:
    """Return when the last trial ended of which there is a record, in UTC."""
    found = list[datetime]()
    for each in filter(is_record, frozen):
        with suppress(KeyError, TypeError, ValueError):
            found.append(datetime.fromisoformat(each.system_attrs[ENDED]).astimezone(UTC))
    return max(found, default=None)


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")
