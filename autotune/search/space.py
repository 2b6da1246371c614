"""The space of a search: each knob's candidate values, in order, and the configurations they make. Pure."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from dataclasses import fields as dataclass_fields
from functools import cached_property
from typing import Any

from autotune.config import WITHOUT_WORKERS, Config
from autotune.configfile import Objective
from autotune.errors import UsageError
from autotune.knobs import require_possible
from autotune.records import Trial, WorkloadFacts
from autotune.settings import KNOBS, SWITCH, Bounds, Knob
from autotune.step_options import OPTIONS

_WORKER_STEPS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
MAX_BATCH_SIZE = 1024
"""Largest batch size that is tried unless the user asks for more: beyond it training itself changes."""
PERSISTENCE_GAIN = 0.01
"""Share of the rate from which keeping the workers alive between epochs pays."""


@dataclass(frozen=True)
class Space:
    """The values of every knob. ``values`` holds the baseline's too, ``allowed`` only what may be proposed."""

    values: Mapping[str, tuple[Any, ...]]
    """Candidate values of each knob, in order; beside the knobs, off and on for each further option of the step."""
    allowed: Mapping[str, tuple[Any, ...]]
    """Those that the user's bounds admit."""
    base: Config
    """Carries the fixed fields: inter-op threads, and accumulation where the samples of a step are not fixed."""
    global_batch_size: int | None = None
    """Samples of one step of the optimizer, where they are fixed: smaller batches are accumulated."""
    decides_persistence: bool = False
    """Whether keeping the workers alive between epochs is decided from measured starts instead of tried."""
    objective: Objective = "samples"
    """Whether the answer may have any batch, or keeps the samples of an optimizer step."""
    second_batches: tuple[int, ...] = ()
    """The batch sizes of the answer for the other objective; none where there is no such answer."""
    recommends: bool = False
    """Whether the answer with any batch comes first where it is sure to reach the same loss sooner: the user asked for
    neither."""

    def to_document(self) -> dict[str, Any]:
        """Return the space as plain values."""
        fields = {field.name: getattr(self, field.name) for field in dataclass_fields(self)}
        other = fields.pop("second_batches")  # its name in stored studies
        return {**fields, "base": self.base.to_document(), "other_batches": other}

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Space:
        """Return the space of a ``to_document``."""
        ranges = {name: {k: tuple(v) for k, v in document[name].items()} for name in ("values", "allowed")}
        own = {**document, **ranges, "base": Config.from_document(document["base"])}
        return cls(second_batches=tuple(own.pop("other_batches", ())), **own)

    @cached_property
    def second(self) -> Space | None:
        """The space of the answer for the other objective."""
        if not self.second_batches:
            return None
        every = tuple(sorted({*self.values["batch_size"], *self.second_batches}))
        return replace(
            self,
            values={**self.values, "batch_size": every},
            allowed={**self.allowed, "batch_size": self.second_batches},
            global_batch_size=None,
            objective="samples" if self.objective == "same-batch" else "same-batch",
            second_batches=(),
        )

    @property
    def varies_no_batch(self) -> bool:
        """Whether every configuration has the baseline's batch."""
        return self.allowed["batch_size"] == (self.base.batch_size,)

    @property
    def options(self) -> tuple[str, ...]:
        """Further options of the step, which the user allows to be tried."""
        return tuple(option for option in OPTIONS if option in self.values)

    def at(self, settings: Mapping[str, Any]) -> Config:
        """Return the configuration with a value for each knob; those of workers are dropped where there are none."""
        chosen = dict(settings)
        further = [option for option in self.options if chosen.pop(option, False)]
        fields = {KNOBS[name].field: value for name, value in chosen.items()}
        if not chosen["num_workers"]:
            fields |= WITHOUT_WORKERS
        fields["options"] = (*self.base.options, *further)
        return self.with_batch_size(replace(self.base, **fields), chosen["batch_size"])

    def settings(self, config: Config) -> dict[str, Any]:
        """Return the value of each knob that a configuration has here, and whether it has each further option."""
        knobs = [KNOBS[name] for name in self.values if name in KNOBS]
        chosen = {knob.name: getattr(config, knob.field) for knob in knobs if config.num_workers or not knob.of_workers}
        return chosen | {option: option in config.options for option in self.options}

    def with_batch_size(self, config: Config, batch_size: int) -> Config:
        """Return a configuration with another batch size, and with the accumulation that it asks for."""
        steps, whole = config.accumulation_steps, self.global_batch_size
        if whole:
            steps = whole // (batch_size * self.base.ranks)
        return replace(config, batch_size=batch_size, accumulation_steps=steps)

    def with_persistence(self, trial: Trial) -> Config:
        """Return a trial's configuration, with persistent workers where the baseline has them or their memory pays."""
        config, measured = trial.config, trial.measurement
        if not self.decides_persistence or not config.num_workers or measured is None:
            return config
        keeps = self.base.persistent_workers or (measured.persistence_gain or 0.0) >= PERSISTENCE_GAIN
        return replace(config, persistent_workers=keeps)

    @cached_property
    def configs(self) -> tuple[Config, ...]:
        """Every different configuration within the bounds, without further options."""
        combinations = itertools.product(*self.allowed.values())
        return tuple(dict.fromkeys(self.at(dict(zip(self.allowed, chosen, strict=True))) for chosen in combinations))

    @property
    def fingerprint(self) -> str:
        """Short hash that tells this space from another."""
        return hashlib.sha256(repr((sorted(self.values.items()), self.base)).encode()).hexdigest()[:12]


def build_space(
    facts: WorkloadFacts,
    cpus: int,
    baseline: Config,
    asked: Mapping[str, Bounds],
    global_batch_size: int | None = None,
    options: Iterable[str] = (),
    objective: Objective | None = "samples",
) -> Space:
    """Build the space for a workload on a machine with so many usable CPUs, for each rank.

    ``asked`` holds the values that the user admits for knobs; of the batch sizes those count that divide
    ``global_batch_size``. ``options`` of the step may be used too. With ``same-batch`` batches are divisors of the
    samples of the baseline's optimizer step, or the baseline's own in a script. ``None`` is ``samples`` where batch
    sizes are given; else ``same-batch``, unless any batch is sure to reach the same loss sooner. Raises ``UsageError``
    naming the flag.
    """
    recommends = objective is None and "batch_size" not in asked
    objective = objective or ("same-batch" if recommends else "samples")
    is_fixed, keeps = global_batch_size is not None, objective == "same-batch"
    if keeps and not facts.loader_site:
        global_batch_size = global_batch_size or baseline.samples_per_update
    threads, bound = facts.intra_op_threads, global_batch_size and global_batch_size // baseline.ranks
    share = replace(facts, epoch_samples=facts.epoch_samples and facts.epoch_samples // baseline.ranks)
    require_possible(asked, share)
    allowed = _defaults(share, cpus, baseline) | {name: each.values for name, each in asked.items()}
    allowed = {name: allowed[name] for name in KNOBS if name in allowed}
    every, own_batch = allowed["batch_size"], (baseline.batch_size,)
    if bound:
        allowed["batch_size"] = _divisors(bound, every, asked.get("batch_size"))
    elif keeps:
        allowed["batch_size"] = own_batch
    others = () if is_fixed or set(every) == set(own_batch) else every if keeps else own_batch
    if is_fixed or allowed["batch_size"] == own_batch:
        objective = "same-batch"
    own = threads if baseline.intra_op_threads == threads else None  # torch's own count, as the baseline writes it
    allowed["threads"] = tuple(own if count == threads else count for count in allowed["threads"])
    allowed = {name: _ordered(KNOBS[name], each, threads) for name, each in allowed.items()}
    values = {
        name: _ordered(knob, {*allowed[name], *([] if is_dropped else [getattr(baseline, knob.field)])}, threads)
        for name, knob in KNOBS.items()
        if name in allowed
        for is_dropped in [knob.of_workers and not baseline.num_workers]
    }
    further = {option: (False, True) for option in options if option not in baseline.options}
    decides = "persistent_workers" not in asked and not facts.sets_epoch
    others = others if set(others) <= set(every) else ()
    return Space(values | further, allowed, baseline, global_batch_size, decides, objective, others, recommends)


def _divisors(whole: int, sizes: tuple[int, ...], asked: Bounds | None) -> tuple[int, ...]:
    wanted = tuple(range(min(sizes), max(sizes) + 1)) if asked is None or asked.is_range else sizes
    divisors = tuple(size for size in wanted if whole % size == 0)
    if not divisors:
        said = f"--batch-size {asked and asked.given}: no size divides the {whole} samples"
        raise UsageError(f"{said} of an optimizer step, which are kept")
    return divisors


def _ordered(knob: Knob, values: Iterable[Any], threads: int) -> tuple[Any, ...]:
    ranks: dict[Any, int] = {None: threads if knob.name == "threads" else -1}
    if knob.choices and knob.choices is not SWITCH:
        ranks |= {value: rank for rank, value in enumerate(knob.choices.values())}
    return tuple(sorted(values, key=lambda value: ranks.get(value, value)))


def _defaults(facts: WorkloadFacts, cpus: int, baseline: Config) -> dict[str, tuple[Any, ...]]:
    on_cpu = facts.device == "cpu"
    most = min(MAX_BATCH_SIZE, facts.epoch_samples // 2 if facts.epoch_samples else MAX_BATCH_SIZE)
    batches = {baseline.batch_size * 2**k for k in range(7)} | {baseline.batch_size // 2**k for k in (1, 2)}
    workers = tuple(count for count in _WORKER_STEPS if count <= max(4, min(32, 2 * cpus)))
    threads = {2**k for k in range(8) if 2**k <= cpus} | {cpus} if on_cpu else set[int]()  # an accelerator has its own
    # a backward in fp16 is not fast on a CPU, and bf16, which needs no scaling of the loss, is as fast elsewhere
    without = {"fp16"} - {baseline.amp} if on_cpu or "bf16" in facts.amp_modes else set[str]()
    if facts.loader_site and not facts.autocast_call:
        without |= {"bf16"}  # a script in fp32 stays there unless it is asked for
    return {
        "batch_size": tuple(sorted({b for b in batches if 1 <= b <= most} | {baseline.batch_size})),
        "num_workers": workers,
        "prefetch_factor": (2, 4, 8),
        "pin_memory": (baseline.pin_memory,) if on_cpu or facts.device.startswith("mps") else (False, True),
        "persistent_workers": (not facts.sets_epoch,),  # decided at the end, see with_persistence
        "amp": tuple(mode for mode in facts.amp_modes if mode not in without),
        "threads": tuple(sorted(threads | {facts.intra_op_threads})),
    }
