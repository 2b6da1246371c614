"""Gradient accumulation: several batches make one step of the optimizer, as if they were one batch."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Literal, get_args

from autotune.errors import UsageError

if TYPE_CHECKING:
    import torch

Reduction = Literal["mean", "sum"]


class GradientAccumulator:
    """Takes the loss of each batch, and steps the optimizer after every ``steps`` batches.

    The gradients equal those of one large batch, also where the last batch is short. With a mean loss each batch counts
    by its samples, with a sum all count alike. A mean over anything but samples (tokens without padding, weighted
    classes) is exact only where every batch has as much of it. The scaler may be disabled. In a process group the large
    batch spans all ranks, whose gradients DistributedDataParallel and FSDP average.

    Raises ``UsageError`` for a reduction that is neither ``mean`` nor ``sum``.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        scaler: torch.amp.GradScaler,
        *,
        batch_size: int,
        steps: int,
        reduction: Reduction = "mean",
    ) -> None:
        if reduction not in get_args(Reduction):
            raise UsageError(f"reduction is {reduction!r}; allowed: {', '.join(get_args(Reduction))}")
        self.optimizer = optimizer
        self.scaler = scaler
        """The scaler of the loss in fp16; it does nothing in other precisions."""
        self._batch_size = batch_size
        self._steps = steps
        self._is_mean = reduction == "mean"
        self._batches = 0
        self._samples = 0
        self._lacks_others = False

    @property
    def is_last(self) -> bool:
        """Whether the next batch is the last before a step of the optimizer."""
        return self._batches + 1 >= self._steps

    def accumulate(self, model: torch.nn.Module) -> AbstractContextManager[Any]:
        """Return the context for forward and ``backward`` of a batch, in which ranks synchronise only as they must.

        In all batches but the last before a step it is ``model.no_sync()``, where ``model`` is a
        DistributedDataParallel; else it does nothing.
        """
        from torch.nn.parallel import DistributedDataParallel

        self._lacks_others = not self.is_last and isinstance(model, DistributedDataParallel)
        leave_out: Any = getattr(model, "no_sync", None)
        return leave_out() if self._lacks_others else nullcontext()

    def backward(self, loss: torch.Tensor, samples: int | None = None) -> None:
        """Add the gradients of a batch's loss; ``samples`` is how many it holds, ``batch_size`` if not said."""
        samples = self._batch_size if samples is None else samples
        self._batches += 1
        self._samples += samples
        share = 1.0 if self._is_mean else float(_ranks())  # ranks' gradients are averaged, sums are to be added
        if self._is_mean and self._steps > 1:
            share = samples / (self._batch_size * self._steps)
        self.scaler.scale(loss if share == 1.0 else loss * share).backward()

    def step(self, max_norm: float | None = None) -> bool:
        """Step the optimizer if enough batches are in; return whether they were.

        ``max_norm`` clips the gradients' norm before, as ``torch.nn.utils.clip_grad_norm_`` does, once they are those
        of the whole and no longer scaled. Like any scaler, that of fp16 skips a step whose gradients overflow.
        """
        return self._batches >= self._steps and self.flush(max_norm)

    def flush(self, max_norm: float | None = None) -> bool:
        """Step the optimizer with the batches so far, as at the end of an epoch; return whether there were any."""
        if not self._batches:
            return False
        if self._lacks_others:
            self._average_over_ranks()
        if self._is_mean and self._steps > 1:
            self._count_what_was_there()
        if max_norm is not None:
            from torch.nn.utils import clip_grad_norm_

            self.scaler.unscale_(self.optimizer)
            clip_grad_norm_(self._parameters(), max_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        self._batches = self._samples = 0
        return True

    def _average_over_ranks(self) -> None:
        """Synchronise the gradients left out by the last backward, as the epoch ended before the end of the step."""
        from torch import distributed, zeros_like

        for parameter in self._parameters():
            if parameter.requires_grad:
                gradient = zeros_like(parameter) if parameter.grad is None else parameter.grad
                distributed.all_reduce(gradient)  # in every rank for every parameter, also where it was not used
                if parameter.grad is not None or bool(gradient.any()):
                    parameter.grad = gradient.div_(_ranks())
        self._lacks_others = False

    def _count_what_was_there(self) -> None:
        """Make a mean over full batches one over the samples that there were, in all ranks together."""
        import torch

        expected = self._batch_size * self._steps
        gradients = [parameter.grad for parameter in self._parameters() if parameter.grad is not None]
        if _ranks() == 1:
            if self._samples != expected:
                torch._foreach_mul_(gradients, expected / self._samples)
            return
        whole = torch.full((), float(self._samples), device=gradients[0].device if gradients else None)
        torch.distributed.all_reduce(whole)
        factor = expected * _ranks() / whole  # stays on the device: reading it would make the host wait in each step
        if factor.device.type != "cpu" or float(factor) != 1.0:
            torch._foreach_mul_(gradients, factor)

    def _parameters(self) -> list[torch.Tensor]:
        return [parameter for group in self.optimizer.param_groups for parameter in group["params"]]


def _ranks() -> int:
    from torch import distributed

    is_group = distributed.is_available() and distributed.is_initialized()
    return distributed.get_world_size() if is_group else 1
