"""The subject of a study: workload, machine, memory, and the space of configurations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from optuna.distributions import CategoricalDistribution, IntDistribution
from optuna.samplers import BaseSampler, PartialFixedSampler
from optuna.study import Study

from autotune.config import Config
from autotune.encoding import from_json, to_json
from autotune.limits import DEFAULT_MEMORY_LIMIT, MemoryLimit
from autotune.machine.host import Host
from autotune.records import WorkloadFacts
from autotune.search.space import Space

SETUP = "autotune:setup"
"""System attribute of a study: workload, machine, memory and space."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The subject of a study."""

    space: Space
    facts: WorkloadFacts
    host: Host
    memory_limit: MemoryLimit = DEFAULT_MEMORY_LIMIT

    def settings(self, config: Config) -> dict[str, Any]:
        """Return the parameters of a configuration; torch's own number of threads as the number that it is."""
        settings = self.space.settings(config)
        return {**settings, "threads": settings["threads"] or self.facts.intra_op_threads}

    def config(self, settings: Mapping[str, Any]) -> Config:
        """Return the configuration of parameters. Raises ``KeyError`` where one is missing."""
        known = settings["threads"] if settings["threads"] in self.space.values["threads"] else None
        return self.space.at({**settings, "threads": known})

    @property
    def distributions(self) -> dict[str, IntDistribution | CategoricalDistribution]:
        """The distribution of every parameter; numbers that lie unevenly are choices, so that none between is drawn."""
        own = tuple(count or self.facts.intra_op_threads for count in self.space.values["threads"])
        found = {knob: distribution(values) for knob, values in {**self.space.values, "threads": own}.items()}
        return found | {"persistent_workers": CategoricalDistribution((False, True))}  # an answer may have either

    def fixed(self, sampler: BaseSampler) -> BaseSampler:
        """Return a sampler that leaves alone the parameters of which the user allows one value."""
        allowed = {knob: values[0] for knob, values in self.space.allowed.items() if len(values) == 1}
        own = {"threads": allowed["threads"] or self.facts.intra_op_threads} if "threads" in allowed else {}
        return PartialFixedSampler({**allowed, **own}, sampler)

    def write(self, study: Study) -> None:
        """Write the setup to a study."""
        parts = {name: to_json(getattr(self, name)) for name in ("facts", "host", "memory_limit")}
        study._storage.set_study_system_attr(study._study_id, SETUP, {**parts, "space": self.space.to_document()})

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Setup:
        """Return the setup that a study holds. Raises ``ValueError`` where it is damaged."""
        return cls(
            facts=from_json(WorkloadFacts, document["facts"]),
            host=from_json(Host, document["host"]),
            memory_limit=from_json(MemoryLimit, document["memory_limit"]),
            space=Space.from_document(document["space"]),
        )


def distribution(values: tuple[Any, ...]) -> IntDistribution | CategoricalDistribution:
    """Return the distribution of a parameter with these values, in order."""
    are_numbers = all(isinstance(value, int) and not isinstance(value, bool) for value in values)
    steps = {later - value for value, later in pairwise(values)} if are_numbers else set()
    if len(steps) == 1:
        return IntDistribution(values[0], values[-1], step=steps.pop())
    return CategoricalDistribution(values)
