"""Building batches in this process: what samples and collation take, and in which functions the time goes."""

from __future__ import annotations

import cProfile
import os
import re
import time
from collections import defaultdict
from dataclasses import dataclass, replace
from types import CodeType
from typing import Any

import numpy as np
from torch.utils.data import default_collate

from autotune.config import Config
from autotune.measure.loading import open_stream
from autotune.measure.places import TORCH, is_ours, place
from autotune.measure.step import leaves_in
from autotune.probes import CodeShare
from autotune.workload import Workload

__all__ = ["Building", "BuildingTimes"]

MOST_FUNCTIONS = 6
LEAST_SHARE = 0.01
"""Share of the time below which a function is not worth naming."""
LOADER = os.path.join(TORCH, "utils", "data") + os.sep
"""Torch's loader, whose own time is nobody's choice."""
BOUND_METHOD = re.compile(r"<(?:method|slot wrapper) '(.+?)' of '(.+?)' objects>")
FUNCTION = re.compile(r"<(?:built-in method|built-in function|function) (.+?)(?: of type object)?(?: at 0x\w+)?>")


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildingTimes:
    """What building batches takes, in seconds."""

    sample: float
    """Reading one sample."""
    collate: float
    """Collating one batch."""


class Building:
    """Batches built in this process, exactly as a loader without workers builds them."""

    def __init__(self, workload: Workload, batch_size: int) -> None:
        self._collate = workload.collate_fn or default_collate
        self._stream = open_stream(replace(workload, collate_fn=self._timed_collate), Config(batch_size=batch_size))
        self._collate_seconds = 0.0
        self.numpy_arrays = 0
        """NumPy arrays in the sample that was seen last, before it was collated."""
        self.batch: Any = None
        """The last batch."""

    @property
    def samples(self) -> int:
        """Samples in the last batch."""
        return self._stream.samples

    def measure(self, seconds: float) -> BuildingTimes:
        """Build batches for so long; the first counts only where it is the only one."""
        times = [self._build()]
        limit = time.perf_counter() + seconds - times[0][1]
        while time.perf_counter() < limit:
            times.append(self._build())
        counted = times[1:] or times
        collate = sum(collated for *_, collated in counted)
        read = sum(built for _, built, _ in counted) - collate
        samples = sum(count for count, *_ in counted)
        return BuildingTimes(sample=read / max(1, samples), collate=collate / len(counted))

    def profile(self, seconds: float) -> tuple[CodeShare, ...]:
        """Build batches for so long, one at least, under cProfile; return where the time went.

        Time is that of this thread. Left out of the list, but not of the whole, are autotune and torch's loader.
        """
        profile = cProfile.Profile()
        limit = time.perf_counter() + seconds
        while True:
            profile.enable()
            try:
                self._build()
            finally:
                profile.disable()
            if time.perf_counter() >= limit:
                return _shares(profile)

    def _build(self) -> tuple[int, float, float]:
        """Build a batch; return its samples, the seconds it took, and those of them that collating took."""
        begin, collated = time.perf_counter(), self._collate_seconds
        self.batch = next(self._stream)
        return self.samples, time.perf_counter() - begin, self._collate_seconds - collated

    def _timed_collate(self, samples: Any) -> Any:
        if isinstance(samples, (list, tuple)) and samples:  # __getitems__ may return anything else
            self.numpy_arrays = sum(isinstance(leaf, np.ndarray) for leaf in leaves_in(samples[0]))
        begin = time.perf_counter()
        batch = self._collate(samples)
        self._collate_seconds += time.perf_counter() - begin
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
    if match := BOUND_METHOD.fullmatch(code):
        return f"built-in {match[2].replace('torch._C.TensorBase', 'torch.Tensor')}.{match[1]}"
    match = FUNCTION.fullmatch(code)
    return f"built-in {match[1].removeprefix('builtins.')}" if match else code
