"""A probe of the user's code: the functions and operators that a diagnosis names."""

from __future__ import annotations

import cProfile
import gc
import multiprocessing
import os
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import islice
from types import CodeType, FunctionType, ModuleType
from typing import Any

import cloudpickle
import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

from autotune.config import Config
from autotune.measure.batch import leaves_in, move, tensors_in
from autotune.measure.device import Device
from autotune.measure.loader import collate_of, open_stream
from autotune.measure.rank_group import ALONE, RankGroup
from autotune.measure.step import Step, TrainingStep
from autotune.measure.sync_points import watch_synchronisations
from autotune.probes import Anatomy, CodeShare, Synchronisation
from autotune.source_location import is_ours, place
from autotune.workload import Workload

TIMING_SHARE, PROFILE_SHARE, STEP_SHARE = 0.2, 0.3, 0.3
"""Shares of a probe for timing batches, for profiling how they are built, and for watching steps."""
MOST_BATCHES, MOST_STEPS = 500, 10
"""Batches that are timed, and as many profiled, and steps that are watched, at most."""
MOST_FUNCTIONS = 6
LEAST_SHARE = 0.01
"""Share of the time below which a function is not worth naming."""
LOADER = os.path.join(os.path.dirname(torch.utils.data.__file__), "")
"""Torch's loader, whose own time is nobody's choice."""
IN_C = re.compile(r"<(?:built-in )?(?:method|function|slot wrapper) '?([^' ]+)'?(?: of '(.+?)' objects)?(?: .+)?>")
"""A profiler's name of a function written in C, with the name of its type."""
MOST_OBJECTS = 1_000_000
MOST_SECONDS = 1.0
"""Longest that pickling a dataset may take."""
CONTAINERS = (list, tuple, dict, set, frozenset)
SHARED = (type, ModuleType, FunctionType, CodeType)
"""Through these one comes to all of Python and no further into the dataset."""


def look_inside(
    workload: Workload,
    config: Config,
    device: Device,
    seconds: float,
    step: Step | None = None,
    group: RankGroup = ALONE,
) -> Anatomy:
    """Build batches and train for about so many seconds, with profilers on that are off again at the end.

    At least two batches are built and three steps made, however long they take. The model trains; each batch is a
    step of the optimizer. Another ``step``, that of a script, moves its batches itself, and all ranks make as many.
    Exceptions of the user's code pass through.
    """
    begin = device.clock()
    building = Building(workload, config.batch_size, device.clock)
    sample_seconds, collate_seconds = building.measure(TIMING_SHARE * seconds)
    code = building.profile(PROFILE_SHARE * seconds)
    operators, synchronisations, freed = _watch_steps(
        step or TrainingStep(workload, replace(config, accumulation_steps=1), device),
        building,
        device,
        torch.device("cpu") if step else device.torch_device,
        STEP_SHARE * seconds,
        group,
    )
    start_method = multiprocessing.get_start_method(allow_none=True)  # without it the question would fix the answer
    return Anatomy(
        sample_seconds=sample_seconds,
        collate_seconds=collate_seconds,
        code=code,
        batch_tensors=sum(1 for _ in tensors_in(building.batch)),
        numpy_arrays=building.numpy_arrays,
        has_getitems=building.makes_batches or bool(getattr(workload.dataset, "__getitems__", None)),
        is_custom_collate=workload.collate_fn is not None,
        dataset_bytes=pickled_bytes(workload.dataset),
        python_objects=count_objects(workload.dataset),
        start_method=start_method or multiprocessing.get_all_start_methods()[0],
        operators_per_step=operators,
        synchronisations=synchronisations,
        cache_frees=freed[0],
        cache_seconds=freed[1],
        seconds=device.clock() - begin,
    )


def _watch_steps(
    step: Step, building: Building, device: Device, place: torch.device, seconds: float, group: RankGroup
) -> tuple[int, tuple[Synchronisation, ...], tuple[float, float]]:
    """Train on the last batch, put in its place: once to warm up, once to count operators, then to watch for waits.

    Returns how many ATen operators the host called in a step, where it waited for the device, and of a step the calls
    of ``empty_cache()`` with their seconds.
    """
    batch, samples = move(building.batch, place, non_blocking=False), building.samples
    limit = device.clock() + seconds
    step(batch, samples)
    with profile(activities=[ProfilerActivity.CPU]) as profiler:  # compiled regions are no operators of ATen
        step(batch, samples)
    operators = sum(_is_outermost(event) for event in profiler.events() or ())
    with watch_synchronisations(device.torch_device) as waits, _watch_cache(device.clock) as frees:
        for steps in group.together(lambda made: made > 0 and device.clock() >= limit, MOST_STEPS):  # noqa: B007
            step(batch, samples)
    device.synchronize()
    waited = tuple(
        Synchronisation(operator=operator, where=where, per_step=count / steps)
        for (operator, where), count in waits.most_common()
    )
    return operators, waited, (len(frees) / steps, sum(frees) / steps)


@contextmanager
def _watch_cache(clock: Callable[[], float]) -> Iterator[list[float]]:
    """Note the seconds of each call that frees the cache of an accelerator's allocator."""
    seconds, modules = list[float](), (torch.cuda, torch.accelerator, torch.xpu, torch.mps)
    usual: dict[Any, Callable[[], None]] = {each: each.empty_cache for each in modules if hasattr(each, "empty_cache")}

    def noted(free: Callable[[], None]) -> None:
        begin = clock()
        free()
        seconds.append(clock() - begin)

    for module, free in usual.items():
        module.empty_cache = partial(noted, free)
    try:
        yield seconds
    finally:
        for module, free in usual.items():
            module.empty_cache = free


def _is_outermost(event: Any) -> bool:
    parent = event.cpu_parent
    return event.name.startswith("aten::") and not (parent and parent.name.startswith("aten::"))


class Building:
    """Batches built in this process, exactly as a loader without workers builds them."""

    def __init__(self, workload: Workload, batch_size: int, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._collate = collate_of(workload)
        self.makes_batches = workload.own_batches == "dataset"
        """Whether the dataset's items are batches."""
        self._stream = open_stream(replace(workload, collate_fn=self._timed_collate), Config(batch_size=batch_size))
        self._collate_seconds = 0.0
        self.numpy_arrays = 0
        """NumPy arrays in the sample that was seen last, before it was collated."""
        self.batch: Any = None

    @property
    def samples(self) -> int:
        """Samples in the last batch."""
        return self._stream.samples

    def measure(self, seconds: float) -> tuple[float, float]:
        """Build batches for so long; return the seconds of reading a sample, and of collating a batch.

        The first batch counts only where it is the only one.
        """
        limit, batches = self._clock() + seconds, [self._build()]
        while len(batches) < MOST_BATCHES and self._clock() < limit:
            batches.append(self._build())
        counted = batches[1:] or batches
        samples, built, collated = (sum(column) for column in zip(*counted, strict=True))
        return (built - collated) / max(1, samples), collated / len(counted)

    def profile(self, seconds: float) -> tuple[CodeShare, ...]:
        """Build batches for so long, one at least, under cProfile; return where the time went.

        Time is that of this thread. Left out of the list, but not of the whole, are autotune and torch's loader.
        """
        profile = cProfile.Profile()
        limit = self._clock() + seconds
        for _ in range(MOST_BATCHES):
            with profile:
                self._build()
            if self._clock() >= limit:
                break
        return _shares(profile)

    def _build(self) -> tuple[int, float, float]:
        begin, collated = self._clock(), self._collate_seconds
        self.batch = next(self._stream)
        return self.samples, self._clock() - begin, self._collate_seconds - collated

    def _timed_collate(self, samples: Any) -> Any:
        if isinstance(samples, (list, tuple)) and samples and not self.makes_batches:  # __getitems__ may return others
            self.numpy_arrays = sum(isinstance(leaf, np.ndarray) for leaf in leaves_in(samples[0]))
        begin = self._clock()
        batch = self._collate(samples)
        self._collate_seconds += self._clock() - begin
        return batch


def _shares(profile: cProfile.Profile) -> tuple[CodeShare, ...]:
    entries = profile.getstats()
    whole = sum(entry.inlinetime for entry in entries)
    own: defaultdict[str, float] = defaultdict(float)
    for entry in entries:
        if isinstance(entry.code, CodeType) and is_ours(entry.code.co_filename):
            for call in entry.calls or ():  # what autotune asks of C functions is its own time too
                own[_name(call.code)] -= call.inlinetime if isinstance(call.code, str) else 0.0
        elif isinstance(entry.code, str) or not entry.code.co_filename.startswith(LOADER):
            own[_name(entry.code)] += entry.inlinetime
    longest = sorted(own.items(), key=lambda item: -item[1])[:MOST_FUNCTIONS]
    return tuple(
        CodeShare(where=where, share=seconds / whole) for where, seconds in longest if seconds >= LEAST_SHARE * whole
    )


def _name(code: CodeType | str) -> str:
    """Return a function's place; of one written in C its module or type, and its name."""
    if isinstance(code, CodeType):
        return place(code.co_filename, code.co_firstlineno, code.co_name)
    if not (match := IN_C.fullmatch(code)):
        return code
    name = ".".join(filter(None, (match[2], match[1]))).removeprefix("builtins.")
    return f"built-in {name.replace('torch._C.TensorBase', 'torch.Tensor')}"


def count_objects(dataset: object) -> int:
    """Count the distinct Python objects in the containers that a dataset holds, directly or through its attributes.

    None of the user's code runs. Counts up to ``MOST_OBJECTS``.
    """
    held, visited, pending = set[int](), {id(dataset)}, [dataset]
    while pending and len(held) < MOST_OBJECTS:
        holder = pending.pop()
        is_container = issubclass(type(holder), CONTAINERS)
        if is_container and len(holder) >= MOST_OBJECTS:  # type: ignore[arg-type]
            return MOST_OBJECTS  # without a list of all that it holds
        parts = gc.get_referents(holder)
        if is_container:
            held.update(map(id, islice(parts, MOST_OBJECTS - len(held))))
        for part in parts:
            kind = type(part)  # the collector does not track containers of plain values
            may_hold = issubclass(kind, CONTAINERS) or (gc.is_tracked(part) and not issubclass(kind, SHARED))
            if may_hold and id(part) not in visited:
                visited.add(id(part))
                pending.append(part)
    return len(held)


def pickled_bytes(dataset: object) -> int | None:
    """Return the bytes of a pickled dataset, tensors left out; ``None`` where it fails or takes too long."""
    pickler = _Pickler()
    try:
        pickler.dump(dataset)
    except Exception:  # the user's own code may raise anything here
        return None
    return pickler.bytes


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Counts bytes and keeps nothing. Pickles objects of ``__main__`` too: a script of the user's can be imported."""

    def __init__(self) -> None:
        self.bytes, self._limit = 0, time.perf_counter() + MOST_SECONDS
        super().__init__(self)

    def write(self, data: Any) -> None:
        if time.perf_counter() > self._limit:
            raise TimeoutError
        self.bytes += memoryview(data).nbytes

    def reducer_override(self, part: Any) -> Any:
        if isinstance(part, torch.Tensor):
            return int, ()
        if isinstance(part, np.ndarray) and not part.dtype.hasobject:
            self.bytes += part.nbytes  # without the copy that pickling makes of a file mapped into memory
            return int, ()
        return super().reducer_override(part)
