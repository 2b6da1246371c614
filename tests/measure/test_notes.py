from __future__ import annotations

from collections.abc import Callable, Iterator
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
    misstated_batches: int | None = None
    idle_workers: int = 0
    is_uneven: bool = False
    unique_share: float = 1.0
    freezes_epoch: bool = False


def of_window(**changes: Any) -> Iterator[str]:
    return window_notes(replace(SUMMARY, **changes))


def of_loader(**changes: Any) -> Iterator[str]:
    return loader_notes(Loader(**changes), Config(num_workers=2), 4)


def of_machine(**changes: Any) -> Iterator[str]:
    return machine_notes(examples.conditions(**changes))


@pytest.mark.parametrize(
    ("notes", "changes", "words"),
    [
        (of_window, {"early_share": 0.2}, "20 % of the batches were built before the measured window"),
        (of_window, {"early_share": -0.08}, "8 % more batches are counted than training used"),
        (of_window, {"is_steady": False}, "never settled"),
        (of_loader, {"misstated_batches": 5}, "gives its length as 5 batches, but an epoch had 1,000"),
        (of_loader, {"epoch_batches": 4}, "an epoch has only 4"),
        (of_loader, {"idle_workers": 1}, "1 of 2 loader workers got no data"),
        (of_loader, {"idle_workers": 1, "is_uneven": True}, "1 of 2 loader workers got no data"),
        (of_loader, {"is_uneven": True}, "a loader worker had no data left while others went on"),
        (of_loader, {"freezes_epoch": True}, "set_epoch does not reach persistent workers"),
        (of_loader, {"unique_share": 0.5}, "only 50 % of the samples are counted"),
        (of_machine, {"throttled_share": 0.3}, "the CPU quota stopped processes for 30 % of the time"),
        (of_machine, {"storage_share": 0.5}, "50 % of the bytes read came from storage"),
        (of_machine, {"worker_threads": 4}, "each loader worker computes in 4 threads"),
        (of_machine, {"is_crowded": True, "foreign_cpus": 1.5}, "other processes used 1.5 of 2 CPUs"),
        (of_machine, {"gpu_slowdowns": ("hardware thermal slowdown",)}, "hardware thermal slowdown"),
        (of_machine, {"allocator_retries": 3}, "device memory was full 3 times"),
    ],
)
def test_what_is_wrong_is_told(notes: Callable[..., Iterator[str]], changes: dict[str, Any], words: str) -> None:
    (note,) = notes(**changes)
    assert words in note


def test_of_a_sound_measurement_nothing_is_told() -> None:
    assert not [*window_notes(SUMMARY), *loader_notes(Loader(), Config(), 0), *machine_notes(examples.conditions())]
