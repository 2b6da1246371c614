"""Outcome of a trial: a measurement, or the way in which it failed."""

from __future__ import annotations

from enum import StrEnum


class Outcome(StrEnum):
    """Outcome of a trial; all but ``OK`` are infeasible, and none of them ends the study."""

    OK = "ok"
    DEVICE_OOM = "device_oom"
    """The accelerator ran out of memory."""
    DEVICE_ERROR = "device_error"
    """The accelerator failed, as by an address or an assertion; a process that used it cannot go on."""
    HOST_OOM = "host_oom"
    """The machine ran out of memory, was about to, or the kernel killed the process for it."""
    SHM = "shm"
    """There was too little shared memory (/dev/shm), or too few open files, for the batches in flight."""
    TIMEOUT = "timeout"
    """The time limit passed; the process group was killed."""
    CRASHED = "crashed"
    """The process ended without an answer."""
    WORKER_DIED = "worker_died"
    """A DataLoader worker died."""
    UNPICKLABLE = "unpicklable"
    """Loader workers could not be started: their objects cannot be sent to another process."""
    NUMERICS = "numerics"
    """The loss was not finite."""
    USER_ERROR = "user_error"
    """The user's own code raised."""
    SUSPECT = "suspect"
    """Measured while others used the machine, which makes it less certain; without numbers where they left too little
    memory for it."""

    @property
    def is_want_of_memory(self) -> bool:
        """Whether there was too little memory, of whatever kind."""
        return self in (Outcome.DEVICE_OOM, Outcome.HOST_OOM, Outcome.SHM)

    @property
    def is_for_now(self) -> bool:
        """Whether an attempt without numbers says nothing of its configuration in a later run."""
        return self in (Outcome.SUSPECT, Outcome.TIMEOUT)

    @property
    def is_chance(self) -> bool:
        """Whether loader workers that failed may work in another configuration all the same."""
        return self in (Outcome.TIMEOUT, Outcome.CRASHED, Outcome.WORKER_DIED, Outcome.USER_ERROR)
