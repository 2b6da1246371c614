"""A machine made of formulas: it stands behind the runner's protocol and drives the real search code."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from statistics import fmean
from typing import Any

from autotune.config import Config
from autotune.limits import DEFAULT_MEMORY_LIMIT, Budget
from autotune.machine.host import Host
from autotune.measure.conditions import FOREIGN_SHARE, FULL_SHARE
from autotune.measure.loader import GOLDEN
from autotune.messages import Messages, Progress
from autotune.outcome import Outcome
from autotune.probes import FirstLosses, GradientNoise, NumericsCheck
from autotune.proof import Proof, follow
from autotune.records import Attempt, Conditions, Measurement, Request, Runner, StepTime, Trial, WorkloadFacts
from autotune.search.agenda import Prove, Settle
from autotune.search.run import Stop
from autotune.search.setup import Setup
from autotune.search.space import Space, build_space
from autotune.search.study import TuningStudy
from autotune.search.tuner import Tuner
from autotune.settings import parse_knobs
from tests import examples


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCost:
    wait: float = 0.0
    """For the next batch."""
    compute: float
    """On a batch that is already there, nothing else running."""
    contention: float = 0.0
    """What loader workers take from the step by using its CPUs."""
    cpus: float = 1.0
    """CPUs that computing keeps busy, not in seconds."""

    @property
    def total(self) -> float:
        return self.wait + self.compute + self.contention


WAVE = 40
LOST_ALONE, LOST_TOGETHER = 0.15, 0.45
"""Share of its rate that a configuration on one CPU, and on several, loses to neighbours on half of the CPUs."""
SEVERAL = 1.5
"""CPUs in use from which they count as several."""
MOMENTS = 20
"""Moments at which a measurement looks for neighbours."""
STAYS, PAUSES = (20.0, 120.0), (20.0, 90.0)
"""Bounds of the seconds for which neighbours stay, and stay away."""
MANY = 30
"""Visits of neighbours: they fill twenty minutes at least."""
COMPUTING = 0.2
"""Share of the time of building a batch in which it computes."""


def visits(seed: int, cpus: int) -> Callable[[float], float]:
    """Neighbours that come and go, and take half of the CPUs."""
    generator = random.Random(f"neighbours {seed}")
    before = generator.uniform(0.0, PAUSES[1])
    ends = list(accumulate(generator.uniform(*bounds) for _ in range(MANY) for bounds in (PAUSES, STAYS)))
    stays = [(begin - before, end - before) for begin, end in zip(ends[::2], ends[1::2], strict=True)]
    return lambda time: cpus / 2 if any(begin <= time < end for begin, end in stays) else 0.0


def each_third(times: float) -> Callable[[int], float]:
    return lambda look: times if look % 3 == 0 else 1.0


@dataclass(kw_only=True)
class SimulatedMachine:
    """A ``Runner`` whose rates follow from ``cost``; time passes on its own clock only."""

    cost: Callable[[Config], StepCost]
    fails: Callable[[Config], Outcome | None] = lambda config: None
    """The outcome of a configuration that fails, or that is suspect."""
    fails_fresh: Callable[[Config], Outcome | None] = lambda config: None
    noise: float = 0.0
    """Standard deviation of the logarithm of each measured rate."""
    gradients: GradientNoise = field(default_factory=examples.gradient_noise)
    """Look at the noise of the gradients."""
    drift: float = 0.0
    """Amplitude of the logarithm of a wave in the machine's speed that is so many measurements long: ``WAVE``."""
    persistence_gain: float | None = None
    """What keeping the workers alive gains, as each measurement says it."""
    neighbour: Callable[[float], float] = lambda time: 0.0
    """CPUs that others take, by the seconds since the start."""
    stall: Callable[[int], float] = lambda look: 1.0
    """How many times too slow a look at the step or the loader is, by its number, from 1; nothing else shows it."""
    cpus: int = 2
    opening: float = 0.0
    """Seconds that a fresh process takes before it measures."""
    by_place: Callable[[Config, float], float] = lambda config, place: 1.0
    """How many times as long a sample takes in a part of the epoch, by the place where a measurement begins."""
    beginning_samples: int | None = None
    """What each measurement says to have seen of an iterable dataset."""
    shards: int | None = None
    """Shards of an iterable dataset: as many workers get data."""
    seed: int = 0
    seconds: float = 2.0
    interrupt_at: int | None = None
    """The call, counted from 1, during which the user presses Ctrl-C."""
    calls: list[tuple[Config, Request]] = field(default_factory=list)
    looks: list[tuple[Config, Request]] = field(default_factory=list)
    peak: Callable[[Config], int] = lambda config: 2**29
    losses: Callable[[Config], tuple[float, ...]] | None = None
    """The first losses of a script that is started with a configuration; ``None`` where it ends before."""
    numerics: Callable[[str], NumericsCheck] = lambda amp: examples.numerics_check()
    """What a precision does to the losses."""
    time: float = 0.0
    closed: int = 0

    def __post_init__(self) -> None:
        self._generator = random.Random(self.seed)
        self._phase = self._generator.uniform(0, 2 * math.pi)

    def now(self) -> float:
        return self.time

    def close(self) -> None:
        self.closed += 1

    def rate(self, config: Config) -> float:
        return config.samples_per_step / self.cost(config).total

    def best(self, space: Space) -> float:
        """The highest true rate within the bounds among configurations that do not fail."""
        return max(self.rate(config) for config in space.configs if self.fails(config) is None)

    def measure(self, config: Config, request: Request) -> Attempt:
        if request.part != "training":
            return self._look(config, request)
        self.calls.append((config, request))
        if len(self.calls) == self.interrupt_at:
            raise KeyboardInterrupt
        opening = self.opening if request.fresh else 0.0
        self.time += opening + self.seconds
        outcome = (self.fails_fresh(config) if request.fresh else None) or self.fails(config) or Outcome.OK
        seconds = opening + self.seconds
        if outcome not in (Outcome.OK, Outcome.SUSPECT):
            return Attempt(outcome=outcome, message=f"{outcome} here", details="its traceback", seconds=seconds)
        place = (request.seed or 0) * GOLDEN % 1.0
        measured = self._measurement(config, place, is_disturbed=outcome is Outcome.SUSPECT)
        if disturbances := measured.conditions.disturbances:
            return Attempt(outcome=Outcome.SUSPECT, payload=measured, message="; ".join(disturbances), seconds=seconds)
        return Attempt(outcome=outcome, payload=measured, seconds=seconds)

    def _look(self, config: Config, request: Request) -> Attempt:
        self.looks.append((config, request))
        if request.part == "losses" and self.losses is None:
            return Attempt(outcome=Outcome.USER_ERROR, message="it ends")
        self.time += self.seconds / 4
        outcome = self.fails(config)
        if outcome not in (None, Outcome.SUSPECT):
            return Attempt(outcome=outcome, message=f"{outcome} here", seconds=self.seconds / 4)
        if request.part == "numerics":
            return Attempt(outcome=Outcome.OK, payload=self.numerics(config.amp), seconds=self.seconds / 4)
        if request.part == "noise":
            return Attempt(outcome=Outcome.OK, payload=self.gradients, seconds=self.seconds / 4)
        if request.part == "losses" and self.losses:
            return Attempt(outcome=Outcome.OK, payload=FirstLosses(losses=self.losses(config)))
        slower = self.stall(len(self.looks))
        return self._look_at_step(config, slower) if request.part == "compute" else self._look_at_loader(config, slower)

    def _look_at_step(self, config: Config, slower: float) -> Attempt:
        cost, used = self.cost(config), self.cost(config).cpus
        taken = self._taken(self.seconds / 4)
        slower /= self._kept(used, taken)
        compute = examples.compute_probe(
            samples_per_second=config.samples_per_step / (cost.compute * slower),
            first_step_seconds=cost.compute * slower,
            host_seconds=cost.compute * slower,
            cpu_seconds=cost.compute * slower * cost.cpus,
            peak_memory_bytes=self.peak(config),
            host_memory_bytes=self.peak(config),
            taken_share=(conditions := self._conditions(used, taken)).taken_share,
        )
        disturbances = conditions.disturbances
        outcome = Outcome.SUSPECT if disturbances else Outcome.OK
        return Attempt(outcome=outcome, payload=compute, message="; ".join(disturbances), seconds=self.seconds / 4)

    def _look_at_loader(self, config: Config, slower: float) -> Attempt:
        build, taken = self._build(config), self._taken(self.seconds / 4)
        conditions = self._conditions(1.0, taken)
        loader = examples.loader_trace(
            batch_size=config.batch_size,
            build_seconds=(build * slower / self._kept(1.0, taken),) * 20,
            cpu_seconds=COMPUTING * build,
            taken_share=conditions.taken_share,
        )
        outcome = Outcome.SUSPECT if conditions.disturbances else Outcome.OK
        return Attempt(outcome=outcome, payload=loader, seconds=self.seconds / 4)

    def _build(self, config: Config) -> float:
        return self.cost(replace(config, num_workers=0, prefetch_factor=None, persistent_workers=False)).wait

    def used(self, config: Config) -> float:
        cost = self.cost(config)
        return (cost.cpus * (cost.compute + cost.contention) + COMPUTING * self._build(config)) / cost.total

    def beside(self, config: Config, taken: float) -> StepCost:
        """What a step costs while others take so many CPUs: waiting is that of one thread."""
        cost = self.cost(config)
        workers = COMPUTING * self._build(config) / cost.total if config.num_workers else 0.0
        waiting, computing = self._kept(1.0, taken), self._kept(cost.cpus + workers, taken)
        wait, compute, contention = cost.wait / waiting, cost.compute / computing, cost.contention / computing
        return replace(cost, wait=wait, compute=compute, contention=contention)

    def _taken(self, seconds: float) -> float:
        begin = self.time - seconds
        return fmean(self.neighbour(begin + (moment + 0.5) * seconds / MOMENTS) for moment in range(MOMENTS))

    def _kept(self, used: float, taken: float) -> float:
        lost = LOST_TOGETHER if used >= SEVERAL else LOST_ALONE
        return 1 - lost * taken / (self.cpus / 2)

    def _conditions(self, used: float, taken: float) -> Conditions:
        """Return the conditions as the system's counters would show them."""
        own = min(used, self.cpus - taken)
        is_crowded = taken > FOREIGN_SHARE * self.cpus and own + taken > FULL_SHARE * self.cpus
        return examples.conditions(own_cpus=own, foreign_cpus=taken, cpus=self.cpus, is_crowded=is_crowded)

    def _measurement(self, config: Config, place: float, *, is_disturbed: bool) -> Measurement:
        drift = self.drift * math.sin(self._phase + 2 * math.pi * len(self.calls) / WAVE)
        speed = math.exp(drift + self._generator.gauss(0, self.noise))
        factor = speed / self.by_place(config, place)
        taken = self._taken(self.seconds)
        cost = self.beside(config, taken)
        rate = config.samples_per_step / cost.total * factor
        idle = max(0, config.num_workers - (self.shards or config.num_workers))
        split = StepTime(
            data_wait=cost.wait,
            host_to_device=0.0,
            forward=cost.compute / 3,
            backward=cost.compute * 2 / 3,
            optimizer=0.0,
            other=cost.contention,
        )
        conditions = examples.conditions(is_crowded=is_disturbed, foreign_cpus=float(is_disturbed))
        return examples.measurement(
            samples_per_second=rate,
            ci95=(rate * 0.99, rate * 1.01),
            steady_samples_per_second=rate,
            ceiling_samples_per_second=max(rate, config.samples_per_step / cost.compute * speed),
            step_time=split,
            peak_memory_bytes=self.peak(config),
            host_memory_bytes=self.peak(config),
            persistence_gain=self.persistence_gain if config.num_workers else None,
            beginning_samples=self.beginning_samples,
            idle_workers=idle,
            is_uneven=idle > 0,
            epoch_samples=None,
            conditions=self._conditions(self.used(config), taken) if taken else conditions,
        )


def equal_everywhere(config: Config) -> StepCost:
    """No setting matters: 1000 samples per second."""
    return StepCost(compute=config.batch_size / 1000)


def loader_bound(config: Config) -> StepCost:
    """Building a sample takes ten times as long as training on it."""
    build, compute = 1e-3 * config.batch_size, 1e-4 * config.batch_size
    wait = max(0.0, build / config.num_workers - compute) if config.num_workers else build
    return StepCost(wait=wait, compute=compute)


def larger_batches_pay(config: Config) -> StepCost:
    """Each step costs 10 ms however small the batch; samples come for nothing."""
    return StepCost(compute=0.010 + 2e-5 * config.batch_size)


def four_shared_cores(config: Config) -> StepCost:
    """Training on a CPU of 4 cores: workers take cores from the operators' threads."""
    threads = config.intra_op_threads or 4
    build, work = 1e-3 * config.batch_size, 2e-3 * config.batch_size
    compute = work / threads
    if not config.num_workers:
        return StepCost(wait=build, compute=compute)
    crowd = max(0, threads + config.num_workers - 4)
    contention = 0.5 * compute * crowd
    return StepCost(
        wait=max(0.0, build / config.num_workers - compute - contention),
        compute=compute,
        contention=contention,
    )


def gpu_facts(**changes: Any) -> WorkloadFacts:
    return examples.facts(
        **{"device": "cuda:0", "device_name": "a GPU", "amp_modes": ("off", "bf16", "fp16"), **changes}
    )


FEW: dict[str, Any] = {"batch_size": "32,128,512", "num_workers": "0,2,4,8", "prefetch_factor": 2}
"""Bounds of about a hundred configurations: a forecast over the 2,400 of a default space takes twenty times as long."""


def space_of(
    facts: WorkloadFacts,
    cpus: int = 8,
    baseline: Config = examples.BASELINE,
    options: tuple[str, ...] = (),
    **given: Any,
) -> Space:
    return build_space(facts, cpus, baseline, parse_knobs(given), options=options)


def few_of(facts: WorkloadFacts, cpus: int = 8, baseline: Config = examples.BASELINE, **given: Any) -> Space:
    return space_of(facts, cpus, baseline, **(FEW | given))


def host(cpus: int = 8) -> Host:
    return examples.host(cpus=cpus, affinity_cpus=cpus)


def tuner_of(
    machine: SimulatedMachine,
    space: Space,
    facts: WorkloadFacts,
    host: Host,
    budget: float = 180.0,
    tell: Callable[[Progress], object] = lambda progress: None,
    **plan: Any,
) -> Tuner:
    """A tuner of a simulated machine, by its clock."""
    time = Budget(budget, machine.now)
    setup = Setup(space=space, facts=facts, host=host, memory_limit=plan.pop("memory_limit", DEFAULT_MEMORY_LIMIT))
    return Tuner(machine, setup, time, Messages(time, tell), **plan)


def measured(
    runner: Any,
    proof: Proof,
    baseline: Config,
    left: Callable[[int], float] = lambda rounds: math.inf,
    history: Sequence[Trial] = (),
    seconds: float = 1.0,
) -> list[Trial]:
    """The trials of a proof in which a runner takes the turns; ``left`` are the seconds left after so many rounds."""
    trials, names = list(history), dict[str, None]()
    while turn := follow(proof, baseline, trials, left(len(names))):
        names[turn.round] = None
        attempt = runner.measure(turn.config, Request(seconds=seconds, fresh=True, seed=turn.seed))
        trials.append(turn.trial(attempt, len(trials)))
    return trials


def search_only(
    machine: Runner, study: TuningStudy, time: Budget, messages: Messages | None = None, **plan: Any
) -> Stop:
    """Search without a proof, and return why the search ended."""
    tuner = Tuner(machine, study.setup, time, messages or Messages(time), **plan)
    return searched(tuner, study)


def searched(tuner: Tuner, study: TuningStudy) -> Stop:
    """Take the steps of a run up to its first proof, and return why the search ended."""
    while not isinstance(step := tuner.next(study), Prove | Settle | Stop):
        tuner.take(study, step)
    return step if isinstance(step, Stop) else step.stop
