"""The findings of a diagnosis: causes, each with evidence and advice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from statistics import fmean

from autotune.config import Config, StepKey
from autotune.limits import percent
from autotune.machine.host import Host
from autotune.outcome import Outcome
from autotune.probes import Anatomy, ComputeProbe, LoaderTrace
from autotune.records import (
    ONE_THREAD,
    Attempt,
    Interval,
    Measurement,
    Probe,
    RemedyName,
    Trial,
    WorkloadFacts,
    workers_with_data,
)

LEAST_SHARE = 0.1
"""Share of the training time from which a part counts as a limit of the rate."""
FASTER = 1.02
"""Ratio of two rates from which one counts as faster."""
FAR_SLOWER = 0.8
"""Ratio of two rates below which one is slower for whatever else differs between the two."""
LESS_FOR_EACH = "store the data decoded or smaller, use faster decoders, augment whole batches on the device"
LEAST_WORTH = 1.1
"""Gain in speed below which a remedy is not worth its bytes and its code."""
SMALLER_TYPES = "send smaller types (uint8 images)"


class Cause(StrEnum):
    """A reason why training is not faster, or will not be: its name, the finding in a sentence, and the advice.

    Words in braces are filled in where the cause is found.
    """

    what: str
    advice: str

    def __new__(cls, name: str, what: str, advice: str) -> Cause:
        """Make a cause that is equal to its name."""
        cause = str.__new__(cls, name)
        cause._value_, cause.what, cause.advice = name, what, advice
        return cause

    # the step
    COMPUTE = (
        "compute",
        "the model's own compute{reach}",
        "{first}torch.compile, channels_last, a fused optimizer, or a smaller model",
    )
    LAUNCH = (
        "launch",
        "the host launches operators more slowly than the accelerator runs them",
        "take larger batches, torch.compile (mode='reduce-overhead' uses CUDA graphs), or a fused optimizer",
    )
    MEMORY = (
        "memory",
        "device memory is full: the allocator frees memory and takes it again while training",
        "take a smaller batch, amp, or activation checkpointing",
    )
    HEAT = (
        "heat",
        "the accelerator runs slower than it can",
        "check its cooling and its power supply (nvidia-smi -q -d PERFORMANCE)",
    )
    # building batches
    BUILDING = (
        "building",
        "training waits for data: building a batch takes CPU time",
        "{workers}do less for each sample{look}",
    )
    DECODING = (
        "decoding",
        "training waits for data: building a batch takes CPU time (decoding, augmenting, collating)",
        f"{{workers}}do less for each sample: {LESS_FOR_EACH}",
    )
    COLLATING = (
        "collating",
        "training waits for data: fetching small samples one by one and joining them into a batch takes CPU time",
        "{workers}fetch whole batches at once (__getitems__), and join them in fewer calls (collate_fn)",
    )
    STORAGE = (
        "storage",
        "training waits for data: loading a sample waits for storage",
        "{workers}read larger pieces (one archive, not many files), or keep the data in memory or on a faster disk",
    )
    WAITING = (
        "waiting",
        "training waits for data: loading a sample waits on {storage}a network, a lock or another process",
        "{workers}fetch ahead, and fetch many samples at once",
    )
    ONE_READER = (
        "one_reader",
        "{count} are no faster than one: they wait for storage or a lock that serves one reader at a time",
        "read larger pieces, read several samples per request (__getitems__), or use other storage or a second copy",
    )
    CPUS = (
        "cpus",
        "{state}: loader workers and the training step compete for the CPUs",
        "{ways}do less for each sample",
    )
    QUOTA = (
        "quota",
        "a CPU quota (of a container or a batch system) keeps stopping the processes",
        "take only as many workers and threads as the quota has CPUs, or ask for a larger quota",
    )
    WORKER_THREADS = (
        "worker_threads",
        "each loader worker computes in several threads{overload}",
        f"{ONE_THREAD}, in the dataset or in worker_init_fn",
    )
    # moving batches
    RECEIVE = (
        "receive",
        "batches are ready, but receiving them from the workers keeps the training process busy",
        "send fewer, larger tensors of small types (uint8 images, int32 tokens); make floats on the device{or_none}",
    )
    PINNING = (
        "pinning",
        "one thread copies every batch into pinned memory, and cannot keep up",
        f"{SMALLER_TYPES}, or pin_memory=False",
    )
    COPY = (
        "copy",
        "copying batches to the device holds up training",
        f"{{first}}{SMALLER_TYPES} and turn them into floats on the device",
    )
    # the rest of the loop
    COMMUNICATION = (
        "communication",
        "synchronising gradients between ranks takes time that backward does not hide",
        "take larger batches per rank, or accumulate several (--global-batch-size) for each synchronisation",
    )
    SLOW_RANK = (
        "slow_rank",
        "rank {rank} takes longer than the others, which wait for it in every step",
        "check its {part}",
    )
    LOOP = (
        "loop",
        "the training loop itself takes time between the phases of a step",
        "take larger batches; log and compute metrics only every so many steps",
    )
    SAMPLER = (
        "sampler",
        "training waits while the sampler orders each epoch; workers do not help, it runs in the training process",
        "let the sampler sort once and only shuffle for each epoch, or make longer epochs",
    )
    RESTARTS = ("restarts", "epochs are short, and each starts the data loader anew", "{ways}")
    SAME_SAMPLES = ("same_samples", "the {those}workers of the iterable dataset yield the same samples", "{divide}")
    # the machine
    NEIGHBOURS = (
        "neighbours",
        "other processes take CPUs that training could use",
        "stop other programs, and measure again{rest}",
    )
    SHARED_GPU = (
        "shared_gpu",
        "another process is on the same accelerator",
        "find it with nvidia-smi: processes on one accelerator slow each other down{rest}",
    )
    AFFINITY = (
        "affinity",
        "{who} may use {own} of {cpus} CPUs: your code, or what it imports, has given the others away",
        "find the import that sets the mask (as OMP_PROC_BIND does), or undo it: os.sched_setaffinity(0, range(N))",
    )
    # habits of the code
    SYNCHRONISATION = (
        "synchronisation",
        "the step reads values back into Python; on an accelerator the host waits there for all work in its queue",
        "keep logged values as tensors (loss.detach()), and read them only every so many steps",
    )
    EMPTY_CACHE = (
        "empty_cache",
        "each step gives the allocator's free memory back to the device, to take it again in the next",
        "leave out empty_cache(), or call it once, after what needs other memory",
    )
    GETITEMS = (
        "getitems",
        "samples are small and fetched one at a time",
        "give the dataset __getitems__(indices), which fetches a whole batch at once",
    )
    MANY_TENSORS = (
        "many_tensors",
        "a batch consists of many tensors, each sent to the training process and copied to the device on its own",
        "concatenate them into a few in collate_fn, with offsets",
    )
    NUMPY = (
        "numpy",
        "samples are numpy arrays, which collating turns into tensors one by one",
        "return torch.from_numpy(array) from the dataset",
    )
    VALIDATION = (
        "validation",
        "the script does other work within its training loop, such as validation; no rate here counts it",
        "validate less often, on fewer samples, or in larger batches without gradients",
    )
    SPAWN = (
        "spawn",
        "workers start by {method}: each imports everything anew and unpickles the dataset",
        "{keep}import less at the top of the dataset's module, and open the data on first use",
    )
    DATASET_COPIES = (
        "dataset_copies",
        "each worker {copies}",
        "keep large data in a few arrays or tensors (or memory-mapped) instead of lists: workers share those",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One cause, in plain words."""

    cause: Cause
    is_limit: bool
    """Whether it limits the rate now; other findings are worth knowing all the same."""
    what: str
    """The finding, in a sentence."""
    evidence: tuple[str, ...]
    """The figures behind it."""
    advice: str
    share: float | None = None
    """Largest share of the training time that it takes; ``None`` where unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """All facts about one configuration; ``None`` for parts without a probe."""

    config: Config
    facts: WorkloadFacts
    host: Host
    measurement: Measurement
    compute: ComputeProbe | None = None
    loader: LoaderTrace | None = None
    """A probe of the loader alone, at about this batch size."""
    anatomy: Anatomy | None = None
    """A probe of the code of dataset and step; only ``diagnose`` takes it."""
    trials: tuple[Trial, ...] = ()
    """All measured trials, of this configuration and others."""
    looks: tuple[Probe, ...] = ()
    """The probes of parts, failed probes included."""
    refusal_of_more_workers: str | None = None
    """The reason why no more loader workers would fit; ``None`` where they would."""
    are_workers_vain: bool = False
    """Whether a search expects nothing to gain from more of them."""

    @property
    def is_asynchronous(self) -> bool:
        """Whether the step runs on an accelerator, beside the host."""
        return self.facts.device != "cpu"

    @property
    def blocked_share(self) -> float | None:
        """Share of the time of building a batch that uses no CPU; ``None`` too where others took CPUs from the look."""
        if self.loader is None or self.loader.taken_share or not (seconds := fmean(self.loader.build_seconds)):
            return None
        return max(0.0, 1 - self.loader.cpu_seconds / seconds)

    @property
    def rates(self) -> dict[Config, float]:
        """The mean rate of each measured configuration with the same step, its own included."""
        rates: dict[Config, list[float]] = {}
        for config, measured in self._alike:
            rates.setdefault(config, []).append(measured.samples_per_second)
        return {config: fmean(found) for config, found in rates.items()}

    @property
    def even(self) -> frozenset[Config]:
        """The configurations with the same step that were measured alone each time, without a pause or idle workers."""
        found = (
            (config, each.pauses or each.idle_workers or each.conditions.disturbances) for config, each in self._alike
        )
        uneven = {config for config, is_uneven in found if is_uneven}
        return frozenset(config for config, _ in self._alike if config not in uneven)

    @property
    def _alike(self) -> Iterator[tuple[Config, Measurement]]:
        yield self.config, self.measurement
        step = self._step(self.config)
        for trial in self.trials:
            if trial.measurement is not None and self._step(trial.config) == step:
                yield trial.config, trial.measurement

    @property
    def are_more_idle(self) -> bool:
        """Whether more workers would get no data: of as many, or of the next more, some got none."""
        trials = [(trial.config, trial.measurement) for trial in self.trials if trial.measurement is not None]
        got = workers_with_data([(self.config, self.measurement), *trials], self.config.batch_size)
        return got is not None and self.config.num_workers >= got

    def is_no_faster(self, is_meant: Callable[[Config], bool]) -> bool:
        """Return whether the meant configurations were measured with the same step, and none is faster."""
        rates = self.rates
        own = max(self.measurement.samples_per_second, rates[self.config])
        found = [rate for config, rate in rates.items() if is_meant(config)]
        return bool(found) and max(found) <= FASTER * own

    def was_in_vain(self, is_meant: Callable[[Config], bool]) -> bool:
        """Return whether the meant configurations are no faster; with another step alone, whether any was tried."""
        if any(map(is_meant, self.rates)):
            return self.is_no_faster(is_meant)
        return any(is_meant(trial.config) for trial in self.trials if trial.rate is not None)

    def lost_clearly(self, is_meant: Callable[[Config], bool]) -> bool:
        """Return whether the meant configurations were measured, in no smaller batches, and all are far slower."""
        others = [trial for trial in self.trials if trial.config.batch_size >= self.config.batch_size]
        rates = [trial.rate for trial in others if trial.rate is not None and is_meant(trial.config)]
        return bool(rates) and max(rates) < FAR_SLOWER * self.measurement.samples_per_second

    @property
    def fewer_threads(self) -> str:
        """The advice to train in fewer threads; empty where there is one, or trials in fewer threads were no faster."""
        threads = self._step(self.config).threads or 0
        fewer = [trial for trial in self.trials if (self._step(trial.config).threads or 0) < threads]
        rates = [trial.rate for trial in fewer if trial.rate is not None]
        was_slower = bool(rates) and max(rates) <= FASTER * self.measurement.samples_per_second
        return "" if threads <= 1 or was_slower else "fewer threads for training (--threads)"

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
        looks = ((1, probe.config.batch_size, probe.attempt) for probe in self.looks if probe.part == "loader")
        trials = ((trial.config.num_workers, trial.config.batch_size, trial.attempt) for trial in self.trials)
        of_workers = (Outcome.HOST_OOM, Outcome.SHM, Outcome.UNPICKLABLE)
        for each in (*looks, *trials):
            if each[2].outcome.is_chance or each[2].outcome in of_workers:
                yield each

    def _step(self, config: Config) -> StepKey:
        """Return the settings that a step's time depends on; beside an accelerator the host's threads hardly matter."""
        threads = 0 if self.is_asynchronous else config.intra_op_threads or self.facts.intra_op_threads
        return config.step_key._replace(threads=threads)


def limit(cause: Cause, *figures: str, **words: str) -> Finding:
    """Return a cause that limits the rate, with its figures and the words that its texts leave open."""
    what, advice = cause.what.format(**words), cause.advice.format(**words)
    return Finding(cause=cause, is_limit=True, what=what, evidence=figures, advice=advice)


def before_all(way: str) -> str:
    """Return a way with the sign that another follows; nothing for an empty text."""
    return way and f"{way}; "


def loader_figures(evidence: Evidence) -> tuple[str, ...]:
    """Return the cost of building a batch, in words."""
    split, loader = evidence.measurement.step_time, evidence.loader
    waited = f"{ms(split.data_wait)} of a step of {ms(split.total)} is waiting for data"
    if loader is None:
        return (waited,)
    build = fmean(loader.build_seconds) * evidence.config.batch_size / loader.batch_size
    blocked = evidence.blocked_share
    busy = "" if blocked is None else f", {percent(1 - blocked)} of it on a CPU"
    return waited, f"one worker takes {ms(build)} per batch{busy}"


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


def workers_text(count: int) -> str:
    """Return a number of workers in words."""
    numbers = ("no", "one", "two", "three", "four")
    return f"{numbers[count] if count < len(numbers) else count} worker{'' if count == 1 else 's'}"


def ms(seconds: float) -> str:
    """Return a time in milliseconds."""
    return f"{1000 * seconds:.3g} ms"


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """A remedy for waiting for data, and its gain beside the present way, measured by turns."""

    name: RemedyName
    verdict: str = ""
    """``faster``, ``slower``, ``no difference`` or ``undecided``, of ``proof.Difference``; empty if not measured."""
    ratio: float | None = None
    """Rate with the remedy over the present one."""
    interval: Interval | None = None
    """95 % interval of it."""
    saved_seconds: float | None = None
    """Seconds that an epoch gets shorter; ``None`` where its length is not known."""
    total_bytes: int | None = None
    """Bytes of all items."""
    free_bytes: int | None = None
    """Bytes that are free for them: of memory, or of the device's."""
    seconds: float | None = None
    """Seconds to make it once, with the present workers."""
    before: str | None = None
    """Attribute of the dataset whose input is stored, and which is called at each draw; ``None`` for whole items."""
    reason: str = ""
    """The reason why it was not measured, or a remark on how it was."""

    @property
    def is_worth(self) -> bool | None:
        """Whether it pays; not where it gains a tenth at most, and ``None`` where that is not known."""
        is_small = self.interval is not None and self.interval[1] <= LEAST_WORTH
        return False if is_small else self.verdict == "faster" or None


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The limit of training with one configuration, and the remedy."""

    config: Config
    facts: WorkloadFacts
    measurement: Measurement
    findings: tuple[Finding, ...]
    """The limits of the rate, the most expensive first, then other facts worth knowing."""
    anatomy: Anatomy | None
    """The inside of dataset and step; ``None`` where the probe failed."""
    notes: tuple[str, ...]
    """Probes that failed, and other facts to know."""
    remedies: tuple[Remedy, ...] = ()
    """Remedies for waiting for data that were tried."""

    @property
    def bottleneck(self) -> Cause:
        """The strongest limit of the rate."""
        return self.findings[0].cause
