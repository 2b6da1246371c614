"""Records of probes, measurements of parts of the pipeline, by which a search predicts and a diagnosis explains."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

KEPT, SLOW_BUILD = 0.5, 0.001
"""Share of the time of building a batch that building it again may take where nothing is kept, and seconds from which
a batch is slow enough to tell."""
KEPT_HERE = 0.9
"""Share of it where the dataset itself keeps nothing: more makes claims that training loses in later epochs."""
DEVIATION = 0.05
"""Share of the loss by which a precision may always deviate from fp32."""
SPREADS = 3.0
"""The allowed deviation, in units of the effect of another order of the batches and other random numbers on the
loss in fp32."""
SMALL = 0.01
"""Share of the first loss below which a loss is as good as zero: it does not shrink the deviation that is allowed."""
OVERFLOW_SHARE = 0.1
"""Share of the steps whose gradients may be not finite where no scaler takes care of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeProbe:
    """A training step on batches already on the device: no loader can beat it."""

    samples_per_second: float
    """The ceiling of this batch size, precision and number of threads: all samples over all seconds."""
    first_step_seconds: float
    """Seconds of the first step, compilation of a compiled model included."""
    host_seconds: float
    """Seconds that the host takes to launch one step on an accelerator; on a CPU the whole step."""
    cpu_seconds: float
    """CPU time of one step, all threads together."""
    peak_memory_bytes: int
    """Peak on the memory that limits this run, the batch with the largest sample seen included."""
    memory: Literal["device", "host"]
    """Which memory that is: device (reserved), or host."""
    memory_limit_bytes: int
    """Size of that memory on this machine."""
    host_memory_bytes: int
    """Peak host memory of the training process alone."""
    taken_share: float = 0.0
    """Share of the CPUs, or of the GPU's time, that others took meanwhile."""
    spread: float = 0.0
    """Standard error of the ceiling's logarithm because batches differ; 0 where they take the same time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderTrace:
    """The cost of batches of one size, built by one worker and by the training process."""

    batch_size: int
    build_seconds: tuple[float, ...]
    """Seconds that one worker took for each batch, one after the other."""
    receive_seconds: float
    """Seconds that the training process takes to receive a ready batch."""
    pin_seconds: float
    """Seconds that the pinning thread, which computes alone, spends on a batch; 0 on a CPU."""
    transfer_seconds: float
    """Seconds to copy a batch to the device from unpinned memory; 0 on a CPU."""
    cpu_seconds: float
    """CPU time of building one batch in a worker."""
    batch_bytes: int
    """Bytes of the tensors in a batch."""
    start_seconds: float
    """Seconds to start one worker, before it builds its first batch."""
    worker_memory_bytes: int
    """Memory that one worker holds and shares with nobody."""
    storage_share: float | None
    """Share of the bytes read that came from storage and not from the page cache."""
    order_seconds: float = 0.0
    """Seconds that the sampler takes to order an epoch, with and without workers."""
    batch_tensors: int = 1
    """Tensors in a batch: each is an open file while it is on its way from a worker."""
    inline_seconds: float | None = None
    """Mean time of a batch without workers, where it is known: training without them tells."""
    inline_pin_seconds: float = 0.0
    """Seconds that the training process itself takes to pin a batch, with all its threads; 0 on a CPU."""
    pinned_transfer_seconds: float = 0.0
    """Seconds to copy a batch to the device from pinned memory, in which nothing is computed there; 0 on a CPU."""
    taken_share: float = 0.0
    """Share of the CPUs that others took meanwhile."""
    again_seconds: float | None = None
    """Mean time of building the same batch once more in the same worker; ``None`` where not tried."""
    elsewhere_seconds: float | None = None
    """Mean time of building it in another worker after that; ``None`` where not tried."""

    @property
    def keeps_samples(self) -> bool:
        """Whether dataset or system keep samples once read, so that later epochs are faster."""
        return self.again_seconds is not None and is_kept(fmean(self.build_seconds), self.again_seconds)

    @property
    def is_own_cache(self) -> bool:
        """Whether the dataset keeps samples itself: they are gone with the process that has read them."""
        again, others = self.again_seconds, (fmean(self.build_seconds), self.elsewhere_seconds)
        return again is not None and all(each is not None and is_kept(each, again, KEPT_HERE) for each in others)


def is_kept(first: float, again: float, most: float = KEPT) -> bool:
    """Return whether building a batch again is so much faster that its samples must have been kept.

    It takes less than ``most`` of the time.
    """
    return first > SLOW_BUILD and again < most * first


@dataclass(frozen=True, slots=True, kw_only=True)
class NumericsCheck:
    """The same batches in plain fp32 and in a mixed precision or with options, from the same weights."""

    reference_losses: tuple[float, ...]
    """Loss of each step in fp32."""
    other_losses: tuple[float, ...]
    """Loss of each step in fp32 with the batches in another order and other random numbers: the effect of chance."""
    losses: tuple[float, ...]
    """Loss of each step in the mixed precision and with the options, batches in the order of the reference."""
    overflows: tuple[int, ...]
    """Steps in the mixed precision whose gradients were not finite, and in fp32 were."""
    settles: bool
    """Whether the gradient scaler of fp16 found a scale with which no step is skipped; true in other precisions."""
    seconds: float
    """Seconds of all runs together."""


def reason_against(check: NumericsCheck, amp: str, option: str | None = None) -> str | None:
    """Return the reason not to trust a precision with this model, or ``None``.

    With an ``option``, added to a trusted configuration, the words are about the option.
    Where fp32 itself does not stay finite there is nothing to compare with. This is a smoke test over some twenty
    steps: a rejected precision is broken, an accepted one may still diverge later.
    """
    reference, others, steps = check.reference_losses, check.other_losses, len(check.losses)
    name, there = (option, f"with {option}") if option else (amp, f"in {amp}")
    if not all(map(math.isfinite, reference)):
        return f"{name} cannot be compared with fp32, whose own loss does not stay finite"
    bad = next((number for number, loss in enumerate(check.losses, 1) if not math.isfinite(loss)), None)
    if bad is not None:
        return f"{there} the loss becomes {check.losses[bad - 1]} at step {bad} of {steps}, in fp32 it stays finite"
    if not check.settles:
        return f"{there} gradients overflow at every scale of the loss"
    if len(check.overflows) > OVERFLOW_SHARE * steps:
        return f"{there} the gradients of {len(check.overflows)} of {steps} steps are not finite"
    halves = slice(None, steps // 2), slice(steps // 2, None), slice(None)
    expected, found = fmean(reference[halves[1]]), fmean(check.losses[halves[1]])
    scale = max(fmean(map(abs, reference[halves[1]])), SMALL * abs(reference[0]))
    is_known = all(map(math.isfinite, others))
    spread = max(abs(fmean(others[part]) - fmean(reference[part])) for part in halves) if is_known else 0.0
    if abs(found - expected) > max(DEVIATION * scale, SPREADS * spread):
        return f"{there} the loss is {found:.3g} after {steps} steps on the same batches, in fp32 {expected:.3g}"
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientNoise:
    """The gradients of small batches and of the large ones that they make, in a short training after a warm-up."""

    batch_size: int
    parts: int
    """Small batches of a large one, with which the optimizer steps."""
    points: tuple[tuple[tuple[float, float], ...], ...]
    """At each of three points of the training: for each step the mean of the squared norms of its small batches'
    gradients, and the squared norm of the large one's."""
    trained_samples: int
    """Samples trained on by the end, the warm-up included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstLosses:
    """The first losses of a script that was started anew."""

    losses: tuple[float, ...]
    """The losses, in order; fewer than usual where the script ends before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredItems:
    """Items that were read from a dataset and stored, as they are or before a transform."""

    folder: str
    """The folder that they are in."""
    samples: int
    item_bytes: float
    """Mean bytes of one."""
    item_seconds: float
    """Mean seconds in which the training process reads and stores one."""
    before: str | None = None
    """The attribute of the dataset that is called after reading back; ``None`` where items are stored as they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeShare:
    """A function, and how much of the time of building batches is spent in it alone."""

    where: str
    """File, line and name, as in ``workload.py:41 __getitem__``, or ``built-in zlib.decompress``; no absolute path."""
    share: float
    """Share of that time, without the functions it calls; a profiler makes many short calls look longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Synchronisation:
    """An operator that makes the host wait for the accelerator, and the code behind the call."""

    operator: str
    """Its name, as in ``aten::_local_scalar_dense``, which reads one value."""
    where: str
    """File, line and function of the innermost frame outside torch and autotune."""
    per_step: float
    """How often a training step does it there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Anatomy:
    """The inside of the user's dataset, collate function, model and training step."""

    sample_seconds: float
    """Mean time of one sample in the training process, read as a loader reads it."""
    collate_seconds: float
    """Mean time of collating one batch."""
    code: tuple[CodeShare, ...]
    """The functions in which building batches spends most of its time, longest first."""
    batch_tensors: int
    numpy_arrays: int
    """NumPy arrays in one sample as the dataset returns it."""
    has_getitems: bool
    """Whether the dataset reads the samples of a batch in one call, ``__getitems__``."""
    is_custom_collate: bool
    dataset_bytes: int | None
    """Bytes that a spawned worker receives: the pickled dataset without tensors, which go by shared memory; ``None``
    where it cannot be pickled, or not in a second."""
    python_objects: int
    """Python objects in the dataset's lists, dictionaries, tuples and sets, counted up to a million. Forked workers
    copy the memory of every object that they touch."""
    start_method: str
    """How worker processes start: ``fork``, ``spawn`` or ``forkserver``."""
    operators_per_step: int
    """ATen operators that the host calls in forward, backward and optimizer of one step. Operators called by another
    operator, or replaced by a compiled region, do not count."""
    synchronisations: tuple[Synchronisation, ...]
    """Where the user's code makes the host wait for an accelerator, or would on one; most frequent first."""
    cache_frees: float
    """Calls of ``empty_cache()`` in a step."""
    cache_seconds: float
    """Seconds of a step in them."""
    seconds: float
