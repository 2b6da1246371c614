"""A DataLoader that a script has, taken apart: what is read is what it does, and nothing is drawn from it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, Sampler, SequentialSampler, default_collate

from autotune.config import Config
from autotune.errors import UsageError
from autotune.integrations.dataloader import read_loader, require, tune_existing, untouched_random_state
from autotune.measure.loader import CountingCollate, open_loader
from autotune.workload import Workload, describe
from tests.datasets import CountingUp, Squares, first_elements


def again(loader: DataLoader[Any], **changes: Any) -> DataLoader[Any]:
    """The loader that a trial would be measured with."""
    found = read_loader(loader, "the loader")
    workload = Workload(torch.nn.Linear(1, 1), **found.data)
    config = Config(**(dict(found.present) | changes))
    return open_loader(workload, config, CountingCollate(workload.collate_fn, config.num_workers))


def numbers(loader: DataLoader[Any], *, is_counted: bool = False) -> list[float]:
    values: list[float] = []
    for batch in loader:
        values += (batch[0] if is_counted else batch)[0].flatten().tolist()
    return values


def seed_worker(number: int) -> None:
    torch.manual_seed(number)


def test_the_present_settings_are_the_loaders_and_without_workers_nothing_is_said_of_them() -> None:
    settings: dict[str, Any] = {"batch_size": 16, "num_workers": 2, "prefetch_factor": 3}
    settings |= {"persistent_workers": True, "pin_memory": False}
    assert read_loader(DataLoader(Squares(64), **settings), "the loader").present == settings
    found = read_loader(DataLoader(Squares(4)), "the loader")
    assert found.present == {"batch_size": 1, "num_workers": 0, "pin_memory": False}
    assert Config(**found.present) == Config(batch_size=1)


@pytest.mark.parametrize("shuffle", [True, False])
def test_the_order_stays_what_it_was(shuffle: bool) -> None:
    drawn = numbers(again(DataLoader(Squares(100), batch_size=8, shuffle=shuffle), batch_size=16), is_counted=True)
    assert (drawn == sorted(drawn)) is not shuffle
    assert sorted(drawn) == list(range(100))
    stream = again(DataLoader(CountingUp(20), batch_size=8))
    assert torch.cat([batch for batch, _ in stream]).flatten().tolist() == list(range(20))


def test_a_sampler_is_kept_where_it_draws_in_another_way_than_by_shuffling() -> None:
    """The largest sample is looked for in all of the dataset where it only shuffles."""
    assert "sampler" not in read_loader(DataLoader(Squares(9), shuffle=True), "the loader").data
    for options in ({"replacement": True}, {"num_samples": 5}):
        sampler: RandomSampler = RandomSampler(Squares(9), **options)
        assert read_loader(DataLoader(Squares(9), sampler=sampler), "the loader").data["sampler"] is sampler


def test_batches_of_torchs_own_sampler_follow_the_batch_size() -> None:
    batches = BatchSampler(SequentialSampler(range(20)), 8, drop_last=True)
    loader = again(DataLoader(Squares(100), batch_sampler=batches), batch_size=6)
    assert [built.samples for _, built in loader] == [6, 6, 6]


class Buckets(Sampler[list[int]]):
    batch_size = 3

    def __iter__(self) -> Iterator[list[int]]:
        yield from ([0, 1, 2], [5, 6, 7])

    def __len__(self) -> int:
        return 2


def test_another_batch_sampler_is_kept_and_fixes_the_batch_size() -> None:
    loader = DataLoader(Squares(100), batch_sampler=Buckets())
    assert read_loader(loader, "the loader").fixed == {"batch_size": 3}
    assert numbers(again(loader, batch_size=50), is_counted=True) == [0, 1, 2, 5, 6, 7]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ranks": 2}, "ranks=2: from a trainer one process is measured"),
        ({"batch_size": 8}, "batch_size=8: it stays 3 in this training"),
    ],
)
def test_neither_several_ranks_nor_another_batch_size_than_a_fixed_one_is_measured(
    options: dict[str, Any], message: str
) -> None:
    found = read_loader(DataLoader(Squares(100), batch_sampler=Buckets()), "the loader")
    given: dict[str, Any] = {"device": torch.device("cpu"), "settings": {}, "options": options, "training_step": None}
    with pytest.raises(UsageError, match=message):
        tune_existing(torch.nn.Linear(1, 1), found, optimizer=torch.optim.AdamW, **given)


def test_how_batches_are_made_is_kept() -> None:
    of_workers: dict[str, Any] = {"worker_init_fn": seed_worker, "timeout": 5, "in_order": False, "num_workers": 1}
    of_batches: dict[str, Any] = {"batch_size": 8, "drop_last": True, "collate_fn": first_elements}
    loader = DataLoader(Squares(20), multiprocessing_context="spawn", **of_workers, **of_batches)
    found = again(loader)
    assert len(found) == 2
    assert found.worker_init_fn is seed_worker
    assert found.timeout == 5
    assert found.multiprocessing_context.get_start_method() == "spawn"
    assert found.in_order is False
    assert read_loader(loader, "the loader").data["collate_fn"] is first_elements


def test_what_is_for_workers_only_is_left_out_without_them() -> None:
    loader = DataLoader(Squares(20), num_workers=1, multiprocessing_context="spawn", timeout=5)
    found = again(loader, num_workers=0, prefetch_factor=None)
    assert (found.num_workers, found.timeout) == (0, 0)
    assert len(list(found)) == 20
    data = read_loader(DataLoader(Squares(20), collate_fn=default_collate), "the loader").data  # as torch does anyway
    assert (data["collate_fn"], data["loader_options"]) == (None, None)


class Endless(DataLoader[Any]):
    def __iter__(self) -> Any:
        while True:
            yield from super().__iter__()


class Unsized(Buckets):
    batch_size = None  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: [1, 2], "the loader is list; allowed: one torch DataLoader"),
        (lambda: {"a": DataLoader(Squares(4))}, "the loader is dict; allowed: one torch DataLoader"),
        (lambda: Squares(4), "the loader is Squares; allowed: one torch DataLoader"),
        (lambda: Endless(Squares(4)), "the loader is Endless, which is iterated in its own way"),
        (lambda: DataLoader(Squares(4), batch_size=None), "has no batch size, its dataset makes the batches"),
        (lambda: DataLoader(Squares(4), batch_sampler=Unsized()), "batch sampler, Unsized, has no batch_size"),
    ],
)
def test_what_cannot_be_taken_apart_is_refused_with_the_way_out(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_loader(make(), "the loader")
    assert message in str(caught.value)
    assert "autotune.Workload" in str(caught.value)


def test_nothing_is_drawn_from_the_loader() -> None:
    generator = torch.Generator().manual_seed(1)
    loader = DataLoader(Squares(64), batch_size=4, shuffle=True, generator=generator)
    model = torch.nn.Linear(1, 1)
    before, own = torch.get_rng_state(), generator.get_state()
    describe(Workload(model, **read_loader(loader, "the loader").data))
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(own, generator.get_state())
    assert loader._iterator is None


def test_random_states_come_back_whatever_is_drawn() -> None:
    def drawn() -> tuple[Any, ...]:
        return random.random(), float(np.random.rand()), float(torch.rand(()))

    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    expected = drawn()
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])
    with untouched_random_state():
        drawn()
    assert drawn() == expected


def test_a_missing_package_comes_with_the_line_that_installs_it() -> None:
    require("torch", "numpy")
    with pytest.raises(UsageError, match="no_such_package is not installed: pip install torch no_such_package"):
        require("torch", "no_such_package")
