"""What a diagnosis finds: causes, each with its evidence and what to do."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Cause", "Finding"]


class Cause(StrEnum):
    """What keeps training from being faster, or will get in its way."""

    COMPUTE = "compute"
    """The model itself: no loader could make it faster."""
    LAUNCH = "launch"
    """The host asks the accelerator for work more slowly than that does it."""
    MEMORY = "memory"
    """The device's memory is full, and is given back and taken again in every step."""
    HEAT = "heat"
    """The accelerator runs below its clocks: heat, power, a fault."""
    DECODING = "decoding"
    """The dataset's own code: decoding, parsing, augmenting."""
    STORAGE = "storage"
    """Reading from storage."""
    WAITING = "waiting"
    """Building a batch waits for something that is neither a CPU nor local storage, such as a network or a lock."""
    CPUS = "cpus"
    """Every CPU is busy: loader and step take them from each other."""
    QUOTA = "quota"
    """A quota of CPU time stops the processes."""
    WORKER_THREADS = "worker_threads"
    """Each loader worker computes in several threads, and all of them share the CPUs."""
    RECEIVE = "receive"
    """The training process is busy with taking batches from its workers."""
    PINNING = "pinning"
    """The one thread that copies batches into pinned memory."""
    COPY = "copy"
    """Copying batches to the device."""
    COMMUNICATION = "communication"
    """Synchronising the gradients of several ranks."""
    SLOW_RANK = "slow_rank"
    """One rank takes longer than the others, which wait for it in every step."""
    LOOP = "loop"
    """The Python of the training loop between the phases of a step."""
    RESTARTS = "restarts"
    """Starting loader workers for every epoch."""
    SAME_SAMPLES = "same_samples"
    """The workers of an iterable dataset all yield the same samples."""
    NEIGHBOURS = "neighbours"
    """Other processes take the CPUs."""
    SHARED_GPU = "shared_gpu"
    """Another process holds memory on the accelerator."""
    CPU_BUILD = "cpu_build"
    """This build of torch cannot use the machine's GPU."""
    SYNCHRONISATION = "synchronisation"
    """The step reads values back, for which the host waits for the device."""
    GETITEMS = "getitems"
    """The dataset fetches one sample at a time where it could fetch a batch."""
    MANY_TENSORS = "many_tensors"
    """A batch consists of many tensors, each of which is sent and moved by itself."""
    NUMPY = "numpy"
    """Samples are numpy arrays, which are copied once more to become tensors."""
    SPAWN = "spawn"
    """Workers are spawned: each imports everything anew and unpickles the dataset."""
    DATASET_COPIES = "dataset_copies"
    """Every worker gets, or makes while it runs, its own copy of the dataset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One cause, in plain words."""

    cause: Cause
    """Which one."""
    is_limit: bool
    """Whether it limits the rate now; what does not is worth knowing all the same."""
    what: str
    """What happens, in a sentence."""
    evidence: tuple[str, ...]
    """The figures that say so."""
    advice: str
    """What to do about it."""
    share: float | None = None
    """Share of the training time that it takes, at most; ``None`` where that is not known."""
