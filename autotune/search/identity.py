"""What a study belongs to: a workload on a machine, with these versions and settings. Pure.

Measurements of anything else must not be mixed in.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

from autotune.host import Host
from autotune.records import SCHEMA, WorkloadFacts
from autotune.search.space import Space

__all__ = ["Identity", "identify"]

LONGEST = 60
"""Characters of a value that are shown."""
IN_WORDS = {
    "workload": "another model, dataset or training code",
    "settings": "another baseline or other values to search",
    "records": "another version of autotune",
}
"""What is known by a hash or a number, and how a difference in it is called."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What a study belongs to."""

    parts: Mapping[str, str]
    """Name and value of everything that makes measurements comparable."""

    @property
    def name(self) -> str:
        """The name of such a study, without the number of the run."""
        return f"autotune-{hashlib.sha256(json.dumps(sorted(self.parts.items())).encode()).hexdigest()[:16]}"

    def differences(self, other: Mapping[str, object]) -> list[str]:
        """Say in what the parts of another study differ, such as "torch 2.12, here is 2.13"."""
        names = [name for name in self.parts if str(other.get(name)) != self.parts[name]]
        if "Python" in names and "workload" in names:
            names.remove("workload")  # its byte code is another, whether or not it was edited
        return [
            IN_WORDS.get(name) or f"{name} {str(other.get(name))[:LONGEST]}, here is {self.parts[name][:LONGEST]}"
            for name in names
        ]


def identify(facts: WorkloadFacts, host: Host, space: Space) -> Identity:
    """Return what a study over this space belongs to."""
    versions = {**host.versions, **facts.versions}
    return Identity(
        parts={
            "records": str(SCHEMA),
            "workload": facts.fingerprint,
            "bytes of a sample": str(facts.sample_bytes),
            "settings": space.fingerprint,
            "device": facts.device_name,
            **host.traits,
            "torch": versions.get("torch", "unknown"),
            "driver": versions.get("driver", "none"),
            "Python": ".".join(versions.get("python", "unknown").split(".")[:2]),
            "optuna": versions.get("optuna", "unknown").partition(".")[0],
            "autotune": versions.get("autotune", "unknown"),
        }
    )
