"""A training step in several ranks: the model wrapped as each of them trains it, gradients synchronised in backward."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from autotune.errors import UsageError
from autotune.measure.team import Team
from autotune.workload import Workload

__all__ = ["GradientWatch", "in_parallel", "require_own", "watch_of"]

Forward = Callable[[torch.nn.Module, Any], torch.Tensor]


class _Replica(torch.nn.Module):
    """Calls a training step as its forward: DistributedDataParallel knows of no other call of the model."""

    def __init__(self, model: torch.nn.Module, forward: Forward) -> None:
        super().__init__()
        self.model = model
        self._training_step = forward

    def forward(self, batch: Any) -> torch.Tensor:
        """Return the loss."""
        return self._training_step(self.model, batch)


def in_parallel(
    workload: Workload, model: torch.nn.Module, forward: Forward, team: Team
) -> tuple[torch.nn.Module, Forward]:
    """Return what the ranks call instead of a model, and how; what is parallel in the user's own way stays as it is."""
    if team.size == 1 or workload.parallelize is not None or _synchronises(model):
        return model, forward
    return DistributedDataParallel(_Replica(model, forward)), lambda replicas, batch: replicas(batch)


def _synchronises(model: torch.nn.Module) -> bool:
    """Tell whether a model is in DistributedDataParallel or FSDP already, as a build function may make it."""
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


def watch_of(model: torch.nn.Module, mark: Callable[[], Any]) -> GradientWatch | None:
    """Return what watches a model's gradients; ``None`` where it is no DistributedDataParallel, whose waiting shows."""
    return GradientWatch(model, mark) if isinstance(model, DistributedDataParallel) else None


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
