"""Records that cross the process boundary, read everywhere: frozen, of plain values, and written as JSON
(``autotune.encoding``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Generic, Literal, Protocol, TypeVar

from autotune.accumulation import Reduction
from autotune.config import Config
from autotune.limits import percent
from autotune.outcome import Outcome
from autotune.probes import Anatomy, ComputeProbe, FirstLosses, GradientNoise, LoaderTrace, NumericsCheck, StoredItems

SCHEMA = 13
"""Version of these records: a study stored with another version is not continued."""
THROTTLED = 0.05
"""Share of the time for which a CPU quota may stop processes before it is reported."""
LONGEST_WAIT = 0.99999
"""Share of the time that counts as all of it."""
FOREIGN_COMPUTE = 0.1
"""Share of the time for which other processes may compute on the GPU; a desktop takes some."""
ONE_THREAD = "limit them, for example with cv2.setNumThreads(0) or OMP_NUM_THREADS=1"
"""Advice where loader workers compute in several threads."""
Kind = Literal["baseline", "search", "confirm"]
Part = Literal["training", "compute", "loader", "numerics", "noise", "losses", "anatomy", "store"]
"""The subject of a request. ``compute`` is the step alone on a resident batch, ``loader`` the data loader alone,
``numerics`` the losses in a precision and with options, ``noise`` the gradients of small and large batches, ``losses``
the first losses of a script that is started anew, ``anatomy`` the inside of the user's code, ``store`` items that are
stored for a remedy."""
RemedyName = Literal["stored", "in-memory", "on-device"]
"""Items read from memory-mapped files by the loader's workers, from memory by the training process, and batches made of
rows on the device."""

Interval = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """Where an average training step spends its time, in seconds; the fields add up to the step."""

    data_wait: float
    host_to_device: float
    forward: float
    """Model and loss."""
    backward: float
    optimizer: float
    """Optimizer step, gradient scaling and zeroing."""
    other: float
    """The rest: the loop itself."""
    communication: float = 0.0
    """With several ranks: waiting for the others' gradients after the own ones were done; the part of it behind
    backward costs nothing."""

    @property
    def total(self) -> float:
        """Seconds per step."""
        return float(sum(asdict(self).values()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """The state of the machine from the first batch of a measurement on; ``None`` where the system does not say."""

    own_cpus: float
    """Average number of CPUs used by the measuring process and its workers."""
    foreign_cpus: float
    """Average number of CPUs used by other processes, stolen time included."""
    cpus: int
    """CPUs that the process may be scheduled on."""
    is_crowded: bool
    """Whether others took CPUs that the measurement could have used."""
    throttled_share: float | None = None
    """Seconds for which a cgroup's CPU quota stopped its processes, per second."""
    storage_share: float | None = None
    """Share of the bytes read that came from storage and not from the page cache; network file systems do not show.
    ``None`` too where next to nothing was read, or from files mapped into memory."""
    worker_cpus: int | None = None
    """CPUs that the loader worker with the fewest may be scheduled on; ``None`` without workers."""
    worker_threads: int | None = None
    """Most threads that one loader worker computed in; torch limits only its own to one."""
    gpu_utilisation: float | None = None
    """Share of the last moments of the window in which a kernel ran (NVML)."""
    gpu_foreign_bytes: int | None = None
    """Device memory of other processes (NVML); ``None`` where NVML does not show its holders."""
    gpu_foreign_share: float | None = None
    """Share of the time in which other processes computed on the GPU (NVML); ``None`` where it does not show them."""
    gpu_foreign_pids: tuple[int, ...] = ()
    """Their numbers."""
    gpu_slowdowns: tuple[str, ...] = ()
    """Faults or heat that kept the clocks down."""
    allocator_retries: int = 0
    """How often device memory was full and the allocator had to free its cache; 0 on a CPU."""
    neighbours: tuple[str, ...] = ()
    """The other processes that used the most CPUs, each with its number and the CPUs it used."""
    named_cpus: float = 0.0
    """CPUs that these used together."""

    @property
    def is_throttled(self) -> bool:
        """Whether a CPU quota stopped the processes for a relevant share of the time."""
        return (self.throttled_share or 0.0) > THROTTLED

    @property
    def taken_share(self) -> float:
        """Share of the CPUs that others took, or of the GPU's time; 0 of CPUs that the measurement did not need."""
        cpus = min(1.0, self.foreign_cpus / self.cpus) if self.is_crowded else 0.0
        return max(cpus, self.gpu_foreign_share or 0.0) if self.shares_gpu else cpus

    @property
    def shares_gpu(self) -> bool:
        """Whether others computed on the GPU for a relevant share of the time."""
        return (self.gpu_foreign_share or 0.0) > FOREIGN_COMPUTE

    @property
    def crowd_text(self) -> str:
        """The CPUs that other processes used, and their names where known; else their use of the GPU."""
        if self.shares_gpu and not self.is_crowded:
            return self._gpu_text
        text = f"other processes used {self.foreign_cpus:.1f} of {self.cpus} CPUs meanwhile"
        if not self.neighbours:
            return text
        share = "most of it" if self.named_cpus > self.foreign_cpus / 2 else "among them"
        return f"{text}, {share} {', '.join(self.neighbours)}"

    @property
    def _gpu_text(self) -> str:
        who = "another process" if len(self.gpu_foreign_pids) == 1 else "other processes"
        pids = ", ".join(map(str, self.gpu_foreign_pids))
        return f"{who} computed on the GPU for {percent(self.gpu_foreign_share or 0.0)} of the time (pid {pids})"

    @property
    def disturbances(self) -> tuple[str, ...]:
        """Why a measurement under these conditions is suspect, in plain words; empty where it is not."""
        found = [f"the GPU ran slower than it can: {words}" for words in self.gpu_slowdowns]
        if self.shares_gpu:
            found.append(self._gpu_text)
        if self.is_crowded:
            found.append(self.crowd_text)
        if self.allocator_retries:
            found.append(f"device memory was full {self.allocator_retries} times: the allocator had to free its cache")
        return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankShare:
    """One rank's part in an average step of all."""

    rank: int
    """Its number, from 0."""
    own_seconds: float
    """The step without waiting for others: loading, forward, backward, optimizer."""
    data_wait_seconds: float
    """The part of ``own_seconds`` in which it waited for its batch."""
    peak_memory_bytes: int
    """Its own peak in bytes, of the memory that limits the run."""
    memory_limit_bytes: int = 0
    """What it may have of that memory, in bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """The numbers of one configuration in timed training steps."""

    samples_per_second: float
    """Training rate of all ranks together over whole epochs: samples divided by time, epoch restarts included. Batches
    count that workers built in the window, as far as training used them or waited for data at other times."""
    ci95: Interval | None = None
    """95 % t-interval of that rate on block means; ``None`` with fewer than two blocks."""
    steady_samples_per_second: float
    """Rate inside an epoch, without restarts."""
    ceiling_samples_per_second: float
    """Rate of the same step on batches already on the device, or the steady rate where it is higher."""
    steps: int
    """Steps in the measured window."""
    settling_steps: int
    """Steps on the loader before the measured window; they are not counted."""
    samples: int
    """Samples in the measured window; a short last batch counts its samples."""
    seen_samples: int = 0
    """Samples trained on from the first batch of the loader to the end of the window; 0 where not counted."""
    pauses: int = 0
    """Bursts of batches among these that took far longer than most."""
    pause_seconds: float = 0.0
    """Seconds that these took beyond the usual burst, in all."""
    apart_share: float = 0.0
    """Share of the time until the end of the window that a script spent beside training, as on validation; no rate
    counts it."""
    seconds: float
    """Length of the measured window."""
    step_time: StepTime
    """Average split of one step."""
    device_idle_share: float | None = None
    """Share of the window in which the accelerator waited between steps; ``None`` on CPU."""
    first_batch_seconds: float
    """From asking a new loader for an iterator to its first batch."""
    restart_seconds: float | None = None
    """Seconds until the first batch of a later epoch, the end of the one before included; ``None`` when no epoch
    ended."""
    order_seconds: float | None = None
    """Seconds that the sampler takes to order an epoch, in the training process; ``None`` for an iterable dataset."""
    persistence_gain: float | None = None
    """Gain of persistent workers over new ones for each epoch, as a share of the rate; ``None`` without workers or a
    known length of an epoch."""
    epoch_samples: int | None = None
    """Samples in one epoch; ``None`` when the dataset does not say."""
    peak_memory_bytes: int
    """Peak on the memory that limits this run, see ``memory``."""
    memory: Literal["device", "host"]
    """Which memory ``peak_memory_bytes`` counts: device (reserved), or host."""
    memory_limit_bytes: int
    """Size of that memory on this machine."""
    peak_allocated_bytes: int | None = None
    """Peak of live tensors on the device; ``None`` on CPU."""
    host_memory_bytes: int
    """Peak host memory of the training process and its loader workers, shared pages counted once."""
    shared_memory_bytes: int
    """The part of it in batches that workers had built and training had not received, at most."""
    worker_growth_bytes_per_sample: float | None = None
    """Growth of the workers' memory per sample built, by copies of pages shared with the parent and by caches or leaks;
    ``None`` without workers that lived through the measurement."""
    epoch_host_memory_bytes: int | None = None
    """Largest ``host_memory_bytes`` at the end of an epoch if the copying goes on. Caches of workers may stop growing
    at any moment, and are left out."""
    ready_batches: float
    """Mean number of batches built but not yet consumed; 0 without workers."""
    conditions: Conditions
    loss: float | None = None
    """The last loss of the window, for the check that it is finite."""
    later_epochs: bool = False
    """Whether the samples of the window had been read before, as in later epochs."""
    beginning_samples: int | None = None
    """Samples at the beginning of an iterable dataset, where the measurement saw no end of an epoch: only their rate is
    known. ``None`` where whole epochs were measured, or training began anywhere in the order."""
    idle_workers: int = 0
    """Loader workers that got no data although each had its turn; of several ranks the fewest in one."""
    is_uneven: bool = False
    """Whether loader workers of an iterable dataset got different amounts: none, or its end while others went on."""
    batch_bytes: int = 0
    """Bytes of the tensors in a batch; 0 where unknown."""
    batch_tensors: int = 1
    unique_share: float = 1.0
    """Share of the batches that are not another worker's; below 1 where an iterable dataset is not divided."""
    stopped_early: bool = False
    """Whether the window ended as soon as the rate was surely below ``least_rate``; it may be lower still."""
    ranks: tuple[RankShare, ...] = ()
    """Each rank's part of a step; empty with one process."""
    notes: tuple[str, ...] = ()
    """Reasons to trust this number less, in plain words."""

    @property
    def waiting_share(self) -> float:
        """Share of the time of training in which it waits for batches or copies them, or epochs begin; below 1."""
        step, rate = self.step_time, self.samples_per_second
        waiting = (step.data_wait + step.host_to_device) / step.total if step.total else 1.0
        return min(1 - rate / max(rate, self.steady_samples_per_second) * (1 - waiting), LONGEST_WAIT)

    def gain_of_loader(self, *, is_alone: bool) -> float:
        """Return the largest gain from a loader that is never late and takes nothing from the step, as a share.

        ``is_alone`` says that nothing takes time from the step now, as on a CPU without workers: then it is the time
        of waiting. Else the step on resident batches may be faster too.
        """
        gain = 1 / (1 - self.waiting_share) - 1
        return gain if is_alone else max(gain, self.ceiling_samples_per_second / self.samples_per_second - 1)

    @property
    def epoch_peak_bytes(self) -> int:
        """Peak of the memory that limits this run, by the end of an epoch where workers copy the dataset."""
        by_the_end = self.epoch_host_memory_bytes if self.memory == "host" else None
        return max(self.peak_memory_bytes, by_the_end or 0)

    @property
    def slowest_rank(self) -> RankShare | None:
        """The rank that the others wait for most; ``None`` with one process."""
        return max(self.ranks, key=lambda rank: rank.own_seconds, default=None)

    @property
    def rank_spread(self) -> float | None:
        """By which share of its time the fastest rank's own part of a step is shorter than the slowest one's."""
        own = [rank.own_seconds for rank in self.ranks]
        return 1 - min(own) / max(own) if own and max(own) > 0 else None


def workers_with_data(measured: Iterable[tuple[Config, Measurement]], batch_size: int) -> int | None:
    """Return the most loader workers that got data at a batch size; ``None`` where none was without.

    An indexed dataset has fewer batches the larger they are; a stream's workers divide its shards at any size.
    """
    alike = [(config, each) for config, each in measured if each.is_uneven or config.batch_size <= batch_size]
    is_told = any(each.idle_workers for _, each in alike)
    return max(config.num_workers - each.idle_workers for config, each in alike) if is_told else None


ADDED = "added"
"""The autocast of an answer for a script that has none itself, as a config file keeps it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadFacts:
    """Facts about the workload, found before the first measurement."""

    dataset_length: int | None
    """Samples in the dataset; ``None`` for an iterable dataset without a length, and one of whole batches."""
    iterable: bool
    sets_epoch: bool
    """Whether the dataset has ``set_epoch``, which persistent workers do not see."""
    parameters: int
    loss_reduction: Reduction
    """Whether the loss is a mean over the samples of a batch or their sum."""
    has_batch_norm: bool
    """Whether it normalises by statistics of the batch, which accumulation leaves as small as each batch is."""
    device: str
    """The device the model trains on, for example ``cpu`` or ``cuda:0``."""
    device_name: str
    """Its name as the vendor gives it."""
    amp_modes: tuple[str, ...]
    """The amp modes that this device runs at speed."""
    intra_op_threads: int
    """torch's own choice of threads inside an operator."""
    inter_op_threads: int
    """torch's own choice of threads between operators."""
    model_name: str
    """The class of the model."""
    dataset_name: str
    """The class of the dataset."""
    fingerprint: str
    """Hash over model structure, dataset type and length, and the code of both, of the loss and of the training step:
    tells one workload from another."""
    versions: Mapping[str, str]
    """Versions of Python, torch and the device driver."""
    device_uuid: str | None = None
    """The accelerator's UUID, the same under every number; ``None`` for a CPU, and where it has none."""
    data_parallel_devices: int | None = None
    """Devices among which ``nn.DataParallel`` divides a batch, 0 on a CPU; ``None`` for any other model."""
    epoch_samples: int | None = None
    """Samples that an epoch iterates over; ``None`` for a sampler without end, an iterable dataset, and batches that no
    batch size makes."""
    batch_samples: int | None = None
    """Samples of a batch that no batch size makes, but a sampler or the dataset; ``None`` where one does."""
    loader_arguments: tuple[str, ...] = ()
    """The arguments of its DataLoader that the workload brings, such as ``sampler`` and ``collate_fn``."""
    loader_timeout: float | None = None
    """Seconds after which its DataLoader gives up on its workers; ``None`` where it waits."""
    other_devices: tuple[str, ...] = ()
    """UUIDs of the other devices that are used: those of all ranks but the first, or of ``nn.DataParallel``."""
    loader_call: str | None = None
    """File, line and name of the call of a script that makes its training loader."""
    loader_site: str | None = None
    """That place, told from all others of the script."""
    loop: str | None = None
    """File and line of the script's loop where it was asked for."""
    other_loader_calls: tuple[str, ...] = ()
    """The calls of further loaders whose batches each step takes too."""
    other_loader_sites: tuple[str, ...] = ()
    """Their places."""
    sites_of_ranks: tuple[str, ...] = ()
    """Those of the training loader in each of several ranks, where these differ."""
    shared_lines: tuple[str, ...] = ()
    """File and line of those of all these places that make loaders of other datasets too."""
    optimizer: str | None = None
    """The class of the optimizer; ``None`` where there are several, or none could be made."""
    autocast_call: str | None = None
    """File and line that enter a script's autocast; ``None`` where it trains in fp32."""
    obtainable_host_bytes: int | None = None
    """Host memory that a process with this workload could hold, each of several ranks its share: what it held at first,
    and what was available then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptFacts:
    """A script's settings, and facts of its loop that its later starts are told."""

    present: Config
    """The settings of today, of each rank."""
    is_batch_fixed: bool
    sites: tuple[str, ...]
    """The place of the training loader in each rank."""
    origins: tuple[str, ...]
    """The places of the user's that make the loaders which get an answer's settings."""
    device: str
    batches: int
    """The length of the training loader that the script is told."""
    missing: float
    """The usual share of its batches without a step of an optimizer."""
    earlier: int
    """Its iterators before the first one that trains."""
    beside: tuple[tuple[str, int], ...]
    """The places of further loaders that feed the steps, and the batches of each for one of the first."""
    told: tuple[str, ...]
    """Sentences about its loop, its loaders and its writes, for the user."""
    holds: str | None
    """How its writes are held, by ``autotune.workload.HELD``; ``None`` where they are let through."""
    counted: int | None
    """The number of the optimizer whose steps are counted, in the order of first steps; ``None`` where batches are."""


def to_divide(ranks: int) -> str:
    """Return advice for an iterable dataset whose workers, in so many ranks, yield the same samples."""
    who, by = ("", "") if ranks == 1 else ("ranks or ", "torch.distributed.get_rank() and ")
    return f"divide the dataset among the {who}workers with {by}torch.utils.data.get_worker_info()"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """How long and how carefully to measure one configuration."""

    seconds: float
    """Longest measured window; it ends earlier once the interval is narrow enough."""
    target: float = 0.02
    """Half-width of the 95 % interval, relative to the rate, at which the window may end."""
    time_limit: float = 120.0
    """Seconds after which the runner kills the process group."""
    fresh: bool = False
    """Whether a new process is required, as for confirmation."""
    part: Part = "training"
    seed: int | None = None
    """Decides where in an epoch's order training begins, and the order itself where it is random; ``None`` for any."""
    least_rate: float | None = None
    """Samples per second below which the configuration is of no interest: once the interval lies below, the window
    ends."""
    later_epochs: bool = False
    """Whether the dataset keeps samples itself: processes that live on have read those of the window before."""
    store: str | None = None
    """Folder of stored items: with ``part="store"`` to write them, with a remedy to read them."""
    remedy: RemedyName | None = None
    """The remedy to train with."""
    before: str | None = None
    """That of the stored items, ``StoredItems``."""
    needs_ceiling: bool = True
    """Whether the step alone is to be timed too; without, a CPU makes but its first ten steps before the window."""


Payload = Measurement | ComputeProbe | LoaderTrace | NumericsCheck | GradientNoise | FirstLosses | Anatomy | StoredItems
"""The numbers of a measurement, by its part."""
Numbers = TypeVar("Numbers", bound=Payload)


class _Numbers(Generic[Numbers]):
    """The payload of an attempt where it is of a class; ``None`` where it is of another, or there is none."""

    def __init__(self, kind: type[Numbers]) -> None:
        self._kind = kind

    def __get__(self, attempt: Attempt, owner: type[Attempt]) -> Numbers | None:
        return attempt.payload if isinstance(attempt.payload, self._kind) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One measurement: its outcome, and its numbers or the reason for none."""

    outcome: Outcome
    payload: Payload | None = None
    """Its numbers; ``None`` unless the outcome is ok or suspect."""
    message: str = ""
    """The reason for a failure, in one line."""
    details: str = ""
    """The user's traceback or the end of the child's output, when something went wrong."""
    seconds: float = 0.0
    """Wall time it cost, process start included."""
    opening: float = 0.0
    """The part of it until a session had loaded the workload; 0 where one was open."""

    @property
    def found(self) -> bool:
        """Whether it gave numbers."""
        return self.payload is not None

    measurement = _Numbers(Measurement)
    """The numbers of training."""
    compute = _Numbers(ComputeProbe)
    """The numbers of a probe of the step alone."""
    loader = _Numbers(LoaderTrace)
    """The numbers of a probe of the loader alone."""
    numerics = _Numbers(NumericsCheck)
    """The losses in the configuration's precision beside those in fp32."""
    noise = _Numbers(GradientNoise)
    """The gradients of small and large batches."""
    anatomy = _Numbers(Anatomy)
    """The inside of the user's code."""
    store = _Numbers(StoredItems)
    """The items that were stored."""

    @property
    def losses(self) -> tuple[float, ...] | None:
        """The first losses of a script."""
        return self.payload.losses if isinstance(self.payload, FirstLosses) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """A probe of one part of the pipeline, and its outcome."""

    part: Part
    config: Config
    """Batch size, precision and threads it was made with."""
    attempt: Attempt
    """Its outcome; the message may say why a precision must not be used."""
    after: int = 0
    """Number of the next trial at that time."""
    again: int = 0
    """Times that the same was probed before."""

    @property
    def taken_share(self) -> float:
        """Share of the CPUs, or of the GPU's time, that others took meanwhile; 0 where it is not known."""
        found = self.attempt.compute or self.attempt.loader
        return found.taken_share if found else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One configuration and its outcome."""

    number: int
    kind: Kind
    config: Config
    attempt: Attempt
    predicted: float | None = None
    """Expected samples per second, before it ran."""
    bound: float | None = None
    """Upper bound of its samples per second, before it ran."""
    round: str | None = None
    """Which round of confirmation it belongs to; ``None`` for any other trial."""
    entry: int | None = None
    """Its number among all configurations compared with the baseline, from 0; ``None`` for any other trial."""
    planned: int | None = None
    """Rounds over which most of the study's chance of a false claim is spent; ``None`` before the third."""

    @property
    def outcome(self) -> Outcome:
        """Its outcome."""
        return self.attempt.outcome

    @property
    def measurement(self) -> Measurement | None:
        """The numbers of training; ``None`` unless the outcome is ok or suspect."""
        return self.attempt.measurement

    @property
    def taken_share(self) -> float:
        """Share of the CPUs, or of the GPU's time, that others took meanwhile; 0 without a number."""
        return self.measurement.conditions.taken_share if self.measurement else 0.0

    @property
    def is_disturbed(self) -> bool:
        """Whether others took CPUs or the GPU meanwhile."""
        return self.taken_share > 0

    @property
    def rate(self) -> float | None:
        """Samples per second, or ``None`` when the trial gave no number."""
        return self.measurement.samples_per_second if self.measurement else None


class Runner(Protocol):
    """Anything that can measure a configuration: a machine, a simulation, a recorded study."""

    def measure(self, config: Config, request: Request) -> Attempt:
        """Measure one configuration; failures are outcomes, never exceptions."""

    def close(self) -> None:
        """End the running measurement, as after an interrupt; the next measurement begins anew."""
