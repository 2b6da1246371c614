from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from autotune.config import Config
from autotune.measure.benchmark import loader_notes, machine_notes, window_notes
from autotune.measure.window import WindowSummary
from tests import examples

SUMMARY = WindowSummary(
    samples_per_second=100.0,
    relative_half_width=0.01,
    steps=100,
    samples=800,
    seconds=8.0,
    step_time=examples.measurement().step_time,
    waiting_share=0.1,
    ready=2.0,
    early_share=0.0,
    dropped_steps=0,
    is_steady=True,
)


@dataclass
class Loader:
    epoch_batches: int | None = 1000
    idle_workers: int = 0
    unique_share: float = 1.0
    freezes_epoch: bool = False


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"early_share": 0.2}, "20% of the batches had been built before the window"),
        ({"early_share": -0.08}, "8% more batches are counted than were used"),
        ({"is_steady": False}, "never settled"),
    ],
)
def test_what_is_wrong_with_a_window_is_told(changes: dict[str, Any], words: str) -> None:
    (note,) = window_notes(replace(SUMMARY, **changes))
    assert words in note


@pytest.mark.parametrize(
    ("loader", "words"),
    [
        (Loader(epoch_batches=4), "an epoch ends after 4"),
        (Loader(idle_workers=1), "1 of 2 loader workers got no data"),
        (Loader(freezes_epoch=True), "set_epoch does not reach workers"),
        (Loader(unique_share=0.5), "only 50% of the samples are counted"),
    ],
)
def test_what_is_wrong_with_a_loader_is_told(loader: Loader, words: str) -> None:
    (note,) = loader_notes(loader, Config(num_workers=2), 4)
    assert words in note


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"throttled_share": 0.3}, "the CPU quota stopped processes for 30% of the time"),
        ({"storage_share": 0.5}, "50% of the data came from storage"),
        ({"worker_threads": 4}, "each loader worker computes in 4 threads"),
        ({"is_crowded": True, "foreign_cpus": 1.5}, "other processes used 1.5 of 2 CPUs"),
        ({"gpu_slowdowns": ("hardware thermal slowdown",)}, "hardware thermal slowdown"),
        ({"allocator_retries": 3}, "the device's memory was full 3 times"),
    ],
)
def test_what_is_wrong_with_the_machine_is_told(changes: dict[str, Any], words: str) -> None:
    (note,) = machine_notes(examples.conditions(**changes))
    assert words in note


def test_of_a_sound_measurement_nothing_is_told() -> None:
    assert not [*window_notes(SUMMARY), *loader_notes(Loader(), Config(), 0), *machine_notes(examples.conditions())]
