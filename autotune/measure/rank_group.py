"""The ranks that train together: they go in step, hear the leader's word, and share their results.

A measurement is a series of decisions: whether the loader has settled, whether the window is long enough. Were each
rank to take them by its own clock, one would go on to a step that another does not make, and wait in it for ever. So
rank 0 decides, once for many steps: its word costs 0.2 to 1.2 milliseconds.
"""

from __future__ import annotations

import math
import pickle
import time
from collections.abc import Callable, Iterator, Sequence, Sized
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch.nn import DataParallel
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler, IterableDataset, Sampler

from autotune.errors import UsageError
from autotune.outcome import Outcome
from autotune.probes import ComputeProbe
from autotune.records import Attempt, Conditions, Measurement, Payload, RankShare
from autotune.workload import Workload

T = TypeVar("T")

WORD_SECONDS, WORD_BYTES = 0.2, 64
"""Seconds of steps that the leader decides on at once, and the bytes of its word."""
INTERFACE = "lo"
"""Linux's name of the loopback interface."""
FOR_EVER = timedelta(days=7)
"""Time limit of the ranks' messages: the tuner thinks between two requests, and ends a hang itself."""
Forward = Callable[[torch.nn.Module, Any], torch.Tensor]


class RankGroup:
    """One rank's view of all; alone it decides, and waits for nobody."""

    def __init__(
        self,
        rank: int = 0,
        size: int = 1,
        folder: Path | None = None,
        job: int | None = None,
    ) -> None:
        """Take this rank's number, and how many there are; ``job`` is the process that has started them all.

        They meet in a private ``folder``, and talk over the loopback interface. torch's default group is the user's.
        """
        self.rank, self.size, self.folder, self.job = rank, size, folder, job
        self._group: Any = None
        if folder is not None:
            torch_distributed: Any = dist
            gloo = torch_distributed.ProcessGroupGloo
            options = gloo._Options()
            options._devices, options._timeout = [gloo.create_device(interface=INTERFACE)], FOR_EVER
            self._group = gloo(torch_distributed.FileStore(str(folder / "words"), size), rank, size, options)

    @property
    def leads(self) -> bool:
        """Whether this rank decides for all."""
        return self.rank == 0

    def together(self, is_over: Callable[[int], bool], most: float = math.inf) -> Iterator[int]:
        """Yield the number of every step that all ranks make, until the leader's ``is_over`` of it says so."""
        made, begin = 0, time.monotonic()

        def next_steps() -> int:
            steps = min(self.steps_at_once(made, time.monotonic() - begin), most - made)
            return 0 if is_over(made) else int(steps)

        while steps := self.decide(next_steps):
            for _ in range(steps):
                made += 1
                yield made

    def steps_at_once(self, made: int, seconds: float) -> int:
        """Return the steps until the leader decides again, where so many took so many seconds."""
        return 1 if self.size == 1 else max(1, min(made, int(WORD_SECONDS * made / max(seconds, 1e-9))))

    def decide(self, decision: Callable[..., T], *arguments: Any) -> T:
        """Return what the leader decides, in every rank: a number, or ``None``. The leader waits for nobody."""
        if self._group is None:
            return decision(*arguments)
        word = bytearray(WORD_BYTES)
        if self.leads:
            found = pickle.dumps(decision(*arguments))
            word[: len(found)] = found
        self._group.broadcast(torch.frombuffer(word, dtype=torch.uint8), 0).wait()
        return cast(T, pickle.loads(word))

    def tell(self, value: T) -> T:
        """Return the leader's value, in every rank."""
        return self.gather(value if self.leads else None)[0]  # type: ignore[return-value]

    def gather(self, value: T) -> list[T]:
        """Return the values of all ranks, in every rank."""
        if self._group is None:
            return [value]
        own = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        self._group.allgather([sizes], [torch.tensor([len(own)])]).wait()
        found = [torch.zeros(int(max(sizes)), dtype=torch.uint8) for _ in sizes]
        self._group.allgather(
            [found], [torch.cat([own, torch.zeros(len(found[0]) - len(own), dtype=torch.uint8)])]
        ).wait()
        return [pickle.loads(each[: int(size)].numpy().tobytes()) for each, size in zip(found, sizes, strict=True)]

    def barrier(self) -> None:
        """Wait until every rank is here."""
        self.gather(None)


ALONE = RankGroup()
"""One process."""


def as_one(attempts: Sequence[Attempt]) -> Attempt:
    """Return one attempt for those of all ranks, in their order; the first failure decides."""
    worst = next((rank for rank, attempt in enumerate(attempts) if not attempt.found), None)
    if worst is not None:
        return replace(attempts[worst], message=f"rank {worst}: {attempts[worst].message}")
    first = attempts[0]
    suspect = [attempt for attempt in attempts if attempt.outcome is Outcome.SUSPECT]
    measured = [attempt.measurement for attempt in attempts if attempt.measurement]
    steps = [attempt.compute for attempt in attempts if attempt.compute]
    traces = [attempt.loader for attempt in attempts if attempt.loader]
    payload: Payload | None = first.payload
    if measured:
        payload = _measurement(measured)
    elif steps:
        payload = _step(steps)
    elif traces:
        payload = max(traces, key=lambda trace: fmean(trace.build_seconds))
    return replace(
        suspect[0] if suspect else first,
        payload=payload,
        message="; ".join(dict.fromkeys(attempt.message for attempt in attempts if attempt.message)),
    )


def _measurement(ranks: Sequence[Measurement]) -> Measurement:
    """Return one measurement of all ranks.

    They make their steps together, so restarts and batches built before the window count in each rank as in the rank
    with the least of them.
    """
    shares = tuple(_share(number, measured) for number, measured in enumerate(ranks))
    slowest = ranks[max(shares, key=lambda share: share.own_seconds).rank]
    passed = sum(measured.samples / measured.seconds for measured in ranks)
    counted = min(measured.samples_per_second * measured.seconds / measured.samples for measured in ranks)
    steady = min(measured.steady_samples_per_second * measured.seconds / measured.samples for measured in ranks)
    rates = [(measured.samples_per_second, measured.ci95) for measured in ranks]
    width = max((ci95[1] - ci95[0]) / 2 / own if ci95 else float("inf") for own, ci95 in rates)
    rate = passed * counted
    fullest = min(ranks, key=lambda measured: measured.memory_limit_bytes - measured.epoch_peak_bytes)
    host_limit = fullest.memory_limit_bytes // (len(ranks) if fullest.memory == "host" else 1)
    epoch_samples = [measured.epoch_samples for measured in ranks]
    losses = [measured.loss for measured in ranks]
    return replace(
        slowest,
        samples_per_second=rate,
        ci95=None if width == float("inf") else (rate * (1 - width), rate * (1 + width)),
        steady_samples_per_second=passed * steady,
        ceiling_samples_per_second=sum(measured.ceiling_samples_per_second for measured in ranks),
        samples=round(passed * slowest.seconds),
        seen_samples=sum(measured.seen_samples for measured in ranks),
        epoch_samples=sum(count for count in epoch_samples if count) if all(epoch_samples) else None,
        first_batch_seconds=max(measured.first_batch_seconds for measured in ranks),
        order_seconds=max((each.order_seconds for each in ranks if each.order_seconds is not None), default=None),
        peak_memory_bytes=fullest.peak_memory_bytes,
        memory_limit_bytes=host_limit,
        peak_allocated_bytes=fullest.peak_allocated_bytes,
        host_memory_bytes=max(measured.host_memory_bytes for measured in ranks),
        shared_memory_bytes=max(measured.shared_memory_bytes for measured in ranks),
        worker_growth_bytes_per_sample=fullest.worker_growth_bytes_per_sample,
        epoch_host_memory_bytes=fullest.epoch_host_memory_bytes,
        conditions=_conditions(slowest.conditions, [measured.conditions for measured in ranks]),
        loss=next((loss for loss in losses if loss is None or loss != loss or abs(loss) == float("inf")), losses[0]),
        idle_workers=min(measured.idle_workers for measured in ranks),
        is_uneven=any(measured.is_uneven for measured in ranks),
        stopped_early=any(measured.stopped_early for measured in ranks),
        ranks=shares,
        notes=tuple(dict.fromkeys(note for measured in ranks for note in measured.notes)),
    )


def _share(number: int, measured: Measurement) -> RankShare:
    split = measured.step_time
    return RankShare(
        rank=number,
        own_seconds=split.total - split.communication,
        data_wait_seconds=split.data_wait,
        peak_memory_bytes=measured.epoch_peak_bytes,
        memory_limit_bytes=measured.memory_limit_bytes,
    )


def _conditions(own: Conditions, all_of_them: Sequence[Conditions]) -> Conditions:
    """Return the conditions of all ranks: a slowdown of any rank has slowed all."""
    slowdowns = dict.fromkeys(words for conditions in all_of_them for words in conditions.gpu_slowdowns)
    fullest = max(all_of_them, key=lambda conditions: conditions.gpu_foreign_share or 0.0)
    return replace(
        own,
        is_crowded=any(conditions.is_crowded for conditions in all_of_them),
        gpu_foreign_share=fullest.gpu_foreign_share,
        gpu_foreign_pids=fullest.gpu_foreign_pids,
        gpu_slowdowns=tuple(slowdowns),
        allocator_retries=max(conditions.allocator_retries for conditions in all_of_them),
    )


def _step(ranks: Sequence[ComputeProbe]) -> ComputeProbe:
    fullest = min(ranks, key=lambda probe: probe.memory_limit_bytes - probe.peak_memory_bytes)
    return replace(
        fullest,
        samples_per_second=sum(probe.samples_per_second for probe in ranks),
        first_step_seconds=max(probe.first_step_seconds for probe in ranks),
        host_seconds=max(probe.host_seconds for probe in ranks),
        cpu_seconds=fmean(probe.cpu_seconds for probe in ranks),
        memory_limit_bytes=fullest.memory_limit_bytes // (len(ranks) if fullest.memory == "host" else 1),
        host_memory_bytes=max(probe.host_memory_bytes for probe in ranks),
        taken_share=max(probe.taken_share for probe in ranks),
        spread=max(probe.spread for probe in ranks),  # in step, each waits for the slowest
    )


class _Replica(torch.nn.Module):
    """Calls a training step as its forward: DistributedDataParallel knows of no other call of the model."""

    def __init__(self, model: torch.nn.Module, forward: Forward) -> None:
        super().__init__()
        self.model = model
        self._training_step = forward

    def forward(self, batch: Any) -> torch.Tensor:
        return self._training_step(self.model, batch)


def in_parallel(
    workload: Workload, model: torch.nn.Module, forward: Forward, group: RankGroup
) -> tuple[torch.nn.Module, Forward]:
    """Return the ranks' parallel model, and how to call it; a model made parallel by the user stays as it is."""
    if group.size == 1 or workload.parallelize is not None or _synchronises(model):
        return model, forward
    return DistributedDataParallel(_Replica(model, forward)), lambda replicas, batch: replicas(batch)


def _synchronises(model: torch.nn.Module) -> bool:
    """Return whether a model is in DistributedDataParallel or FSDP already, as a build function may make it."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    is_sharded = any(hasattr(module, "set_requires_gradient_sync") for module in model.modules())  # FSDP2's
    return is_sharded or isinstance(model, (DistributedDataParallel, FullyShardedDataParallel))


def require_own(optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> None:
    """Require that an optimizer which is there already has the model's parameters: sharding puts others in their place.

    Raises ``UsageError``.
    """
    own = {id(parameter) for parameter in model.parameters()}
    if not any(id(parameter) in own for group in optimizer.param_groups for parameter in group["params"]):
        raise UsageError(
            "the optimizer has none of the model's parameters, which were replaced when it was made parallel: "
            "pass Workload(optimizer=...) as a callable that takes parameters"
        )


class GradientWatch:
    """Marks when this rank has its own gradients: from there to the end of backward it waits for those of others.

    A hook on every parameter would cost time in every step; so the order is learned in one, and only the parameter that
    came last keeps its hook.
    """

    def __init__(self, model: torch.nn.Module, mark: Callable[[], Any]) -> None:
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._mark = mark
        self._last: torch.nn.Parameter | None = None
        self._hook: Any = None
        self.at: Any = None
        """The mark of the last backward; ``None`` where the hook did not run."""

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch a backward in which gradients are synchronised."""
        self.at = None
        hooks = [] if self._hook else [each.register_post_accumulate_grad_hook(self._note) for each in self._parameters]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
        if hooks and self._last is not None:
            self._hook = self._last.register_post_accumulate_grad_hook(self._take)

    def close(self) -> None:
        """Take the hook away."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def _note(self, parameter: torch.nn.Parameter) -> None:
        self._last = parameter

    def _take(self, parameter: torch.nn.Parameter) -> None:
        self.at = self._mark()


def share_of(workload: Workload, group: RankGroup) -> Workload:
    """Return the workload with this rank's share of its samples; an iterable dataset divides itself, or does not.

    A model in ``nn.DataParallel`` is taken out of it.

    Without a sampler torch's ``DistributedSampler`` divides the samples; a sampler of that kind is made anew for these
    ranks. Of any other sampler or batch sampler each of N ranks takes every N-th item, unless its ``num_replicas`` is N
    already.
    """
    if group.size == 1:
        return workload
    if isinstance(workload.model, DataParallel):
        workload = replace(workload, model=workload.model.module)  # for all devices in one process
    if workload.batch_sampler is not None:
        make = workload.batch_sampler
        return replace(workload, batch_sampler=lambda size: _share_of_rank(make(size), group))
    if isinstance(workload.dataset, IterableDataset):
        return workload
    return replace(workload, sampler=_sampler(workload, group))


def _sampler(workload: Workload, group: RankGroup) -> Sampler[Any]:
    given: Any = workload.sampler
    if given is not None and type(given) is not DistributedSampler:
        return _share_of_rank(given, group)
    names = () if given is None else ("shuffle", "seed", "drop_last")
    order: dict[str, Any] = {name: getattr(given, name) for name in names}
    return DistributedSampler(workload.dataset, num_replicas=group.size, rank=group.rank, **order)


def _share_of_rank(given: Sampler[Any], group: RankGroup) -> Sampler[Any]:
    return given if getattr(given, "num_replicas", None) == group.size else _Share(given, group)


class _Share(Sampler[Any]):
    """Every so many-th item of a sampler, from this rank's on; as many in every rank."""

    def __init__(self, whole: Sampler[Any], group: RankGroup) -> None:
        self._whole = whole
        self._rank, self._ranks = group.rank, group.size

    def __iter__(self) -> Iterator[Any]:
        whole = iter(self._whole)
        while len(items := list(islice(whole, self._ranks))) == self._ranks:
            yield items[self._rank]

    def __len__(self) -> int:
        return len(cast(Sized, self._whole)) // self._ranks

    def set_epoch(self, epoch: int) -> None:
        set_epoch = getattr(self._whole, "set_epoch", None)
        if set_epoch:
            set_epoch(epoch)
