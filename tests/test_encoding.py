from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest

from autotune.encoding import (
    attempt_from_json,
    facts_from_json,
    measurement_from_json,
    probe_from_json,
    to_json,
    trial_from_json,
)
from autotune.records import Attempt, Outcome, Probe, Trial
from tests import examples

LOOKS = {
    "compute": examples.compute_probe(),
    "loader": examples.loader_trace(),
    "numerics": examples.numerics_check(overflows=(3, 4)),
}
TRIALS = [examples.trial(), examples.failed_trial(), examples.trial(predicted=1.5, bound=2.0, kind="search")]
PROBES = [
    *(Probe(part=part, config=examples.ANSWER, outcome=Outcome.OK, **{part: look}) for part, look in LOOKS.items()),  # type: ignore[arg-type]
    Probe(part="compute", config=examples.BASELINE, outcome=Outcome.DEVICE_OOM, message="too large"),
]
ATTEMPTS = [
    Attempt(outcome=Outcome.OK, measurement=examples.measurement(ci95=None), seconds=2.0),
    Attempt(outcome=Outcome.CRASHED, message="gone", details="a traceback"),
    *(Attempt(outcome=Outcome.OK, **{part: look}) for part, look in LOOKS.items()),  # type: ignore[arg-type]
    Attempt(outcome=Outcome.OK, anatomy=examples.anatomy()),
    Attempt(outcome=Outcome.OK, anatomy=examples.anatomy(code=(), synchronisations=(), dataset_bytes=None)),
    Attempt(outcome=Outcome.OK, trace=examples.trace()),
    Attempt(outcome=Outcome.OK, measurement=examples.measurement(unique_share=0.5)),
]


def through_json(value: object) -> object:
    return json.loads(json.dumps(value))


@pytest.mark.parametrize("trial", TRIALS)
def test_a_trial_comes_back_as_it_was(trial: Trial) -> None:
    values = to_json(trial)
    assert through_json(values) == values
    assert trial_from_json(values) == trial


@pytest.mark.parametrize("probe", PROBES)
def test_a_look_comes_back_as_it_was(probe: Probe) -> None:
    values = to_json(probe)
    assert through_json(values) == values
    assert probe_from_json(values) == probe


@pytest.mark.parametrize("attempt", ATTEMPTS)
def test_an_attempt_comes_back_as_it_was(attempt: Attempt) -> None:
    assert attempt_from_json(through_json(asdict(attempt))) == attempt  # type: ignore[arg-type]


def test_an_anatomy_and_a_trace_are_numbers_of_an_attempt() -> None:
    assert Attempt(outcome=Outcome.OK, anatomy=examples.anatomy()).found
    assert Attempt(outcome=Outcome.OK, trace=examples.trace()).found
    assert not Attempt(outcome=Outcome.USER_ERROR).found


def test_facts_come_back_as_they_were() -> None:
    facts = examples.facts(dataset_length=None)
    assert facts_from_json(through_json(asdict(facts))) == facts  # type: ignore[arg-type]


def test_what_is_not_there_stays_so() -> None:
    assert measurement_from_json(None) is None
    assert trial_from_json(to_json(replace(examples.trial(), measurement=None))).measurement is None


def test_what_was_lost_with_its_host_in_a_study_of_before_has_crashed() -> None:
    trial, probe = to_json(examples.trial(outcome=Outcome.CRASHED, measurement=None)), to_json(PROBES[0])
    assert trial_from_json({**trial, "outcome": "lost", "host": "b"}) == trial_from_json(trial)
    assert probe_from_json({**probe, "outcome": "lost"}).outcome is Outcome.CRASHED
