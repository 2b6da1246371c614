"""A training script whose own loop is the training step.

The script runs as ``__main__`` in a greenlet. Where its loop asks the training loader for a batch, the measuring code
gives it one; where its steps are counted, it waits at the end of each. Both run in one thread: signals, streams and
random state are those of the script.
"""

from __future__ import annotations

import copy
import gc
import itertools
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

from autotune.errors import ScriptEndsError
from autotune.measure.batch import shallow, versions
from autotune.measure.device import Mark
from autotune.measure.failures import is_known
from autotune.measure.loader import BatchStream, SeveralStreams
from autotune.measure.rank_launch import meet_in_files
from autotune.measure.script_loaders import IRREGULAR, ScriptLoaders
from autotune.measure.script_optimizers import ScriptOptimizers
from autotune.measure.script_run import LEAST_STEPS, ScriptRun
from autotune.records import ScriptFacts
from autotune.sites import place_of

AGAIN = 2
"""First steps of a script that was started again, which allocate and compile, and are not measured."""
PASSED_BATCHES = 3
"""Batches of an epoch for loops before the one that was asked for."""


class ScriptLoop:
    """The training loop of a script, which gets its batches here."""

    def __init__(self, run: ScriptRun, known: ScriptFacts | None = None, patience: float = 0.0) -> None:
        """Take a script, the facts of its first start, and the ``patience`` of ``ScriptLoaders``."""
        self.run, self._group, self.optimizers = run, run.group, ScriptOptimizers()
        self.optimizers.may_cast = known is not None and known.present.amp == "off"
        self.loaders = ScriptLoaders(run, self.optimizers, known, patience)
        self.pass_over: Callable[[Mark], None] = lambda begin: None
        """Leaves the time since a mark out of the measurement."""
        self.stream: BatchStream | None = None
        """The stream whose batches are given to the script."""
        self.spare: Any = None
        """A batch as it was before the script had it."""
        self._left: dict[str, list[Any]] = {}
        """Batches of this round of the loaders beside the first."""
        self._round: tuple[Any, ...] = ()
        """The round as it was given."""
        self._born = 0
        """Steps before the script was started last."""
        self._pause: Mark | None = None
        """When the script began to do something that is no training."""
        self._built = 0
        """Batches built by then."""
        self._apart: tuple[int, str] | None = None
        """Steps before the last batch of another loader that was given with gradients, and that loader's place."""

    def start(self) -> None:
        """Run the script until its training loop asks for a batch that it has not seen.

        Raises ``UserCodeError`` where it ends before, and whatever it raises.
        """
        self.loaders.install()
        self._open_door()
        self.optimizers.install(self.run.source, self.loaders.note_pass, self._wait_after)
        self.run.install()
        if self._group.size > 1:
            meet_in_files(self._group, self.run.stop)
        self.run.launch()
        self._require_alive()
        if self._group.size > 1 and not dist.is_initialized():
            self.run.stop(
                f"makes no process group: {self._group.size} ranks would train as many models; call "
                "torch.distributed.init_process_group() and wrap the model, or leave out --ranks"
            )
        self.loaders.batches = self._group.tell(self.loaders.batches)  # each rank counts as many in an epoch

    def give_batch(self, batch: Any) -> None:
        """Let the script train on a batch, until it asks for the next; start it again where it has ended.

        Raises ``ScriptEndsError`` where it ends too early, and whatever else ends it.
        """
        own = self.optimizers
        begin, before = own.mark(), versions(batch)
        own.phases.clear()
        self.run.resume(self._give_round(batch))
        if self.run.has_ended:
            phases = dict(own.phases) if self.loaders.counted is None else {}  # those of a step that counts are over
            is_trained = bool(phases)
            self._pause_from(phases.get("optimizer", phases.get("backward", begin)))
            self._start_again(batch if self.spare is None or versions(batch) == before else self.spare)
            self._go_on()
            if not is_trained:
                return self.give_batch(batch if versions(batch) == before else self.spare)
            own.phases = phases
        self._go_on()
        return None

    def _give_round(self, batch: Any) -> Any:
        if not self.loaders.beside:
            return shallow(batch)
        first, *others = self._round = batch
        self._left = {key: shallow(each) for key, each in zip(self.loaders.beside, others, strict=True)}
        return shallow(first)

    def pause(self) -> None:
        """Begin to leave out what the script does, until it asks for a batch to train on."""
        self._pause_from(self.optimizers.mark())

    def _pause_from(self, begin: Mark) -> None:
        if self._pause is None:
            self._pause, self._built = begin, self.stream.produced if self.stream else 0

    def _go_on(self) -> None:
        if self._pause is not None:
            self.pass_over(self._pause)
            self._pause = None
            if self.stream:
                self.stream.built_apart += self.stream.produced - self._built

    def _require_alive(self) -> None:
        if self.run.has_ended:
            lived = self.optimizers.steps - self._born
            raise self.run.failure(lived, has_loop=self.loaders.loader is not None, loops=self.loaders.loops)

    def _start_again(self, batch: Any) -> None:
        """Start the script again in this process, and let it train on a batch, unmeasured.

        Raises its error where the setting may be the reason, and ``ScriptEndsError`` where it cannot go on.
        """
        lived = self.optimizers.steps - self._born
        ended = f"{self.run.name} ends after {lived} steps of an optimizer"
        if not self.run.ends_by_itself(lived):
            self._require_alive()
        if lived < LEAST_STEPS:
            raise ScriptEndsError(f"{ended}: that is too short to be measured; let it train for longer")
        self.loaders.begin_anew()
        self.optimizers.forget()
        self._apart, self._born = None, self.optimizers.steps
        try:
            self.run.launch_again()
            self._require_alive()
        except Exception as error:
            if is_known(error):
                raise
            how = f"{ended}, and cannot be started again in the same process ({type(error).__name__}: {error})"
            raise ScriptEndsError(f"{how}; let it train for longer") from error
        for _ in range(AGAIN):
            self.run.resume(self._give_round(batch))
            self._require_alive()

    def _wait_after(self, optimizer: int) -> None:
        """Wait at the end of a step of an optimizer that counts, as a loop waits for its next batch."""
        if self.loaders.counts(optimizer):
            self.next_batch()

    def next_batch(self) -> Any:
        """Return the batch that the measuring code gives, to the script's loop."""
        self.run.require_own_process()
        self.run.require_own_thread("its training loader" if self.loaders.counted is None else "its training loop")
        self._require_apart()
        self._apart = None
        if self.optimizers.is_on_another_stream:
            self.run.stop(
                "asks for batches within torch.cuda.stream(...), on another stream than it trains on, where a step's "
                "end is not seen: ask for them outside, and copy them there"
            )
        return self.run.wait()

    def next_batch_beside(self, loader: DataLoader[Any]) -> Any:
        """Return the next batch of another loader that feeds the steps."""
        site = self.loaders.site_of(loader)
        assert site
        self.run.require_own_thread(f"the DataLoader of {site.text}")
        self.loaders.count_batch(site)
        if left := self._left.get(site.key):
            return left.pop(0)
        number = list(self.loaders.beside).index(site.key)
        if self.stream is not None:
            return next(cast(SeveralStreams, self.stream).others[number][0])
        return copy.deepcopy(self._round[1 + number][0]) if self._round else next(iter(self._own(loader)))

    def _require_apart(self) -> None:
        """Stop a script that has trained on a batch of another loader."""
        if self._apart is not None and self.optimizers.steps > self._apart[0]:
            lines = self.loaders.lines(self._apart[1])
            self.run.stop(f"trains on batches of several loaders, made in {lines}{IRREGULAR}")

    def give_apart(self, watched: Watched, batches: Any, before: int | None) -> tuple[Any, int | None]:
        """Return the next batch of a loader that is not the one that trains, unmeasured, and the steps by then.

        ``before`` are the steps by the last batch of these, where it had gradients; ``None`` stands for none.
        """
        if self.loaders.counted is not None:
            return next(batches), None
        where, wants_gradients = self.loaders.place(watched.loader), torch.is_grad_enabled()
        self.run.require_own_thread(f"the DataLoader of {where}")
        if wants_gradients and before is not None:
            self._apart = before, where
        self._require_apart()
        self.pause()
        batch = next(batches)
        self._apart = (self.optimizers.steps, where) if wants_gradients else None
        return batch, self.optimizers.steps if wants_gradients else None

    def trains_with(self, watched: Watched, before: int) -> bool:
        """Note that an iterator of the training loader is trained with, if a step came after its batch."""
        site = self.loaders.site_of(watched.loader)
        is_it = self.optimizers.steps > before and self.loaders.is_trained_on(site)
        if is_it:
            self._apart = None
            self.loaders.train_on(watched.loader, watched)
        return is_it

    def _open_door(self) -> None:
        iterate, get_iterator, length = DataLoader.__iter__, DataLoader._get_iterator, DataLoader.__len__
        self._own, run, loaders = iterate, self.run, self.loaders

        def go_over(loader: DataLoader[Any]) -> Any:
            return iterate(loader) if run.is_elsewhere else self._iterator_for_script(loader, iterate)

        def get_anew(loader: DataLoader[Any]) -> Any:
            is_own = run.is_elsewhere or sys._getframe(1).f_code is iterate.__code__
            return get_iterator(loader) if is_own else self._iterator_for_script(loader, get_iterator)

        def count(loader: DataLoader[Any]) -> int:
            own, site = length(loader), loaders.site_of(loader)
            return own if run.is_elsewhere or site is None or site.key != loaders.site else max(own, loaders.batches)

        DataLoader.__iter__, DataLoader.__len__ = go_over, count  # type: ignore[method-assign]
        DataLoader._get_iterator = get_anew  # type: ignore[method-assign, assignment]

    def _iterator_for_script(self, loader: DataLoader[Any], iterate: Callable[[DataLoader[Any]], Any]) -> Iterator[Any]:
        site, (loop, _) = self.loaders.site_of(loader), place_of(sys._getframe(2), self.run.source)
        earlier = self.loaders.note_iterator(site, loop)
        if not self.loaders.is_wanted(site, loop):
            return self._few(iterate(loader))
        if self.loaders.is_to_train(site, earlier):
            asked = _Asked(self)
            self.loaders.train_on(loader, asked)  # a new one for each epoch takes the place of the one before
            return asked
        if self.loaders.loader is not None and self.loaders.is_beside(loader):
            return _Asked(self, loader)
        batches = itertools.chain.from_iterable(map(iterate, [loader]))  # made once a batch is asked for
        return Watched(self, loader, batches, earlier, loop)

    def _few(self, batches: Any) -> Iterator[Any]:
        """Yield the first batches of an epoch in a loop that was not asked for."""
        for batch in itertools.islice(batches, PASSED_BATCHES):
            self.loaders.note_draw()
            yield batch


class _Asked(Iterator[Any]):
    """Batches that the measuring code gives, of the training loader or of one ``beside`` it."""

    def __init__(self, loop: ScriptLoop, beside: DataLoader[Any] | None = None) -> None:
        self._loop, self._beside, self._is_known = loop, beside, False

    def __next__(self) -> Any:
        if not self._is_known:
            self._is_known = True
            _require_reading(self._loop, self)
        return self._loop.next_batch() if self._beside is None else self._loop.next_batch_beside(self._beside)


class Watched(Iterator[Any]):
    """A loader's own batches, until an optimizer steps between some of them: from then on it is the one that trains."""

    def __init__(self, loop: ScriptLoop, loader: DataLoader[Any], batches: Any, earlier: int, place: str) -> None:
        self._loop, self.loader, self._batches, self.place = loop, loader, batches, place
        self.earlier = earlier
        """Iterators of its loader that were made before it, and did not train."""
        self.before = loop.optimizers.steps
        """Steps of optimizers before the last batch."""
        self._apart: int | None = None
        """Steps before the last batch with gradients that was not measured."""
        self._is_trained = False
        """Whether an optimizer has stepped after one of its batches."""
        self.first = 0.0
        """When the first batch was there."""
        self.given = self.missing = 0
        """Batches that were trained on, and those of them after which no optimizer stepped."""

    def __next__(self) -> Any:
        loop, loaders, steps = self._loop, self._loop.loaders, self._loop.optimizers.steps
        if self._batches is None:
            return loop.next_batch()
        if loaders.loader is not None and loaders.is_beside(self.loader):
            self._batches = iter(())  # its workers end
            return loop.next_batch_beside(self.loader)
        if loaders.loader is not None:
            if self._apart is not None and loop.trains_with(self, self._apart):
                self._batches = None  # the iterator before it lived on, as a name that was not deleted
                return loop.next_batch()
            batch, self._apart = loop.give_apart(self, self._batches, self._apart)
            return batch
        self.missing += self.given > 0 and steps == self.before
        self._is_trained |= steps > self.before and (loaders.last is self or loaders.leads(self.loader))
        self.before, has_stepped = steps, self._is_trained and loaders.may_lead(self.loader)
        if not (has_stepped and loaders.is_seen(self)):
            try:
                batch = next(self._batches)
            except StopIteration:
                if not has_stepped:
                    raise
            else:
                if torch.is_grad_enabled():
                    self.first = self.first or time.perf_counter()
                    self.given += 1
                    loaders.note_batch(self, batch)
                return batch
        self._batches = None  # its workers end
        loaders.note_training_loader(self)
        _require_reading(loop, self)
        return loop.next_batch()


def _require_reading(loop: ScriptLoop, batches: Iterator[Any]) -> None:
    """Stop a script that trains on its first epoch's batches again and again: it reads no others."""
    if any(type(each) is itertools.cycle for each in gc.get_referrers(batches)):
        loop.run.stop(
            "repeats the batches of its first epoch, which itertools.cycle keeps: it reads nothing later; iterate the "
            "DataLoader anew for each epoch"
        )
