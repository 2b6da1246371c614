from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from autotune.config import Config
from autotune.limits import MemoryLimit
from autotune.outcome import Outcome
from autotune.records import Attempt, Part, Probe
from autotune.search.observations import Observations
from autotune.search.repeats import MOST_LOOKS, repeated_look
from tests import examples
from tests.search.there import there
from tests.simulated import host

BASE = replace(examples.BASELINE, intra_op_threads=2)
TRAINED = examples.trial(
    config=BASE,
    measurement=examples.measurement(
        samples_per_second=320.0, steady_samples_per_second=320.0, ceiling_samples_per_second=1000.0
    ),
)
"""Without workers: 62 ms of 100 wait for a batch of 32."""


def step(rate: float, **changes: Any) -> Probe:
    payload = examples.compute_probe(samples_per_second=rate)
    return Probe(part="compute", config=replace(BASE, **changes), attempt=Attempt(outcome=Outcome.OK, payload=payload))


def loader(seconds: float, batch_size: int = 32) -> Probe:
    payload = examples.loader_trace(batch_size=batch_size, build_seconds=(seconds,) * 20)
    config = Config(batch_size=batch_size, num_workers=1, prefetch_factor=4)
    return Probe(part="loader", config=config, attempt=Attempt(outcome=Outcome.OK, payload=payload))


def repeated(*probes: Probe) -> tuple[Part, Config] | None:
    facts = examples.facts(intra_op_threads=2)
    limit = MemoryLimit(headroom=0.1)
    return repeated_look(Observations(facts=facts, host=host(2), memory_limit=limit, trials=(TRAINED,), probes=probes))


PLAUSIBLE = step(950.0)


@pytest.mark.parametrize(
    ("slow", "others"),
    [
        (step(280.0), []),  # slower than training with it
        (step(490.0), []),  # than the same step in the process that trained
        (step(450.0, batch_size=64), [PLAUSIBLE]),  # a larger batch takes no less time
        (step(200.0, batch_size=16), [PLAUSIBLE]),
        (step(230.0, intra_op_threads=1), [PLAUSIBLE]),
        (step(450.0, amp="bf16"), [PLAUSIBLE]),
        (loader(0.3), []),  # without workers a batch took 62 ms
        (loader(0.21, 64), [loader(0.05)]),
        (loader(0.11, 8), [loader(0.05)]),
    ],
)
def test_a_look_that_contradicts_all_else_is_taken_again_until_two_agree(slow: Probe, others: list[Probe]) -> None:
    assert repeated(*others, slow) == (slow.part, slow.config)
    assert repeated(*others, slow, slow) is None
    assert repeated(*others, *[slow] * MOST_LOOKS) is None


@pytest.mark.parametrize(
    "probes",
    [
        (),
        (PLAUSIBLE, step(1200.0, batch_size=64), step(700.0, batch_size=16)),
        (PLAUSIBLE, step(600.0, intra_op_threads=1)),
        (PLAUSIBLE, step(600.0, amp="bf16"), step(3000.0, amp="fp16")),
        (PLAUSIBLE, step(100.0, options=("channels_last",))),
        (loader(0.1), loader(0.15, 64), loader(0.05, 8)),
        (Probe(part="compute", config=BASE, attempt=Attempt(outcome=Outcome.TIMEOUT)),),
    ],
)
def test_looks_that_fit_together_are_taken_once(probes: tuple[Probe, ...]) -> None:
    assert repeated(*probes) is None


def test_the_fastest_of_looks_alike_counts() -> None:
    known = Observations(
        facts=examples.facts(),
        host=host(2),
        memory_limit=MemoryLimit(),
        trials=(TRAINED,),
        probes=(step(100.0), loader(0.3), step(950.0), loader(0.06), step(900.0)),
    )
    assert [look.samples_per_second for _, look in known.looks] == [950.0]
    assert [trace.build_seconds[0] for trace in known.traces] == [0.06]
    assert there(known.step_probe(BASE)).attempt == step(950.0).attempt
