from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from autotune.config import Config
from autotune.notes import on_caches, on_places, on_validation
from autotune.records import Measurement
from tests import examples
from tests.search.test_tuner import tuned
from tests.simulated import SimulatedMachine, StepCost, loader_bound

DISTURBED = examples.conditions(is_crowded=True, foreign_cpus=1.0)


def at(rate: float, step: float = 2000.0, **changes: Any) -> Measurement:
    """A measurement whose step on resident batches has its own rate."""
    options = {"ci95": (0.98 * rate, 1.02 * rate), "steady_samples_per_second": rate, **changes}
    return examples.measurement(samples_per_second=rate, ceiling_samples_per_second=step, **options)


def note_on(*rounds: Sequence[Measurement]) -> str:
    return "".join(on_places(rounds))


def test_places_that_repeat_their_rates_are_named_while_the_step_is_as_fast_as_ever() -> None:
    assert "place in the epoch: 300 to 910" in note_on([at(300), at(303)], [at(900), at(910)])
    assert "place in the epoch" in note_on([at(300)], [at(900)], [at(500)])


def test_of_rates_that_vary_little_and_of_the_beginning_of_a_stream_nothing_is_said() -> None:
    assert note_on([at(300), at(303)], [at(360), at(355)]) == ""
    assert note_on([at(300, beginning_samples=10)], [at(900, beginning_samples=10)]) == ""


@pytest.mark.parametrize(
    ("rounds", "words"),
    [
        (([at(300, 600.0)], [at(900, 1800.0)]), "the machine's speed varied"),
        (([at(300, conditions=DISTURBED)], [at(900)]), "the machine's speed varied"),
        (([at(300), at(900)], [at(900), at(300)]), "no cause was seen"),
        (([at(300, ci95=(100.0, 900.0))], [at(900)]), "no cause was seen"),
        (([at(300, ci95=None)], [at(900)]), "no cause was seen"),
        (([at(300, 300.0)], [at(900, 900.0)]), "no cause was seen"),
    ],
    ids=["slower step", "disturbed", "twins differ", "wide window", "no interval", "step not seen"],
)
def test_what_the_machine_may_have_done_is_not_the_place(rounds: Any, words: str) -> None:
    text = note_on(*rounds)
    assert words in text
    assert "place" not in text
    assert "300 to 900 samples/s" in text
    assert "3.0 times" in text


def slow_step_and_loader(config: Config) -> StepCost:
    """Equal rows: half of the baseline's time is loading."""
    build = 1e-3 * config.batch_size
    return StepCost(wait=0.0 if config.num_workers else build, compute=build)


def test_a_machine_whose_speed_varies_has_no_places() -> None:
    costs = (slow_step_and_loader, loader_bound)
    machines = (SimulatedMachine(cost=cost, noise=0.01, drift=0.7, seed=seed) for cost in costs for seed in range(2))
    notes = [note for machine in machines for note in tuned(machine, budget=300.0).notes]
    assert not [note for note in notes if "place" in note]
    assert [note for note in notes if "varied" in note]  # in the rounds of some at least


CACHED = [at(rate) for rate in (182.0, 900.0, 2640.0, 2640.0, 2660.0)]


def test_a_cache_that_the_trials_filled_is_told_as_a_first_epoch_and_later_ones() -> None:
    (note,) = on_caches(None, CACHED)
    assert note == "the first epoch may run at 182 samples/s, later ones at 2,650: the trials filled a cache"
    (of_trace,) = on_caches(examples.loader_trace(build_seconds=(0.1,) * 20, again_seconds=0.001), CACHED[2:])
    assert "later epochs may be faster" in of_trace


@pytest.mark.parametrize(
    "measured",
    [
        [],
        CACHED[:1],
        CACHED[:2],
        CACHED[::-1],
        [at(rate) for rate in (182.0, 300.0, 900.0, 2600.0)],
        [at(rate) for rate in (400.0, 182.0, 2640.0, 2650.0)],
        [at(182.0, conditions=DISTURBED), *CACHED[1:]],
    ],
)
def test_what_only_differs_filled_no_cache(measured: Sequence[Measurement]) -> None:
    assert list(on_caches(None, measured)) == []


@pytest.mark.parametrize(("taken", "before", "is_said"), [(6, 1, True), (3, 1, False), (6, 6, False)])
def test_validation_is_named_where_the_answer_takes_much_more_memory(taken: int, before: int, is_said: bool) -> None:
    each = [examples.measurement(peak_memory_bytes=size * 2**30, memory_limit_bytes=2**33) for size in (taken, before)]
    said = list(on_validation(*each))
    assert ["75 % of the host memory: a validation pass" in note for note in said] == [True] * is_said
