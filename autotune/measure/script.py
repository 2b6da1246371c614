"""A training script whose own loop is the training step.

The script runs as ``__main__`` in a greenlet. Where its loop asks the training loader for a batch, the measuring code
hands it one. Both run in one thread: signals, streams and random state are those of the script.
"""

from __future__ import annotations

import copy
import gc
import os
import runpy
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from greenlet import getcurrent, greenlet
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import DataLoader

from autotune.errors import UserCodeError
from autotune.existing_loader import ExistingLoader, take_apart
from autotune.measure.device import Device, Mark
from autotune.measure.held_back import HeldBack
from autotune.measure.step import StepMarks
from autotune.sites import Maker, Site, place_of, stand_in_for_autocast, stand_in_for_loaders

ENDLESS = 100_000
"""Batches that a script is told of its training loader at least: trainers count them, and end an epoch by themselves.
Schedules that are made in advance for each of them still fit the memory."""


class StoppedError(BaseException):
    """Ends the script where it asks for a batch; no ``except Exception`` of its own catches it."""


class ScriptLoop:
    """A script, stopped where its training loop asks for a batch."""

    def __init__(
        self, path: str, arguments: Sequence[str], site: str | None = None, *, allow_writes: bool = False
    ) -> None:
        """Take the script, its arguments, and the place of its training loader where that is known."""
        self._held = None if allow_writes else HeldBack()
        self.path, self.arguments, self.site = path, list(arguments), site
        self.loader: DataLoader[Any] | None = None
        """The loader whose batches are trained on."""
        self.last: _Watched | None = None
        """The iterator that gave the last batch of its own."""
        self.phases: dict[str, Mark] = {}
        """When forward and backward of the last step ended."""
        self.mark: Callable[[], Mark] = float
        self.amp: torch.dtype | None = None
        """The dtype of the script's own autocast."""
        self.autocast_call: str | None = None
        """File and line that enter it."""
        self.uses_autocast = True
        """Whether it takes effect."""
        self.steps = 0
        """Steps of optimizers so far."""
        self._optimizers: dict[int, torch.optim.Optimizer] = {}
        self._made: list[tuple[int, Site]] = []
        """The identity of each loader's dataset, and the loader's place; a loader may be gone by now."""
        self._sites: weakref.WeakKeyDictionary[DataLoader[Any], Site] = weakref.WeakKeyDictionary()
        self._pid = os.getpid()
        self._modes = _Modes.now()
        self._end: BaseException | None = None
        self._iterate = DataLoader.__iter__

    @property
    def folder(self) -> Path:
        """The script's folder."""
        return Path(self.path).resolve().parent

    @property
    def name(self) -> str:
        """The script's file name."""
        return Path(self.path).name

    def start(self) -> None:
        """Run the script until its training loop asks for a batch that it has not seen.

        Raises ``UserCodeError`` where it ends before, and whatever it raises.
        """
        self._install()
        if self._held is not None:
            self._held.install()
        sys.argv = [self.path, *self.arguments]
        sys.path.insert(0, str(self.folder))
        self._measuring = getcurrent()
        self._script = greenlet(self._run)
        self._resume(None)

    def hand(self, batch: Any) -> None:
        """Let the script train on a batch, until it asks for the next."""
        self.phases.clear()
        self._resume(batch)

    def existing(self) -> ExistingLoader:
        """Return the training loader's data and settings."""
        return take_apart(self.loader, f"{self.name}: the training loader")

    @property
    def precision(self) -> str:
        """The precision of its own autocast."""
        return {torch.bfloat16: "bf16", torch.float16: "fp16"}.get(self.amp, "off") if self.amp else "off"

    @property
    def own_site(self) -> Site:
        """The place that made the training loader."""
        assert self.loader is not None
        return self._sites[self.loader]

    @property
    def origin(self) -> Site:
        """The place of the user's that made the training loader, or the loader that it was made from."""
        own = self.own_site
        alike = (id(self.loader.dataset) if self.loader else 0, own.dataset, own.length)
        made = (site for dataset, site in self._made if (dataset, site.dataset, site.length) == alike)
        return next((site for site in made if not site.inside), own)

    def model(self) -> nn.Module:
        """Return the modules whose parameters were stepped: one, or a list of them."""
        left = {id(p) for each in self._optimizers.values() for group in each.param_groups for p in group["params"]}
        known = [each for each in gc.get_objects() if isinstance(each, nn.Module)]
        found = list[nn.Module]()
        while left and known:
            best = max(known, key=lambda module: len(left & {id(p) for p in module.parameters()}))
            if not (own := left & {id(p) for p in best.parameters()}):
                break
            found, left = [*found, best], left - own
        return found[0] if len(found) == 1 else nn.ModuleList(found)

    def _run(self, _: Any) -> None:
        try:
            runpy.run_path(self.path, run_name="__main__")
        except StoppedError:
            pass
        except BaseException as error:
            self._end = error
        if os.getpid() != self._pid:  # a process that the script has forked
            os._exit(1 if self._end else 0)

    def _resume(self, batch: Any) -> None:
        ours = _Modes.now()
        self._modes.apply()
        self._script.switch(batch)
        self._modes = _Modes.now()
        ours.apply()
        if self._script.dead:
            raise self._failure()

    def _failure(self) -> BaseException:
        """Return the error that tells why the script has ended."""
        when = f"after {self.steps} steps of an optimizer"
        if isinstance(self._end, SystemExit):
            return UserCodeError(f"{self.name} called sys.exit({self._end.code!r}) {when}")
        if isinstance(self._end, EOFError):
            return UserCodeError(f"{self.name} asks for input, and there is nobody to answer: pass it as an argument")
        if self._end is not None:
            return self._end
        if self.loader is not None:
            return UserCodeError(f"{self.name} ended {when}: its loop is too short to be measured; pass more epochs")
        return UserCodeError(
            f"{self.name} ended {when}, and none of them came between two batches of one DataLoader: autotune varies "
            "the DataLoader that training iterates"
        )

    def ask(self) -> Any:
        """Return the batch that the measuring code hands out, to the script's loop."""
        if getcurrent() is not self._script:
            self._end = UserCodeError(
                f"{self.name} iterates its training loader in another thread, where it is not measured"
            )
            raise self._end
        return self._measuring.switch()

    def _install(self) -> None:
        """Stand in for ``DataLoader.__iter__``, and hear of loaders, optimizer steps, backward passes and autocast."""
        iterate, length, backward = self._iterate, DataLoader.__len__, torch.autograd.backward

        def made(make: Maker, site: Site, loader: DataLoader[Any], arguments: dict[str, Any]) -> None:
            make(loader, **arguments)
            self._sites[loader] = site
            self._made.append((id(loader.dataset), site))

        stand_in_for_loaders(self.folder, made)

        def go_over(loader: DataLoader[Any]) -> Any:
            if os.getpid() != self._pid or getcurrent() is self._measuring:
                return iterate(loader)
            return self._over(loader)

        def go_back(*given: Any, **options: Any) -> None:
            self.phases.setdefault("forward", self.mark())
            backward(*given, **options)
            self.phases["backward"] = self.mark()

        def is_wanted(context: torch.autocast) -> bool:
            if self.amp is None:
                self.amp = context.fast_dtype
                file, line, _ = place_of(sys._getframe(1), self.folder)
                self.autocast_call = f"{file}:{line}"
            return self.uses_autocast

        def stepped(optimizer: torch.optim.Optimizer, *_: Any) -> None:
            self.steps += 1
            self._optimizers[id(optimizer)] = optimizer
            if self._held is not None:
                self._held.is_training = True

        def count(loader: DataLoader[Any]) -> int:
            """Return the batches of an epoch; those of the training loader never end."""
            own = length(loader)
            is_ours = getcurrent() is self._measuring or os.getpid() != self._pid
            site = self._sites.get(loader)
            return own if is_ours or site is None or site.key != self.site else max(own, ENDLESS)

        DataLoader.__iter__, DataLoader.__len__ = go_over, count  # type: ignore[method-assign]
        torch.autograd.backward = go_back
        stand_in_for_autocast(is_wanted)
        register_optimizer_step_post_hook(stepped)

    def _over(self, loader: DataLoader[Any]) -> Iterator[Any]:
        """Return an iterator of a loader for the script: the door itself for the one that trains."""
        own = self._sites.get(loader)
        if self.loader is None and own is not None and own.key == self.site:
            self.loader = loader
        if self.loader is not None and own == self._sites.get(self.loader):
            self.loader = loader  # a new one for each epoch takes the place of the one before
            return _Asked(self.ask)
        if self.loader is not None:
            where = own.text if own else "another file"
            self._end = UserCodeError(
                f"{self.name} goes over the DataLoader of {where} after {self.steps} steps of an optimizer: a "
                "measurement has to end there; let it validate less often"
            )
            raise StoppedError
        return _Watched(self, loader, self._iterate(loader))

    def found(self, watched: _Watched) -> None:
        """Note that a loader is the one that trains. Raises ``UserCodeError`` where its steps use another's batches."""
        loader, last = watched.loader, self.last
        if last is not None and last is not watched and last.steps == watched.steps:
            raise UserCodeError(
                f"{self.name} trains on batches of two loaders, made in {self._sites[loader].text} and "
                f"{self._sites[last.loader].text}: autotune measures scripts with one"
            )
        self.loader = loader


class _Asked(Iterator[Any]):
    """Batches that the measuring code hands out."""

    def __init__(self, ask: Callable[[], Any]) -> None:
        self._ask = ask

    def __next__(self) -> Any:
        return self._ask()


class _Watched(Iterator[Any]):
    """A loader's own batches, until an optimizer steps between two of them: from then on it is the one that trains."""

    def __init__(self, loop: ScriptLoop, loader: DataLoader[Any], batches: Any) -> None:
        self._loop, self.loader, self._batches = loop, loader, batches
        self.steps: int | None = None
        """Steps of optimizers before the last batch."""

    def __next__(self) -> Any:
        loop = self._loop
        if self._batches is None or (self.steps is not None and loop.steps > self.steps):
            self._batches = None  # its workers end
            loop.found(self)
            return loop.ask()
        batch = next(self._batches)
        self.steps, loop.last = loop.steps, self
        return batch


@dataclass(frozen=True, slots=True)
class _Modes:
    """The modes of torch that belong to the thread: autograd's and those of autocast, by device."""

    grad: bool
    cache: bool
    autocast: Mapping[str, tuple[bool, torch.dtype]]

    @classmethod
    def now(cls) -> _Modes:
        kinds = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
        casts = {kind: (torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in kinds}
        return cls(torch.is_grad_enabled(), torch.is_autocast_cache_enabled(), casts)

    def apply(self) -> None:
        torch.set_grad_enabled(self.grad)
        torch.set_autocast_cache_enabled(self.cache)
        for kind, (enabled, dtype) in self.autocast.items():
            torch.set_autocast_enabled(kind, enabled)
            torch.set_autocast_dtype(kind, dtype)


class ScriptStep:
    """The script's work on one batch, until it asks for the next."""

    scale = 1.0
    """Not known, as the loss is not."""

    def __init__(self, loop: ScriptLoop, device: Device, amp: str) -> None:
        """Take the script, its device and the precision: that of its own autocast, or ``"off"`` without it."""
        self._loop, self._mark = loop, device.mark
        loop.uses_autocast = amp != "off"
        loop.mark = device.mark
        self.non_blocking = False
        self.loss: torch.Tensor | None = None
        """Not known: the script's losses are its own business."""

    def __call__(self, batch: Any, samples: int | None = None) -> StepMarks:
        """Let the script train on a batch; the script itself moves it to the device."""
        there = self._mark()
        self._loop.hand(shallow(batch))
        end = self._mark()
        phases = self._loop.phases
        forwarded = phases.get("forward", end)
        backward = phases.get("backward", end)
        return there, there, forwarded, backward, backward, end

    def flush(self) -> None:
        """Do nothing: when an optimizer steps is the script's business."""

    def close(self) -> None:
        """Leave the script where it is."""


def shallow(batch: Any) -> Any:
    """Return a batch whose containers may be changed by the script; tensors stay the same."""
    if isinstance(batch, torch.Tensor):
        return batch
    if isinstance(batch, tuple):
        parts = [shallow(part) for part in batch]
        return type(batch)(*parts) if hasattr(batch, "_fields") else tuple(parts)
    if isinstance(batch, list):
        return [shallow(part) for part in batch]
    if type(batch) is dict:
        return {key: shallow(part) for key, part in batch.items()}
    return copy.copy(batch)
