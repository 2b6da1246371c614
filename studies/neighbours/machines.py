"""CPU machines made of formulas: what a step costs, with a true gain that is drawn."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from autotune.config import Config
from autotune.machine.host import Host
from autotune.records import WorkloadFacts
from autotune.search.space import Space
from tests import examples
from tests.simulated import StepCost, host, space_of

FAMILIES = ("nothing to gain", "loader", "batch", "threads")
"""What limits the baseline. With ``threads`` more of them gain little: beside a neighbour a single one is faster."""
MOST_GAIN = 0.6
BOUNDS: dict[str, Any] = {"batch_size": "32,64,128", "num_workers": "0,1,2,4", "prefetch_factor": 2}
"""A space of a few dozen configurations, so that a run takes well under a second."""
LITTLE = 1e-3
"""Seconds of building a sample, as a share of those of computing it, where the loader does not matter."""
HALVINGS = 40
"""Steps in which the part that decides the gain is found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Training on a CPU: seconds per sample, and what settings change of them."""

    cpus: int
    work: float
    """Seconds of computing a sample in one thread."""
    overhead: float = 0.0
    """Seconds of a step, however small its batch."""
    build: float
    """Seconds of building a sample."""
    scaling: float
    """Exponent of the speed of so many threads."""
    friction: float
    """Share of the step that each process beyond the CPUs costs."""

    def cost(self, config: Config) -> StepCost:
        """Return what a step costs."""
        threads, workers = config.intra_op_threads or self.cpus, config.num_workers
        compute = (self.overhead + self.work * config.batch_size) / threads**self.scaling
        build = self.build * config.batch_size
        if not workers:
            return StepCost(wait=build, compute=compute, cpus=threads)
        busy = min(1.0, build / compute)
        contention = self.friction * compute * max(0.0, threads + workers * busy - self.cpus) / self.cpus
        wait = max(0.0, build / workers - compute - contention)
        return StepCost(wait=wait, compute=compute, contention=contention, cpus=threads)

    def rate(self, config: Config) -> float:
        """Return the true samples per second."""
        return config.samples_per_step / self.cost(config).total


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A job on its machine, and what is there to gain."""

    family: str
    job: Job
    space: Space
    facts: WorkloadFacts
    host: Host

    @property
    def gain(self) -> float:
        """The best true gain over the baseline."""
        return gain(self.job, self.space)


def gain(job: Job, space: Space) -> float:
    """Return the best true gain over the baseline in a space, as a share."""
    return max(map(job.rate, space.configs)) / job.rate(space.base) - 1


def place(seed: int) -> Place:
    """Draw a job and its machine; each fourth has nothing to gain."""
    generator, family = random.Random(f"place {seed}"), FAMILIES[seed % len(FAMILIES)]
    cpus, wanted = generator.choice((2, 4)), generator.uniform(0.0, MOST_GAIN)
    facts = examples.facts(amp_modes=("off",), intra_op_threads=cpus, inter_op_threads=1, epoch_samples=None)
    space = space_of(facts, cpus, **BOUNDS)
    is_tempting = family == "threads"
    work = generator.uniform(1e-3, 4e-3)
    job = Job(
        cpus=cpus,
        work=work,
        build=LITTLE * work,
        scaling=generator.uniform(0.1, 0.4) if is_tempting else generator.uniform(0.6, 0.9),
        friction=generator.uniform(0.1, 0.5),
    )
    parts: dict[str, Callable[[float], Job]] = {
        "loader": lambda share: replace(job, build=share * job.work),
        "batch": lambda share: replace(job, overhead=100 * share * job.work),
        "threads": lambda share: replace(job, overhead=100 * share * job.work),
    }
    if family in parts and not (is_tempting and generator.random() < 0.5):
        job = _gaining(wanted, parts[family], space)
    return Place(family=family, job=job, space=space, facts=facts, host=host(cpus))


def _gaining(wanted: float, part: Callable[[float], Job], space: Space) -> Job:
    """Return the job whose gain is nearest to the wanted one, by halving."""
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if gain(part(middle), space) > wanted else (middle, high)
    return part(low)
