"""Records of the short looks at parts of the pipeline from which the search predicts the whole.

All are frozen and made of plain values, so that they travel as JSON.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["ComputeProbe", "LoaderTrace"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeProbe:
    """A training step on a batch that is already on the device: what no loader can beat."""

    samples_per_second: float
    """The ceiling of this batch size, precision and number of threads."""
    host_seconds: float
    """What the host spends on asking an accelerator for one step; on a CPU the whole step."""
    cpu_seconds: float
    """CPU time of one step, all threads together."""
    peak_memory_bytes: int
    """Peak on the memory that limits this run, the batch with the largest sample seen included."""
    memory: Literal["device", "host"]
    """Which memory that is: device (reserved), or host."""
    memory_limit_bytes: int
    """How much of that memory this machine gives."""
    host_memory_bytes: int
    """Peak host memory of the training process alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderTrace:
    """What it takes to build batches of one size, as one worker does it and as the training process does."""

    batch_size: int
    """Samples in a batch."""
    build_seconds: tuple[float, ...]
    """How long one worker took for each batch, one after the other."""
    inline_seconds: float
    """Mean time of a batch without workers."""
    receive_seconds: float
    """What the training process spends on taking a batch that is ready."""
    pin_seconds: float
    """What the thread that pins memory spends on a batch; 0 on a CPU."""
    transfer_seconds: float
    """Copying a batch to the device from memory that is not pinned; 0 on a CPU."""
    cpu_seconds: float
    """CPU time of building one batch in a worker."""
    batch_bytes: int
    """Bytes of the tensors in a batch."""
    start_seconds: float
    """What starting one worker takes, before it builds its first batch."""
    worker_memory_bytes: int
    """Memory that one worker holds and shares with nobody."""
    storage_share: float | None
    """Share of the bytes read that came from storage and not from the page cache."""
    batch_tensors: int = 1
    """Tensors in a batch: each is an open file while it is on its way from a worker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NumericsCheck:
    """The same batches in fp32 and in a mixed precision, from the same weights."""

    reference_losses: tuple[float, ...]
    """Loss of each step in fp32."""
    other_losses: tuple[float, ...]
    """The same with the batches in another order and other random numbers: what chance makes of it."""
    losses: tuple[float, ...]
    """The same in the mixed precision, batches in the order of the reference."""
    overflows: tuple[int, ...]
    """Steps in the mixed precision whose gradients were not finite, and in fp32 were."""
    settles: bool
    """Whether the gradient scaler of fp16 found a scale with which no step is skipped; true in other precisions."""
    seconds: float
    """What the runs took, all together."""
