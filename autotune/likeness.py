"""Which hosts are so much alike that what was measured on one holds on the others. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autotune.host import Host
from autotune.records import WorkloadFacts
from autotune.room import format_size

__all__ = ["Described", "difference", "largest_group"]

MEMORY_TOLERANCE = 0.02
"""Share by which the memory of two hosts may differ: what firmware and kernel take is not the same everywhere."""
MEMORIES = {"memory_bytes": "memory", "shm_bytes": "shared memory"}
OF_GPUS = ("GPUs", "driver")
"""What does not matter where training runs on the CPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """A host, and what the workload is there."""

    name: str
    """What the user calls it."""
    host: Host
    """The machine."""
    facts: WorkloadFacts
    """The workload as it was loaded there."""


def difference(one: Described, other: Described) -> str | None:
    """Say in what the first host differs from the second, such as "torch 2.12, node-a has 2.13"; ``None`` if alike."""
    own, others = _traits(one), _traits(other)
    found = [f"{name} {own[name]}, {other.name} has {others[name]}" for name in own if own[name] != others[name]]
    if one.facts.fingerprint != other.facts.fingerprint:
        found.append(f"its model, dataset or training code is not that of {other.name}")
    for what in ("memory_bytes", "shm_bytes"):
        here, there = getattr(one.host, what) or 0, getattr(other.host, what) or 0
        if abs(here - there) > MEMORY_TOLERANCE * max(here, there):
            found.append(f"{MEMORIES[what]} {format_size(here)}, {other.name} has {format_size(there)}")
    return "; ".join(found) or None


def largest_group(hosts: Sequence[Described], own: str | None = None) -> tuple[tuple[Described, ...], dict[str, str]]:
    """Return the largest group of hosts that are like its first, and why each of the others is left out.

    Of groups as large the one with the tuner's ``own`` host counts, then the one that was described first.
    """
    groups = [
        [one, *(other for other in hosts if other is not one and difference(other, one) is None)] for one in hosts
    ]
    group = max(groups, key=lambda group: (len(group), any(each.name == own for each in group)))
    others = [host for host in hosts if host not in group]
    return tuple(group), {other.name: difference(other, group[0]) or "" for other in others}


def _traits(described: Described) -> dict[str, str]:
    """Return what must be equal, by name."""
    host, facts = described.host, described.facts
    versions = {**host.versions, **facts.versions}
    traits = {
        "device": facts.device_name,
        **host.traits,
        "torch": versions.get("torch", "unknown"),
        "driver": versions.get("driver", "none"),
        "Python": ".".join(versions.get("python", "unknown").split(".")[:2]),
        "autotune": versions.get("autotune", "unknown"),
        "bytes of a sample": str(facts.sample_bytes),
        "torch's own threads": str(facts.intra_op_threads),
    }
    del traits["memory"]
    for name in OF_GPUS if facts.device == "cpu" else ():
        del traits[name]
    return traits
