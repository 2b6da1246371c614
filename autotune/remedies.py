"""Remedies for training that waits for data, tried: each measured by turns with the present way."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from autotune.comparison import Side, in_rounds
from autotune.config import Config
from autotune.diagnosis.findings import Diagnosis, Remedy
from autotune.errors import NothingFeasibleError
from autotune.limits import Budget, format_size
from autotune.machine.host import MemoryMeter
from autotune.messages import Messages, Progress
from autotune.probes import LoaderTrace, StoredItems
from autotune.records import Attempt, RemedyName, Request, Runner

STORE_SECONDS = 5.0
"""Seconds for which items are stored."""
REMEDY_SECONDS = 45.0
"""Seconds for a remedy and the present way."""
KEPT = "the dataset keeps what it has read: compared are later epochs"
NAMES: tuple[RemedyName, ...] = ("stored", "in-memory", "on-device")


@dataclass(frozen=True, slots=True)
class _WithRemedy:
    """A runner whose measurements have a remedy."""

    runner: Runner
    fields: Mapping[str, Any]

    def measure(self, config: Config, request: Request) -> Attempt:
        return self.runner.measure(config, replace(request, **self.fields))

    def close(self) -> None:
        self.runner.close()


def tried(runner: Runner, found: Diagnosis, loader: LoaderTrace | None, messages: Messages) -> Iterator[Remedy]:
    """Yield each remedy with its gain, or with the reason why it was not measured."""
    is_kept = loader is not None and loader.is_own_cache
    messages.show(Progress(phase="probe", running=found.config))
    request = Request(seconds=STORE_SECONDS, part="store", store="items", fresh=True)
    attempt = runner.measure(found.config, request)
    for name in NAMES[: 2 if found.facts.device == "cpu" else 3]:
        time = Budget(REMEDY_SECONDS)
        remedy = Remedy(name=name, reason=attempt.message)
        yield _measured(runner, found, remedy, attempt.store, messages, time, is_kept) if attempt.store else remedy
        if time.seconds < REMEDY_SECONDS:  # the user has interrupted
            return


def _measured(
    runner: Runner,
    found: Diagnosis,
    remedy: Remedy,
    items: StoredItems,
    messages: Messages,
    time: Budget,
    is_kept: bool,
) -> Remedy:
    config, length, free = found.config, found.facts.dataset_length or 0, MemoryMeter().available()
    if remedy.name == "on-device":
        free = found.measurement.memory_limit_bytes - found.measurement.peak_memory_bytes
    total, seconds = round(items.item_bytes * length), items.item_seconds * length / max(1, config.num_workers)
    remedy = replace(remedy, total_bytes=total, free_bytes=free, seconds=seconds, before=items.before)
    if total > free:
        return replace(remedy, reason=f"they do not fit in the {format_size(free)} that are free")
    own = config if remedy.name == "stored" else replace(config.without_workers, pin_memory=False)
    fields = {"store": items.folder, "remedy": remedy.name, "before": items.before}
    sides = Side("present", config, runner), Side(remedy.name, own, _WithRemedy(runner, fields))
    seed = secrets.randbits(31)
    try:
        rounds, _ = in_rounds(sides, time, messages, margin=0.0, seed=seed, later_epochs=is_kept)
    except NothingFeasibleError as error:
        return replace(remedy, reason=str(error))
    samples, ratio = found.facts.epoch_samples, rounds.speedup(own)
    saved = samples / rounds.baseline.rate * (1 - 1 / ratio) if samples else None
    remedy = replace(remedy, verdict=rounds.verdict(own), ratio=ratio, interval=rounds.interval(own))
    return replace(remedy, saved_seconds=saved, reason=KEPT if is_kept else "")
