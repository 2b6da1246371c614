"""The findings of a diagnosis: causes, each with evidence and advice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from statistics import fmean

from autotune.config import Config, StepKey
from autotune.host import Host
from autotune.probes import Anatomy, ComputeProbe, LoaderTrace
from autotune.records import Attempt, Measurement, Outcome, Probe, Trial, WorkloadFacts

LEAST_SHARE = 0.1
"""Share of the training time from which a part counts as a limit of the rate."""
FASTER = 1.02
"""Ratio of two rates from which one counts as faster."""


OF_MEMORY = (Outcome.HOST_OOM, Outcome.SHM)
OF_LOADERS = (
    *OF_MEMORY,
    Outcome.TIMEOUT,
    Outcome.CRASHED,
    Outcome.WORKER_DIED,
    Outcome.UNPICKLABLE,
    Outcome.USER_ERROR,
)
"""Outcomes of failing workers; those for want of memory may pass with smaller batches."""


class Cause(StrEnum):
    """A reason why training is not faster, or will not be."""

    COMPUTE = "compute"
    """The model itself: no loader could make it faster."""
    LAUNCH = "launch"
    """The host launches work more slowly than the accelerator does it."""
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
    ONE_READER = "one_reader"
    """Storage or a lock serves one worker at a time."""
    CPUS = "cpus"
    """Every CPU is busy: loader and step take them from each other."""
    QUOTA = "quota"
    """A quota of CPU time stops the processes."""
    WORKER_THREADS = "worker_threads"
    """Each loader worker computes in several threads, and all of them share the CPUs."""
    RECEIVE = "receive"
    """The training process is busy receiving batches from its workers."""
    PINNING = "pinning"
    """One thread copies all batches into pinned memory."""
    COPY = "copy"
    """Copying batches to the device."""
    COMMUNICATION = "communication"
    """Synchronising the gradients of several ranks."""
    SLOW_RANK = "slow_rank"
    """One rank takes longer than the others, which wait for it in every step."""
    LOOP = "loop"
    """The Python of the training loop between the phases of a step."""
    SAMPLER = "sampler"
    """Ordering each epoch, in the training process."""
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
    """The cause."""
    is_limit: bool
    """Whether it limits the rate now; other findings are worth knowing all the same."""
    what: str
    """The finding, in a sentence."""
    evidence: tuple[str, ...]
    """The figures behind it."""
    advice: str
    """The advice."""
    share: float | None = None
    """Largest share of the training time that it takes; ``None`` where unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """All facts about one configuration; ``None`` for parts without a probe."""

    config: Config
    """The configuration."""
    facts: WorkloadFacts
    """The workload."""
    host: Host
    """The machine."""
    measurement: Measurement
    """The numbers of training with it."""
    compute: ComputeProbe | None = None
    """A probe of the step alone."""
    loader: LoaderTrace | None = None
    """A probe of the loader alone, at about this batch size."""
    anatomy: Anatomy | None = None
    """A probe of the code of dataset and step."""
    trials: tuple[Trial, ...] = ()
    """All measured trials, of this configuration and others."""
    looks: tuple[Probe, ...] = ()
    """The probes of parts, failed probes included."""
    refusal_of_more_workers: str | None = None
    """The reason why no more loader workers would fit; ``None`` where they would."""

    @property
    def is_asynchronous(self) -> bool:
        """Whether the step runs on an accelerator, beside the host."""
        return self.facts.device != "cpu"

    @property
    def blocked_share(self) -> float | None:
        """Share of the time of building a batch that uses no CPU."""
        if self.loader is None:
            return None
        return max(0.0, 1 - self.loader.cpu_seconds / fmean(self.loader.build_seconds))

    @property
    def rates(self) -> dict[Config, float]:
        """The mean rate of each measured configuration with the same step, its own included."""
        step, rates = self._step(self.config), {self.config: [self.measurement.samples_per_second]}
        for trial in self.trials:
            if trial.rate is not None and self._step(trial.config) == step:
                rates.setdefault(trial.config, []).append(trial.rate)
        return {config: fmean(found) for config, found in rates.items()}

    def is_no_faster(self, is_meant: Callable[[Config], bool]) -> bool:
        """Return whether the meant configurations were measured with the same step, and none is faster."""
        rates = self.rates
        own = max(self.measurement.samples_per_second, rates[self.config])
        found = [rate for config, rate in rates.items() if is_meant(config)]
        return bool(found) and max(found) <= FASTER * own

    @property
    def should_keep_workers(self) -> bool:
        """Whether workers start anew for each epoch, and it is not known that keeping them gains next to nothing."""
        config, gain = self.config, self.measurement.persistence_gain
        if not config.num_workers or config.persistent_workers or (gain is not None and gain <= FASTER - 1):
            return False
        return not self.is_no_faster(lambda other: other == replace(config, persistent_workers=True))

    @property
    def failures(self) -> Iterator[tuple[int, int, Attempt]]:
        """The failures of loaders: number of workers, batch size, and outcome."""
        for probe in self.looks:
            if probe.part == "loader" and probe.attempt.outcome in OF_LOADERS:
                yield 1, probe.config.batch_size, probe.attempt
        for trial in self.trials:
            if trial.outcome in OF_LOADERS:
                yield trial.config.num_workers, trial.config.batch_size, trial.attempt

    def _step(self, config: Config) -> StepKey:
        """Return the settings that a step's time depends on; beside an accelerator the host's threads hardly matter."""
        threads = 0 if self.is_asynchronous else config.intra_op_threads or self.facts.intra_op_threads
        return config.step_key._replace(threads=threads)


def limit(cause: Cause, what: str, evidence: tuple[str, ...], advice: str, share: float | None = None) -> Finding:
    """Return a cause that limits the rate."""
    return Finding(cause=cause, is_limit=True, what=what, evidence=evidence, advice=advice, share=share)


def loader_figures(evidence: Evidence) -> tuple[str, ...]:
    """Return the cost of building a batch, in words."""
    split, loader = evidence.measurement.step_time, evidence.loader
    waited = f"{ms(split.data_wait)} of a step of {ms(split.total)} is waiting for data"
    if loader is None:
        return (waited,)
    build = fmean(loader.build_seconds) * evidence.config.batch_size / loader.batch_size
    busy = 1 - (evidence.blocked_share or 0.0)
    return waited, f"one worker takes {ms(build)} per batch, {percent(busy)} of it on a CPU"


def code_figures(evidence: Evidence) -> tuple[str, ...]:
    """Return the functions in which building batches spends its time."""
    anatomy = evidence.anatomy
    if anatomy is None:
        return ()
    texts = [f"{percent(each.share)} in {each.where}" for each in anatomy.code[:3] if each.share >= LEAST_SHARE]
    batch = anatomy.collate_seconds + anatomy.sample_seconds * evidence.config.batch_size
    if anatomy.collate_seconds > LEAST_SHARE * batch:
        texts.append(f"collating is {percent(anatomy.collate_seconds / batch)} of building a batch")
    return tuple(texts)


def phase_figures(measured: Measurement) -> tuple[str, ...]:
    """Return how a step divides into its phases."""
    split = measured.step_time
    phases = {"forward": split.forward, "backward": split.backward, "optimizer": split.optimizer}
    return (", ".join(f"{name} {percent(seconds / split.total)}" for name, seconds in phases.items()),)


def peak_figure(measured: Measurement) -> str:
    """Return the peak of the memory that limits training."""
    return f"{measured.peak_memory_bytes / 2**30:.1f} of {measured.memory_limit_bytes / 2**30:.1f} GiB used"


def workers_text(count: int) -> str:
    """Return a number of workers in words."""
    numbers = ("no", "one", "two", "three", "four")
    return f"{numbers[count] if count < len(numbers) else count} worker{'' if count == 1 else 's'}"


def ms(seconds: float) -> str:
    """Return a time in milliseconds."""
    return f"{1000 * seconds:.3g} ms"


def percent(share: float) -> str:
    """Return a share in percent."""
    return f"{100 * share:.0f} %"
