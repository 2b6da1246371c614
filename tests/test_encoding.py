from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import pytest

from autotune.encoding import from_json, to_json
from autotune.outcome import Outcome
from autotune.probes import StoredItems
from autotune.records import Attempt, Probe, WorkloadFacts
from tests import examples

LOOKS = (examples.compute_probe(), examples.loader_trace(), examples.numerics_check(overflows=(3, 4)))
TRIALS = [examples.trial(), examples.failed_trial(), examples.trial(predicted=1.5, bound=2.0, kind="search")]
PROBES = [
    Probe(part="compute", config=examples.ANSWER, attempt=Attempt(outcome=Outcome.OK, payload=LOOKS[0])),
    Probe(part="loader", config=examples.ANSWER, attempt=Attempt(outcome=Outcome.OK, payload=LOOKS[1])),
    Probe(part="numerics", config=examples.ANSWER, attempt=Attempt(outcome=Outcome.OK, payload=LOOKS[2])),
    Probe(part="compute", config=examples.BASELINE, attempt=Attempt(outcome=Outcome.DEVICE_OOM, message="too large")),
]
ATTEMPTS = [
    Attempt(outcome=Outcome.OK, payload=examples.measurement(ci95=None), seconds=2.0),
    Attempt(outcome=Outcome.CRASHED, message="gone", details="a traceback"),
    *(Attempt(outcome=Outcome.OK, payload=look) for look in LOOKS),
    Attempt(outcome=Outcome.OK, payload=examples.anatomy()),
    Attempt(outcome=Outcome.OK, payload=examples.anatomy(code=(), synchronisations=(), dataset_bytes=None)),
    Attempt(outcome=Outcome.OK, payload=StoredItems(folder="/a", samples=2, item_bytes=9.5, item_seconds=0.1)),
    Attempt(outcome=Outcome.OK, payload=examples.measurement(unique_share=0.5)),
]


def through_json(value: object) -> object:
    return json.loads(json.dumps(value))


@pytest.mark.parametrize("record", [*TRIALS, *PROBES, *ATTEMPTS])
def test_a_record_comes_back_as_it_was(record: Any) -> None:
    values = to_json(record)
    assert from_json(type(record), through_json(values)) == record
    assert isinstance(record, Attempt) or through_json(values) == values


def test_an_anatomy_and_a_trace_are_numbers_of_an_attempt() -> None:
    assert Attempt(outcome=Outcome.OK, payload=examples.anatomy()).found
    assert Attempt(outcome=Outcome.OK, payload=examples.loader_trace()).found
    assert not Attempt(outcome=Outcome.USER_ERROR).found


def test_facts_come_back_as_they_were() -> None:
    facts = examples.facts(dataset_length=None)
    assert from_json(WorkloadFacts, through_json(asdict(facts))) == facts


def test_a_look_at_a_step_of_before_has_no_spread() -> None:
    values: Any = through_json(to_json(PROBES[0]))
    del values["attempt"]["payload"]["compute"]["spread"]
    assert from_json(Probe, values) == PROBES[0]
