"""What was lost with the host that measured it: it tells nothing of a configuration, so that is asked for once more.

Pure. What is lost a second time is not asked for again: it may be what takes hosts down.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from autotune.config import Config
from autotune.records import Outcome, Probe, Trial

__all__ = ["FOR_GOOD", "MOST_LOSSES", "NO_OTHER", "owed", "settled", "settled_looks"]

MOST_LOSSES = 2
"""How often a configuration may be lost, a look, or whatever runs on a host, before it is given up."""
FOR_GOOD = "lost twice with its host, so it is not asked for a third time"
NO_OTHER = "lost with its host, and no other was there to take it over"
"""What is said of what would take down the last host, if it was asked for again there."""


def settled(records: Iterable[Trial]) -> tuple[Trial, ...]:
    """Return the records without those of a configuration's loss that is to be made good."""
    losses: Counter[Config] = Counter()
    found = []
    for record in records:
        losses[record.config] += record.outcome is Outcome.LOST
        if record.outcome is not Outcome.LOST or losses[record.config] >= MOST_LOSSES:
            found.append(record)
    return tuple(found)


def settled_looks(probes: Iterable[Probe]) -> tuple[Probe, ...]:
    """Return looks without those that are to be taken again."""
    losses: Counter[tuple[str, Config]] = Counter()
    found = []
    for probe in probes:
        losses[probe.part, probe.config] += probe.outcome is Outcome.LOST
        if probe.outcome is not Outcome.LOST or losses[probe.part, probe.config] >= MOST_LOSSES:
            found.append(probe)
    return tuple(found)


def owed(records: Iterable[Trial]) -> tuple[Trial, ...]:
    """Return the losses that are to be made good, the earliest first."""
    records = tuple(records)
    done = {record.config for record in settled(records)}
    return tuple(record for record in records if record.outcome is Outcome.LOST and record.config not in done)
