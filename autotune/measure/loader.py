"""The loader as a training script would build it, with its batches counted."""

from __future__ import annotations

import contextlib
import copy
import itertools
import math
import os
import random
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    RandomSampler,
    default_collate,
    default_convert,
    get_worker_info,
)

from autotune.config import OF_WORKERS, Config
from autotune.errors import UserCodeError
from autotune.machine.descendants import note_workers
from autotune.measure.batch import leaves_in, tensor_bytes, tensors_in
from autotune.measure.conditions import name_senders
from autotune.workload import Workload

SKIPPING_SECONDS = 0.5
"""How long indices are skipped at most, to begin at another place of the order."""
FIRST = 10
"""Batches by which a worker has started all threads that send them."""
NOTED, END = 128, -1
"""Samples of each worker that are noted, and the mark after fewer."""
SIGMAS = 5.0
"""Standard deviations by which workers have more samples in common than by chance, if they yield the same ones."""
SKIPPED_AT_ONCE = 10_000
UNEVEN = 1.1
"""Ratio of the batches of two workers in an epoch, in turns, from which they have different amounts."""
FEW = 32
"""Lists of a sampler whose mean length stands for a batch size that it does not have."""
ANY_NUMBER = 0
"""Samples that a dataset fetches in one call where its sampler gives each batch another number."""
GOLDEN = 0.6180339887498949
"""The golden ratio: multiples of it, without their whole part, spread evenly however many they are."""


def begin_anywhere(seed: int) -> float:
    """Seed the generators of the samplers; return the share of an epoch's order to pass over.

    The places of consecutive seeds cover the order evenly (van der Corput and Weyl; Niederreiter, Random Number
    Generation and Quasi-Monte Carlo Methods, 3.1).
    """
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)
    return seed * GOLDEN % 1.0


def open_loader(
    workload: Workload, config: Config, counter: CountingCollate, place: float | None = 0.0, **settings: Any
) -> DataLoader[Any]:
    """Build the loader as a training script would, with counting around its collate function.

    The first epoch begins at ``place``, a share of the order, and ends with the indices before it. With ``None`` each
    batch comes from another part of the order. Further settings are those of ``TimedSampler``.
    """
    arguments, options = dict[str, Any](collate_fn=counter), workload.loader_options or {}
    unit: int | None = config.batch_size
    if workload.own_batches == "dataset":
        arguments["batch_size"] = unit = None
    left_out = set() if config.num_workers else set(OF_WORKERS)
    if workload.batch_sampler is not None:
        left_out.add("drop_last")  # that is the sampler's to decide
        arguments["batch_sampler"] = TimedSampler(workload.batch_sampler(config.batch_size), place, **settings)
    elif workload.sampler is not None:
        arguments["sampler"] = TimedSampler(workload.sampler, place, unit, **settings)
    elif not isinstance(workload.dataset, IterableDataset):  # as with shuffle=True
        shuffled = RandomSampler(workload.dataset, generator=options.get("generator"))  # type: ignore[arg-type]
        arguments["sampler"] = TimedSampler(shuffled, place, unit, **settings)
    arguments |= {name: value for name, value in options.items() if name not in left_out}
    return config.dataloader(workload.dataset, **arguments)


def open_stream(workload: Workload, config: Config, place: float | None = 0.0, **settings: Any) -> BatchStream:
    """Return batches without end from that loader; its workers start with the first."""
    counter = counter_of(workload, config)
    loader = open_loader(workload, config, counter, place, **settings)
    if not workload.beside:
        return BatchStream(loader, counter, workload.epoch_batches)
    others = list[tuple[BatchStream, int]]()
    for each in workload.beside:
        own = replace(config, batch_size=each.batch_size, **(each.kept or {}))
        others.append((open_stream(each.data, own, place, **settings), each.batches))
    return SeveralStreams(loader, counter, others)


def counter_of(workload: Workload, config: Config) -> CountingCollate:
    """Return the collate function of a workload's loader, which counts its batches and their samples."""
    is_iterable, is_batch = isinstance(workload.dataset, IterableDataset), workload.own_batches == "dataset"
    fetches = hasattr(workload.dataset, "__getitems__") and not is_batch
    number = config.batch_size if workload.own_batches is None else ANY_NUMBER
    return CountingCollate(
        collate_of(workload),
        config.num_workers,
        compares_workers=is_iterable and (config.num_workers > 1 or config.ranks > 1),
        fetched=number if fetches else None,
        is_batch=is_batch,
    )


def collate_of(workload: Workload) -> Callable[[Any], Any]:
    """Return the collate function of a workload's DataLoader, by default torch's."""
    return workload.collate_fn or (default_convert if workload.own_batches == "dataset" else default_collate)


def samples_of_batches(workload: Workload, num_workers: int) -> int | None:
    """Return the samples of a batch that no batch size makes; ``None`` where one does.

    Those are the mean of a sampler's first lists, of which no sample is read, or those of a dataset's first batch.
    """
    if workload.own_batches is None:
        return None
    begin_anywhere(0)
    if workload.own_batches == "sampler":
        assert workload.batch_sampler is not None
        sizes = [len(indices) for indices in itertools.islice(workload.batch_sampler(1), FEW)]
        if not sizes:
            raise UserCodeError("the batch sampler yields no batch")
        return max(1, round(sum(sizes) / len(sizes)))
    with contextlib.closing(open_reader(workload, Config(batch_size=1, num_workers=num_workers))) as stream:
        next(stream)
        return max(1, stream.samples)


def open_reader(workload: Workload, config: Config, place: float | None = 0.0) -> BatchStream:
    """Return batches without end for a probe of the step; one worker builds them where the configuration has workers.

    A process that forks workers never reads the dataset itself: they would inherit its offsets, threads and locks.
    The loader's timeout is left out, which is about training.
    """
    workers, options = min(1, config.num_workers), workload.loader_options or {}
    single = Config(batch_size=config.batch_size, num_workers=workers, prefetch_factor=workers or None)
    without_limit = {name: value for name, value in options.items() if name != "timeout"}
    return open_stream(replace(workload, loader_options=without_limit), single, place)


LISTS = (
    "the sampler yields lists of indices, as a BatchSampler does: pass batch_sampler=lambda batch_size: BatchSampler("
    "..., batch_size, drop_last=False), or a sampler of single indices and a dataset with __getitems__"
)
"""Why a sampler of batches is no sampler of samples."""


def take_batch(stream: BatchStream) -> Any:
    """Return the next batch to keep: a copy of one that lies in memory shared with a worker, and in open files."""
    batch = next(stream)
    return copy.deepcopy(batch) if stream.workers else batch


class TimedSampler:
    """A sampler whose first epoch begins at another place of its order, and the time that each order takes."""

    def __init__(
        self,
        sampler: Any,
        place: float | None = 0.0,
        unit: int | None = None,
        *,
        twice: bool = False,
        again_after: float | None = None,
    ) -> None:
        """Take the share of the order to pass over, in multiples of ``unit``, or ``None`` for units from all over it.

        A unit is a number of samples; without it the sampler yields batches. Without a length the order stays as it
        is. With ``twice`` each unit comes once more right after itself. Units of the first ``again_after`` seconds
        come again and again after that, each time in another order, in epochs as long as ever.
        """
        self._sampler, self._place, self._unit, self.is_twice = sampler, place, unit or 1, twice
        self._again_after, self._random = again_after, random.Random(0)
        self._read = list[list[Any]]()
        """Units of those seconds."""
        self.first_units: int | None = None if again_after else 0
        """How many come before any comes again; ``None`` while that is not known."""
        self._is_of_samples = unit is not None
        self.seconds: list[float] = []
        """Seconds from the beginning of each epoch to its first index, or first batch of indices."""
        self.skipping_seconds = 0.0
        """Seconds that passing over indices has taken, at the beginning of the epoch."""
        self.units = list[list[Any]]()
        """The units that came twice."""
        self.is_over = False
        """Whether the epoch is to end here."""

    def __iter__(self) -> Iterator[Any]:
        begin = time.perf_counter()
        indices = iter(self._sampler)
        first = list(itertools.islice(indices, 1))
        if self._is_of_samples and first and isinstance(first[0], list):
            raise UserCodeError(LISTS)
        ordered = time.perf_counter()
        self.seconds.append(ordered - begin)
        length, place, unit = length_of(self._sampler) or 0, self._place, self._unit
        left = length if place is None else int(place * length) // unit * unit
        passed, self._place = list[Any](), 0.0
        while left > 0 and time.perf_counter() - ordered < SKIPPING_SECONDS:
            passed += [*first, *itertools.islice(indices, min(left, SKIPPED_AT_ONCE) - len(first))]
            first, left = [], left - SKIPPED_AT_ONCE
        if place is None:
            starts = sorted(range(0, len(passed), unit), key=lambda start: start // unit * GOLDEN % 1.0)
            first, passed = [index for start in starts for index in passed[start : start + unit]] or first, []
        self.skipping_seconds, self.is_over = time.perf_counter() - ordered, False
        rest: Iterator[Any] = itertools.chain(first, indices, passed)
        if self._again_after:
            rest = self._again(rest, self._again_after)
        elif self.is_twice:
            rest = self._each_twice(rest)
        return itertools.takewhile(lambda _: not self.is_over, rest)

    def _each_twice(self, indices: Iterator[Any]) -> Iterator[Any]:
        while unit := list(itertools.islice(indices, self._unit)):
            self.units.append(unit)
            yield from (*unit, *unit)

    def _again(self, indices: Iterator[Any], seconds: float) -> Iterator[Any]:
        end, given = time.perf_counter() + seconds, 0
        while self.first_units is None and (unit := list(itertools.islice(indices, self._unit))):
            self._read.append(unit)
            given += len(unit)
            yield from unit
            if time.perf_counter() > end:
                self.first_units = len(self._read)
        if self.first_units is None:  # the epoch has ended before: later ones are as ever
            self.first_units, self._again_after = len(self._read), None
            return
        orders = (self._random.sample(self._read, len(self._read)) for _ in itertools.count())
        again = itertools.chain.from_iterable(unit for units in orders for unit in units)
        length = length_of(self._sampler)
        yield from again if length is None else itertools.islice(again, max(0, length - given))

    def __len__(self) -> int:
        return len(self._sampler) * (2 if self.is_twice else 1)

    @property
    def set_epoch(self) -> Any:
        """The sampler's own; raises ``AttributeError`` where it has none."""
        return self._sampler.set_epoch


class Built(NamedTuple):
    """Samples of a batch, the number of its worker, and how many batches this worker built before it."""

    samples: int
    worker: int
    before: int


class CountingCollate:
    """A collate function that also counts the batches each worker builds, in memory shared with the parent.

    A batch travels with the number of its samples, which its shape does not always tell, and its place among those
    of its worker. ``compares_workers`` notes each worker's first samples: workers of an undivided iterable dataset all
    yield the same ones, in any order, which must not count twice.
    """

    def __init__(
        self,
        collate_fn: Callable[[Any], Any] | None,
        num_workers: int,
        *,
        compares_workers: bool = False,
        fetched: int | None = None,
        is_batch: bool = False,
    ) -> None:
        """``fetched`` is the number of samples that the dataset fetches in one call, where it does.

        With ``is_batch`` each item of the dataset is a whole batch.
        """
        self._compares_workers, self._fetched, self._is_batch = compares_workers, fetched, is_batch
        self._is_joined: bool | None = None
        """Whether it joins them itself; ``None`` before the first."""
        self._collate = collate_fn or default_collate
        self._slots = torch.zeros(max(1, num_workers), dtype=torch.int64, device="cpu").share_memory_()
        self._pids = torch.zeros(max(1, num_workers), dtype=torch.int64, device="cpu").share_memory_()
        self._digests = torch.zeros(max(1, num_workers), NOTED, dtype=torch.int64, device="cpu").share_memory_()

    def __call__(self, samples: Any) -> tuple[Any, Built]:
        """Collate, then count: a batch is ready only when it is built."""
        batch = self._collate(samples)
        worker = get_worker_info()
        number = worker.id if worker else 0
        built = int(self._slots[number])
        if self._compares_workers and not self._digests[number, -1]:
            self._note(self._digests[number], samples, batch)
        if worker:
            self._pids[number] = os.getpid()
            if built < FIRST:  # threads that send batches start with the first of them
                name_senders()
        self._slots[number] = built + 1
        count = samples_in(batch) if self._is_batch else self._count(samples)
        return batch, Built(count, number, built)

    def _count(self, samples: Any) -> int:
        """Return how many samples there are; a dataset that fetches them together may have joined them."""
        if self._fetched is None:
            return len(samples)
        lengths = {len(each) for each in tensors_in(samples) if each.ndim}
        if self._is_joined is None:
            are_apart = isinstance(samples, list) and self._fetched in (len(samples), ANY_NUMBER)
            self._is_joined = not are_apart and len(lengths) == 1
        return lengths.pop() if self._is_joined and len(lengths) == 1 else len(samples)

    def _note(self, digests: torch.Tensor, samples: Any, batch: Any) -> None:
        """Note digests of a worker's samples, until the first comes again; of the batch where they tell nothing."""
        noted = int(digests.count_nonzero())
        found = [] if self._is_batch else [*filter(None, map(_digest, samples))]
        for digest in found or filter(None, [_digest(batch)]):
            if noted == NOTED or (noted and digest == digests[0]):
                digests[-1] = digests[-1] or END
                return
            digests[noted] = digest
            noted += 1

    @property
    def workers(self) -> tuple[int, ...]:
        """Process numbers of the workers that have built a batch."""
        return tuple(pid for pid in self._pids.tolist() if pid)

    @property
    def built(self) -> list[int]:
        """Batches built so far by each worker."""
        return [int(count) for count in self._slots]

    @property
    def empty_workers(self) -> int:
        """Workers that have built nothing so far."""
        return int((self._slots == 0).sum())

    @property
    def digests(self) -> list[list[int]]:
        """Digests of each worker's first samples."""
        return [[each for each in noted if each not in (0, END)] for noted in self._digests.tolist()]


def samples_in(batch: Any) -> int:
    """Return how many samples a batch has: the leading dimension of most of its tensors, 1 without any."""
    lengths = Counter(len(tensor) for tensor in tensors_in(batch) if tensor.ndim)
    return lengths.most_common(1)[0][0] if lengths else 1


def unique_share(digests: Iterable[Sequence[int]]) -> float:
    """Return how many workers yield samples of their own, as a share of all; 1 where the content tells nothing.

    Workers that draw at random from the same samples find as many of another's among theirs as twice those that come
    again among their own; more of another's than by chance are those of one stream.
    """
    told = [noted for noted in digests if len(set(noted)) > 1]
    if not told:
        return 1.0
    own = fmean(len(noted) - len(set(noted)) for noted in told)
    chance = 2 * own + SIGMAS * math.sqrt(2 * own + 4)
    groups = list[set[int]]()
    for noted in told:
        same = [group for group in groups if _common(noted, group) > min(chance, 2 * own + len(noted) / 2)]
        groups = [group for group in groups if group not in same] + [set(noted).union(*same)]
    return len(groups) / len(told)


def _common(noted: Sequence[int], others: set[int]) -> int:
    return sum(digest in others for digest in noted)


def length_of(sized: Any) -> int | None:
    """Return a length; ``None`` for a sampler without end, and where the user's code has none to say."""
    try:
        return len(sized)
    except Exception:
        return None


def _batches_of(loader: DataLoader[Any]) -> int | None:
    """Return the batches of an epoch, as a loader says; one of an iterable dataset that is asked warns later."""
    if not isinstance(loader.dataset, IterableDataset):
        return length_of(loader)
    samples = length_of(loader.dataset)
    return None if samples is None else -(-samples // (loader.batch_size or 1))


def _digest(batch: Any) -> int:
    """Return a number that tells one batch or sample from another by its tensors, arrays, texts and numbers.

    It is 0 where there are none of these.
    """
    checksum = 0
    for leaf in leaves_in(batch):
        if isinstance(leaf, torch.Tensor):
            if leaf.layout is not torch.strided or leaf.device.type != "cpu" or leaf.is_quantized:
                continue
            content = leaf.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        elif isinstance(leaf, np.ndarray) and not leaf.dtype.hasobject:
            content = leaf.tobytes()
        elif isinstance(leaf, (str, bytes, int, float)):
            content = repr(leaf).encode(errors="replace")
        else:
            continue
        checksum = zlib.crc32(content, checksum)
    return checksum


class BatchStream:
    """Iterate a loader epoch after epoch, counting consumed batches and timing each start.

    Raises ``UserCodeError`` when an epoch yields no batch.
    """

    def __init__(
        self, loader: DataLoader[Any], counter: CountingCollate, epoch_batches: int | float | None = None
    ) -> None:
        """Take a loader, and the batches after which an epoch ends: a number, or a share of the loader's."""
        self._loader = loader
        self._counter = counter
        self._said = _batches_of(loader)
        self._most = epoch_batches if isinstance(epoch_batches, int) else None
        if isinstance(epoch_batches, float) and self._said is not None:
            self._most = max(1, int(self._said * epoch_batches))
        self._gone = counter.built
        self._cut: int | None = None
        """Batches of the current epoch, where it ends before its time."""
        self._taken = [0] * len(self._gone)
        """Batches of each worker that were handed out in the current epoch."""
        self._ran_out = False
        """Whether a worker was passed over while others had batches left."""
        self._iterator: Iterator[Any] | None = None
        self.position = 0
        """Batches of the current epoch handed out so far."""
        self._noted: frozenset[int] = frozenset()
        self.samples = 0
        """Samples in the batch handed out last."""
        self.batch_bytes, self.batch_tensors = 0, 0
        """Bytes of the tensors in the first batch, and how many these are."""
        self.consumed = 0
        """Batches handed out so far."""
        self.built_apart = 0
        """Batches that were built while the clock stood still."""
        self.epochs = 0
        self.epoch_batches: int | None = None
        """Batches in an epoch: known for a map-style dataset, learnt at the first epoch's end for an iterable one."""
        self.digests_of_others: list[list[int]] = []
        """Digests of the first samples of other ranks' workers."""
        self.start_seconds: list[float] = []
        """Seconds to the first batch of each epoch, from asking for an iterator or from the end of the epoch before."""
        self.misstated_batches: int | None = None
        """The loader's own number of batches in an epoch, where an epoch had another number."""
        if not isinstance(loader.dataset, IterableDataset) or self._most:
            lengths = [self._said, self._most]
            self.epoch_batches = min((length for length in lengths if length is not None), default=None)

    def __next__(self) -> Any:
        """Return the next batch, of the next epoch where this one has ended."""
        begin = time.perf_counter()  # ending an epoch, and its workers, is part of starting the next
        if self._iterator is not None and self.position not in (self._most, self._cut):
            try:
                return self._count(next(self._iterator))
            except StopIteration:
                self.epoch_batches = self.position
                if self._said not in (None, self.position):
                    self.misstated_batches = self._said
        return self._start_epoch(begin)

    def _start_epoch(self, begin: float) -> Any:
        set_epoch = getattr(self._loader.sampler, "set_epoch", None)
        if set_epoch:
            set_epoch(self.epochs)  # as training has to, for another order in each
        self._gone = self._counter.built
        self._taken, self._cut = [0] * len(self._gone), None
        self._iterator = iter(self._loader)  # as trainers do: workers of an epoch that was cut short end after that
        workers = frozenset(worker.pid for worker in getattr(self._iterator, "_workers", ()))
        if workers != self._noted:  # so that nothing of theirs is left should they fail
            note_workers(workers)
            self._noted = workers
        try:
            batch = next(self._iterator)
        except StopIteration:
            raise UserCodeError("the dataset yields no batch: an epoch ended before its first one") from None
        skipping = 0.0 if self._timed_sampler is None else self._timed_sampler.skipping_seconds
        self.start_seconds.append(time.perf_counter() - begin - skipping)
        if not self.epochs:
            self.batch_bytes, self.batch_tensors = tensor_bytes(batch[0]), len(list(tensors_in(batch[0])))
        self.epochs += 1
        self.position = 0
        return self._count(batch)

    def _count(self, counted: tuple[Any, Built]) -> Any:
        batch, built = counted
        self.samples = built.samples
        self._gone[built.worker] = built.before + 1  # all before it is handed out, or of an epoch cut short
        self._taken[built.worker] += 1
        self._ran_out |= self._taken[built.worker] > 1 + UNEVEN * min(self._taken)
        self.consumed += 1
        self.position += 1
        return batch

    @property
    def is_twice(self) -> bool:
        """Whether each batch comes once more right after itself."""
        return self._timed_sampler is not None and self._timed_sampler.is_twice

    @property
    def comes_again(self) -> bool:
        """Whether batches come again from now on, where they are to."""
        first = 0 if self._timed_sampler is None else self._timed_sampler.first_units
        return first is not None and self.consumed >= first

    @property
    def units(self) -> list[list[Any]]:
        """Indices, or batches of them, that the workers were asked for twice; by batch."""
        return [] if self._timed_sampler is None else self._timed_sampler.units

    @property
    def dataset(self) -> Any:
        """The dataset that the loader reads."""
        return self._loader.dataset

    @property
    def steps_left(self) -> int | None:
        """Batches left in the current epoch, ``None`` while the length of an epoch is not known."""
        batches = self.epoch_batches if self._cut is None else self._cut
        return None if batches is None else batches - self.position

    def cut_epoch(self, in_flight: int) -> None:
        """End the epoch with the batches that its workers were asked for; one without a sampler goes on."""
        if self._timed_sampler is not None and (left := self.steps_left) is not None and left > in_flight:
            self._timed_sampler.is_over, self._cut = True, self.position + in_flight

    @property
    def epoch_samples(self) -> int | None:
        """Samples in an epoch of a map-style dataset, where its sampler says."""
        if isinstance(self._loader.dataset, IterableDataset) or self._loader.batch_size is None:
            return None
        samples = length_of(self._loader.sampler)
        return samples if self._most is None or samples is None else min(samples, self._most * self._loader.batch_size)

    @property
    def order_seconds(self) -> list[float]:
        """Seconds that the sampler has taken to order each epoch; empty for an iterable dataset."""
        return [] if self._timed_sampler is None else self._timed_sampler.seconds

    @property
    def _timed_sampler(self) -> TimedSampler | None:
        samplers = (self._loader.batch_sampler, self._loader.sampler)
        return next((each for each in samplers if isinstance(each, TimedSampler)), None)

    @property
    def ready(self) -> int:
        """Batches built and not yet handed out."""
        return sum(self._counter.built) - sum(self._gone)

    @property
    def produced(self) -> int:
        """Batches built so far."""
        return sum(self._counter.built)

    @property
    def workers(self) -> tuple[int, ...]:
        """Process numbers of the loader's workers; empty without any."""
        return self._counter.workers

    @property
    def freezes_epoch(self) -> bool:
        """Whether persistent workers keep their own copy of a dataset whose epoch is set from outside."""
        return self._loader.persistent_workers and hasattr(self._loader.dataset, "set_epoch")

    @property
    def idle_workers(self) -> int:
        """Workers that have built nothing although each had its turn more than once; 0 where they take none."""
        had_their_turn = self._takes_turns and self.consumed > 2 * self._loader.num_workers
        return self._counter.empty_workers if had_their_turn and self._loader.num_workers else 0

    @property
    def is_uneven(self) -> bool:
        """Whether workers of an iterable dataset got different amounts; those that take no turns do not tell."""
        is_iterable = isinstance(self._loader.dataset, IterableDataset)
        return is_iterable and self._takes_turns and (self._ran_out or self.idle_workers > 0)

    @property
    def _takes_turns(self) -> bool:
        return bool(getattr(self._loader, "in_order", True))

    @property
    def unique_share(self) -> float:
        """Share of the samples that are not the same ones from another worker; 1 for a map-style dataset."""
        return unique_share(self.digests + self.digests_of_others)

    @property
    def digests(self) -> list[list[int]]:
        """Digests of the first samples of an iterable dataset's workers; else empty."""
        return self._counter.digests if isinstance(self._loader.dataset, IterableDataset) else []

    def close(self) -> None:
        """Let the workers go.

        After an exception the traceback holds the iterator in a cycle. Left to the garbage collector, it takes torch's
        limit of five seconds, and reports a dead worker once more, from wherever the collector runs.
        """
        # a persistent iterator keeps its workers after an epoch; iterators may have no length, so no truth either
        iterator = self._iterator if self._iterator is not None else self._loader._iterator
        self._iterator = self._loader._iterator = None
        shut_down: Callable[[], None] | None = getattr(iterator, "_shutdown_workers", None)
        if shut_down:
            with contextlib.suppress(RuntimeError):  # a worker that dies on being let go has done its work
                shut_down()


class SeveralStreams(BatchStream):
    """Rounds of batches from loaders that feed the steps together; samples and epochs are the first loader's.

    A round is its batch, and a list of batches from each other loader, whose epochs begin anew by themselves.
    """

    def __init__(
        self, loader: DataLoader[Any], counter: CountingCollate, others: Sequence[tuple[BatchStream, int]]
    ) -> None:
        """Take the first loader, and of each other one its batches and how many of them a round has."""
        super().__init__(loader, counter)
        self.others = others
        """The other loaders' batches, and how many of them a round has."""

    def __next__(self) -> Any:
        """Return the next round."""
        epochs, first = self.epochs, super().__next__()
        seen = [len(each.start_seconds) for each, _ in self.others]
        more = [[next(each) for _ in range(count)] for each, count in self.others]
        if self.epochs != epochs:  # what starts with the epoch is part of its cost
            new = zip(self.others, seen, strict=True)
            self.start_seconds[-1] += sum(sum(each.start_seconds[known:]) for (each, _), known in new)
        if self.consumed == 1:
            self.batch_bytes += sum(each.batch_bytes * count for each, count in self.others)
            self.batch_tensors += sum(each.batch_tensors * count for each, count in self.others)
        return (first, *more)

    @property
    def ready(self) -> int:
        """Rounds of which all batches are built."""
        return min(super().ready, *(each.ready // count for each, count in self.others))

    @property
    def produced(self) -> int:
        """Rounds built so far."""
        return super().produced - super().ready + self.ready

    @property
    def workers(self) -> tuple[int, ...]:
        """Process numbers of all loaders' workers."""
        return (*super().workers, *(worker for each, _ in self.others for worker in each.workers))

    def close(self) -> None:
        """Let all workers go."""
        super().close()
        for each, _ in self.others:
            each.close()
