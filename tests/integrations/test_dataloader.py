"""A DataLoader that a script has, taken apart: what is read is what it does, and nothing is drawn from it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    default_collate,
)

from autotune.config import Config
from autotune.errors import UsageError
from autotune.existing_loader import read_loader
from autotune.integrations.dataloader import require, tune_existing, untouched_random_state
from autotune.measure.loader import counter_of, open_loader, open_stream, samples_in, samples_of_batches
from autotune.measure.session import Session
from autotune.records import Request
from autotune.workload import Workload, describe
from tests.datasets import CountingUp, Squares, first_elements


def again(loader: DataLoader[Any], **changes: Any) -> DataLoader[Any]:
    """The loader that a trial would be measured with."""
    found = read_loader(loader, "the loader")
    workload = Workload(torch.nn.Linear(1, 1), **found.data)
    config = Config(**(dict(found.present) | changes))
    return open_loader(workload, config, counter_of(workload, config))


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


class Unsized(Sampler[list[int]]):
    def __iter__(self) -> Iterator[list[int]]:
        yield from ([0, 1, 2], [5, 6, 7, 8, 9])

    def __len__(self) -> int:
        return 2


class Fetching(Squares):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


class Batches(Squares):
    def __getitem__(self, index: int) -> Any:
        return {"x": np.full((6, 2), index, np.float32), "lengths": torch.ones(6), "boxes": torch.ones(2, 4)}


class StreamOfBatches(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        yield from ({"x": torch.full((6, 2), float(number))} for number in range(4))


@pytest.mark.parametrize("dataset", [Squares(100), Fetching(100)], ids=["by index", "by lists"])
def test_a_batch_sampler_without_a_size_is_kept_and_its_samples_are_counted(dataset: Squares) -> None:
    loader = DataLoader(dataset, batch_sampler=Unsized())
    found = read_loader(loader, "the loader")
    assert found.present == {"num_workers": 0, "pin_memory": False}
    batches = list(again(loader, batch_size=50))
    assert [built.samples for _, built in batches] == [3, 5]
    assert numbers(again(loader), is_counted=True) == [0, 1, 2, 5, 6, 7, 8, 9]
    assert samples_of_batches(Workload(torch.nn.Linear(1, 1), **found.data), 0) == 4


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    "loader",
    [
        DataLoader(Batches(4), batch_size=None, shuffle=True),
        DataLoader(Batches(4), batch_size=None),
        DataLoader(StreamOfBatches(), batch_size=None),
    ],
    ids=["shuffled", "in order", "stream"],
)
def test_batches_that_the_dataset_makes_come_as_they_are_and_their_samples_are_counted(
    loader: DataLoader[Any], workers: int
) -> None:
    found = read_loader(loader, "the loader")
    assert (found.present, found.data["collate_fn"]) == ({"num_workers": 0, "pin_memory": False}, None)
    made = again(loader, batch_size=50, num_workers=workers)
    batches = list(made)
    repeats = 2 if workers and isinstance(loader.dataset, IterableDataset) else 1
    assert [built.samples for _, built in batches] == [6] * 4 * repeats
    assert sorted({float(batch["x"][0, 0]) for batch, _ in batches}) == [0, 1, 2, 3]
    assert all(isinstance(batch["x"], torch.Tensor) for batch, _ in batches)
    assert samples_of_batches(Workload(torch.nn.Linear(1, 1), **found.data), workers) == 6


def test_lists_of_indices_reach_a_dataset_that_makes_batches_of_them() -> None:
    class OfLists(Squares):
        def __getitem__(self, indices: Any) -> torch.Tensor:
            return torch.tensor(indices)

    lists: Any = BatchSampler(SequentialSampler(range(10)), 4, drop_last=False)
    made = again(DataLoader(OfLists(10), batch_size=None, sampler=lists))
    assert [(batch.tolist(), built.samples) for batch, built in made] == [
        ([0, 1, 2, 3], 4),
        ([4, 5, 6, 7], 4),
        ([8, 9], 2),
    ]


def test_workers_of_an_undivided_stream_of_batches_are_known_by_their_batches() -> None:
    found = read_loader(DataLoader(StreamOfBatches(), batch_size=None), "the loader")
    stream = open_stream(Workload(torch.nn.Linear(1, 1), **found.data), Config(batch_size=6, num_workers=2))
    try:
        for _ in range(6):
            next(stream)
        assert stream.unique_share == 0.5
    finally:
        stream.close()


@pytest.mark.parametrize(
    ("batches", "samples"),
    [
        ([torch.ones(3, 2), torch.ones(3)], 3),
        ({"pixels": torch.ones(4, 3), "sizes": torch.ones(4), "cumulated": torch.ones(5), "scale": torch.ones(())}, 4),
        (["a", "b"], 1),
    ],
)
def test_the_samples_of_a_batch_are_the_leading_dimension_of_most_of_its_tensors(batches: Any, samples: int) -> None:
    assert samples_in(batches) == samples


def test_a_sampler_that_skips_the_first_batches_is_that_of_all_batches() -> None:
    data_loader: Any = pytest.importorskip("accelerate.data_loader")
    whole = DataLoader(Squares(100), batch_size=8, shuffle=True, num_workers=2)
    resumed = read_loader(data_loader.skip_first_batches(whole, 3), "the loader")
    assert resumed.present == read_loader(whole, "the loader").present
    assert resumed.fixed == {}
    twice = data_loader.skip_first_batches(data_loader.skip_first_batches(whole, 3), 3)
    assert sorted(numbers(again(twice, batch_size=10), is_counted=True)) == list(range(100))
    buckets = data_loader.skip_first_batches(DataLoader(Squares(100), batch_sampler=Buckets()), 1)
    assert read_loader(buckets, "the loader").fixed == {"batch_size": 3}


class Pairs(Squares):
    def __getitem__(self, index: int) -> Any:
        return np.full((4, 1), index, np.float32), torch.ones(4, 1)


UNSIZED = [DataLoader(Squares(100), batch_sampler=Unsized()), DataLoader(Pairs(50), batch_size=None)]
BUCKETS = DataLoader(Squares(100), batch_sampler=Buckets())


@pytest.mark.parametrize(
    ("loader", "options", "message"),
    [
        *(
            pytest.param(loader, {name: 8}, message, marks=pytest.mark.machine)
            for loader in UNSIZED
            for name, message in (
                ("batch_size", "batch_size=8: it stays 4 in this training"),
                ("global_batch_size", "--global-batch-size 8: the sampler or the dataset makes the batches"),
            )
        ),
        (BUCKETS, {"batch_size": 8}, "batch_size=8: it stays 3 in this training"),
    ],
)
def test_no_other_batch_size_than_the_loaders_own_is_measured(
    loader: DataLoader[Any], options: dict[str, Any], message: str
) -> None:
    given: dict[str, Any] = {"device": torch.device("cpu"), "settings": {}, "training_step": None}
    given |= {"options": {"quiet": True, **options}, "optimizer": torch.optim.AdamW}
    with pytest.raises(UsageError, match=message):
        tune_existing(torch.nn.Linear(1, 1), read_loader(loader, "the loader"), **given)


@pytest.mark.machine
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("loader", UNSIZED, ids=["sampler", "dataset"])
def test_all_parts_of_training_on_batches_of_no_size_are_measured(loader: DataLoader[Any], workers: int) -> None:
    workload = Workload(torch.nn.Linear(1, 1), **read_loader(loader, "the loader").data)
    session = Session(workload, "cpu", num_workers=workers)
    facts = session.facts()
    assert (facts["batch_samples"], facts["epoch_samples"]) == (4, None)
    config = Config(batch_size=4, num_workers=workers, intra_op_threads=1)
    inside = session.measure(config, Request(seconds=0.3, part="anatomy")).anatomy
    assert inside is not None
    assert (inside.numpy_arrays, inside.has_getitems) == (0, loader.batch_sampler is None)
    for part in ("loader", "compute", "numerics", "training"):
        attempt = session.measure(config, Request(seconds=0.3, part=part))
        assert attempt.found, (part, attempt.message, attempt.details)


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
    found = again(loader, num_workers=0, prefetch_factor=None, multiprocessing_context=None)
    assert (found.num_workers, found.timeout) == (0, 0)
    assert len(list(found)) == 20
    data = read_loader(DataLoader(Squares(20), collate_fn=default_collate), "the loader").data  # as torch does anyway
    assert (data["collate_fn"], data["loader_options"]) == (None, None)


class Endless(DataLoader[Any]):
    def __iter__(self) -> Any:
        while True:
            yield from super().__iter__()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: [1, 2], "the loader is list; allowed: one torch DataLoader"),
        (lambda: {"a": DataLoader(Squares(4))}, "the loader is dict; allowed: one torch DataLoader"),
        (lambda: Squares(4), "the loader is Squares; allowed: one torch DataLoader"),
        (lambda: Endless(Squares(4)), "the loader is Endless, which is iterated in its own way"),
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
