"""One real training step: move the batch, forward and loss, backward, optimizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from autotune.accumulation import Reduction
from autotune.config import Config
from autotune.errors import UserCodeError
from autotune.measure.batch import move
from autotune.measure.device import Device, Mark
from autotune.measure.loader import BatchStream
from autotune.measure.rank_group import ALONE, GradientWatch, RankGroup, in_parallel, require_own
from autotune.workload import Workload

if TYPE_CHECKING:
    from autotune.measure.script_step import ScriptStep

StepMarks = tuple[Mark, Mark, Mark, Mark, Mark, Mark]
"""When the batch was there, on the device, after forward, after this process's own gradients, after those of all ranks
were synchronised, after the optimizer."""


class TrainingStep:
    """The timed step: a training loop's work on one batch.

    Autocast covers forward and loss only; fp16 scales its loss; gradients are accumulated over
    ``config.accumulation_steps`` batches and set to ``None`` after each step of the optimizer. The configuration's
    options stay on the workload's model. In a team of several ranks their gradients are averaged in each step.
    """

    def __init__(self, workload: Workload, config: Config, device: Device, group: RankGroup = ALONE) -> None:
        self._device = device
        self._config = config
        model = workload.model.to(device.torch_device).train()
        forward = workload.training_step or _default_forward(workload.loss)
        optimizer = make_optimizer(workload, model)
        config.apply_options(model, optimizer)
        self._model, self._forward = in_parallel(workload, model, forward, group)
        is_watched = isinstance(self._model, DistributedDataParallel)  # of others the waiting does not show
        self._watch = GradientWatch(self._model, device.mark) if is_watched else None
        self.accumulator = config.accumulator(optimizer, device.torch_device, reduction=loss_reduction(workload))
        self.max_grad_norm = workload.max_grad_norm
        self.non_blocking = config.pin_memory
        """Whether copies to the device need not be waited for: batches are pinned."""
        self.loss: torch.Tensor | None = None
        """The last loss, on the device; reading it synchronises."""
        self.stream: BatchStream | None = None
        """The stream that the batches come from; ``None`` for batches that may come again."""

    def __call__(self, batch: Any, samples: int | None = None) -> StepMarks:
        """Train on one batch of so many samples, a full one if not said, and return the marks between its phases."""
        mark, device = self._device.mark, self._device.torch_device
        there = mark()
        batch = move(batch, device, non_blocking=self.non_blocking)
        moved = mark()
        with self.accumulator.accumulate(self._model):
            with self._config.autocast(device):
                loss = self._forward(self._model, batch)
            forwarded = mark()
            watch = self._watch if self.accumulator.is_last else None  # only then it waits for other ranks
            with watch.watching() if watch else nullcontext():
                self.accumulator.backward(loss, samples)
        synchronised = mark()
        self.accumulator.step(self.max_grad_norm)
        self.loss = loss.detach()
        own = watch.at if watch else None
        return there, moved, forwarded, synchronised if own is None else own, synchronised, mark()

    @property
    def scale(self) -> float:
        """The factor of the loss in fp16, which falls where a step is skipped; reading it synchronises."""
        return float(self.accumulator.scaler.get_scale())

    def flush(self) -> None:
        """Step the optimizer with the gradients of the batches so far."""
        self.accumulator.flush(self.max_grad_norm)

    def close(self) -> None:
        """Leave nothing on the model but its options."""
        if self._watch is not None:
            self._watch.close()


Step: TypeAlias = "TrainingStep | ScriptStep"
"""A training loop's work on one batch: the workload's, or a script's own."""


def loss_reduction(workload: Workload) -> Reduction:
    """Return how the loss is reduced over samples: as the workload says, as its loss does, or by their mean."""
    if workload.loss_reduction is not None:
        return workload.loss_reduction
    return "sum" if getattr(workload.loss, "reduction", "mean") == "sum" else "mean"


def make_optimizer(workload: Workload, model: torch.nn.Module) -> torch.optim.Optimizer:
    """Return the workload's optimizer, AdamW by default.

    Raises ``UserCodeError`` when the model has nothing to train.
    """
    given = workload.optimizer
    if isinstance(given, torch.optim.Optimizer):
        optimizer = given
        require_own(optimizer, model)
    else:
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        if not parameters:
            raise UserCodeError("the model has no parameter that requires a gradient: there is nothing to train")
        optimizer = given(parameters) if given else torch.optim.AdamW(parameters)
    enter_training = getattr(optimizer, "train", None)
    if callable(enter_training):
        enter_training()  # those that average weights refuse to step before it
    return optimizer


def _default_forward(
    loss: Callable[[Any, Any], torch.Tensor] | None,
) -> Callable[[torch.nn.Module, Any], torch.Tensor]:
    def forward(model: torch.nn.Module, batch: Any) -> torch.Tensor:
        if isinstance(batch, Mapping):
            output, target = model(**batch), batch
        elif isinstance(batch, (tuple, list)) and len(batch) > 1:
            output, target = model(*batch[:-1]), batch[-1]
        else:
            if isinstance(batch, (tuple, list)) and len(batch) == 1 and isinstance(batch[0], torch.Tensor):
                (batch,) = batch  # as of TensorDataset(x)
            output, target = model(batch), batch
        return loss(output, target) if loss else infer_loss(output, target)

    return forward


def infer_loss(output: Any, target: Any) -> torch.Tensor:
    """Return the loss in the output, or the usual loss for the target's type.

    Raises ``UserCodeError`` naming the argument to pass when neither is possible.
    """
    carried = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if isinstance(carried, torch.Tensor):
        return carried
    if isinstance(output, torch.Tensor) and output.ndim == 0:
        return output
    if output is None:
        raise UserCodeError("the model's forward returned None: return its output, or pass Workload(training_step=...)")
    if not (isinstance(output, torch.Tensor) and isinstance(target, torch.Tensor)) or output is target:
        raise UserCodeError(
            f"no loss can be inferred from an output of type {type(output).__name__} and a target of type "
            f"{type(target).__name__}: pass Workload(loss=...) or Workload(training_step=...)"
        )
    is_one_logit = output.numel() == target.numel() and output.shape[1:2] in ((), (1,))
    if not (target.is_floating_point() or is_one_logit):
        return functional.cross_entropy(output, target.long())
    if output.shape != target.shape and output.numel() == target.numel():
        target = target.reshape(output.shape)
    if output.shape != target.shape:
        raise UserCodeError(
            f"the model's output has shape {tuple(output.shape)}, the target {tuple(target.shape)}: the mean "
            "squared error needs equal shapes; pass Workload(loss=...)"
        )
    mean_loss = functional.mse_loss if target.is_floating_point() else functional.binary_cross_entropy_with_logits
    return mean_loss(output, target.to(output.dtype))
