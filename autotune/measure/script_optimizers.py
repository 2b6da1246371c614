"""The optimizers of a script: their steps, the phases of these, the precision, and the modules that they train."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook

from autotune.measure.device import Mark
from autotune.measure.rank_group import GradientWatch
from autotune.sites import cast_forwards, place_of, stand_in_for_autocast
from autotune.workload import Script


class ScriptOptimizers:
    """The optimizers that have made a step, and when forward and backward of the last one ended."""

    def __init__(self) -> None:
        self.steps = 0
        self.phases: dict[str, Mark] = {}
        """When forward and backward of the last step ended."""
        self.mark: Callable[[], Mark] = float
        self.amp: torch.dtype | None = None
        """The dtype of the script's own autocast."""
        self.autocast_call: str | None = None
        """File and line that enter it."""
        self.uses_autocast = True
        """Whether it takes effect."""
        self.may_cast = False
        """Whether it is known to have no autocast."""
        self.is_cast = False
        """Whether the modules that train compute in bf16, though the script has no autocast."""
        self.known: dict[int, torch.optim.Optimizer] = {}
        """The optimizers that have made a step, by their identity."""
        self._stream: Any = None
        """The stream of CUDA that its first step was made on."""
        self._replicas: Any = None
        """The model in DistributedDataParallel that was made last, and the watch on its gradients."""
        self._watch: GradientWatch | None = None

    def install(self, script: Script, passes: Callable[[Any], None], stepped: Callable[[int], None]) -> None:
        """Hear of optimizer steps, backward passes and autocast of a script.

        ``passes`` is called before a backward pass with the tensors that it begins at, ``stepped`` after each step
        with its optimizer's number, in the order of first steps.
        """
        backward = torch.autograd.backward

        def go_back(tensors: Any, *given: Any, **options: Any) -> None:
            self.phases.setdefault("forward", self.mark())
            self.phases.pop("backward", None)  # an optimizer may step in hooks of this one
            passes(tensors)
            watch = self._watch if self._watch and self._replicas.require_backward_grad_sync else None
            with watch.watching() if watch else nullcontext():
                backward(tensors, *given, **options)
            self.phases["backward"] = self.mark()
            if watch and watch.at is not None:
                self.phases["own gradients"] = watch.at

        def is_wanted(context: torch.autocast) -> bool:
            if self.amp is None and torch.is_grad_enabled():
                self.amp = context.fast_dtype
                self.autocast_call, _ = place_of(sys._getframe(1), script)
            return self.uses_autocast

        def step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
            self.steps += 1
            self.phases["optimizer"] = self.mark()
            if self._stream is None and torch.cuda.is_initialized():
                self._stream = torch.cuda.current_stream()
            self.known[id(optimizer)] = optimizer
            stepped(list(self.known).index(id(optimizer)))

        make: Callable[..., None] = DistributedDataParallel.__init__

        def made(replicas: Any, *given: Any, **options: Any) -> None:
            make(replicas, *given, **options)
            self._replicas, self._watch = replicas, GradientWatch(replicas, lambda: self.mark())

        DistributedDataParallel.__init__ = made  # type: ignore[method-assign, assignment]
        torch.autograd.backward = go_back
        stand_in_for_autocast(is_wanted)
        cast_forwards(lambda: torch.bfloat16 if self.is_cast else None)
        register_optimizer_step_post_hook(torch.compiler.disable(step))  # Dynamo follows no switch

    def forget(self) -> None:
        """Hold no optimizer of a script that has ended: its model goes before there is another."""
        self.known.clear()
        self._replicas = self._watch = None

    @property
    def precision(self) -> str:
        """The precision of the script's own autocast."""
        return {torch.bfloat16: "bf16", torch.float16: "fp16"}.get(self.amp, "off") if self.amp else "off"

    @property
    def is_on_another_stream(self) -> bool:
        """Whether the present stream of CUDA is not the one that the first step was made on."""
        return self._stream is not None and torch.cuda.current_stream() != self._stream

    def model(self) -> nn.Module:
        """Return the modules whose parameters were stepped: one, or a list of them."""
        left = {id(p) for each in self.known.values() for group in each.param_groups for p in group["params"]}
        modules = [each for each in gc.get_objects() if issubclass(type(each), nn.Module)]  # proxies may be dead
        found = list[nn.Module]()
        while left and modules:
            best = max(modules, key=lambda module: len(left & {id(p) for p in module.parameters()}))
            if not (own := left & {id(p) for p in best.parameters()}):
                break
            found, left = [*found, best], left - own
        return found[0] if len(found) == 1 else nn.ModuleList(found)
