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

STORE_SECONDS, TIME_LIMIT = 5.0, 120.0
"""Seconds for which items are stored, and after which the storing is given up."""
REMEDY_SECONDS = 45.0
"""Seconds for a remedy and the present way."""
NAMES: tuple[RemedyName, ...] = ("stored", "in-memory", "on-device")


@dataclass(frozen=True, slots=True)
class _WithRemedy:
    """A runner whose measurements have a remedy."""

    runner: Runner
    fields: Mapping[str, Any]
    """Those of each request."""

    def measure(self, config: Config, request: Request) -> Attempt:
        return self.runner.measure(config, replace(request, **self.fields))

    def close(self) -> None:
        self.runner.close()


def tried(runner: Runner, found: Diagnosis, loader: LoaderTrace | None, messages: Messages) -> Iterator[Remedy]:
    """Yield each remedy with its gain, or with the reason why it was not measured."""
    config = found.config
    names = NAMES[: 2 if found.facts.device == "cpu" else 3]
    if reason := _reason_against(found, loader):
        yield from (Remedy(name=name, reason=reason) for name in names)
        return
    messages.show(Progress(phase="probe", running=config))
    request = Request(seconds=STORE_SECONDS, time_limit=TIME_LIMIT, part="store", store="items", fresh=True)
    attempt = runner.measure(config, request)
    if attempt.store is None:
        yield from (Remedy(name=name, reason=attempt.message) for name in names)
        return
    for name in names:
        time = Budget(REMEDY_SECONDS)
        yield _measured(runner, found, name, attempt.store, messages, time)
        if time.seconds < REMEDY_SECONDS:  # the user has interrupted
            return


def _reason_against(found: Diagnosis, loader: LoaderTrace | None) -> str:
    if found.config.ranks > 1:
        return "remedies are tried in one process: leave out --ranks"
    if found.facts.dataset_length is None:
        return "items have no index: only those of a map-style dataset can be stored"
    is_kept = loader is not None and loader.is_own_cache
    return "the dataset keeps its items already: later epochs read them from memory" if is_kept else ""


def _measured(
    runner: Runner, found: Diagnosis, name: RemedyName, items: StoredItems, messages: Messages, time: Budget
) -> Remedy:
    config, length, free = found.config, found.facts.dataset_length or 0, MemoryMeter().available()
    if name == "on-device":
        free = found.measurement.memory_limit_bytes - found.measurement.peak_memory_bytes
    total, seconds = round(items.item_bytes * length), items.item_seconds * length / max(1, config.num_workers)
    remedy = Remedy(name=name, total_bytes=total, free_bytes=free, seconds=seconds, before=items.before)
    if total > free:
        return replace(remedy, reason=f"they do not fit in the {format_size(free)} that are free")
    own = config if name == "stored" else replace(config.without_workers, pin_memory=False)
    fields = {"store": items.folder, "remedy": name, "before": items.before}
    sides = Side("present", config, runner), Side(name, own, _WithRemedy(runner, fields))
    try:
        rounds, _ = in_rounds(sides, time, messages, margin=0.0, seed=secrets.randbits(31))
    except NothingFeasibleError as error:
        return replace(remedy, reason=str(error))
    samples, ratio = found.facts.epoch_samples, rounds.speedup(own)
    saved = samples / rounds.baseline.rate * (1 - 1 / ratio) if samples else None
    interval = rounds.interval(own)
    return replace(remedy, verdict=rounds.verdict(own), ratio=ratio, interval=interval, saved_seconds=saved)
