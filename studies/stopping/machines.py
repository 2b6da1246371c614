"""A second make of simulated machines: jumps, ridges and looks that are far off, in the first make's runner shell.

Written without a look at autotune's predictor. Steps take whole tiles, kernels change at thresholds, half precision
gains by steps, memory jumps, idle workers cost, and loading meets training at an edge or by a full queue's formula.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

from autotune.config import Config
from autotune.probes import ComputeProbe
from autotune.records import Attempt, Measurement, StepTime
from autotune.search.space import Space, build_space
from studies.simulated_machines.machines import GIB, Machine

FAMILIES = ("loader-bound GPU", "compute-bound GPU", "tiny steps", "CPU")
USUAL = Config(batch_size=32)
"""The baseline of a machine that is given none."""
PRECISIONS = ("off", "bf16", "fp16")

Steps = tuple[tuple[int, float], ...]
"""Factors of time or speed, each with the batch size from which it holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JaggedWorld:
    """The constants of one machine and workload."""

    family: str
    cpus: int
    device: str
    launch: float
    """Seconds that launching the kernels of a step takes the host."""
    fixed: float
    """Seconds of a step that nothing hides, such as the optimizer's."""
    waits: bool
    """Whether a step waits for its launches; else the longer of launches and work counts."""
    per_sample: float
    """Seconds of work for one sample in fp32, on the accelerator or on one thread."""
    tile: dict[str, int]
    """Samples that kernels of a precision take at once."""
    tiled: float
    """Share of the work that is done in whole tiles."""
    kernels: dict[str, Steps]
    """Factors on the time of the work, by precision."""
    gains: dict[str, Steps]
    """Factors on the speed of the work, by precision."""
    cores: int
    """CPUs with a core of their own; each of the others adds a quarter."""
    grain: int
    """Samples without which a further thread has nothing to do."""
    build_sample: float
    """Seconds of building one sample."""
    build_batch: float
    """Seconds of building a batch that do not depend on its size."""
    build_spread: float
    """Standard deviation of a batch's build time, relative to it."""
    cache: tuple[int, float]
    """Bytes of a batch from which building takes so many times as long."""
    cpu_share: float
    """Share of the build that computes; the rest waits for storage."""
    channels: int
    """Workers that storage serves at once."""
    is_hard: bool
    """Whether loading and training meet at an edge; else as server and queue do."""
    idle: float
    """Share by which each worker beyond need slows a step."""
    squeeze: float
    """Exponent of the slowing by more busy threads than CPUs."""
    receive: float
    """Seconds of receiving a batch from a worker, without its bytes."""
    sample_bytes: int
    bandwidth: float
    """Bytes per second from memory that is not pinned."""
    pinned_bandwidth: float
    """Bytes per second from pinned memory, hidden behind the step as far as that lasts."""
    pinning: float
    """Bytes per second that the pinning thread copies."""
    memory_limit: int
    memory_fixed: int
    memory_sample: int
    memory_share: dict[str, float]
    """Share of ``memory_sample``, by precision."""
    memory_jump: dict[str, tuple[int, float]]
    """Batch size from which the peak is larger by a share, by precision."""
    block: int
    """Bytes of which the allocator takes a whole number."""
    host_memory: int
    shm: int
    samples: int
    worker_start: float
    trace_error: float
    """Factor on the build times that looks at the loader report."""
    look_errors: dict[str, float]
    """Factor on the rates that looks at the step report, by precision."""
    optimism: ClassVar[float] = 1.0
    """The first make's factor, which the one by precision replaces."""


def draw_jagged(family: str, seed: int) -> JaggedWorld:
    """Draw a machine of a family."""
    generator = random.Random(f"jagged {family} {seed}")
    uniform, choice = generator.uniform, generator.choice

    def spread(low: float, high: float) -> float:
        return float(low * (high / low) ** generator.random())

    on_cpu = family == "CPU"
    cpus = choice((2, 3, 4, 6, 8, 12)) if on_cpu else choice((4, 6, 8, 12, 16, 24))
    work, build = {
        "loader-bound GPU": (spread(1e-4, 1e-3), spread(2e-3, 2e-2)),
        "compute-bound GPU": (spread(1.5e-3, 2.5e-2), spread(1e-3, 1e-2)),
        "tiny steps": (spread(1e-6, 4e-5), spread(4e-6, 2e-4)),
        "CPU": (spread(1e-3, 2e-2), spread(2e-4, 6e-3)),
    }[family]
    limit = choice((6, 11, 16, 24, 48, 80)) * GIB
    fixed = spread(0.3, 3) * GIB if on_cpu else limit * uniform(0.05, 0.35)
    sample = spread(2e5, 1e7) if on_cpu else (limit - fixed) / spread(70, 4000)

    def kernels() -> Steps:
        sizes = sorted(generator.sample((12, 16, 24, 48, 64, 96, 128, 200, 256, 384, 512, 768), choice((2, 3, 4))))
        return ((0, 1.0), *((size, uniform(0.85, 1.15)) for size in sizes))

    def gains(low: float, high: float) -> Steps:
        first, top = round(spread(6, 48)), uniform(low, high)
        second = round(first * spread(2, 8))
        return ((0, uniform(0.8, 1.1)), (first, 1 + uniform(0.3, 0.7) * (top - 1)), (second, top))

    off = choice((False,) * 6 + (True,))  # a look at the step that is far off
    low, high = (-0.1, 0.26) if off else (-0.1, 0.1)
    is_narrow = generator.random() < 0.5
    return JaggedWorld(
        family=family,
        cpus=cpus,
        device="cpu" if on_cpu else "cuda:0",
        launch=spread(1e-3, 2.5e-2) if not on_cpu else spread(3e-4, 5e-3),
        fixed=spread(2e-4, 5e-3),
        waits=generator.random() < 0.4,
        per_sample=work,
        tile={precision: choice((4, 6, 10, 16, 20, 24, 28, 36, 54, 66, 80)) for precision in PRECISIONS},
        tiled=uniform(0.1, 0.7),
        kernels={precision: kernels() for precision in PRECISIONS},
        gains={
            "off": ((0, 1.0),),
            "bf16": gains(0.7, 1.8) if on_cpu else gains(1.2, 3.2),
            "fp16": gains(1.0, 3.2),
        },
        cores=math.ceil(cpus / 2) if generator.random() < 0.5 else cpus,
        grain=choice((1, 2, 4, 8)),
        build_sample=build,
        build_batch=spread(5e-5, 4e-3),
        build_spread=uniform(0.05, 0.5),
        cache=(round(spread(2**20, 2**28)), uniform(1.0, 1.25)),
        cpu_share=uniform(0.3, 1.0),
        channels=choice((2, 3, 5, 7)) if generator.random() < 0.25 else 64,
        is_hard=generator.random() < 0.5,
        idle=uniform(0.05, 0.15) if is_narrow else uniform(0.005, 0.03),
        squeeze=uniform(1.0, 1.8),
        receive=spread(1e-4, 3e-3),
        sample_bytes=round(spread(1e3, 1.2e6)),
        bandwidth=uniform(1.5e9, 8e9),
        pinned_bandwidth=uniform(6e9, 2.4e10),
        pinning=uniform(1.5e9, 9e9),
        memory_limit=limit,
        memory_fixed=round(fixed),
        memory_sample=round(sample),
        memory_share={"off": 1.0, "bf16": uniform(0.5, 0.95), "fp16": uniform(0.5, 0.95)},
        memory_jump={precision: (round(spread(40, 900)), uniform(0.0, 0.25)) for precision in PRECISIONS},
        block=round(limit * choice((0.002, 0.01, 0.03))) if not on_cpu else 2**21,
        host_memory=choice((16, 32, 64)) * GIB,
        shm=choice((64 * 2**20, GIB)) if generator.random() < 0.15 else 8 * GIB,
        samples=round(spread(4e4, 2e6)),
        worker_start=spread(0.005, 0.12),
        trace_error=math.exp(uniform(-0.3, 0.26)),
        look_errors={precision: math.exp(generator.triangular(low, high, 0.05)) for precision in PRECISIONS},
    )


def at(steps: Steps, batch: int) -> float:
    """Return the factor that holds for a batch size."""
    return steps[bisect_right(steps, batch, key=lambda step: step[0]) - 1][1]


@dataclass(kw_only=True)
class Jagged(Machine):
    """A runner over a jagged world, with any baseline."""

    world: JaggedWorld  # type: ignore[assignment]
    baseline: Config = USUAL

    @cached_property
    def space(self) -> Space:
        return build_space(self.facts, self.world.cpus, self.baseline, {})

    @cached_property
    def safe(self) -> dict[Config, float]:
        """True rates of all configurations that run and leave free what must be."""
        return {config: self.rate(config) for config in self.space.configs if self.is_safe(config)}

    @cached_property
    def optimum(self) -> float:
        return max(self.safe.values())

    def step(self, config: Config) -> float:
        world, batch, amp = self.world, config.batch_size, config.amp
        tile = world.tile[amp]
        amount = (1 - world.tiled) * batch + world.tiled * tile * math.ceil(batch / tile)
        work = amount * world.per_sample * at(world.kernels[amp], batch) / at(world.gains[amp], batch)
        if world.device == "cpu":
            threads = config.intra_op_threads or world.cpus
            useful = min(threads, math.ceil(batch / world.grain))
            work /= min(useful, world.cores) + max(0, useful - world.cores) / 4
            work *= 1 + 0.02 * (threads - 1)
        launch = world.launch * (1.0 if amp == "off" else 1.1)
        return world.fixed + (launch + work if world.waits else max(launch, work))

    def build(self, config: Config) -> float:
        world, batch = self.world, config.batch_size
        size, factor = world.cache
        return (world.build_batch + batch * world.build_sample) * (
            factor if batch * world.sample_bytes >= size else 1.0
        )

    def rate(self, config: Config) -> float:
        world, batch, workers = self.world, config.batch_size, config.num_workers
        amount, on_cpu = batch * world.sample_bytes, world.device == "cpu"
        step, build, copy = self.step(config), self.build(config), 0.0
        if not on_cpu and config.pin_memory:
            copy = max(0.0, amount / world.pinned_bandwidth - (step if workers else 0.0))
        elif not on_cpu:
            copy = amount / world.bandwidth
        if not workers:
            pinning = amount / world.pinning if config.pin_memory else 0.0
            hidden = 0.0 if on_cpu or world.waits else min(step, build) / 2  # kernels run on while the host builds
            return batch / (step + build + pinning + copy - hidden)
        receive = world.receive + amount / 1e10
        period = step + receive + copy
        each = build / workers * (1 + (1 - world.cpu_share) * max(0, workers - world.channels) / world.channels)
        need = build / period  # workers that would just do
        idle = max(0.0, workers - need - 0.5)
        own = (config.intra_op_threads or world.cpus) if on_cpu else 1.0 + 0.3 * config.pin_memory
        crowd = max(1.0, (own + min(workers, need + 0.5) * world.cpu_share) / world.cpus) ** world.squeeze
        period = (step * crowd if on_cpu else step + 0.5 * world.launch * (crowd - 1)) + receive + copy
        period *= 1 + world.idle * min(idle, 6.0)
        each *= crowd if on_cpu else max(1.0, (own + workers * world.cpu_share) / world.cpus) ** world.squeeze
        if config.pin_memory:
            each = max(each, amount / world.pinning)
        longest = max(each, period)
        if not world.is_hard:
            places = 1 + workers * (config.prefetch_factor or 1)
            longest = period / full_queue(period / each, places)
        restart = build + (0.0 if config.persistent_workers else workers * world.worker_start)
        return float(world.samples / (world.samples / batch * longest + restart))

    def peak(self, config: Config) -> int:
        world, batch = self.world, config.batch_size
        first, more = world.memory_jump[config.amp]
        peak = world.memory_fixed + batch * world.memory_sample * world.memory_share[config.amp]
        peak *= 1 + more if batch >= first else 1.0
        return world.block * math.ceil(peak / world.block)

    def close(self) -> None:
        self._session = self._cell = None

    # what looks and training report

    def _probe(self, config: Config) -> Attempt:
        attempt = super()._probe(config)
        assert isinstance(attempt.payload, ComputeProbe)
        rate = attempt.payload.samples_per_second * self.world.look_errors[config.amp]
        return replace(attempt, payload=replace(attempt.payload, samples_per_second=rate))

    def _measurement(self, config: Config, rate: float, step: float, split: StepTime, hopeless: bool) -> Measurement:
        measured = super()._measurement(config, rate, step, split, hopeless)
        ceiling = config.batch_size / step * self.world.look_errors[config.amp] * self._factor(self.noise)
        gain, restart = None, self.build(config)
        if config.num_workers:
            kept, new = (self.rate(replace(config, persistent_workers=keeps)) for keeps in (True, False))
            gain, restart = kept / new - 1, restart + config.num_workers * self.world.worker_start
        return replace(
            measured,
            ceiling_samples_per_second=max(rate, ceiling),
            persistence_gain=gain,
            restart_seconds=self.build(config) if config.persistent_workers else restart,
        )


def full_queue(load: float, places: int) -> float:
    """Return the share of its time that a server works, fed by arrivals of this load into so many places."""
    if abs(load - 1) < 1e-9:
        return places / (places + 1)
    if load > 1:
        load = 1 / load
        return (1 - load**places) / (1 - load ** (places + 1))
    return load * (1 - load**places) / (1 - load ** (places + 1))


def usual(family: str, seed: int, noise: float) -> Jagged:
    """Return a machine whose baseline is the usual one."""
    return Jagged(world=draw_jagged(family, seed), noise=noise, seed=seed)


def at_optimum(family: str, seed: int, noise: float) -> Jagged:
    """Return a machine whose baseline is the fastest safe configuration of its own space."""
    machine = usual(family, seed, noise)
    while max(machine.safe, key=machine.safe.__getitem__) != machine.baseline:
        best = max(machine.safe, key=machine.safe.__getitem__)
        machine = replace(machine, baseline=best)
    return machine


def below(family: str, seed: int, noise: float, least: float, most: float) -> Jagged | None:
    """Return a machine whose baseline, drawn by its seed, leaves such a share to gain; ``None`` where none does."""
    machine, generator = usual(family, seed, noise), random.Random(f"baseline {family} {seed}")
    fitting = [config for config, rate in machine.safe.items() if least <= machine.optimum / rate - 1 <= most]
    generator.shuffle(fitting)
    for config in fitting:
        found = replace(machine, baseline=config)
        if config in found.safe and least <= found.optimum / found.rate(config) - 1 <= most:
            return found
    return None
