"""A step of a script: its own work on one batch, with the batch as the script may have it."""

from __future__ import annotations

import copy
from typing import Any

import torch

from autotune.errors import UserCodeError
from autotune.measure.batch import versions
from autotune.measure.device import Device
from autotune.measure.loader import BatchStream
from autotune.measure.script import ScriptLoop
from autotune.measure.step import StepMarks

LEAST_DIFFERENCE, COUNTED_BATCHES = 0.1, 3
"""Difference in the share of batches without a step that is none, and batches that may be missing by chance."""


class ScriptStep:
    """The script's work on one batch, until it asks for the next."""

    scale = 1.0
    """Not known, as the loss is not."""

    def __init__(self, loop: ScriptLoop, device: Device, amp: str) -> None:
        """Take the script, its device and the precision: of its own autocast, or of one that it does not have."""
        self._loop, self._mark = loop, device.mark
        self._handed = self._missed = 0
        """Batches handed out, and those after which no optimizer stepped."""
        own = loop.optimizers
        own.uses_autocast, own.is_cast = amp != "off", amp != "off" and own.may_cast
        own.mark, loop.pass_over = device.mark, device.pass_over
        self._device = device
        self._copied = set[int]()
        """Batches of which the script has had a copy first."""
        self._changes = False
        """Whether the script has changed tensors of a batch in place."""
        self.non_blocking = False
        self.loss: torch.Tensor | None = None
        """Not known: the script's losses are its own business."""
        self.stream: BatchStream | None = None

    def __call__(self, batch: Any, samples: int | None = None) -> StepMarks:
        """Let the script train on a batch; the script itself moves it to the device."""
        self._loop.stream = self.stream
        if self.stream is None:
            batch = self._copy_of(batch)
        known, before = versions(batch), self._loop.optimizers.steps
        there = self._mark()
        self._loop.give_batch(batch)
        end = self._mark()
        self._changes |= versions(batch) != known
        self._count(is_missed=self._loop.optimizers.steps == before)
        phases = self._loop.optimizers.phases
        forwarded = phases.get("forward", end)
        backward = phases.get("backward", end)
        return there, there, forwarded, phases.get("own gradients", backward), backward, end

    def _copy_of(self, batch: Any) -> Any:
        """Return a copy of a batch that may come again where the script changes it, or may: at its first time."""
        is_new = id(batch) not in self._copied
        if not (is_new or self._changes):
            return batch
        begin = self._mark()
        copied = copy.deepcopy(batch)
        self._copied.add(id(batch))
        self._loop.spare = batch
        if is_new or not self._device.is_asynchronous:  # an accelerator is busy meanwhile
            self._device.pass_over(begin)
        return copied

    def _count(self, *, is_missed: bool) -> None:
        self._handed += 1
        self._missed += is_missed
        more = self._missed / self._handed - self._loop.loaders.missing
        if more > max(LEAST_DIFFERENCE, COUNTED_BATCHES / self._handed):
            raise UserCodeError(
                f"{self._missed} of {self._handed} batches made no step of an optimizer: {self._loop.run.name} passes "
                "them over, as after an error that it catches"
            )

    def flush(self) -> None:
        """Do nothing: when an optimizer steps is the script's business."""

    def close(self) -> None:
        """Leave the script where it is."""
