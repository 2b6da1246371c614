"""One point of the search space, and its use in a training script.

The trial that was timed and the training script use the very same methods: there is no second implementation.
"""

from __future__ import annotations

import math
import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from autotune.configfile import (
    SCHEMA_VERSION,
    LearningRate,
    MadeOn,
    Measured,
    on_one_line,
    read_document,
    unknown_keys,
    without_unknown,
    write_document,
)
from autotune.errors import ConfigFileError, UsageError
from autotune.machine.host import made_elsewhere
from autotune.settings import KNOBS, SETTINGS, Amp, Context, Setting
from autotune.step_options import apply_options, parse_options

if TYPE_CHECKING:
    import torch
    from torch.utils.data import DataLoader, Dataset, DistributedSampler

    from autotune.accumulation import GradientAccumulator, Reduction

THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)
"""Variables that native thread pools read when they are first loaded."""
LATE_THREADS = (
    "apply_threads() came after torch was imported, so some thread pools keep their size; call it before the import, "
    "or set OMP_NUM_THREADS={threads} before Python starts"
)
LEARNING_RATE_RULES = {"SGD": "linear", "Adam": "square root", "AdamW": "square root"}
"""How the learning rate goes with the batch: Goyal 1706.02677 for SGD, Malladi 2205.10287 for the others."""
PREFETCH = 2
"""Batches that a worker loads ahead where nothing is said: torch's own default."""
SECTIONS = ("dataloader", "training", "threads")
"""Sections of a file that hold settings."""
OWN = (*SECTIONS, "measured")
"""Sections of a file that each of its answers has."""
MANY_SAMPLES = 100.0
"""Samples per second from which a rate is shown without decimals."""


class StepKey(NamedTuple):
    """The settings that the time of a training step depends on; with the same key only the loader differs."""

    batch_size: int
    amp: str
    threads: int | None
    """Intra-op threads; ``None`` for torch's own choice."""
    accumulation_steps: int
    options: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Config:
    """The settings of the data loader and the training step, as the timed trial used them.

    Raises ``UsageError`` for a combination that no DataLoader accepts.
    """

    batch_size: int = 32
    """Samples per step and process."""
    num_workers: int = 0
    """DataLoader worker processes; 0 loads in the training process."""
    prefetch_factor: int | None = None
    """Batches requested ahead per worker; ``None`` exactly when there are no workers."""
    pin_memory: bool = False
    """Copy batches into page-locked host memory before they go to the accelerator."""
    persistent_workers: bool = False
    """Keep the workers alive between epochs; only with workers."""
    multiprocessing_context: Context | None = None
    """How workers are started; ``None`` leaves it to torch, or to a script's own loader."""
    amp: Amp = "off"
    """Automatic mixed precision: off (fp32), bf16, or fp16 with loss scaling."""
    accumulation_steps: int = 1
    """Batches per optimizer step."""
    ranks: int = 1
    """Processes that train together on one host, as ``torchrun --nproc-per-node`` starts them; every other field is for
    each of them."""
    options: tuple[str, ...] = ()
    """Options of the step, in the order of application: names of ``autotune.step_options.OPTIONS``."""
    intra_op_threads: int | None = None
    """Threads inside one operator; ``None`` leaves torch's own choice."""
    inter_op_threads: int | None = None
    """Threads between independent operators; ``None`` leaves torch's own choice."""
    measured: Measured | None = field(default=None, compare=False, repr=False)
    """The file's ``measured`` section: the measurements of this configuration; no part of its identity."""
    made_on: MadeOn | None = field(default=None, compare=False, repr=False)
    """The file's ``made_on`` section: machine and versions of the measurement; no part of its identity."""
    alternatives: Mapping[str, Config] | None = field(default=None, compare=False, repr=False)
    """The file's ``alternatives`` section: the answers for other objectives, by their names."""
    unknown: Mapping[str, Any] | None = field(default=None, compare=False, repr=False)
    """Unknown keys of the file by section, as of a later release: kept, and without effect."""

    def __post_init__(self) -> None:
        if self.num_workers and self.prefetch_factor is None:
            object.__setattr__(self, "prefetch_factor", PREFETCH)
        object.__setattr__(self, "options", parse_options(self.options, "options"))
        for name, setting in SETTINGS.items():
            if name != "options":
                setting.require(getattr(self, name))
            if setting.of_workers and getattr(self, name) and not self.num_workers:
                raise UsageError(f"{name} needs num_workers of 1 or more")

    def __repr__(self) -> str:
        usual = [each.name for each in fields(self) if each.repr and each.name not in RARE]
        shown = {name: getattr(self, name) for name in usual} | self.rare
        return f"Config({', '.join(f'{name}={value!r}' for name, value in shown.items())})"

    def __str__(self) -> str:
        """Return the settings; where it was tuned the verdict, gain, rate, and what changed from the baseline."""
        found, own = self.measured or {}, self.plain()
        was, gain, rate = found.get("baseline"), found.get("speedup"), found.get("samples_per_second")
        if not gain or not rate:
            return ", ".join(f"{name}={value}" for name, value in own.items() if value is not None)
        part = beginning_text(found.get("beginning_samples"))
        if gain == 1 or not was:
            return f"{found.get('verdict')}: the baseline stays, {_cell(rate)} samples/s{part}"
        names = [name for name in {**own, **was} if name != "samples_per_second" and own.get(name) != was.get(name)]
        changed = [f"{name}: {was.get(name)} → {own.get(name)}".replace("None", "none") for name in names]
        head = f"{found.get('verdict')}: {gain:.2f} times the baseline, {_cell(rate)} samples/s{part}"
        return "\n".join(["; ".join(filter(None, (head, learning_rate_advice(self)))), *changed])

    @property
    def present(self) -> Mapping[str, Any]:
        """The settings that were there before the answer; empty where the file does not say."""
        return {} if self.measured is None else self.measured.get("baseline") or self.plain()

    @property
    def rare(self) -> dict[str, Any]:
        """The knobs that are left out at their defaults, where they have other values."""
        return {name: value for name in RARE if (value := getattr(self, name)) != DEFAULTS[name]}

    def plain(self) -> dict[str, Any]:
        """Return the settings in one dictionary of plain values, by their names in this class."""
        return {setting.field: value for section in SECTIONS for setting, value in self._section(section)}

    def _section(self, section: str) -> Iterator[tuple[Setting, Any]]:
        """Yield the settings of a section of the file with their plain values, those of workers last."""
        of_section = (each for each in SETTINGS.values() if each.section == section)
        for setting in sorted(of_section, key=lambda each: each.of_workers):
            value, default = getattr(self, setting.field), DEFAULTS[setting.field]
            if (self.num_workers or not setting.of_workers) and not (setting.is_left_out and value == default):
                yield setting, list(value) if isinstance(value, tuple) else value

    def for_rank(self, ranks: int | None = None) -> Config:
        """Return this configuration for one of several ranks on a host, which share its CPUs.

        A configuration measured with as many ranks stays as it is. For another number, workers and threads of all ranks
        together are divided by ``ranks``, one at least; batch size and accumulation are those of each rank. ``ranks``
        is ``LOCAL_WORLD_SIZE`` by default, which ``torchrun`` sets, and 1 without it. Threads that are left to torch
        stay so: ``torchrun`` gives several ranks one each.
        """
        if ranks is None:
            text = os.environ.get("LOCAL_WORLD_SIZE", "1")
            if not text.isdecimal() or int(text) < 1:
                raise UsageError(f"LOCAL_WORLD_SIZE is {text!r}; allowed: whole numbers from 1")
            ranks = int(text)
        SETTINGS["ranks"].require(ranks)
        if ranks == self.ranks:
            return self

        def share(count: int) -> int:
            return max(1, count * self.ranks // ranks)

        return replace(
            self,
            ranks=ranks,
            num_workers=self.num_workers and share(self.num_workers),
            intra_op_threads=self.intra_op_threads and share(self.intra_op_threads),
            inter_op_threads=self.inter_op_threads and share(self.inter_op_threads),
        )

    @property
    def launcher(self) -> str:
        """The command that starts a script in these ranks."""
        return "python" if self.ranks == 1 else f"torchrun --standalone --nproc-per-node {self.ranks}"

    @property
    def samples_per_step(self) -> int:
        """The samples of one batch of every rank."""
        return self.batch_size * self.ranks

    @property
    def readers(self) -> int:
        """The processes that read the dataset: loader workers, or ranks without any."""
        return self.ranks * max(1, self.num_workers)

    @property
    def keeps_readers(self) -> bool:
        """Whether the processes that read the dataset live on from epoch to epoch."""
        return self.persistent_workers or not self.num_workers

    @property
    def samples_per_update(self) -> int:
        """The samples of a step of the optimizer."""
        return self.samples_per_step * self.accumulation_steps

    def scaled_lr(self, lr: float) -> float:
        """Return a learning rate of the baseline for the batch of this answer.

        By the rule of the optimizer that was tuned: with the batch for SGD, with its square root for Adam and AdamW.
        Raises ``UsageError`` where no rule is known, or the batch is no longer the one that was tuned.
        """
        found = (self.measured or {}).get("learning_rate") or {}
        optimizer, samples = found.get("optimizer"), found.get("samples", self.samples_per_update)
        why = f"no rule is known for {optimizer}" if optimizer else "the configuration does not say how"
        if samples != self.samples_per_update:
            why = f"an optimizer step has {self.samples_per_update} samples now, not the {samples} that were tuned"
        if (factor := found.get("factor")) is None or samples != self.samples_per_update:
            raise UsageError(f"scaled_lr: {why}; set the learning rate yourself")
        return lr * float(factor)

    @property
    def without_loader(self) -> Config:
        """The configuration with only the settings that its step depends on."""
        names = (name for name, setting in SETTINGS.items() if setting.section == "dataloader" and name != "batch_size")
        return replace(self, **{name: DEFAULTS[name] for name in names})

    @property
    def without_workers(self) -> Config:
        """The configuration whose training process loads by itself."""
        return replace(self, num_workers=0, **WITHOUT_WORKERS)

    @property
    def step_key(self) -> StepKey:
        """The settings that the time of its step depends on."""
        return StepKey(self.batch_size, self.amp, self.intra_op_threads, self.accumulation_steps, self.options)

    @property
    def precision(self) -> str:
        """The name of the precision: fp32, bf16 or fp16."""
        return "fp32" if self.amp == "off" else self.amp

    def dataloader_kwargs(self) -> dict[str, Any]:
        """Return the keyword arguments for ``torch.utils.data.DataLoader`` that this configuration fixes."""
        return {setting.field: value for setting, value in self._section("dataloader")}

    def dataloader(self, dataset: Dataset[Any], **overrides: Any) -> DataLoader[Any]:
        """Build the DataLoader that was timed; ``overrides`` are DataLoader arguments and win.

        Pass ``shuffle``, ``sampler``, ``collate_fn`` and the like here, exactly as to a DataLoader. A
        ``batch_sampler`` brings its own batch size, so it replaces ``batch_size``; ``num_workers=0`` takes
        what is for workers only with it. Raises ``UsageError`` for overrides that conflict with each other or with this
        configuration.
        """
        from torch.utils.data import DataLoader

        arguments = self.dataloader_kwargs()
        if overrides.get("batch_sampler") is not None:
            del arguments["batch_size"]
        if overrides.get("num_workers") == 0:
            arguments = {name: arguments[name] for name in arguments if name not in OF_WORKERS}
        for name in OF_WORKERS if not (arguments | overrides)["num_workers"] else ():
            if overrides.get(name):
                raise UsageError(f"dataloader: {name} is for workers, and there are none: pass num_workers too")
        try:
            if not self.measured or "num_workers" in overrides:
                return DataLoader(dataset, **(arguments | overrides))
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "This DataLoader will create", UserWarning)
                return without_advice(DataLoader(dataset, **(arguments | overrides)))
        except ValueError as error:
            given = ", ".join(f"{name}={value!r}" for name, value in overrides.items())
            raise UsageError(f"dataloader: {error}; passed were {given or 'no overrides'}") from error

    def distributed_sampler(self, dataset: Dataset[Any], **options: Any) -> DistributedSampler[Any]:
        """Return the sampler of this rank's share of a map-style dataset; without a process group, of all of it.

        ``options`` are those of torch's ``DistributedSampler`` (``shuffle``, ``seed``, ``drop_last``); it shuffles
        unless told otherwise, and in each epoch anew once ``set_epoch(epoch)`` was called.
        """
        from torch import distributed
        from torch.utils.data import DistributedSampler

        is_group = distributed.is_available() and distributed.is_initialized()
        alone = {} if is_group else {"num_replicas": 1, "rank": 0}
        return DistributedSampler(dataset, **(alone | options))

    def autocast(self, device: torch.device | str) -> torch.autocast:
        """Return the context for forward and loss (never backward); does nothing with ``amp: off``."""
        import torch

        dtype = {"off": None, "bf16": torch.bfloat16, "fp16": torch.float16}[self.amp]
        device_type = torch.device(device).type
        return torch.autocast(device_type, dtype=dtype, enabled=self.amp != "off")

    def grad_scaler(self, device: torch.device | str) -> torch.amp.GradScaler:
        """Return the gradient scaler for fp16; in the other modes it passes everything through."""
        import torch

        return torch.amp.GradScaler(torch.device(device).type, enabled=self.amp == "fp16")

    def accumulator(
        self, optimizer: torch.optim.Optimizer, device: torch.device | str, *, reduction: Reduction = "mean"
    ) -> GradientAccumulator:
        """Return an accumulator, which takes each batch's loss outside ``autocast`` and steps the optimizer.

        ``reduction`` says whether that loss is a mean over its samples or their sum: the gradients are then those of
        the whole batch. With ``accumulation_steps`` of 1 each batch is a step. It brings its own ``grad_scaler``.
        """
        from autotune.accumulation import GradientAccumulator

        scaler, steps = self.grad_scaler(device), self.accumulation_steps
        return GradientAccumulator(optimizer, scaler, batch_size=self.batch_size, steps=steps, reduction=reduction)

    def apply_options(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None) -> None:
        """Apply ``options`` to a model that is on its device, and to its optimizer; call it before the first step.

        Both are changed in place; names, parameters and the state dictionary stay as they are. ``tf32`` and
        ``cudnn_benchmark`` hold for the whole process. A loaded optimizer state brings its own flags: call this again
        afterwards. Raises ``UsageError`` with the reason where an option does not apply.
        """
        apply_options(self.options, model, optimizer)

    def apply_threads(self) -> None:
        """Set the thread counts of this process; call it before torch is imported.

        Native thread pools read the environment when they are first loaded; later torch sets only its own counts.
        Set before the import, one thread trained some 6 % faster than set after it (studies/digits). Warns
        (``UserWarning``) where torch was imported too early. The number of inter-op threads can be set once per
        process; where torch has already fixed it, it stays.
        """
        variables = self.thread_environment()
        first = THREAD_VARIABLES[0]
        comes_late = "torch" in sys.modules and os.environ.get(first) != variables.get(first)
        os.environ.update(variables)
        import torch

        if self.intra_op_threads is not None and self.intra_op_threads != torch.get_num_threads():
            torch.set_num_threads(self.intra_op_threads)
            if comes_late:
                warnings.warn(LATE_THREADS.format(threads=self.intra_op_threads), stacklevel=2)
        if self.inter_op_threads is not None and self.inter_op_threads != torch.get_num_interop_threads():
            with suppress(RuntimeError):  # torch allows it once, before parallel work has started
                torch.set_num_interop_threads(self.inter_op_threads)

    def thread_environment(self) -> dict[str, str]:
        """Return the environment variables that give native thread pools the intra-op count."""
        if self.intra_op_threads is None:
            return {}
        return dict.fromkeys(THREAD_VARIABLES, str(self.intra_op_threads))

    def save(self, path: str | Path) -> None:
        """Write the config file, YAML or (``.json``) JSON, with its measurements.

        Raises ``ConfigFileError`` when the file cannot be written.
        """
        write_document(Path(path), self.to_document())

    def to_document(self) -> dict[str, Any]:
        """Return this configuration as the config file's content (schema version 1)."""
        sections = {each: {setting.key: value for setting, value in self._section(each)} for each in SECTIONS}
        document: dict[str, Any] = {"autotune": SCHEMA_VERSION, **sections}
        for name in ("measured", "made_on"):
            if getattr(self, name) is not None:
                document[name] = dict(getattr(self, name))
        if self.alternatives:
            document["alternatives"] = {
                name: {} if other == self else {key: part for key, part in other.to_document().items() if key in OWN}
                for name, other in self.alternatives.items()
            }
        for name, content in (self.unknown or {}).items():
            section = document.get(name)
            document[name] = {**section, **content} if section is not None and isinstance(content, dict) else content
        return document

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Config:
        """Build a configuration from a validated config file's content."""
        document, unknown = without_unknown(document)
        found = {name: document.get(each.section, {}).get(each.key, DEFAULTS[name]) for name, each in SETTINGS.items()}
        return cls(
            **found,
            measured=document.get("measured"),
            made_on=document.get("made_on"),
            alternatives={
                name: cls.from_document(_alternative(document, name, part))
                for name, part in document.get("alternatives", {}).items()
            }
            or None,
            unknown=unknown or None,
        )

    def _repr_html_(self) -> str:
        found = self.measured or {}
        after = {**self.plain(), "samples_per_second": found.get("samples_per_second")}
        columns = {"before": found["baseline"], "after": after} if "baseline" in found else {"settings": after}
        headings = "".join(f"<th>{heading}</th>" for heading in columns)
        rows = [
            f"<tr><th>{name.replace('_', ' ')}</th>"
            + "".join(f"<td>{escape(_cell(column.get(name)))}</td>" for column in columns.values())
            + "</tr>"
            for name in after
        ]
        title = f"<p><b>{escape(str(self).splitlines()[0])}</b></p>" if found.get("verdict") else ""
        return f"{title}<table><tr><th></th>{headings}</tr>{''.join(rows)}</table>"

    def for_objective(self, objective: str) -> Config:
        """Return the answer for ``"same-batch"`` or ``"samples"``. Raises ``UsageError`` where the file has none."""
        own: str | None = (self.measured or {}).get("objective")
        found = {**(self.alternatives or {}), **({own: replace(self, alternatives=None)} if own else {})}
        if objective not in found:
            raise UsageError(f"no answer for {objective!r}; there is {' and '.join(found) or 'none by name'}")
        return found[objective]


DEFAULTS: Mapping[str, Any] = {each.name: each.default for each in fields(Config) if each.name in SETTINGS}
"""The default of every setting."""
RARE = tuple(knob.field for knob in KNOBS.values() if knob.is_left_out)
"""The knobs that are left out at their defaults."""
WITHOUT_WORKERS = {name: DEFAULTS[name] for name, setting in SETTINGS.items() if setting.of_workers}
"""The settings that need workers, as they are without any."""
OF_WORKERS = {**WITHOUT_WORKERS, "timeout": 0}
"""Arguments that a DataLoader takes with workers only, and their values without."""


def _alternative(document: Mapping[str, Any], name: str, part: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of the answer for another objective; an empty one is the answer at the top of the file."""
    found = dict(part) or {key: document[key] for key in OWN if key in document}
    if not part and "measured" in found:
        found["measured"] = {**found["measured"], "objective": name}
    return found | {key: document[key] for key in ("made_on",) if key in document}


def change_of_training(before: Config, after: Config) -> str:
    """Return what changes in the mathematics of training, as a sentence; empty where nothing does."""
    sizes = [config.samples_per_update for config in (before, after)]
    arithmetic = [
        ("tf32" if "tf32" in each.options and each.amp == "off" else each.precision) for each in (before, after)
    ]
    changes = [f"batch size {sizes[0]} → {sizes[1]}"] if sizes[0] != sizes[1] else []
    changes += [arithmetic[1]] if arithmetic[0] != arithmetic[1] else []
    advice = f": {learning_rate_advice(after) or 'adapt the learning rate'}" if sizes[0] != sizes[1] else ""
    return f"This changes training: {', '.join(changes)}{advice}." if changes else ""


def learning_rate_of(optimizer: str | None, before: int, after: int) -> LearningRate:
    """Return how the learning rate goes with ``after`` samples of an optimizer step, as a config file has it."""
    optimizer = optimizer if optimizer and optimizer.isidentifier() else None
    rule = LEARNING_RATE_RULES.get(optimizer or "") if before != after else None
    ratio = after / before
    factor = {"linear": ratio, "square root": math.sqrt(ratio), None: 1.0 if before == after else None}[rule]
    return {"optimizer": optimizer, "rule": rule, "factor": factor and float(f"{factor:.6g}"), "samples": after}


def learning_rate_advice(config: Config) -> str:
    """Return how the learning rate goes with an answer's batch; empty where it stays, or nothing is known."""
    found = (config.measured or {}).get("learning_rate") or {}
    optimizer, factor = found.get("optimizer"), found.get("factor")
    if factor is None:
        return f"adapt the learning rate (no rule is known for {optimizer})" if optimizer else ""
    multiply = f"multiply the learning rate by {factor:.3g} ({found.get('rule')} rule of {optimizer})"
    return "" if factor == 1 else multiply


def beginning_text(samples: int | None) -> str:
    """Return for which part of an epoch a rate is known, to follow the rate; empty for all of it."""
    return "" if samples is None else f", for the first {samples:,} samples of an epoch"


def load_config(path: str | Path, objective: str | None = None) -> Config:
    """Read a config file, YAML or JSON; its answer for ``"same-batch"`` or ``"samples"``, if an objective is named.

    Warns (``UserWarning``) when this machine or its versions differ from those the file was made on, and of keys that
    this release does not know. Raises
    ``ConfigFileError`` naming file, key and what is allowed when the file is missing, damaged or of another
    schema version.
    """
    document = read_document(Path(path))
    try:
        config = Config.from_document(document)
        config = config.for_objective(objective) if objective else config
    except UsageError as error:
        raise ConfigFileError(f"{path}: {on_one_line(error)}") from None
    for key in unknown_keys(document):
        warnings.warn(f"{path}: {key}: unknown to this release, and without effect", stacklevel=2)
    for difference in made_elsewhere(document.get("made_on", {})):
        warnings.warn(f"{path}: {difference}; run autotune here to be sure", stacklevel=2)
    return config


def without_advice(loader: DataLoader[Any]) -> DataLoader[Any]:
    """Return a loader that torch does not advise against its workers when it starts them: they were measured."""
    loader.check_worker_number_rationality = _say_nothing  # type: ignore[method-assign]
    return loader


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if value >= MANY_SAMPLES else f"{value:.3g}"
    return "" if value is None else str(value)


def _say_nothing() -> None:
    """Stand in for a check; a function of a module, so that the loader can be pickled."""
