"""Records as JSON, and back: for the pipe to the measuring process and for the study's storage."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from autotune.config import Config
from autotune.probes import (
    Anatomy,
    CodeShare,
    ComputeProbe,
    LoaderTrace,
    NumericsCheck,
    Synchronisation,
    Trace,
    TracedOperation,
)
from autotune.records import (
    Attempt,
    Conditions,
    Measurement,
    Outcome,
    Probe,
    StepTime,
    Trial,
    WorkloadFacts,
)

__all__ = [
    "attempt_from_json",
    "facts_from_json",
    "measurement_from_json",
    "probe_from_json",
    "to_json",
    "trial_from_json",
]


def to_json(record: Trial | Probe) -> dict[str, Any]:
    """Return a trial or a look as plain values, its configuration as a document."""
    values = {**asdict(record), "config": record.config.to_document()}
    return dict(json.loads(json.dumps(values)))


def trial_from_json(values: Mapping[str, Any]) -> Trial:
    """Rebuild a trial from what ``to_json`` made of it."""
    return Trial(
        **{
            **values,
            "config": Config.from_document(values["config"]),
            "outcome": Outcome(values["outcome"]),
            "measurement": measurement_from_json(values["measurement"]),
        }
    )


def probe_from_json(values: Mapping[str, Any]) -> Probe:
    """Rebuild a look from what ``to_json`` made of it."""
    return Probe(
        **{
            **values,
            "config": Config.from_document(values["config"]),
            "outcome": Outcome(values["outcome"]),
            **_looks_from_json(values),
        }
    )


def attempt_from_json(values: Mapping[str, Any]) -> Attempt:
    """Rebuild an attempt from the dictionary that ``dataclasses.asdict`` and JSON made of it."""
    return Attempt(
        **{
            **values,
            "outcome": Outcome(values["outcome"]),
            "measurement": measurement_from_json(values["measurement"]),
            **_looks_from_json(values),
            "anatomy": _anatomy_from_json(values["anatomy"]),
            "trace": _trace_from_json(values["trace"]),
        }
    )


def facts_from_json(values: Mapping[str, Any]) -> WorkloadFacts:
    """Rebuild the workload's facts from the dictionary that JSON made of them."""
    return WorkloadFacts(**{**values, "amp_modes": tuple(values["amp_modes"])})


def measurement_from_json(values: Mapping[str, Any] | None) -> Measurement | None:
    """Rebuild a measurement from the dictionary that ``dataclasses.asdict`` and JSON made of it."""
    if values is None:
        return None
    plain = dict(values)
    plain["step_time"] = StepTime(**plain["step_time"])
    conditions = plain["conditions"]
    plain["conditions"] = Conditions(**{**conditions, "gpu_slowdowns": tuple(conditions["gpu_slowdowns"])})
    plain["ci95"] = tuple(plain["ci95"]) if plain["ci95"] else None
    plain["notes"] = tuple(plain["notes"])
    return Measurement(**plain)


def _looks_from_json(values: Mapping[str, Any]) -> dict[str, Any]:
    compute, loader, numerics = values["compute"], values["loader"], values["numerics"]
    return {
        "compute": ComputeProbe(**compute) if compute else None,
        "loader": LoaderTrace(**_with_tuples(loader)) if loader else None,
        "numerics": NumericsCheck(**_with_tuples(numerics)) if numerics else None,
    }


def _anatomy_from_json(values: Mapping[str, Any] | None) -> Anatomy | None:
    if values is None:
        return None
    code = tuple(CodeShare(**share) for share in values["code"])
    synchronisations = tuple(Synchronisation(**one) for one in values["synchronisations"])
    return Anatomy(**{**values, "code": code, "synchronisations": synchronisations})


def _trace_from_json(values: Mapping[str, Any] | None) -> Trace | None:
    if values is None:
        return None
    return Trace(**{**values, "operations": tuple(TracedOperation(**one) for one in values["operations"])})


def _with_tuples(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
