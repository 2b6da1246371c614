"""Machines and workloads made of formulas, as runners: every configuration's true rate is known.

The formulas are not those of autotune's predictor: training and loading blend smoothly instead of by the loader's
recursion, workers hinder each other and the step, speed ripples with the batch size and drops where memory is nearly
full, storage may set a limit that no short look shows, pinned copies overlap in part, and what the looks report is off
by a factor that stays the same for a machine. Time passes on the machine's own clock only.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field, replace
from functools import cached_property

from autotune.config import Config
from autotune.machine.host import Gpu, Host
from autotune.outcome import Outcome
from autotune.probes import ComputeProbe, GradientNoise, LoaderTrace, NumericsCheck
from autotune.records import Attempt, Conditions, Measurement, Request, StepTime, WorkloadFacts
from autotune.search.space import Space, build_space

FAMILIES = ("loader-bound GPU", "compute-bound GPU", "tiny model", "CPU training")
HEADROOM = 0.1
GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """The constants of one machine and workload."""

    family: str
    cpus: int
    device: str
    launch: float
    """Seconds of a step that do not depend on the batch."""
    per_sample: float
    """Seconds of training on one sample, fp32, all threads or the accelerator."""
    blend: float
    """How sharply the two meet."""
    amp_gains: dict[str, tuple[float, float]]
    """Per precision: gain of large batches, and the batch size at which half of it is reached."""
    serial: float
    """Share of a step on a CPU that more threads do not help."""
    ripple: float
    phase: float
    build_sample: float
    """Seconds of building one sample."""
    build_batch: float
    """Seconds of building a batch that do not depend on its size."""
    build_spread: float
    """Standard deviation of a batch's build time, relative to it."""
    cpu_share: float
    """Share of the build that computes; the rest waits for storage."""
    hinder: float
    """How much workers hinder each other."""
    storage_cap: float
    """Samples per second that storage gives at most."""
    neighbour: float
    """How much busy workers slow the step."""
    crowding: float
    """The same where there are more busy threads than CPUs."""
    receive: float
    sample_bytes: int
    bandwidth: float
    """Bytes per second from memory that is not pinned."""
    pinned_bandwidth: float
    pinning: float
    """Bytes per second that the pinning thread copies."""
    overlap: float
    """Share of a pinned copy that hides behind training."""
    sharpness: float
    """How sharply loading and training meet."""
    memory_limit: int
    memory_fixed: int
    memory_sample: int
    memory_floor: int
    memory_jump: tuple[int, int]
    """A batch size from which kernels want so many bytes more."""
    host_memory: int
    shm: int
    samples: int
    worker_start: float
    trace_error: float
    """Factor by which the looks at the loader are off."""
    optimism: float
    """Factor by which the looks at the step are off."""


def draw_world(family: str, seed: int) -> World:
    """Draw a machine of a family."""
    generator = random.Random(f"{family} {seed}")
    uniform, choice = generator.uniform, generator.choice

    def log_uniform(low: float, high: float) -> float:
        return math.exp(uniform(math.log(low), math.log(high)))

    on_cpu = family == "CPU training"
    cpus = choice((2, 4, 8, 16)) if on_cpu else choice((4, 8, 16, 32))
    per_sample = {
        "loader-bound GPU": log_uniform(2e-4, 1.5e-3),
        "compute-bound GPU": log_uniform(2e-3, 2e-2),
        "tiny model": log_uniform(2e-6, 3e-5),
        "CPU training": log_uniform(5e-4, 1e-2),
    }[family]
    build = {
        "loader-bound GPU": log_uniform(4e-3, 3e-2),
        "compute-bound GPU": log_uniform(5e-4, 8e-3),
        "tiny model": log_uniform(5e-6, 1e-4),
        "CPU training": log_uniform(1e-4, 8e-3),
    }[family]
    limit = round(choice((8, 16, 24, 40, 80)) * GIB)
    fixed = round(uniform(0.5, 3) * GIB) if on_cpu else round(limit * uniform(0.03, 0.3))
    fits = log_uniform(48, 3000)  # samples that fill the memory
    sample = round((limit - fixed) / fits) if not on_cpu else round(log_uniform(1e5, 5e6))
    rate = cpus / build * uniform(0.3, 1.0)
    return World(
        family=family,
        cpus=cpus,
        device="cpu" if on_cpu else "cuda:0",
        launch=log_uniform(1e-3, 2e-2),
        per_sample=per_sample,
        blend=uniform(1.3, 4.0),
        amp_gains={
            "off": (1.0, 1.0),
            "bf16": (uniform(0.6, 2.0) if on_cpu else uniform(1.0, 3.0), log_uniform(4, 64)),
            "fp16": (uniform(1.0, 3.0), log_uniform(4, 64)),
        },
        serial=uniform(0.02, 0.3),
        ripple=uniform(0.0, 0.06),
        phase=uniform(0, 2 * math.pi),
        build_sample=build,
        build_batch=log_uniform(1e-4, 3e-3),
        build_spread=uniform(0.02, 0.4),
        cpu_share=uniform(0.4, 1.0),
        hinder=uniform(0.0, 0.15),
        storage_cap=rate if generator.random() < 0.3 else 1e12,
        neighbour=uniform(0.0, 0.2),
        crowding=uniform(0.5, 2.5),
        receive=log_uniform(2e-4, 3e-3),
        sample_bytes=round(log_uniform(2e3, 1e6)),
        bandwidth=uniform(2e9, 6e9),
        pinned_bandwidth=uniform(8e9, 2.4e10),
        pinning=uniform(2e9, 8e9),
        overlap=uniform(0.5, 1.0),
        sharpness=uniform(4, 14),
        memory_limit=limit,
        memory_fixed=fixed,
        memory_sample=sample,
        memory_floor=round(fixed * uniform(1.0, 1.3)),
        memory_jump=(round(log_uniform(16, 512)), round(limit * choice((0.0, 0.0, 0.03, 0.08)))),
        host_memory=choice((32, 64, 128)) * GIB,
        shm=choice((64 * 2**20, GIB)) if generator.random() < 0.15 else 16 * GIB,
        samples=round(log_uniform(2e4, 1e6)),
        worker_start=log_uniform(0.005, 0.08),
        trace_error=math.exp(generator.gauss(0, 0.12)),
        optimism=1 + uniform(0.0, 0.04),
    )


@dataclass(kw_only=True)
class Machine:
    """A runner over a world."""

    world: World
    noise: float
    """Standard deviation of the logarithm of each measurement."""
    disturbed: float = 0.05
    """Share of the measurements that something slows; every second of them shows."""
    seed: int = 0
    time: float = 0.0
    """Seconds that passed on this machine."""
    attempts: list[tuple[Config, Request, Outcome, float]] = field(default_factory=list)
    """Everything that was asked, what became of it, and when it ended."""

    def __post_init__(self) -> None:
        self._generator = random.Random(f"{self.world} {self.seed}")
        self._session: object = None
        self._cell: object = None

    def now(self) -> float:
        return self.time

    @property
    def facts(self) -> WorkloadFacts:
        world = self.world
        on_cpu = world.device == "cpu"
        return WorkloadFacts(
            dataset_length=world.samples,
            epoch_samples=world.samples,
            iterable=False,
            sets_epoch=False,
            parameters=10**7,
            has_batch_norm=False,
            loss_reduction="mean",
            device=world.device,
            device_name=f"a simulated machine: {world.family}",
            model_name="Simulated",
            dataset_name="Simulated",
            amp_modes=("off", "bf16") if on_cpu else ("off", "bf16", "fp16"),
            intra_op_threads=world.cpus,
            inter_op_threads=world.cpus,
            fingerprint="simulated",
            versions={"python": "3", "torch": "2"},
        )

    @property
    def host(self) -> Host:
        world = self.world
        gpu = Gpu(uuid="simulated", name="simulated", memory_bytes=world.memory_limit, driver="none")
        return Host(
            cpus=world.cpus,
            cpu_model="simulated",
            affinity_cpus=world.cpus,
            quota_cpus=None,
            memory_bytes=world.host_memory,
            shm_bytes=world.shm,
            gpus=() if world.device == "cpu" else (gpu,),
            versions={},
            platform="simulated",
        )

    @cached_property
    def space(self) -> Space:
        return build_space(self.facts, self.world.cpus, Config(batch_size=32), {})

    # the truth

    def step(self, config: Config) -> float:
        """Seconds of a step on a resident batch, nothing else running."""
        world, batch = self.world, config.batch_size
        gain, half = world.amp_gains[config.amp]
        speed = 1 + (gain - 1) * batch / (batch + half)
        threads = config.intra_op_threads or world.cpus
        per_sample = world.per_sample / speed
        if world.device == "cpu":
            per_sample *= world.cpus * (world.serial + (1 - world.serial) / threads)
        launch = world.launch * (1.05 if config.amp != "off" else 1.0) + (5e-4 if config.amp == "fp16" else 0.0)
        seconds = (launch**world.blend + (batch * per_sample) ** world.blend) ** (1 / world.blend)
        seconds *= 1 + world.ripple * math.sin(3 * math.log2(batch) + world.phase)
        full = self.peak(config) / self.limit
        return seconds * (1 + 2 * max(0.0, full - 0.85)) if world.device != "cpu" else seconds

    def build(self, config: Config) -> float:
        """Seconds that building a batch takes one worker of these."""
        world, workers = self.world, max(1, config.num_workers)
        crowd = 1 + world.hinder * (workers - 1) / world.cpus
        return (world.build_batch + config.batch_size * world.build_sample) * crowd

    def rate(self, config: Config) -> float:
        """The true rate in samples per second, over whole epochs."""
        world, batch, workers = self.world, config.batch_size, config.num_workers
        step, build = self.step(config), self.build(config)
        amount = batch * world.sample_bytes
        if world.device == "cpu":
            copy = 0.0
        elif config.pin_memory:
            copy = (1 - world.overlap) * amount / world.pinned_bandwidth
        else:
            copy = amount / world.bandwidth
        if not workers:
            if world.device == "cpu":
                return min(world.storage_cap, batch / (step + build))
            q = world.sharpness
            build += amount / world.pinning if config.pin_memory else 0.0
            return min(world.storage_cap, batch / ((step**q + build**q) ** (1 / q) + copy + world.launch / 4))
        threads = config.intra_op_threads or world.cpus
        own = threads if world.device == "cpu" else 1.0
        receive = (world.receive + amount / 8e9) * (0.7 if config.pin_memory else 1.0)
        supply = batch * workers / build
        demand = batch / (step + receive + copy)
        active = workers * min(1.0, demand / supply)  # workers that are ahead wait
        busy = active * world.cpu_share + own
        over = max(0.0, busy / world.cpus - 1)
        step *= 1 + world.crowding * over if world.device == "cpu" else 1 + 0.5 * over
        step *= 1 + world.neighbour * min(1.0, active * world.cpu_share / world.cpus) ** 2
        spread = 1 - 0.3 * world.build_spread / math.sqrt((config.prefetch_factor or 1) * workers)
        supply = min(world.storage_cap, supply * spread / (1 + over))
        if config.pin_memory:
            supply = min(supply, world.pinning / world.sample_bytes)
        demand = batch / (step + receive + copy)
        q = world.sharpness
        steady = (supply**-q + demand**-q) ** (-1 / q)
        restart = build + (0.0 if config.persistent_workers else workers * world.worker_start)
        return world.samples / (world.samples / steady + restart)

    def persistence_gain(self, config: Config) -> float | None:
        """The share by which workers that live on between epochs make it faster; ``None`` without workers."""
        if not config.num_workers:
            return None
        kept, begun = (self.rate(replace(config, persistent_workers=keeps)) for keeps in (True, False))
        return kept / begun - 1

    @property
    def limit(self) -> int:
        return self.world.host_memory if self.world.device == "cpu" else self.world.memory_limit

    def peak(self, config: Config) -> int:
        """Bytes on the device, or of the training process on a CPU."""
        world = self.world
        share = 1.0 if config.amp == "off" else 0.7
        first, more = world.memory_jump
        linear = world.memory_fixed + round(share * world.memory_sample * config.batch_size)
        return max(world.memory_floor, linear) + (more if config.batch_size >= first else 0)

    def in_flight(self, config: Config) -> int:
        """Bytes in /dev/shm."""
        batches = config.num_workers * (config.prefetch_factor or 0)
        return (batches + 1) * config.batch_size * self.world.sample_bytes if batches else 0

    def fate(self, config: Config) -> Outcome:
        if self.in_flight(config) > self.world.shm:
            return Outcome.SHM
        if self.peak(config) > self.limit:
            return Outcome.HOST_OOM if self.world.device == "cpu" else Outcome.DEVICE_OOM
        return Outcome.OK

    def is_safe(self, config: Config) -> bool:
        """Whether a configuration runs and leaves the memory free that must be."""
        if self.fate(config) is not Outcome.OK or self.peak(config) > (1 - HEADROOM) * self.limit:
            return False
        return self.in_flight(config) <= (1 - HEADROOM) * self.world.shm

    @cached_property
    def optimum(self) -> float:
        return max(self.rate(config) for config in self.space.configs if self.is_safe(config))

    # the runner

    def measure(self, config: Config, request: Request) -> Attempt:
        begin = self.time
        attempt = self._attempt(config, request)
        self.attempts.append((config, request, attempt.outcome, self.time))
        return replace(attempt, seconds=self.time - begin)

    def _attempt(self, config: Config, request: Request) -> Attempt:
        self._warm_up(config, request)
        if request.part == "loader":
            return self._trace(config, request)
        if request.part == "numerics":
            return self._check_numerics(config, request)
        if request.part == "noise":
            self.time += request.seconds
            points = (((15.0, 1.8), (17.0, 2.0), (19.0, 2.2)),) * 3  # a noise scale of 32 samples
            noise = GradientNoise(batch_size=2, parts=16, points=points, trained_samples=1_000)
            return Attempt(outcome=Outcome.OK, payload=noise)
        fate = (
            self.fate(config)
            if request.part == "training"
            else self.fate(replace(config, num_workers=0, prefetch_factor=None, persistent_workers=False))
        )
        if fate is not Outcome.OK:
            self.time += 1.0
            self._session = self._cell = None
            return Attempt(outcome=fate, message=f"{fate} here")
        return self._probe(config) if request.part == "compute" else self._train(config, request)

    def _warm_up(self, config: Config, request: Request) -> None:
        """Pass the time of a new session and of a new cell."""
        cell = (config.batch_size, config.amp, config.intra_op_threads)
        on_cpu = self.world.device == "cpu"
        session = (
            config.intra_op_threads
            if on_cpu
            else (request.part, config.amp, config.batch_size if request.part == "training" else 0)
        )
        if session != self._session or request.fresh:
            self.time += 1.0 if on_cpu else 4.0
            self._cell = None
        if cell != self._cell and request.part != "loader":
            self.time += max(0.6, min(4.0, 10 * self.step(config)))
        self._session, self._cell = session, cell

    def _factor(self, spread: float) -> float:
        return math.exp(self._generator.gauss(0, spread))

    def _probe(self, config: Config) -> Attempt:
        world = self.world
        seconds = self.step(config) / world.optimism * self._factor(self.noise)
        on_cpu = world.device == "cpu"
        threads = config.intra_op_threads or world.cpus
        probe = ComputeProbe(
            samples_per_second=config.batch_size / seconds,
            first_step_seconds=seconds,
            host_seconds=seconds if on_cpu else world.launch * self._factor(0.2),
            cpu_seconds=seconds * threads * 0.9 if on_cpu else seconds,
            peak_memory_bytes=self.peak(config),
            memory="host" if on_cpu else "device",
            memory_limit_bytes=self.limit,
            host_memory_bytes=self.peak(config) if on_cpu else 3 * GIB,
        )
        return Attempt(outcome=Outcome.OK, payload=probe)

    def _check_numerics(self, config: Config, request: Request) -> Attempt:
        """Every precision is sound here; finding that takes four runs of up to twenty steps."""
        self.time += min(request.seconds, 80 * self.step(config))
        losses = (1.0,) * 20
        check = NumericsCheck(
            reference_losses=losses, other_losses=losses, losses=losses, overflows=(), settles=True, seconds=0.0
        )
        return Attempt(outcome=Outcome.OK, payload=check)

    def _trace(self, config: Config, request: Request) -> Attempt:
        world = self.world
        build = self.build(replace(config, num_workers=1, prefetch_factor=2)) * world.trace_error
        count = max(8, min(200, round(request.seconds / build)))
        self.time += 2.0 + min(4.0, count * build) + world.worker_start
        builds = tuple(max(0.2, self._generator.gauss(1, world.build_spread)) * build for _ in range(count))
        trace = LoaderTrace(
            batch_size=config.batch_size,
            build_seconds=builds,
            receive_seconds=(world.receive + config.batch_size * world.sample_bytes / 8e9) * self._factor(0.3),
            pin_seconds=0.0
            if world.device == "cpu"
            else config.batch_size * world.sample_bytes / world.pinning * self._factor(0.2),
            transfer_seconds=0.0 if world.device == "cpu" else config.batch_size * world.sample_bytes / world.bandwidth,
            cpu_seconds=build * world.cpu_share * self._factor(0.1),
            batch_bytes=config.batch_size * world.sample_bytes,
            start_seconds=world.worker_start,
            worker_memory_bytes=200 * 2**20,
            storage_share=0.0,
        )
        return Attempt(outcome=Outcome.OK, payload=trace)

    def _train(self, config: Config, request: Request) -> Attempt:
        true, step = self.rate(config), self.step(config)
        factor, is_suspect = self._factor(self.noise), False
        if self._generator.random() < self.disturbed:
            factor *= self._generator.uniform(0.6, 0.95)
            is_suspect = self._generator.random() < 0.5
        rate = true * factor
        hopeless = request.least_rate is not None and 1.05 * rate < request.least_rate
        window = max(
            request.seconds if self.noise > 0.05 else 1.0 if self.noise < 0.02 else 2.0, 60 * config.batch_size / true
        )
        window = min(request.seconds, window / 2 if hopeless else window)
        settle = min(
            request.seconds, 2 * config.num_workers * ((config.prefetch_factor or 0) + 1) * config.batch_size / true
        )
        self.time += config.num_workers * self.world.worker_start + self.build(config) + settle + window
        period = config.batch_size / rate
        compute = min(step, 0.98 * period)
        split = StepTime(
            data_wait=period - compute,
            host_to_device=0.0,
            forward=compute / 3,
            backward=2 * compute / 3,
            optimizer=0.0,
            other=0.0,
        )
        outcome = Outcome.SUSPECT if is_suspect else Outcome.OK
        measured = self._measurement(config, rate, step, split, hopeless)
        conditions = replace(QUIET, is_crowded=True, foreign_cpus=1.0) if is_suspect else QUIET
        return Attempt(outcome=outcome, payload=replace(measured, conditions=conditions))

    def _measurement(self, config: Config, rate: float, step: float, split: StepTime, hopeless: bool) -> Measurement:
        world = self.world
        ceiling = max(rate, config.batch_size / step * world.optimism * self._factor(self.noise))
        return Measurement(
            samples_per_second=rate,
            ci95=(rate * 0.98, rate * 1.02),
            steady_samples_per_second=rate,
            ceiling_samples_per_second=ceiling,
            steps=60,
            settling_steps=10,
            samples=60 * config.batch_size,
            seconds=60 * config.batch_size / rate,
            step_time=split,
            device_idle_share=None,
            first_batch_seconds=0.1,
            restart_seconds=None,
            persistence_gain=self.persistence_gain(config),
            epoch_samples=world.samples,
            peak_memory_bytes=self.peak(config),
            memory="host" if world.device == "cpu" else "device",
            memory_limit_bytes=self.limit,
            peak_allocated_bytes=None,
            host_memory_bytes=2 * GIB,
            shared_memory_bytes=0,
            worker_growth_bytes_per_sample=None,
            epoch_host_memory_bytes=None,
            ready_batches=0.0,
            conditions=QUIET,
            loss=1.0,
            stopped_early=hopeless,
        )


QUIET = Conditions(
    own_cpus=1.0,
    foreign_cpus=0.0,
    cpus=2,
    is_crowded=False,
    throttled_share=None,
    storage_share=None,
    worker_threads=None,
    gpu_utilisation=None,
    gpu_foreign_bytes=None,
    gpu_slowdowns=(),
    allocator_retries=0,
)
