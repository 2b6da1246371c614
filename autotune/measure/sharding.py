"""Each rank's share of the data: the workload's sampler divided among the ranks, as distributed training divides it."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from dataclasses import replace
from itertools import islice
from typing import Any, cast

from torch.nn import DataParallel
from torch.utils.data import DistributedSampler, IterableDataset, Sampler

from autotune.measure.team import Team
from autotune.workload import Workload

__all__ = ["share_of"]


def share_of(workload: Workload, team: Team) -> Workload:
    """Return the workload with this rank's share of its samples; an iterable dataset divides itself, or does not.

    A model in ``nn.DataParallel`` is taken out of it.

    Without a sampler that is torch's ``DistributedSampler``; a sampler of that kind is made anew for these ranks. Of
    any other sampler, and of batch samplers, each rank takes every so many-th item, unless its ``num_replicas`` says
    that it is divided among as many.
    """
    if team.size == 1:
        return workload
    if isinstance(workload.model, DataParallel):
        workload = replace(workload, model=workload.model.module)  # for all devices in one process
    if workload.batch_sampler is not None:
        make = workload.batch_sampler
        return replace(workload, batch_sampler=lambda size: _share(make(size), team))
    if isinstance(workload.dataset, IterableDataset):
        return workload
    return replace(workload, sampler=_sampler(workload, team))


def _sampler(workload: Workload, team: Team) -> Sampler[Any]:
    given: Any = workload.sampler
    if given is not None and type(given) is not DistributedSampler:
        return _share(given, team)
    order: dict[str, Any] = {}
    if given is not None:
        order = {"shuffle": given.shuffle, "seed": given.seed, "drop_last": given.drop_last}
    return DistributedSampler(workload.dataset, num_replicas=team.size, rank=team.rank, **order)


def _share(given: Sampler[Any], team: Team) -> Sampler[Any]:
    """Return a rank's share of what a sampler gives; all of it where that is a share already."""
    return given if getattr(given, "num_replicas", None) == team.size else _Share(given, team)


class _Share(Sampler[Any]):
    """Every so many-th item of a sampler, from this rank's on; as many in every rank."""

    def __init__(self, whole: Sampler[Any], team: Team) -> None:
        self._whole = whole
        self._rank, self._ranks = team.rank, team.size

    def __iter__(self) -> Iterator[Any]:
        whole = iter(self._whole)
        while len(items := list(islice(whole, self._ranks))) == self._ranks:
            yield items[self._rank]

    def __len__(self) -> int:
        return len(cast(Sized, self._whole)) // self._ranks

    def set_epoch(self, epoch: int) -> None:
        """Pass the number of the epoch on."""
        set_epoch = getattr(self._whole, "set_epoch", None)
        if set_epoch:
            set_epoch(epoch)
