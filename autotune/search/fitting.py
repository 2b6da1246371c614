"""Which configurations would not fit the machine, and why: device, host and shared memory, open files.

Pure: no clock, no torch, no I/O.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from autotune.config import Config
from autotune.records import Measurement
from autotune.room import MemoryRoom, format_size
from autotune.search.compute import LARGEST_STEP, MemoryModel
from autotune.search.knowledge import Knowledge
from autotune.search.loader import LoaderModel

__all__ = ["Fitting", "exceeds"]

LEAST_OWN = 0.5
"""Least share of a measured peak that is the training process's own, however much its workers are said to take."""


class Fitting:
    """Memory over batch size for device and host, and the room that there is."""

    def __init__(self, knowledge: Knowledge, loader: LoaderModel) -> None:
        self._knowledge = knowledge
        self._loader = loader
        self._limits: dict[str, int] = {}
        peaks: dict[tuple[str, str], dict[int, int]] = defaultdict(dict)
        for kind, config, peak, limit in self._peaks():
            self._limits[kind] = limit
            known = peaks[kind, config.amp]
            known[config.batch_size] = max(peak, known.get(config.batch_size, 0))
        self._models = {key: MemoryModel(dict(sorted(known.items()))) for key, known in peaks.items()}
        self._refusals: dict[tuple[object, ...], str | None] = {}

    def refusal(self, config: Config) -> str | None:
        """Return why a configuration would not fit, or ``None``."""
        key = (config.batch_size, config.amp, config.num_workers, config.prefetch_factor)  # all that it depends on
        if key not in self._refusals:
            self._refusals[key] = self._refusal_in_flight(config) or self._refusal_of_memory(config)
        return self._refusals[key]

    def _refusal_in_flight(self, config: Config) -> str | None:
        """Return what the batches on their way from the workers would have too little of."""
        files, most = self._loader.open_files(config), self._knowledge.host.open_files
        if config.num_workers and most is not None and files > most:
            return f"its batches in flight would need {files} of {most} open files (ulimit -n)"
        shared, shm = self._loader.shared_memory(config), self._knowledge.host.shm_bytes
        if shm is not None and shared > self._knowledge.room.beside(shm):
            needed, there = format_size(shared), format_size(shm)
            return f"its batches in flight would need {needed} of {there} of shared memory (/dev/shm)"
        return None

    def _refusal_of_memory(self, config: Config) -> str | None:
        room = self._knowledge.room
        for kind, limit in self._limits.items():
            model = self._model(kind, config.amp)
            if model is None:
                continue
            largest = LARGEST_STEP * max(model.peaks)
            if config.batch_size > largest:
                return f"batches beyond {largest} are too far from the largest that ran to know what they would need"
            bytes_needed = model.at(config.batch_size) + (self._loader.memory(config) if kind == "host" else 0)
            limiting = "host" if self._knowledge.on_cpu else "device"
            may_use = room.of(limit) if kind == limiting else room.beside(limit)
            if kind == "host":  # others, this process too, hold some of it while a trial runs
                may_use = min(may_use, room.beside(self._knowledge.facts.obtainable_host_bytes or limit))
            if bytes_needed > may_use:
                sizes = [format_size(size) for size in (bytes_needed, limit, may_use)]
                return "it would need {} of {} of {} memory, of which {} may be used".format(*sizes[:2], kind, sizes[2])
        return None

    def _model(self, kind: str, amp: str) -> MemoryModel | None:
        """Return a precision's model; one never measured takes another's: good enough for what to try."""
        others = [model for (other, _), model in self._models.items() if other == kind]
        return self._models.get((kind, amp)) or max(others, key=lambda model: len(model.peaks), default=None)

    def _peaks(self) -> Iterator[tuple[str, Config, int, int]]:
        """Yield every measured peak: which memory, of which configuration, how many bytes, of how many."""
        room = self._knowledge.host.memory_bytes
        for config, look in self._knowledge.looks:
            yield "host", config, look.host_memory_bytes, room
            if look.memory == "device":
                yield "device", config, look.peak_memory_bytes, look.memory_limit_bytes
        for trial in self._knowledge.trials:
            if trial.measurement:
                host = trial.measurement.host_memory_bytes
                own = max(host - self._loader.memory(trial.config), round(LEAST_OWN * host))
                yield "host", trial.config, own, room
                if trial.measurement.memory == "device":
                    measured = trial.measurement
                    yield "device", trial.config, measured.peak_memory_bytes, measured.memory_limit_bytes


def exceeds(measured: Measurement, room: MemoryRoom) -> bool:
    """Tell whether a configuration that ran used more memory than it may, or will by the end of an epoch."""
    return measured.epoch_peak_bytes > room.of(measured.memory_limit_bytes)
