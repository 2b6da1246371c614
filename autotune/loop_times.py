"""The time that training takes in its loops, by the place that makes the DataLoader of each."""

from __future__ import annotations

import time
import weakref
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from autotune.limits import percent

MOST_TOLD = 0.5
"""Share of the time of training below which the tuned loop's is told."""


class LoopTimes:
    """The seconds of each loop: those that it waits for batches, and those from each batch to the next."""

    def __init__(self) -> None:
        self._places: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        """The place of each loader and of its iterators; empty for the tuned ones."""
        self._seconds = defaultdict[str, float](float)
        self._trained = set[str]()
        """Places after whose batches an optimizer stepped."""
        self._began, self._now = 0.0, 0.0
        """When the first batch was asked for, and when the last batch was there or the last step made."""
        self._place: str | None = None
        """The place of the last batch; ``None`` between epochs."""

    def note(self, place: str, loader: DataLoader[Any], is_tuned: bool) -> None:
        """Note the place of a loader."""
        self._places[loader] = "" if is_tuned else place

    def watch(self) -> None:
        """Hear of epochs, batches and steps from now on."""
        begin, make = DataLoader.__iter__, DataLoader._get_iterator
        draw: Callable[[Any], Any] = _BaseDataLoaderIter.__next__

        def begin_epoch(loader: DataLoader[Any]) -> Any:
            self._place = None  # what came since the last step is no training
            return begin(loader)

        def make_iterator(loader: DataLoader[Any]) -> Any:
            self._places[found := make(loader)] = self._places.get(loader, "another file")
            return found

        def draw_batch(batches: Any) -> Any:
            self._take()
            self._began, self._place = self._began or self._now, None
            batch = draw(batches)
            self._place = self._places.get(batches)
            self._take()
            return batch

        DataLoader.__iter__, DataLoader._get_iterator = begin_epoch, make_iterator  # type: ignore[method-assign, assignment]
        _BaseDataLoaderIter.__next__ = draw_batch  # type: ignore[method-assign, assignment]
        register_optimizer_step_post_hook(self._take)

    def _take(self, *stepped: Any) -> None:
        """Count the time since the last event as that of the last batch's loop, which trains where it ``stepped``."""
        last, self._now = self._now, time.perf_counter()
        if self._place is not None:
            self._seconds[self._place] += self._now - last
            self._trained |= {self._place} if stepped else set()

    def told(self, command: str) -> str | None:
        """Return how little of the training's time the tuned loop took, and what to do; ``None`` where it took most.

        ``command`` tunes the script.
        """
        whole, tuned = time.perf_counter() - self._began, self._seconds[""]
        if "" not in self._trained or tuned >= MOST_TOLD * whole:
            return None
        share = f"the loop that was tuned took {tuned:.1f} of {whole:.1f} s of training, {percent(tuned / whole)}"
        others = {place: self._seconds[place] for place in self._trained if place}
        longest = max(others, key=others.__getitem__, default="")
        if not longest or others[longest] < whole - sum(others.values()) - tuned:
            return f"{share}: the answer makes the rest no faster, as what runs between its epochs"
        way = f"tune it with {command.format(loop=longest)}"
        return f"{share}; the one with the DataLoader of {longest} took {others[longest]:.1f} s: {way}"
