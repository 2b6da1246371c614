"""What every configuration would give, from a few short looks: an expected rate, a bound, and whether it fits.

Pure: no clock, no torch, no I/O.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev

import numpy as np
from numpy.typing import NDArray

from autotune.config import Config
from autotune.host import Host
from autotune.probes import LoaderTrace
from autotune.records import Measurement, Outcome, Probe, Trial, WorkloadFacts
from autotune.search.compute import ComputeModel, Estimate, MemoryModel, StepPoint
from autotune.search.pipeline import NOTHING, pipeline_rates, scaled_builds

__all__ = ["Knowledge", "Prediction", "predict"]

Floats = NDArray[np.float64]

BOUND_ERRORS = 2.0
"""Standard deviations of a step's time by which a bound lies above the expected ceiling."""
TRACED, GUESSED = 0.2, 0.4
"""Standard deviation of the logarithm of a rate that the loader limits: from a trace, and from the baseline alone."""
SHARPNESS = 8.0
"""How fast, in the logarithm of the ratio, the loader's part in the error takes over from the step's."""
CROWD_ROUNDS = 4
"""Rounds in which the number of busy workers and the rate are made to agree."""
FARTHEST = 4
"""How many times as large as the largest batch that ran a batch may be for its memory to be predicted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Knowledge:
    """All that was found out so far."""

    facts: WorkloadFacts
    """The workload."""
    host: Host
    """The machine."""
    headroom: float
    """Share of the memory that must stay free."""
    trials: tuple[Trial, ...]
    """Measured configurations, the baseline first."""
    probes: tuple[Probe, ...] = ()
    """Short looks at steps and at the loader."""

    @property
    def on_cpu(self) -> bool:
        """Whether training shares the CPUs with the loader."""
        return self.facts.device == "cpu"

    def threads(self, config: Config) -> int:
        """Return the threads of a step; on an accelerator they do not matter to it, so there is one number for all."""
        return (config.intra_op_threads or self.facts.intra_op_threads) if self.on_cpu else 0

    def cell(self, config: Config) -> tuple[int, str, int]:
        """Return what a step's time depends on: batch size, precision and threads."""
        return config.batch_size, config.amp, self.threads(config)

    @property
    def traces(self) -> tuple[LoaderTrace, ...]:
        """The looks at the loader, by batch size."""
        return tuple(sorted((p.loader for p in self.probes if p.loader), key=lambda trace: trace.batch_size))


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """One entry for each configuration that was asked about."""

    rates: Floats
    """Expected samples per second over whole epochs."""
    ceilings: Floats
    """Expected samples per second of the step alone."""
    limits: Floats
    """Expected samples per second where the loader is never late: the step alone, or the CPUs that both share."""
    bounds: Floats
    """Samples per second that no loader could exceed, with room for what is not known of the step."""
    step_errors: Floats
    """Standard deviation of the logarithm of the rate from what is not known of the step."""
    loader_errors: Floats
    """The same from what is not known of the loader; it counts where the loader limits the rate."""
    loader_shares: Floats
    """How much the loader limits the rate: 0 not at all, 1 alone."""
    refusals: tuple[str | None, ...]
    """Why a configuration would not fit the machine; ``None`` where it does."""


def predict(configs: Sequence[Config], knowledge: Knowledge) -> Prediction:
    """Predict configurations; takes milliseconds for thousands of them.

    Raises ``ValueError`` when not even the baseline was measured.
    """
    steps = _Steps(knowledge)
    loader = _Loader(knowledge)
    cells = [steps.at(config) for config in configs]
    batch = np.array([config.batch_size for config in configs], dtype=float)
    seconds = np.array([cell.seconds for cell in cells])
    errors = np.array([cell.error for cell in cells])
    effective, receives = loader.effective_steps(configs, seconds)
    capacity = loader.capacity(configs, steps)
    if knowledge.on_cpu:
        effective = loader.crowded_steps(configs, effective, capacity)
    steady = np.minimum(loader.rates(configs, effective, receives), capacity)
    alone = loader.rates(configs, np.zeros_like(effective), receives)
    shares = 1 / (1 + (np.minimum(alone, capacity) * effective) ** SHARPNESS)
    return Prediction(
        rates=_over_epochs(configs, batch * steady, loader, knowledge),
        ceilings=batch / seconds,
        limits=batch * np.minimum(1 / seconds, capacity),
        bounds=batch / seconds * np.exp(BOUND_ERRORS * errors),
        step_errors=(1 - shares) * errors,
        loader_errors=shares * loader.error,
        loader_shares=shares,
        refusals=_refusals(configs, knowledge, loader),
    )


class _Steps:
    """Step times and what they cost the CPUs."""

    def __init__(self, knowledge: Knowledge) -> None:
        self._knowledge = knowledge
        self._model = ComputeModel(_step_points(knowledge))
        self._known: dict[tuple[int, str, int], Estimate] = {}
        used = [
            probe.compute.cpu_seconds * probe.compute.samples_per_second / probe.config.batch_size
            for probe in knowledge.probes
            if probe.compute
        ]
        self.cpus_in_use = fmean(used) if used else None
        """CPUs that a step keeps busy, on average."""

    def at(self, config: Config) -> Estimate:
        cell = self._knowledge.cell(config)
        if cell not in self._known:
            self._known[cell] = self._model.estimate(*cell)
        return self._known[cell]

    def cpu_seconds(self, config: Config) -> float:
        """Return the CPU time of a step."""
        if not self._knowledge.on_cpu:
            return (self.cpus_in_use or 1.0) * self.at(config).seconds
        return self.at(config).seconds * self._knowledge.threads(config)


def _step_points(knowledge: Knowledge) -> list[StepPoint]:
    """Return every measured step time; of disturbed measurements only where there is nothing else."""
    sound: list[StepPoint] = []
    disturbed: list[StepPoint] = []
    for probe in knowledge.probes:
        if probe.compute:
            point = StepPoint(*knowledge.cell(probe.config), probe.config.batch_size / probe.compute.samples_per_second)
            (sound if probe.outcome is Outcome.OK else disturbed).append(point)
    for trial in knowledge.trials:
        if trial.measurement:
            seconds = trial.config.batch_size / trial.measurement.ceiling_samples_per_second
            point = StepPoint(*knowledge.cell(trial.config), seconds)
            (sound if trial.outcome is Outcome.OK else disturbed).append(point)
    return sound or disturbed


class _Loader:
    """Build times for every batch size, and what batches cost on their way."""

    def __init__(self, knowledge: Knowledge) -> None:
        self._knowledge = knowledge
        self._traces = knowledge.traces or (_guessed_trace(knowledge.trials[0]),)
        self.error = TRACED if knowledge.traces else GUESSED
        self._at: dict[int, LoaderTrace] = {}
        self._cpus = knowledge.host.quota_cpus or knowledge.host.affinity_cpus

    def trace(self, batch_size: int) -> LoaderTrace:
        """Return the trace as it would be at a batch size."""
        if batch_size not in self._at:
            self._at[batch_size] = _trace_at(self._traces, batch_size)
        return self._at[batch_size]

    def effective_steps(self, configs: Sequence[Config], seconds: Floats) -> tuple[Floats, Floats]:
        """Return the seconds from batch to batch where data is always ready, and what receiving one adds to them.

        On a CPU the loop receives, then trains. An accelerator trains while the host receives, unless a copy from
        memory that is not pinned makes the host wait.
        """
        receive = np.array([self.trace(c.batch_size).receive_seconds if c.num_workers else 0.0 for c in configs])
        if self._knowledge.on_cpu:
            return seconds, receive
        copies = np.array([0.0 if c.pin_memory else self.trace(c.batch_size).transfer_seconds for c in configs])
        return seconds + copies, np.zeros_like(receive)

    def rates(self, configs: Sequence[Config], steps: Floats, receives: Floats) -> Floats:
        """Return batches per second, each distinct pipeline reckoned once."""
        batches = sorted({config.batch_size for config in configs})
        row = {batch: index for index, batch in enumerate(batches)}
        keys = [
            (row[c.batch_size], c.num_workers, c.prefetch_factor or 1, step, receive)
            for c, step, receive in zip(configs, steps.tolist(), receives.tolist(), strict=True)
        ]
        distinct = {key: index for index, key in enumerate(dict.fromkeys(keys))}
        columns = np.array(list(distinct), dtype=float).T
        rows, workers, prefetch = (column.astype(np.int64) for column in columns[:3])
        in_worker = self._builds(batches)
        rates = pipeline_rates(in_worker, rows, workers, prefetch, columns[3], columns[4])
        alone = workers == 0
        inline = np.array([self.trace(batch).inline_seconds for batch in batches])[rows]
        serial = inline + columns[3] if self._knowledge.on_cpu else np.maximum(inline, columns[3])
        rates[alone] = 1 / np.maximum(serial[alone], NOTHING)
        found: Floats = rates[[distinct[key] for key in keys]]
        return found

    def _builds(self, batches: Sequence[int]) -> Floats:
        rows = [np.array(self.trace(batch).build_seconds) for batch in batches]
        length = max(len(row) for row in rows)
        return np.array([np.resize(row, length) for row in rows])

    def capacity(self, configs: Sequence[Config], steps: _Steps) -> Floats:
        """Return the batches per second that CPUs and the pinning thread can bring; without workers nothing is shared."""
        needs = [0.0] * len(configs)
        for index, config in enumerate(configs):
            if config.num_workers:
                trace = self.trace(config.batch_size)
                shared = (trace.cpu_seconds + steps.cpu_seconds(config)) / self._cpus
                needs[index] = max(shared, trace.pin_seconds if config.pin_memory else 0.0)
        capacity: Floats = 1 / np.maximum(np.array(needs), NOTHING)
        return capacity

    def crowded_steps(self, configs: Sequence[Config], steps: Floats, capacity: Floats) -> Floats:
        """Return step times where the threads of a step share the CPUs with busy workers.

        Each thread has an equal share of the work, and the step waits for the last: with more of both than CPUs it takes
        as many times longer. Workers that are ahead wait, so how many are busy depends on the rate, and the rate on them.
        """
        traces = [self.trace(config.batch_size) for config in configs]
        builds = np.array([max(fmean(trace.build_seconds), NOTHING) for trace in traces])
        computing = np.minimum(1.0, np.array([trace.cpu_seconds for trace in traces]) / builds)
        workers = np.array([config.num_workers for config in configs])
        threads = np.array([self._knowledge.threads(config) for config in configs])
        crowded = steps
        for _ in range(CROWD_ROUNDS):
            rates = np.minimum(np.minimum(1 / crowded, capacity), np.maximum(workers, NOTHING) / builds)
            busy = rates * builds * computing
            crowded = steps * np.where(workers > 0, np.maximum(1.0, (threads + busy) / self._cpus), 1.0)
        return crowded

    def shared_memory(self, config: Config) -> int:
        """Return the bytes that batches in flight take at most: one more than are asked for ahead."""
        in_flight = config.num_workers * (config.prefetch_factor or 0)
        return (in_flight + 1) * self.trace(config.batch_size).batch_bytes if in_flight else 0

    def memory(self, config: Config) -> int:
        """Return the bytes of host memory that workers and batches in flight take."""
        return self.shared_memory(config) + config.num_workers * self.trace(config.batch_size).worker_memory_bytes


def _guessed_trace(baseline: Trial) -> LoaderTrace:
    """Return what the baseline's own measurement says of its loader."""
    assert baseline.measurement is not None
    measured, workers = baseline.measurement, baseline.config.num_workers
    split = measured.step_time
    build = split.data_wait if not workers else workers * split.total
    return LoaderTrace(
        batch_size=baseline.config.batch_size,
        build_seconds=(build,),
        inline_seconds=build,
        receive_seconds=0.0,
        pin_seconds=0.0,
        transfer_seconds=split.host_to_device,
        cpu_seconds=build,
        batch_bytes=measured.shared_memory_bytes // max(1, workers),
        start_seconds=0.05,
        worker_memory_bytes=0,
        storage_share=None,
    )


def _trace_at(traces: Sequence[LoaderTrace], batch_size: int) -> LoaderTrace:
    near = min(traces, key=lambda trace: abs(math.log(trace.batch_size / batch_size)))
    if near.batch_size == batch_size:
        return near
    samples = batch_size / near.batch_size
    fixed = _fixed_share(traces, near)
    factor = fixed + (1 - fixed) * samples
    mean = fmean(near.build_seconds) * factor
    return replace(
        near,
        batch_size=batch_size,
        build_seconds=tuple(scaled_builds(np.array(near.build_seconds), mean, samples).tolist()),
        inline_seconds=near.inline_seconds * factor,
        cpu_seconds=near.cpu_seconds * factor,
        pin_seconds=near.pin_seconds * samples,
        transfer_seconds=near.transfer_seconds * samples,
        batch_bytes=round(near.batch_bytes * samples),
    )


def _fixed_share(traces: Sequence[LoaderTrace], near: LoaderTrace) -> float:
    """Return the share of a batch's build time that does not grow with the batch.

    It follows from the line through two traces; what could be chance, one standard error, is not counted.
    """
    low, high = traces[0], traces[-1]
    if low.batch_size == high.batch_size:
        return 0.0
    (at_low, low_error), (at_high, high_error) = map(_mean_and_error, (low.build_seconds, high.build_seconds))
    distance = high.batch_size - low.batch_size
    fixed = (at_low * high.batch_size - at_high * low.batch_size) / distance
    error = math.hypot(low_error * high.batch_size, high_error * low.batch_size) / distance
    build = fmean(near.build_seconds)
    return min(1.0, max(0.0, fixed - error) / build) if build > 0 else 0.0


def _mean_and_error(seconds: Sequence[float]) -> tuple[float, float]:
    mean = fmean(seconds)
    return mean, stdev(seconds) / math.sqrt(len(seconds)) if len(seconds) > 1 else mean


def _over_epochs(configs: Sequence[Config], rates: Floats, loader: _Loader, knowledge: Knowledge) -> Floats:
    """Return rates over whole epochs, the start of each included; workers that live on need only build again."""
    samples = knowledge.facts.dataset_length
    if not samples:
        return rates
    starts = [
        0.0
        if not config.num_workers
        else fmean(loader.trace(config.batch_size).build_seconds)
        + (0.0 if config.persistent_workers else config.num_workers * loader.trace(config.batch_size).start_seconds)
        for config in configs
    ]
    over: Floats = samples / (samples / rates + np.array(starts))
    return over


def _refusals(configs: Sequence[Config], knowledge: Knowledge, loader: _Loader) -> tuple[str | None, ...]:
    memory = _memory_models(knowledge, loader)
    return tuple(_refusal(config, knowledge, loader, memory) for config in configs)


def _refusal(
    config: Config, knowledge: Knowledge, loader: _Loader, memory: dict[tuple[str, str], tuple[MemoryModel, int]]
) -> str | None:
    """Return why a configuration would not fit: device memory, shared memory or host memory."""
    shared, shm = loader.shared_memory(config), knowledge.host.shm_bytes
    if shm is not None and shared > (1 - knowledge.headroom) * shm:
        return f"its batches in flight would need {_gib(shared)} of {_gib(shm)} of shared memory (/dev/shm)"
    for (kind, amp), (model, limit) in memory.items():
        if amp != config.amp:
            continue
        largest = FARTHEST * max(model.peaks)
        if config.batch_size > largest:
            return f"batches beyond {largest} are too far from the largest that ran to know what they would need"
        allowed, needed = (1 - knowledge.headroom) * limit, model.at(config.batch_size)
        needed += loader.memory(config) if kind == "host" else 0
        if needed > allowed:
            return (
                f"it would need {_gib(needed)} of {_gib(limit)} of {kind} memory, of which {_gib(allowed)} may be used"
            )
    return None


def _memory_models(knowledge: Knowledge, loader: _Loader) -> dict[tuple[str, str], tuple[MemoryModel, int]]:
    """Return for device and host, and each precision, the model of peak memory and the limit in bytes.

    A precision that was never measured takes the curve of another: it decides what to try, not what is safe.
    """
    peaks: dict[tuple[str, str], dict[int, int]] = defaultdict(dict)
    limits = {"host": knowledge.host.memory_bytes}

    def note(kind: str, config: Config, peak: int) -> None:
        known = peaks[kind, config.amp]
        known[config.batch_size] = max(peak, known.get(config.batch_size, 0))

    for probe in knowledge.probes:
        if probe.compute:
            note("host", probe.config, probe.compute.host_memory_bytes)
            if probe.compute.memory == "device":
                limits["device"] = probe.compute.memory_limit_bytes
                note("device", probe.config, probe.compute.peak_memory_bytes)
    for trial in knowledge.trials:
        if trial.measurement and trial.measurement.memory == "device":
            limits["device"] = trial.measurement.memory_limit_bytes
            note("device", trial.config, trial.measurement.peak_memory_bytes)
        elif trial.measurement:
            note("host", trial.config, trial.measurement.peak_memory_bytes - loader.memory(trial.config))
    models = {key: (MemoryModel(dict(sorted(known.items()))), limits[key[0]]) for key, known in peaks.items()}
    for kind in limits:
        known = [key for key in models if key[0] == kind]
        for amp in knowledge.facts.amp_modes:
            if known and (kind, amp) not in models:
                models[kind, amp] = models[max(known, key=lambda key: len(models[key][0].peaks))]
    return models


def exceeds(measured: Measurement, headroom: float) -> bool:
    """Tell whether a configuration that ran left less memory free than asked for."""
    return measured.peak_memory_bytes > (1 - headroom) * measured.memory_limit_bytes


def _gib(count: float) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"
