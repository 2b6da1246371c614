"""What a dataset holds, on objects of known number and size."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Subset

from autotune.measure.code_probe import MOST_OBJECTS, count_objects, pickled_bytes
from tests.datasets import Squares


class Holding(Squares):
    def __init__(self, held: object) -> None:
        super().__init__(10)
        self.held = held


def names(count: int) -> list[str]:
    return [f"image {number}.png" for number in range(count)]


@pytest.mark.parametrize(
    ("held", "least"),
    [
        ({"paths": names(1000)}, 1001),
        ([(name, number) for number, name in enumerate(names(1000))], 2000),
        ([{"path": name} for name in names(1000)], 2000),
        (set(names(1000)), 1000),
        (Holding(Holding(names(1000))), 1000),
        (ConcatDataset([Holding(names(600)), Subset(Holding(names(700)), [0, 1])]), 1300),
    ],
    ids=["dictionary", "tuples", "dictionaries of plain values", "set", "datasets in datasets", "torch's datasets"],
)
def test_objects_are_found_wherever_they_are_held(held: object, least: int) -> None:
    assert least <= count_objects(Holding(held)) < 2 * least


@pytest.mark.parametrize(
    "held",
    [np.zeros(100_000), torch.zeros(100_000), b"0" * 100_000, [0] * 100_000, np, print, lambda: names(3)],
    ids=["array", "tensor", "bytes", "one number", "module", "built-in", "function"],
)
def test_what_holds_no_objects_of_its_own_counts_little(held: object) -> None:
    assert count_objects(Holding(held)) < 100


def test_counting_ends_at_a_million_and_at_a_circle() -> None:
    assert count_objects(Holding(list(range(MOST_OBJECTS + 10)))) == MOST_OBJECTS
    circle: list[object] = []
    circle.append(circle)
    assert count_objects(Holding(circle)) < 10


class Unpicklable:
    def __reduce__(self) -> str:
        raise ZeroDivisionError("their __reduce__ is broken")


def test_what_cannot_be_pickled_has_no_size() -> None:
    assert pickled_bytes(Holding(threading.Lock())) is None
    assert pickled_bytes(Holding(Unpicklable())) is None


def test_arrays_are_sent_to_spawned_workers_and_tensors_are_shared() -> None:
    nothing = pickled_bytes(Holding(None))
    array, tensor = pickled_bytes(Holding(np.zeros(10_000))), pickled_bytes(Holding(torch.zeros(10_000)))
    assert None not in (nothing, array, tensor)
    assert array - nothing == pytest.approx(80_000, abs=100)  # type: ignore[operator]
    assert tensor - nothing == pytest.approx(0, abs=100)  # type: ignore[operator]


def test_pickling_ends_after_a_second() -> None:
    class Endless(dict[Any, Any]):
        def __reduce__(self) -> Any:
            return dict, (), None, None, ((number, bytes(1000)) for number in range(sys.maxsize))

    begin = time.perf_counter()
    assert pickled_bytes(Holding(Endless())) is None
    assert time.perf_counter() - begin < 5
