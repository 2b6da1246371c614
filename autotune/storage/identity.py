"""The identity of a study: everything that makes its measurements comparable."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

from autotune.machine.host import Host
from autotune.records import SCHEMA, WorkloadFacts

LONGEST = 60
"""Characters of a value that are shown."""
IN_WORDS = {
    "workload": "another model, dataset or training code",
    "settings": "another baseline or other values to search",
    "records": "another version of autotune",
}
"""Parts known by a hash or a number, and the words for a difference in them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The identity of a study."""

    parts: Mapping[str, str]
    """Name and value of everything that makes measurements comparable."""

    @property
    def name(self) -> str:
        """The name of the study."""
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


def identify(facts: WorkloadFacts, host: Host, settings: str) -> Identity:
    """Return the identity of a study; ``settings`` is the fingerprint of its space."""
    versions = {**host.versions, **facts.versions}
    return Identity(
        parts={
            "records": str(SCHEMA),
            "workload": facts.fingerprint,
            "settings": settings,
            "device": facts.device_name,
            **host.traits,
            "torch": versions.get("torch", "unknown"),
            "driver": versions.get("driver", "none"),
            "Python": ".".join(versions.get("python", "unknown").split(".")[:2]),
            "optuna": versions.get("optuna", "unknown").partition(".")[0],
            "autotune": versions.get("autotune", "unknown"),
        }
    )
