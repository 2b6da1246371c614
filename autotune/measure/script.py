"""A training script whose own loop is the training step.

The script runs as ``__main__`` in a greenlet. Where its loop asks the training loader for a batch, the measuring code
hands it one. Both run in one thread: signals, streams and random state are those of the script.
"""

from __future__ import annotations

import builtins
import copy
import gc
import hashlib
import itertools
import multiprocessing.context
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, cast

import torch
from greenlet import getcurrent, greenlet
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import DataLoader

from autotune.errors import ScriptEndsError, UserCodeError
from autotune.existing_loader import ExistingLoader, take_apart
from autotune.measure.batch import shallow, versions
from autotune.measure.children import TRAINS, refuse_training_children, tell, way_out
from autotune.measure.device import Mark
from autotune.measure.draws import Draws
from autotune.measure.failures import is_known
from autotune.measure.lineage import Parts
from autotune.measure.writes import Hold, refuse_large
from autotune.sites import Maker, Site, cast_forwards, place_of, stand_in_for_autocast, stand_in_for_loaders
from autotune.workload import Beside, Script, Workload

if TYPE_CHECKING:
    from autotune.measure.loader import BatchStream, SeveralStreams

ENDLESS = 2_000, 100_000
"""Batches that a script is told of its training loader at least, and at most where its steps are short: trainers count
them, and end an epoch by themselves. Schedules are made in advance for each of them."""
WINDOWS_SECONDS = 120.0
"""Seconds of training that the batches told are enough for."""
SEEN_BATCHES, SEEN_SECONDS = 6, 1.0
"""Batches of its own that a script trains on before it is stopped, and the seconds that they may take."""
STEPS_WITHOUT_BATCHES = 100
"""Steps of an optimizer from which batches that come from no DataLoader are not waited for."""
LEAST_STEPS = 20
"""Steps of an optimizer from which a script that ends is started again."""
AGAIN = 2
"""First steps of a script that was started again, which allocate and compile, and are not measured."""
ALIKE = ("num_workers", "pin_memory", "prefetch_factor", "persistent_workers")
"""Settings that loaders have in common where they feed the steps together."""
IRREGULAR = ", which take turns irregularly: draw the same from each in every round, or train on one"
FRESH_ITERATORS = 3
"""Iterators with one batch each, one after another, that are no accident."""


class StoppedError(BaseException):
    """Ends a thread of the script's, where the script is refused."""


class ScriptLoop:
    """A script, stopped where its training loop asks for a batch."""

    def __init__(
        self,
        path: str,
        arguments: Sequence[str],
        site: str | None = None,
        hold: Hold | None = None,
        *,
        batches: int = ENDLESS[0],
        missing: float = 0.0,
        earlier: int = 0,
        module: str | None = None,
        beside: Mapping[str, int] | None = None,
        patience: float = 0.0,
    ) -> None:
        """Take the script, its arguments, the place of its training loader where that is known, and its held writes.

        A ``module`` is run by its name, as ``python -m`` does.
        ``batches`` is the length of the training loader that it is told, ``missing`` the usual share of batches without
        a step of an optimizer, ``earlier`` its iterators before the first one that trains, ``beside`` the other loaders
        that feed the steps, with their batches in a round. A script that trains on other batches than a DataLoader's is
        waited for, ``patience`` seconds at most.
        """
        self.beside = dict(beside or {})
        """The places of further loaders that feed the steps, and the batches of each for one of the first."""
        self._dealt: dict[str, list[Any]] = {}
        """Their batches of this round."""
        self._round: tuple[Any, ...] = ()
        """The round as it was handed out."""
        self.draws, self._parts = Draws(), Parts()
        if site is not None:
            self._parts.settle()
        self.batches, self.missing, self.earlier = batches, missing, earlier
        self._patience, self._kept_since = patience, 0.0
        """Seconds to wait for a DataLoader's batch, and when it began."""
        self._iterators: dict[Site, int] = {}
        """Iterators of each loader that may train, before the loop was found."""
        self._training: weakref.ref[Iterator[Any]] | None = None
        """The last iterator whose batches are trained on."""
        self.hold = hold
        self.path, self.arguments, self.site = path, list(arguments), site
        self._file, self._source = Path(path).resolve(), Script(path=path, arguments=tuple(arguments), module=module)
        self._working_folder, self.folder = Path.cwd(), self._source.folder
        """The script's folder; of a module the working folder, as it is now."""
        self.loader: DataLoader[Any] | None = None
        """The loader whose batches are trained on."""
        self.last: _Watched | None = None
        """The iterator that gave the last batch of its own."""
        self.phases: dict[str, Mark] = {}
        """When forward and backward of the last step ended."""
        self.mark: Callable[[], Mark] = float
        self.pass_over: Callable[[Mark], None] = lambda begin: None
        """Leaves the time since a mark out of the measurement."""
        self.stream: BatchStream | None = None
        """The stream whose batches are handed out."""
        self.spare: Any = None
        """A batch as it was before the script had it."""
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
        self.steps = 0
        """Steps of optimizers so far."""
        self._born = 0
        """Those before the script was started last."""
        self._error_at: int | None = None
        """Steps after which the script has ended by an error."""
        self._pause: Mark | None = None
        """When the script began to do something that is no training."""
        self._built = 0
        """Batches built by then."""
        self._apart: tuple[int, str] | None = None
        """Steps before the last batch of another loader that was handed out with gradients, and that loader's place."""
        self._optimizers: dict[int, torch.optim.Optimizer] = {}
        self._made: list[tuple[int, Site]] = []
        """The identity of each loader's dataset, and the loader's place; a loader may be gone by now."""
        self._sites: weakref.WeakKeyDictionary[DataLoader[Any], Site] = weakref.WeakKeyDictionary()
        self._has_asked = False
        """Whether it has asked for input."""
        self._pid = os.getpid()
        self._modes = self._first_modes = _Modes.now()
        self._cuda_stream: Any = None
        """The stream of CUDA that its first step was made on."""
        self._end: BaseException | None = None
        self._refusal: UserCodeError | None = None
        """Why it cannot be measured, once that is known."""
        self._given: dict[Site, tuple[int, int]] = {}
        """Steps before the last iterator of each loader, and its batches."""
        self._fresh: dict[Site, int] = {}
        """Iterators with one batch each, one after another."""
        self._steps_at_batch = 0
        """Steps of optimizers before the last batch of any loader."""

    @property
    def name(self) -> str:
        """The script's file name."""
        return Path(self.path).name

    def fingerprint(self, workload: str) -> str:
        """Return a digest of the script, its arguments and what it trains; other code is in the ``workload``'s own."""
        parts = [workload, repr(self.arguments), hashlib.sha256(self._file.read_bytes()).hexdigest()]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]

    def start(self) -> None:
        """Run the script until its training loop asks for a batch that it has not seen.

        Raises ``UserCodeError`` where it ends before, and whatever it raises.
        """
        self._install()
        sys.path.insert(0, str(self.folder))
        self._measuring = getcurrent()
        self._launch()

    def hand(self, batch: Any) -> None:
        """Let the script train on a batch, until it asks for the next; start it again where it has ended.

        Raises ``ScriptEndsError`` where it ends too early, and whatever else ends it.
        """
        begin, before = self.mark(), versions(batch)
        self.phases.clear()
        self._resume(self._deal(batch))
        if self._script.dead:
            is_trained, phases = bool(self.phases), dict(self.phases)
            self._pause_from(phases.get("optimizer", phases.get("backward", begin)))
            self._start_again(batch if self.spare is None or versions(batch) == before else self.spare)
            self._go_on()
            if not is_trained:
                return self.hand(batch if versions(batch) == before else self.spare)
            self.phases = phases
        self._go_on()
        return None

    def _deal(self, batch: Any) -> Any:
        """Return a batch for the script, and keep those of other loaders until it asks for them."""
        if not self.beside:
            return shallow(batch)
        first, *others = self._round = batch
        self._dealt = {key: shallow(each) for key, each in zip(self.beside, others, strict=True)}
        return shallow(first)

    def pause(self) -> None:
        """Begin to leave out what the script does, until it asks for a batch to train on."""
        self._pause_from(self.mark())

    def _pause_from(self, begin: Mark) -> None:
        if self._pause is None:
            self._pause, self._built = begin, self.stream.produced if self.stream else 0

    def _go_on(self) -> None:
        if self._pause is not None:
            self.pass_over(self._pause)
            self._pause = None
            if self.stream:
                self.stream.built_apart += self.stream.produced - self._built

    def _launch(self) -> None:
        self._modes, self._born = self._first_modes, self.steps
        self._script = greenlet(self._run)
        self._resume(None)
        if self._script.dead:
            raise self._failure()

    def _start_again(self, batch: Any) -> None:
        """Start the script again in this process, and let it train on a batch, unmeasured.

        Raises its error where the setting may be the reason, and ``ScriptEndsError`` where it cannot go on.
        """
        lived, failure = self.steps - self._born, self._failure()
        ended = f"{self.name} ends after {lived} steps of an optimizer"
        if not self._ends_by_itself(lived):
            raise failure
        if lived < LEAST_STEPS:
            raise ScriptEndsError(f"{ended}: that is too short to be measured; let it train for longer")
        self.site = self.own_site.key
        self._end = self.loader = self.last = self._apart = None
        self.draws = Draws()
        self._training, self._kept_since = None, 0.0
        for known in (self._given, self._optimizers, self._iterators):
            known.clear()
        del failure
        gc.collect()  # its model, before there is another
        allow_settings_again()
        try:
            if self.hold is not None:
                self.hold.begin_anew()
            os.chdir(self._working_folder)
            self._launch()
        except Exception as error:
            if is_known(error):
                raise
            how = f"{ended}, and cannot be started again in the same process ({type(error).__name__}: {error})"
            raise ScriptEndsError(f"{how}; let it train for longer") from error
        for _ in range(AGAIN):
            self._resume(self._deal(batch))
            if self._script.dead:
                raise self._failure()

    def _ends_by_itself(self, lived: int) -> bool:
        """Return whether the script has ended as it would with every setting.

        An error may be the end of a schedule: then it comes after the same number of steps each time.
        """
        end = self._end
        if isinstance(end, SystemExit) and isinstance(end.__context__, Exception):
            end = end.__context__
        if end is None or (isinstance(end, SystemExit) and end.code in (None, 0)):
            return True
        is_of_users = isinstance(end, (Exception, SystemExit)) and not isinstance(end, UserCodeError)
        if not is_of_users or is_known(end) or lived < LEAST_STEPS:
            return False
        is_first, self._error_at = self._error_at in (None, lived), lived
        return is_first

    def existing(self) -> ExistingLoader:
        """Return the training loader's data and settings."""
        return take_apart(self.loader)

    def workload(self) -> Workload:
        """Return the model, and the data of the loaders that feed its steps.

        Raises ``UserCodeError`` where they have not the same settings today.
        """
        first, others = self.existing(), list[Beside]()
        for loader, count in zip(self.loaders_beside, self.beside.values(), strict=True):
            other = take_apart(loader)
            if any(first.present.get(name) != other.present.get(name) for name in ALIKE):
                raise UserCodeError(
                    f"{self.name} trains on batches of several loaders, made in {_lines(self._all_sites)}, whose "
                    f"{', '.join(ALIKE)} differ: give them the same first"
                )
            data = Workload(nn.Identity(), **other.data)
            others.append(Beside(data=data, batch_size=other.present.get("batch_size", 1), batches=count))
        return Workload(self.model(), **first.data, beside=tuple(others))

    @property
    def loaders_beside(self) -> list[DataLoader[Any]]:
        """The other loaders that feed the steps. Raises ``UserCodeError`` where one is not made yet."""
        made = {site.key: loader for loader, site in self._sites.items()}
        if late := next((key for key in self.beside if key not in made), None):
            raise UserCodeError(
                f"{self.name} makes the DataLoader of {late.partition(' ')[0]} only after its loop has begun: make it "
                "before"
            )
        return [made[key] for key in self.beside]

    @property
    def _all_sites(self) -> list[Site]:
        return [self.own_site, *(self._sites[each] for each in self.loaders_beside)]

    @property
    def origins_beside(self) -> list[Site]:
        """The places of the user's that made the other loaders that feed the steps."""
        return [self._origin(each) for each in self.loaders_beside]

    @property
    def precision(self) -> str:
        """The precision of its own autocast."""
        return {torch.bfloat16: "bf16", torch.float16: "fp16"}.get(self.amp, "off") if self.amp else "off"

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        """The optimizers that have made a step."""
        return list(self._optimizers.values())

    @property
    def own_site(self) -> Site:
        """The place that made the training loader."""
        assert self.loader is not None
        return self._sites[self.loader]

    @property
    def origin(self) -> Site:
        """The place of the user's that made the training loader, or the loader that it was made from."""
        assert self.loader is not None
        return self._origin(self.loader)

    @property
    def shared_lines(self) -> tuple[str, ...]:
        """File and line of the loaders that feed the steps, where these make loaders of other datasets too."""

        def makes_others(own: Site) -> bool:
            there = own.file, own.line, own.inside
            return any((each.file, each.line, each.inside) == there and each.key != own.key for _, each in self._made)

        return tuple(each.text for each in (self.origin, *self.origins_beside) if makes_others(each))

    def _origin(self, loader: DataLoader[Any]) -> Site:
        own = self._sites[loader]
        alike = (id(loader.dataset), own.dataset, own.length)
        made = (site for dataset, site in self._made if (dataset, site.dataset, site.length) == alike)
        return next((site for site in made if not site.inside), own)

    def model(self) -> nn.Module:
        """Return the modules whose parameters were stepped: one, or a list of them."""
        left = {id(p) for each in self._optimizers.values() for group in each.param_groups for p in group["params"]}
        known = [each for each in gc.get_objects() if issubclass(type(each), nn.Module)]  # proxies may be dead
        found = list[nn.Module]()
        while left and known:
            best = max(known, key=lambda module: len(left & {id(p) for p in module.parameters()}))
            if not (own := left & {id(p) for p in best.parameters()}):
                break
            found, left = [*found, best], left - own
        return found[0] if len(found) == 1 else nn.ModuleList(found)

    def _run(self, _: Any) -> None:
        try:
            self._source.run()
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
        if self._refusal is not None:
            raise self._refusal

    def _failure(self) -> BaseException:
        when = f"after {self.steps - self._born} steps of an optimizer"
        if isinstance(self._end, SystemExit) and isinstance(self._end.__context__, Exception):
            return self._end.__context__  # that it was about to tell
        if isinstance(self._end, SystemExit):
            return UserCodeError(f"{self.name} called sys.exit({self._end.code!r}) {when}")
        if isinstance(self._end, EOFError) and self._has_asked:
            return UserCodeError(f"{self.name} asks for input, and there is nobody to answer: pass it as an argument")
        if self._end is not None:
            return self.hold.explain(self._end) if self.hold else self._end
        if self.loader is not None:
            return UserCodeError(f"{self.name} ended {when}: its loop is too short to be measured; pass more epochs")
        return UserCodeError(
            f"{self.name} ended {when}, and none of them came between two batches of one DataLoader: autotune varies "
            "the DataLoader that training iterates"
        )

    def ask(self) -> Any:
        """Return the batch that the measuring code hands out, to the script's loop."""
        if os.getpid() != self._pid:
            tell(self._pid)
        self._require_own_thread("its training loader")
        self._require_apart()
        self._apart = None
        if self._cuda_stream is not None and torch.cuda.current_stream() != self._cuda_stream:
            self.stop(
                "asks for batches within torch.cuda.stream(...), on another stream than it trains on, where a step's "
                "end is not seen: ask for them outside, and copy them there"
            )
        return self._measuring.switch()

    def ask_beside(self, loader: DataLoader[Any]) -> Any:
        """Return the next batch of another loader that feeds the steps."""
        site = self._sites[loader]
        key = site.key
        self._require_own_thread(f"the DataLoader of {site.text}")
        self._count(site)
        if dealt := self._dealt.get(key):
            return dealt.pop(0)
        number = list(self.beside).index(key)
        if self.stream is not None:
            return next(cast("SeveralStreams", self.stream).others[number][0])
        return copy.deepcopy(self._round[1 + number][0]) if self._round else next(iter(self._own(loader)))

    def _require_own_thread(self, what: str) -> None:
        """Refuse the script where it asks in another thread than its own."""
        if getcurrent() is not self._script:
            self.stop(f"iterates {what} in another thread, where it is not measured")

    def _require_apart(self) -> None:
        """Stop a script that has trained on a batch of another loader."""
        if self._apart is not None and self.steps > self._apart[0]:
            lines = _lines(self._all_sites, self._apart[1])
            self.stop(f"trains on batches of several loaders, made in {lines}{IRREGULAR}")

    def give_apart(self, batches: Any, where: str, before: int | None) -> tuple[Any, int | None]:
        """Return the next batch of a loader that is not the one that trains, unmeasured, and the steps by then.

        ``before`` are the steps by the last batch of these, where it had gradients; ``None`` stands for none.
        """
        self._require_own_thread(f"the DataLoader of {where}")
        wants_gradients = torch.is_grad_enabled()
        if wants_gradients and before is not None:
            self._apart = before, where
        self._require_apart()
        self.pause()
        batch = next(batches)
        self._apart = (self.steps, where) if wants_gradients else None
        return batch, self.steps if wants_gradients else None

    def stop(self, why: str) -> NoReturn:
        """Refuse the script, which cannot be measured."""
        self._refuse(f"{self.name} {why}")

    def _refuse(self, told: str) -> NoReturn:
        """Leave the script for good: nothing that it catches keeps it going."""
        self._refusal = self._refusal or UserCodeError(told)
        if os.getpid() != self._pid:
            tell(self._pid)
        if threading.current_thread() is not threading.main_thread():
            os.kill(self._pid, TRAINS)  # the main thread waits for batches
            raise StoppedError
        if getcurrent() is self._measuring:
            raise self._refusal
        self._measuring.switch()
        raise StoppedError  # a script that is refused is never switched to

    def _install(self) -> None:
        """Stand in for ``DataLoader.__iter__``, and hear of loaders, optimizer steps, backward passes and autocast."""
        backward = torch.autograd.backward

        def made(make: Maker, site: Site, loader: DataLoader[Any], arguments: dict[str, Any]) -> None:
            make(loader, **arguments)
            self._sites[loader] = site
            self._made.append((id(loader.dataset), site))

        stand_in_for_loaders(self.folder, made)

        def go_back(tensors: Any, *given: Any, **options: Any) -> None:
            self.phases.setdefault("forward", self.mark())
            if self.loader is None:
                self._parts.note_pass(tensors, self.steps)
            backward(tensors, *given, **options)
            self.phases["backward"] = self.mark()

        def is_wanted(context: torch.autocast) -> bool:
            if self.amp is None and torch.is_grad_enabled():
                self.amp = context.fast_dtype
                file, line, _ = place_of(sys._getframe(1), self.folder)
                self.autocast_call = f"{file}:{line}"
            return self.uses_autocast

        def stepped(optimizer: torch.optim.Optimizer, *_: Any) -> None:
            self.steps += 1
            self.phases["optimizer"] = self.mark()
            if self._cuda_stream is None and torch.cuda.is_initialized():
                self._cuda_stream = torch.cuda.current_stream()
            self._optimizers[id(optimizer)] = optimizer
            self._require_batches()

        ask_user = builtins.input

        def ask_nobody(*given: Any) -> str:
            self._has_asked = True
            return ask_user(*given)

        builtins.input = ask_nobody
        self._open_door()
        torch.autograd.backward = go_back
        stand_in_for_autocast(is_wanted)
        cast_forwards(lambda: torch.bfloat16 if self.is_cast else None)
        register_optimizer_step_post_hook(stepped)
        if self.hold is not None:
            refuse_large(self._refuse_large)
        are_held = self.hold is None or self.hold.way != "python"
        refuse_training_children(str(self._file), self._source.module, self._refuse_children, are_held=are_held)

    def _open_door(self) -> None:
        """Have the script's calls for iterators and lengths of loaders answered here."""
        iterate, get_iterator, length = DataLoader.__iter__, DataLoader._get_iterator, DataLoader.__len__
        self._own = iterate

        def is_ours() -> bool:
            return os.getpid() != self._pid or getcurrent() is self._measuring

        def go_over(loader: DataLoader[Any]) -> Any:
            return iterate(loader) if is_ours() else self._over(loader, iterate)

        def get_anew(loader: DataLoader[Any]) -> Any:
            is_own = is_ours() or sys._getframe(1).f_code is iterate.__code__
            return get_iterator(loader) if is_own else self._over(loader, get_iterator)

        def count(loader: DataLoader[Any]) -> int:
            """Return the batches of an epoch; those of the training loader never end."""
            own = length(loader)
            site = self._sites.get(loader)
            return own if is_ours() or site is None or site.key != self.site else max(own, self.batches)

        DataLoader.__iter__, DataLoader.__len__ = go_over, count  # type: ignore[method-assign]
        DataLoader._get_iterator = get_anew  # type: ignore[method-assign, assignment]

    def _require_batches(self) -> None:
        """Stop a script that has trained for long without a batch of a DataLoader."""
        if self.loader is not None or self.steps - self._steps_at_batch <= STEPS_WITHOUT_BATCHES:
            self._kept_since = 0.0
            return
        self._kept_since = self._kept_since or time.perf_counter()
        if not self._made or time.perf_counter() - self._kept_since > self._patience:
            self.stop(
                "trains on batches that it keeps: autotune varies the DataLoader that each batch comes from"
                if self._made
                else "has no DataLoader: put its data into one, or tune a build() that returns model and dataset"
            )

    def _refuse_large(self, told: str) -> NoReturn:
        """Refuse the script, which is about to change a large file; a worker tells of it by its error."""
        if os.getpid() != self._pid:
            raise UserCodeError(told)
        self._refuse(told)

    def _refuse_children(self) -> NoReturn:
        """Refuse the script, which is about to train in another process."""
        file, line, inside = place_of(sys._getframe(1), self.folder)
        self._refuse(f"{file}:{line} trains in child processes, which are not measured: {way_out(inside)}")

    def _over(self, loader: DataLoader[Any], iterate: Callable[[DataLoader[Any]], Any]) -> Iterator[Any]:
        """Return an iterator of a loader for the script: the door itself for the one that trains."""
        own = self._sites.get(loader)
        if own is not None and (own.key in self.beside or self.loader is None):
            self._require_epoch(own)
        earlier = self._note_iterator(own)
        if self.is_trained_on(own) and self._is_to_train(earlier):
            self.loader = loader  # a new one for each epoch takes the place of the one before
            asked = _Asked(self)
            self._training = weakref.ref(asked)
            return asked
        if self.loader is not None and self.is_beside(loader):
            return _Asked(self, loader)
        batches = itertools.chain.from_iterable(map(iterate, [loader]))  # made once a batch is asked for
        return _Watched(self, loader, batches, earlier)

    def _note_iterator(self, site: Site | None) -> int:
        """Note an iterator that may train, and return how many of its loader there were before."""
        if site is None or self.loader is not None or not torch.is_grad_enabled():
            return 0
        self._iterators[site] = self._iterators.get(site, 0) + 1
        return self._iterators[site] - 1

    def is_trained_on(self, site: Site | None) -> bool:
        """Return whether a place makes the training loader."""
        if site is None or self.loader is None:
            return site is not None and site.key == self.site
        return site == self._sites.get(self.loader)

    def _is_to_train(self, earlier: int) -> bool:
        """Return whether a new iterator of the training loader is to train with, not to look at its data.

        That it is not, where no gradients are wanted, before the one that trains, and while that one lives.
        """
        if self.loader is None:
            return torch.is_grad_enabled() and earlier >= self.earlier
        return torch.is_grad_enabled() and (self._training is None or self._training() is None)

    def _require_epoch(self, site: Site) -> None:
        """Stop a script that makes another iterator of a loader for each batch."""
        before, given = self._given.get(site, (0, 0))
        self._fresh[site] = self._fresh.get(site, 0) + 1 if given == 1 and self.steps > before else 0
        self._given[site] = self.steps, 0
        if self._fresh[site] >= FRESH_ITERATORS and not self._parts.are_doubted:
            self.stop(f"makes a new iterator each step, of the DataLoader of {site.text}: make one for an epoch")

    def _count(self, site: Site) -> None:
        before, given = self._given.get(site, (self.steps, 0))
        self._given[site] = before, given + 1

    def trains_with(self, watched: _Watched, before: int) -> bool:
        """Note that an iterator of the training loader is trained with, if a step came after its batch."""
        is_it = self.steps > before and self.is_trained_on(self._sites.get(watched.loader))
        if is_it:
            self._apart, self._training = None, weakref.ref(watched)
        return is_it

    def is_beside(self, loader: DataLoader[Any]) -> bool:
        """Return whether a loader feeds the steps beside the first."""
        site = self._sites.get(loader)
        return site is not None and site.key in self.beside

    def may_lead(self, loader: DataLoader[Any]) -> bool:
        """Return whether no other loader is asked first in each round."""
        return self.draws.may_lead(self._sites.get(loader))

    def leads(self, loader: DataLoader[Any]) -> bool:
        """Return whether a loader is asked first in each round, and others after it."""
        return self.draws.lead is not None and self.may_lead(loader)

    def is_seen(self, watched: _Watched) -> bool:
        """Return whether a loader has given batches enough to know their share, and their part in the steps."""
        if self._parts.are_doubted:
            return False
        is_long = time.perf_counter() - watched.first > SEEN_SECONDS and len(self.draws.sites) < 2
        return is_long or self.draws.count(self._sites.get(watched.loader)) >= SEEN_BATCHES

    def place(self, loader: DataLoader[Any]) -> str:
        """Return file and line that made a loader."""
        return self._sites[loader].text if loader in self._sites else "another file"

    def took(self, watched: _Watched, batch: Any) -> None:
        """Note a batch of its own that the script trains on; stop it where its rounds of several loaders differ."""
        if threading.current_thread() is not threading.main_thread():
            self._parts.settle()  # steps in other threads than the batches' are not followed
        self._parts.note_batch(batch)
        if self._parts.have_none:
            self.stop(
                f"makes no step with the batches of the DataLoader of {self.place(watched.loader)}: training does not "
                "draw from it; train on batches of a DataLoader, and evaluate within torch.no_grad()"
            )
        last, self.last, self._steps_at_batch = self.last, watched, self.steps
        is_mixed = last is not None and last is not watched and watched.given > 1 and self.steps > last.before
        if (site := self._sites.get(watched.loader)) is not None:
            self.draws.note(site, is_mixed=is_mixed)
            self._count(site)
        if self.draws.lead is not None and not self.draws.is_regular:
            self.stop(f"trains on batches of several loaders, made in {_lines(self.draws.sites)}{IRREGULAR}")

    def found(self, watched: _Watched) -> None:
        """Note that a loader is the one that trains, its step, and the share of its batches without any."""
        self.loader = watched.loader
        self._parts.settle()
        self.earlier, self._training = watched.earlier, weakref.ref(watched)
        if (lead := self.draws.lead) is not None:
            self.beside = {site.key: count for site, count in self.draws.pattern.items() if site != lead}
        self.missing = watched.missing / watched.given
        seconds = (time.perf_counter() - watched.first) / watched.given
        self.batches = min(max(ENDLESS[0], int(WINDOWS_SECONDS / max(seconds, 1e-6))), ENDLESS[1])


class _Asked(Iterator[Any]):
    """Batches that the measuring code hands out, of the training loader or of one ``beside`` it."""

    def __init__(self, loop: ScriptLoop, beside: DataLoader[Any] | None = None) -> None:
        self._loop, self._beside, self._is_known = loop, beside, False

    def __next__(self) -> Any:
        if not self._is_known:
            self._is_known = True
            _require_reading(self._loop, self)
        return self._loop.ask() if self._beside is None else self._loop.ask_beside(self._beside)


class _Watched(Iterator[Any]):
    """A loader's own batches, until an optimizer steps between some of them: from then on it is the one that trains."""

    def __init__(self, loop: ScriptLoop, loader: DataLoader[Any], batches: Any, earlier: int) -> None:
        self._loop, self.loader, self._batches = loop, loader, batches
        self.earlier = earlier
        """Iterators of its loader that were made before it, and did not train."""
        self.begin = self.before = loop.steps
        """Steps of optimizers before the iterator was made, and before the last batch."""
        self._apart: int | None = None
        """Steps before the last batch with gradients that was not measured."""
        self._is_trained = False
        """Whether an optimizer has stepped after one of its batches."""
        self.first = 0.0
        """When the first batch was there."""
        self.given = self.missing = 0
        """Batches that were trained on, and those of them after which no optimizer stepped."""

    def __next__(self) -> Any:
        loop = self._loop
        if self._batches is None:
            return loop.ask()
        if loop.loader is not None and loop.is_beside(self.loader):
            self._batches = iter(())  # its workers end
            return loop.ask_beside(self.loader)
        if loop.loader is not None:
            if self._apart is not None and loop.trains_with(self, self._apart):
                self._batches = None  # the iterator before it lived on, as a name that was not deleted
                return loop.ask()
            batch, self._apart = loop.give_apart(self._batches, loop.place(self.loader), self._apart)
            return batch
        self.missing += self.given > 0 and loop.steps == self.before
        self._is_trained |= loop.steps > self.before and (loop.last is self or loop.leads(self.loader))
        self.before, has_stepped = loop.steps, self._is_trained and loop.may_lead(self.loader)
        if not (has_stepped and loop.is_seen(self)):
            try:
                batch = next(self._batches)
            except StopIteration:
                if not has_stepped:
                    raise
            else:
                if torch.is_grad_enabled():
                    self.first = self.first or time.perf_counter()
                    self.given += 1
                    loop.took(self, batch)
                return batch
        self._batches = None  # its workers end
        loop.found(self)
        _require_reading(loop, self)
        return loop.ask()


def _require_reading(loop: ScriptLoop, batches: Iterator[Any]) -> None:
    """Stop a script that trains on its first epoch's batches again and again: it reads no others."""
    if any(type(each) is itertools.cycle for each in gc.get_referrers(batches)):
        loop.stop(
            "repeats the batches of its first epoch, which itertools.cycle keeps: it reads nothing later; iterate the "
            "DataLoader anew for each epoch"
        )


@dataclass(frozen=True, slots=True)
class _Modes:
    """The modes of torch that belong to the thread: autograd's and those of autocast, by device."""

    grad: bool
    cache: bool
    autocast: Mapping[str, tuple[bool, torch.dtype]]
    device: torch.device
    """The default one."""

    @classmethod
    def now(cls) -> _Modes:
        kinds = ("cpu", "cuda") if torch.cuda.is_initialized() else ("cpu",)
        casts = {kind: (torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in kinds}
        return cls(torch.is_grad_enabled(), torch.is_autocast_cache_enabled(), casts, torch.get_default_device())

    def apply(self) -> None:
        torch.set_grad_enabled(self.grad)
        torch.set_autocast_cache_enabled(self.cache)
        for kind, (enabled, dtype) in self.autocast.items():
            torch.set_autocast_enabled(kind, enabled)
            torch.set_autocast_dtype(kind, dtype)
        if self.device != torch.get_default_device():
            torch.set_default_device(None if self.device.type == "cpu" else self.device)


def allow_settings_again() -> None:
    """Let a script make settings once more that torch and Python allow once in a process."""
    torch.set_num_interop_threads = lambda nthreads: None
    multiprocessing.context._default_context._actual_context = None  # type: ignore[attr-defined]
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def _lines(sites: Sequence[Site], *others: str) -> str:
    return " and ".join(dict.fromkeys([*(site.text for site in sites), *others]))
