"""The loaders of a script: where they are made, how it draws from them, and which of them it trains on."""

from __future__ import annotations

import itertools
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from traceback import walk_stack
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from autotune.config import WITHOUT_WORKERS
from autotune.errors import UserCodeError
from autotune.existing_loader import ExistingLoader, take_apart
from autotune.measure.draws import Draws
from autotune.measure.lineage import Parts
from autotune.sites import Maker, Site, stand_in_for_loaders
from autotune.workload import Beside, Workload

if TYPE_CHECKING:
    from autotune.measure.script import Watched
    from autotune.measure.script_optimizers import ScriptOptimizers
    from autotune.measure.script_run import ScriptRun
    from autotune.records import ScriptFacts

ENDLESS = 2_000, 100_000
"""Batches that a script is told of its training loader at least, and at most where its steps are short: trainers count
them, and end an epoch by themselves. Schedules are made in advance for each of them."""
WINDOWS_SECONDS = 120.0
"""Seconds of training that the batches told are enough for."""
SEEN_BATCHES, SEEN_SECONDS = 6, 1.0
"""Batches of its own that a script trains on before it is stopped, and the seconds that they may take."""
STEPS_WITHOUT_BATCHES = 100
"""Steps of an optimizer from which batches of a DataLoader are not waited for, nor steps that are counted."""
ALIKE = ("num_workers", "pin_memory", *WITHOUT_WORKERS)
"""Settings that loaders which feed the steps together have in common, or each keeps its own."""
IRREGULAR = ", which take turns irregularly: draw the same from each in every round, or train on one"
FRESH_ITERATORS = 3
"""Iterators with one batch each, one after another, that are no accident."""


class OwnBatches(IterableDataset[torch.Tensor]):
    """Stand-ins without end for the batches that a script takes from elsewhere, each for a step; they cost nothing."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __iter__(self) -> Iterator[torch.Tensor]:
        return itertools.repeat(torch.empty(self.samples, 0, device="cpu"))


class ScriptLoaders:
    """The loaders that a script has made, until the one that trains is known, and from then on."""

    def __init__(
        self, run: ScriptRun, optimizers: ScriptOptimizers, known: ScriptFacts | None, patience: float
    ) -> None:
        """Take the script, its optimizers, and the facts of its first start, in a later one.

        Of several ranks each sees as many batches of its own before it is stopped. A script that trains on other
        batches than a DataLoader's is waited for, ``patience`` seconds at most.
        """
        self._run, self._optimizers, self._is_alone = run, optimizers, run.group.size == 1
        self.draws, self._parts, self.site = Draws(), Parts(), known and known.sites[run.group.rank]
        self.batches, self.missing, self.earlier, self.beside = ENDLESS[0], 0.0, 0, dict[str, int]()
        if known:
            self.batches, self.missing, self.earlier = known.batches, known.missing, known.earlier
            self.beside |= known.beside
            self._parts.settle()
        self.counted = known.counted if known else None
        """The number of the optimizer whose steps are counted, where no DataLoader feeds them."""
        self._counted_at = 0
        """Steps by the last one that counted."""
        self._patience, self._kept_since = patience, 0.0
        """Seconds to wait for a DataLoader's batch, and when it began."""
        self._iterators: dict[Site, int] = {}
        """Iterators of each loader that may train, before the loop was found."""
        self.loops: dict[str, None] = {}
        """Places of the loops that have drawn while gradients were wanted, in order."""
        self.loop: str | None = None
        """The place of the loop that trains; ``None`` where it was known before."""
        self._training: weakref.ref[Iterator[Any]] | None = None
        """The last iterator whose batches are trained on."""
        self.loader: DataLoader[Any] | None = None
        """The loader whose batches are trained on."""
        self.last: Watched | None = None
        """The iterator that gave the last batch of its own."""
        self._made: list[tuple[int, Site]] = []
        """The identity of each loader's dataset, and the loader's place; a loader may be gone by now."""
        self._sites: weakref.WeakKeyDictionary[DataLoader[Any], Site] = weakref.WeakKeyDictionary()
        self._given: dict[Site, tuple[int, int]] = {}
        """Steps before the last iterator of each loader, and its batches."""
        self._fresh: dict[Site, int] = {}
        """Iterators with one batch each, one after another."""
        self._steps_at_batch = 0
        """Steps of optimizers before the last batch of any loader."""

    def install(self) -> None:
        """Hear of loaders that are made."""

        def made(make: Maker, site: Site, loader: DataLoader[Any], arguments: dict[str, Any]) -> None:
            make(loader, **arguments)
            callers = (frame.f_code.co_qualname for frame, _ in walk_stack(None))
            if not self._is_alone and "DataLoaderDispatcher.__init__" in callers:
                way = "DataLoaderConfiguration of the Accelerator, or in accelerator_config of TrainingArguments"
                told = f"has rank 0 read for all ranks, by the DataLoader of {site.text}"
                self._run.stop(f"{told}: pass dispatch_batches=False, in {way}")
            self._sites[loader] = site
            self._made.append((id(loader.dataset), site))

        stand_in_for_loaders(self._run.source, made)

    def begin_anew(self) -> None:
        """Forget the iterators of a script that has ended; where its training loader is made stays known."""
        self.site = self.own_site.key
        self.loader = self.last = self._training = None
        self.draws, self._kept_since = Draws(), 0.0
        for known in (self._given, self._iterators):
            known.clear()

    def existing(self) -> ExistingLoader:
        """Return the training loader's data and settings."""
        return take_apart(self.loader)

    def workload(self) -> Workload:
        """Return the model, and the data of the loaders that feed its steps."""
        first, others = self.existing(), list[Beside]()
        for loader, count in zip(self._loaders_beside, self.beside.values(), strict=True):
            other = take_apart(loader)
            data = Workload(nn.Identity(), **other.data)
            own = {**WITHOUT_WORKERS, **other.present}
            kept = None if self._is_like_first(loader) else {name: own[name] for name in ALIKE}
            size = other.present.get("batch_size", 1)
            others.append(Beside(data=data, batch_size=size, batches=count, kept=kept))
        return Workload(self._optimizers.model(), **first.data, beside=tuple(others))

    def _is_like_first(self, loader: DataLoader[Any]) -> bool:
        """Return whether a loader has the settings of the training loader, and gets those of an answer too."""
        first, other = self.existing().present, take_apart(loader).present
        return all(first.get(name) == other.get(name) for name in ALIKE)

    @property
    def _loaders_beside(self) -> list[DataLoader[Any]]:
        """The other loaders that feed the steps. Raises ``UserCodeError`` where one is not made yet."""
        made = {site.key: loader for loader, site in self._sites.items()}
        if late := next((key for key in self.beside if key not in made), None):
            raise UserCodeError(
                f"{self._run.name} makes the DataLoader of {late.partition(' ')[0]} only after its loop has begun: "
                "make it before"
            )
        return [made[key] for key in self.beside]

    def lines(self, *others: str) -> str:
        """Return the places that make the loaders which feed the steps, and others, each once."""
        return in_words([self.own_site, *(self._sites[each] for each in self._loaders_beside)], *others)

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
    def origins_beside(self) -> list[Site]:
        """The places of the user's that made the other loaders that feed the steps, with the settings of the first."""
        return [self._origin(each) for each in self._loaders_beside if self._is_like_first(each)]

    @property
    def kept(self) -> list[str]:
        """File and line of the other loaders that feed the steps, and have settings of their own."""
        return [self._origin(each).text for each in self._loaders_beside if not self._is_like_first(each)]

    @property
    def shared_lines(self) -> tuple[str, ...]:
        """File and line of the loaders that feed the steps, where these make loaders of other datasets too."""

        def makes_others(own: Site) -> bool:
            there = own.text, own.inside
            return any((each.text, each.inside) == there and each.key != own.key for _, each in self._made)

        return tuple(each.text for each in (self.origin, *self.origins_beside) if makes_others(each))

    def _origin(self, loader: DataLoader[Any]) -> Site:
        own = self._sites[loader]
        alike = (id(loader.dataset), own.dataset, own.length)
        made = (site for dataset, site in self._made if (dataset, site.dataset, site.length) == alike)
        return next((site for site in made if not site.inside), own)

    def note_pass(self, tensors: Any) -> None:
        """Note a backward pass of tensors: from which batches they come."""
        if self.loader is None:
            self._parts.note_pass(tensors, self._optimizers.steps)

    def counts(self, optimizer: int) -> bool:
        """Return whether a step that is just over is one of those that are counted, not batches of a DataLoader.

        Its optimizer is the one that stepped when it was clear that no DataLoader feeds the script. All that the script
        does from one step to the next is part of the step: evaluation, logging and checkpoints cannot be told apart.
        """
        samples, steps = self._run.source.samples_per_step, self._optimizers.steps
        enough = STEPS_WITHOUT_BATCHES if self._made else SEEN_BATCHES
        if samples is None or self._run.source.loop:
            self._require_batches()
        elif self.loader is None and self.counted is None and steps - self._steps_at_batch > enough:
            self.counted = optimizer
        if samples is None or self.counted != optimizer:
            if self.counted is not None and steps - self._counted_at > STEPS_WITHOUT_BATCHES:
                self._run.stop("goes on with another optimizer than the one whose steps are counted: train with one")
            return False
        self._counted_at = steps
        if self.loader is None:
            self.loader = DataLoader(OwnBatches(samples), batch_size=None)
        return True

    def _require_batches(self) -> None:
        """Stop a script that has trained for long without a batch of a DataLoader."""
        if self.loader is not None or self._optimizers.steps - self._steps_at_batch <= STEPS_WITHOUT_BATCHES:
            self._kept_since = 0.0
            return
        self._kept_since = self._kept_since or time.perf_counter()
        if not self._made or time.perf_counter() - self._kept_since > self._patience:
            self._run.stop(
                "trains on batches that it keeps: autotune varies the DataLoader that each batch comes from; "
                f"{self._run.counting}"
                if self._made
                else "has no DataLoader: put its data into one, or tune a build() that returns model and dataset; "
                f"{self._run.counting}"
            )

    def site_of(self, loader: DataLoader[Any]) -> Site | None:
        """Return the place that made a loader; ``None`` where that was not seen."""
        return self._sites.get(loader)

    def place(self, loader: DataLoader[Any]) -> str:
        """Return file and line that made a loader."""
        return self._sites[loader].text if loader in self._sites else "another file"

    def note_iterator(self, site: Site | None, loop: str) -> int:
        """Note an iterator that may train, made in a loop; return how many of its loader there were before."""
        if site is not None and (site.key in self.beside or self.loader is None):
            self._require_epoch(site)
        if site is None or self.loader is not None or not torch.is_grad_enabled():
            return 0
        self.loops[loop] = None
        self._iterators[site] = self._iterators.get(site, 0) + 1
        return self._iterators[site] - 1

    def is_wanted(self, site: Site | None, loop: str) -> bool:
        """Return whether a new iterator may train in the loop that was asked for; without gradients none does."""
        wanted, is_found = self._run.source.loop, self.loader is not None
        return wanted in (None, loop, site and site.text) or is_found or not torch.is_grad_enabled()

    def is_trained_on(self, site: Site | None) -> bool:
        """Return whether a place makes the training loader."""
        if site is None or self.loader is None:
            return site is not None and site.key == self.site
        return site == self._sites.get(self.loader)

    def is_to_train(self, site: Site | None, earlier: int) -> bool:
        """Return whether a new iterator is to train with, not to look at data.

        That it is not, where no gradients are wanted, before the one that trains, and while that one lives.
        """
        if not self.is_trained_on(site) or not torch.is_grad_enabled():
            return False
        if self.loader is None:
            return earlier >= self.earlier
        return self._training is None or self._training() is None

    def train_on(self, loader: DataLoader[Any], iterator: Iterator[Any]) -> None:
        """Note the loader that trains, and its iterator."""
        self.loader, self._training = loader, weakref.ref(iterator)

    def _require_epoch(self, site: Site) -> None:
        before, given = self._given.get(site, (0, 0))
        self._fresh[site] = self._fresh.get(site, 0) + 1 if given == 1 and self._optimizers.steps > before else 0
        self._given[site] = self._optimizers.steps, 0
        if self._fresh[site] >= FRESH_ITERATORS and not self._parts.are_doubted:
            self._run.stop(f"makes a new iterator each step, of the DataLoader of {site.text}: make one for an epoch")

    def count_batch(self, site: Site) -> None:
        """Count a batch of the last iterator of a loader."""
        before, given = self._given.get(site, (self._optimizers.steps, 0))
        self._given[site] = before, given + 1

    def is_beside(self, loader: DataLoader[Any]) -> bool:
        """Return whether a loader feeds the steps beside the first."""
        site = self._sites.get(loader)
        return site is not None and site.key in self.beside

    def may_lead(self, loader: DataLoader[Any]) -> bool:
        """Return whether no other loader is asked first in each round."""
        return self.draws.lead in (None, self._sites.get(loader))

    def leads(self, loader: DataLoader[Any]) -> bool:
        """Return whether a loader is asked first in each round, and others after it."""
        return self.draws.lead is not None and self.may_lead(loader)

    def is_seen(self, watched: Watched) -> bool:
        """Return whether a loader has given batches enough to know their share, and their part in the steps."""
        if self._parts.are_doubted:
            return False
        is_long = time.perf_counter() - watched.first > SEEN_SECONDS and len(self.draws.sites) < 2
        return (is_long and self._is_alone) or self.draws.count(self._sites.get(watched.loader)) >= SEEN_BATCHES

    def note_batch(self, watched: Watched, batch: Any) -> None:
        """Note a batch of its own that the script trains on; stop it where its rounds of several loaders differ."""
        if threading.current_thread() is not threading.main_thread():
            self._parts.settle()  # steps in other threads than the batches' are not followed
        self._parts.note_batch(batch)
        if self._parts.have_none:
            self._run.stop(
                f"makes no step with the batches of the DataLoader of {self.place(watched.loader)}: training does not "
                "draw from it; train on batches of a DataLoader, and evaluate within torch.no_grad()"
            )
        steps = self._optimizers.steps
        last, self.last = self.last, watched
        self.note_draw()
        is_mixed = last is not None and last is not watched and watched.given > 1 and steps > last.before
        if (site := self._sites.get(watched.loader)) is not None:
            self.draws.note(site, is_mixed=is_mixed)
            self.count_batch(site)
        if self.draws.lead is not None and not self.draws.is_regular:
            self._run.stop(f"trains on batches of several loaders, made in {in_words(self.draws.sites)}{IRREGULAR}")

    def note_draw(self) -> None:
        """Note that a batch of a loader is trained on."""
        self._steps_at_batch = self._optimizers.steps

    def note_training_loader(self, watched: Watched) -> None:
        """Note that a loader is the one that trains, its step, and the share of its batches without any."""
        self.train_on(watched.loader, watched)
        self.loop = watched.place
        self._parts.settle()
        self.earlier = watched.earlier
        if (lead := self.draws.lead) is not None:
            self.beside = {site.key: count for site, count in self.draws.pattern.items() if site != lead}
        self.missing = watched.missing / watched.given
        seconds = (time.perf_counter() - watched.first) / watched.given
        self.batches = min(max(ENDLESS[0], int(WINDOWS_SECONDS / max(seconds, 1e-6))), ENDLESS[1])


def in_words(sites: Sequence[Site], *others: str) -> str:
    """Return places in words, each once."""
    return " and ".join(dict.fromkeys([*(site.text for site in sites), *others]))
