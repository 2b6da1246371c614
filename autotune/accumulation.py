"""Gradient accumulation: several batches make one step of the optimizer, as if they were one batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

from autotune.errors import UsageError

if TYPE_CHECKING:
    import torch

__all__ = ["GradientAccumulator", "Reduction"]

Reduction = Literal["mean", "sum"]


class GradientAccumulator:
    """Takes the loss of each batch, and steps the optimizer after every so many.

    The gradients are those of the whole: of a loss that is a mean over samples each batch counts by its samples, of a
    sum all count alike; a short last batch changes nothing in that. A mean over something else, such as tokens that are
    not padding or weighted classes, is that of the whole only where every batch has as much of it. The scaler may be a
    disabled one.

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
        """What changes the weights."""
        self.scaler = scaler
        """Scales the loss of fp16, and does nothing in other precisions."""
        self._batch_size = batch_size
        self._steps = steps
        self._is_mean = reduction == "mean"
        self._batches = 0
        self._samples = 0

    def backward(self, loss: torch.Tensor, samples: int | None = None) -> None:
        """Add the gradients of a batch's loss; ``samples`` is how many it holds, ``batch_size`` if not said."""
        samples = self._batch_size if samples is None else samples
        self._batches += 1
        self._samples += samples
        share = samples / (self._batch_size * self._steps) if self._is_mean and self._steps > 1 else 1.0
        self.scaler.scale(loss if share == 1.0 else loss * share).backward()

    def step(self, max_norm: float | None = None) -> bool:
        """Step the optimizer if enough batches are in; tell whether they were.

        ``max_norm`` clips the gradients' norm before, as ``torch.nn.utils.clip_grad_norm_`` does, once they are those
        of the whole and no longer scaled. Like any scaler, that of fp16 skips a step whose gradients overflow.
        """
        return self._batches >= self._steps and self.flush(max_norm)

    def flush(self, max_norm: float | None = None) -> bool:
        """Step the optimizer with what is in, as at the end of an epoch; tell whether there was anything."""
        if not self._batches:
            return False
        expected = self._batch_size * self._steps
        if self._is_mean and self._steps > 1 and self._samples != expected:
            self._scale_gradients(expected / self._samples)
        if max_norm is not None:
            from torch.nn.utils import clip_grad_norm_

            self.scaler.unscale_(self.optimizer)
            clip_grad_norm_(self._parameters(), max_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        self._batches = self._samples = 0
        return True

    def _scale_gradients(self, factor: float) -> None:
        for parameter in self._parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(factor)

    def _parameters(self) -> list[torch.Tensor]:
        return [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
