"""The order in which a script draws batches from its loaders, before one of them is measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from autotune.sites import Site


class Draws:
    """Batches with gradients, by the places of their loaders. A round begins where the leading loader is asked."""

    def __init__(self) -> None:
        self._order: list[Site] = []
        self.lead: Site | None = None
        """The loader that is asked first in each round; ``None`` where no other one feeds the steps."""

    def note(self, site: Site, *, is_mixed: bool) -> None:
        """Note a batch. A mixed one comes again after a step on another loader's: there are several."""
        self._order.append(site)
        if is_mixed and self.lead is None:
            self.lead = site

    def count(self, site: Site | None) -> int:
        """Return how many batches a loader has given."""
        return self._order.count(site) if site else 0

    @property
    def sites(self) -> list[Site]:
        """The places of all loaders, in their order."""
        return list(dict.fromkeys(self._order))

    @property
    def pattern(self) -> Counter[Site]:
        """The batches that each loader gives in a round."""
        return next(self._rounds())

    @property
    def is_regular(self) -> bool:
        """Whether every round draws the same."""
        first, *others = self._rounds()
        return all(each == first for each in others[:-1]) and all(each <= first for each in others[-1:])

    def _rounds(self) -> Iterator[Counter[Site]]:
        starts = [place for place, site in enumerate(self._order) if site == self.lead]
        for begin, end in zip(starts, [*starts[1:], len(self._order)], strict=True):
            yield Counter(self._order[begin:end])
