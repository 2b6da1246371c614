"""The entry points that tune: ``tune``, and ``best_config`` for live objects."""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from autotune.config import Config
from autotune.configfile import Objective
from autotune.flags import did_you_mean
from autotune.knobs import Asked
from autotune.limits import Budget, MemoryLimit
from autotune.machine.host import device_notes, inspect_host
from autotune.messages import Messages, Progress
from autotune.notes import on_half_precision
from autotune.report.result import Result
from autotune.runner.local import LOAD_LIMIT, ProcessRunner
from autotune.search.space import build_space
from autotune.settings import KNOBS, KnobOptions, Names
from autotune.workload import Script, Workload, describe

if TYPE_CHECKING:
    import torch
    from optuna.samplers import BaseSampler
    from torch.utils.data import Dataset, Sampler

    from autotune.accumulation import Reduction
    from autotune.storage.open import StudyStorage

WAIT_SHARE = 0.25
"""Share of the budget for which an accelerator is waited for that another run of autotune holds."""


class TuneOptions(KnobOptions, total=False):
    """The options of ``tune``, which says what they mean."""

    device: str
    budget: float | str | None
    trials: int | None
    baseline: Config | Mapping[str, Any] | str | None
    global_batch_size: int | None
    objective: Objective | None
    ranks: int | None
    oversubscribe_ranks: bool
    headroom: float | str
    max_memory: float | str | None
    explore: Names
    storage: str | Path | StudyStorage | None
    optuna_sampler: str | BaseSampler
    on_progress: Callable[[Progress], None] | None
    quiet: bool


def _require_known(function: str, options: Iterable[str], others: Iterable[str] = ()) -> None:
    known = (*TuneOptions.__annotations__, *KNOBS)
    for name in set(options).difference(known):
        near = did_you_mean(name, (*known, *others))
        raise TypeError(f"{function}() got an unexpected keyword argument {name!r}{near}")


def best_config(
    model: torch.nn.Module,
    dataset: Dataset[Any],
    *,
    loss: Callable[[Any, Any], torch.Tensor] | None = None,
    optimizer: Callable[[Iterable[Any]], torch.optim.Optimizer] | torch.optim.Optimizer | None = None,
    collate_fn: Callable[[list[Any]], Any] | None = None,
    training_step: Callable[[torch.nn.Module, Any], torch.Tensor] | None = None,
    sampler: Sampler[Any] | None = None,
    batch_sampler: Callable[[int], Sampler[list[int]]] | None = None,
    loss_reduction: Reduction | None = None,
    max_grad_norm: float | None = None,
    parallelize: Callable[[torch.nn.Module], torch.nn.Module] | None = None,
    loader_options: Mapping[str, Any] | None = None,
    epoch_batches: int | float | None = None,
    **options: Unpack[TuneOptions],
) -> Config:
    """Return the fastest configuration for this model and dataset on this machine, or the baseline.

    The gain is proven, or likely by odds of 20 to 1 in undisturbed rounds; ``.measured`` holds verdict and evidence. Of
    two answers it is the one that ``tune`` recommends; ``.for_objective("samples")`` returns the one with any batch.
    Model and dataset are copied to another process: your own are never trained, moved or changed. The arguments up to
    ``epoch_batches`` are those of ``Workload``, ``options`` those of ``tune``. Raises ``AutotuneError``.
    """
    _require_known("best_config", options, (field.name for field in fields(Workload)))
    workload = Workload(
        model,
        dataset,
        loss=loss,
        optimizer=optimizer,
        collate_fn=collate_fn,
        training_step=training_step,
        sampler=sampler,
        batch_sampler=batch_sampler,
        loss_reduction=loss_reduction,
        max_grad_norm=max_grad_norm,
        parallelize=parallelize,
        loader_options=loader_options,
        epoch_batches=epoch_batches,
    )
    return tune(workload, **options).config


@contextmanager
def _same_random_state() -> Iterator[None]:
    """Leave Python's random state as it is: rich draws from it, when it is imported too."""
    state = random.getstate()
    try:
        yield
    finally:
        random.setstate(state)


@_same_random_state()
def tune(workload: str | Workload | Script, dataset: str | None = None, **options: Unpack[TuneOptions]) -> Result:
    """Search for the fastest configuration and prove it against the baseline.

    ``workload`` is ``"module:attribute"``, ``"path/to/file.py:attribute"``, a ``Workload`` or a ``Script``.
    ``dataset`` is a reference, needed where the first names a model alone. ``budget`` is the wall time of the whole
    run, in seconds or as text (``"3m"``); without it, 2 to 10 minutes are chosen by what measurements cost. ``trials``
    is the largest number of trials. ``baseline`` holds the settings that you train with today: a ``Config`` or its
    fields (``threads`` for ``intra_op_threads``).

    Each knob takes a value, a sequence of values, or text as on the command line (``"32..512"``).
    ``global_batch_size`` fixes the samples of an optimizer step, over all ranks: smaller batches are accumulated.
    ``objective`` is ``"samples"``, the rate with any batch, or ``"same-batch"``, that with as many samples of an
    optimizer step as the baseline; the answer for the other one is ``Result.alternative``. Without it the
    batch is kept, unless ``batch_size`` is given, or the answer with any batch is sure to reach the same loss sooner.
    ``headroom`` is the share of memory that stays free (0.1 or ``"10%"``). ``max_memory`` is the most that training may
    take, in bytes or as ``"12GiB"``. ``explore`` names further options of the step, from
    ``autotune.step_options.OPTIONS``, or ``"all"``.

    ``ranks`` processes train together on this host, as ``torchrun --nproc-per-node`` starts them, each with an
    accelerator of its own if the host has some. Knobs and ``max_memory`` then count for each rank, rates for all
    together. ``oversubscribe_ranks`` allows more ranks than CPUs and accelerators.

    ``storage`` is a file or an Optuna URL for the study; a study of the same workload, machine, versions and settings
    is continued. ``optuna_sampler`` proposes the trials: ``"predictive"``, ``"tpe"``, ``"gp"``, ``"random"``, a
    reference of a function that returns a sampler of Optuna, or a sampler. A terminal or notebook shows the progress,
    and standard error gets the verdict at the end, with what changes training. ``on_progress`` receives each
    ``Progress`` instead; ``quiet`` shows neither.

    Raises ``UsageError``, ``UserCodeError``, ``NothingFeasibleError``, ``StorageError`` and
    ``InterruptedRunError``.
    """
    _require_known("tune", options)
    asked = Asked.of(options)
    memory_limit = MemoryLimit.of_user(options.get("headroom", 0.1), options.get("max_memory"))
    time, seed = Budget.of_user(options.get("budget")), secrets.randbits(31)
    from autotune.search.sampler import make_sampler
    from autotune.search.setup import Setup

    proposes = make_sampler(options.get("optuna_sampler", "predictive"), seed)
    from autotune.report.terminal import progress_display, say
    from autotune.report.text import alternative_text, answer_text, change_text, in_python

    device, on_progress = options.get("device", "auto"), options.get("on_progress")
    shows = on_progress is None and not options.get("quiet")
    with progress_display() if shows else nullcontext(on_progress) as show:
        messages = Messages(time, show or (lambda progress: None), in_python if shows else str)
        messages.show(Progress(phase="inspect"))
        with ProcessRunner(
            describe(workload, dataset),
            device,
            patience=WAIT_SHARE * time.left,
            on_wait=messages.say,
            oversubscribe_ranks=options.get("oversubscribe_ranks", False),
            load_limit=time.left if time.is_given else LOAD_LIMIT,
        ) as runner:
            begin = time.spent
            with messages.waiting("loading your model and dataset"):
                facts = runner.inspect(asked.baseline)
            opening, loading, host = time.spent - begin, runner.loading, inspect_host()
            ranks, torch, is_script = asked.baseline.ranks, facts.versions["torch"], isinstance(workload, Script)
            for note in device_notes(facts.device, host, torch, ranks, is_chosen=device != "auto", is_script=is_script):
                messages.note(note)
            fixed = {} if facts.batch_samples is None else {"batch_size": facts.batch_samples}
            if runner.script is not None:
                asked = asked.of_script(runner.script.present)
                fixed = {"batch_size": asked.baseline.batch_size} if runner.script.is_batch_fixed else {}
                for note in on_half_precision(facts) if "amp" not in asked.knobs else ():
                    messages.note(note)
            given, asked = asked.baseline, asked.held_against(facts, fixed)
            base = asked.baseline
            if base != given and facts.batch_samples is None:
                messages.note(
                    f"an epoch has {facts.epoch_samples} samples: the baseline's batch size is {base.batch_size}, "
                    f"not {given.batch_size}"
                )
            cpus, whole = host.for_rank(ranks).cpus, asked.global_batch_size
            space = build_space(facts, cpus, base, asked.knobs, whole, asked.options, asked.objective)
            from autotune.search.tuner import Tuner
            from autotune.storage.open import StudyStorage

            setup = Setup(space=space, facts=facts, host=host, memory_limit=memory_limit)
            tuner = Tuner(runner, setup, time, messages, options.get("trials"), proposes, opening, seed, loading)
            storage = options.get("storage")
            own = nullcontext(storage) if isinstance(storage, StudyStorage) else closing(StudyStorage(storage))
            with own as opened:
                result = tuner.result(opened)
    if shows:
        say(in_python("\n".join(filter(None, (answer_text(result), change_text(result), alternative_text(result))))))
    return result
