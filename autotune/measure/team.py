"""The ranks that train together: they go in step, hear the leader's word, and tell each other what they found.

A measurement is a series of decisions: whether the loader has settled, whether the window is long enough. Were each
rank to take them by its own clock, one would go on to a step that another does not make, and wait in it for ever. So
rank 0 decides. How far the others may go stands in memory that all of them share: a word through sockets costs a tenth
of a millisecond, in every step. Ranks of one job run on one host.
"""

from __future__ import annotations

import mmap
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

__all__ = ["ALONE", "Board", "Team"]

T = TypeVar("T")

AHEAD = 2
"""Steps beyond the next one that the others may make before they hear of it: else they would wait for the word."""
SHORTEST_NAP, LONGEST_NAP = 2e-5, 1e-3
"""Seconds between two looks at the leader's word."""
FOR_EVER = timedelta(days=7)
"""Time limit of what ranks tell each other: the tuner thinks between two requests, and ends what hangs."""


class Board:
    """Memory that processes share which are forked from the one that made it."""

    def __init__(self, ranks: int) -> None:
        self._memory: NDArray[np.int64] = np.frombuffer(mmap.mmap(-1, 8 * (1 + ranks)), dtype=np.int64)

    def write(self, phase: int, goal: int, *, is_final: bool) -> None:
        """Say how many steps may be made by the end of a phase so far, and whether no more will be."""
        self._memory[0] = phase << 41 | goal << 1 | is_final  # one store of eight bytes: never seen by halves

    def read(self) -> tuple[int, int, bool]:
        """Return the phase, its steps, and whether these are all."""
        word = int(self._memory[0])
        return word >> 41, word >> 1 & (1 << 40) - 1, bool(word & 1)

    def post(self, rank: int, flag: bool) -> None:
        """Say whether a rank is ready."""
        self._memory[1 + rank] = flag

    @property
    def all_ready(self) -> bool:
        """Whether all ranks have said so."""
        return bool(self._memory[1:].all())


class Team:
    """One rank's view of all; alone it decides, and waits for nobody."""

    def __init__(self, rank: int = 0, size: int = 1, board: Board | None = None, job: int | None = None) -> None:
        """Take this rank's number, and how many there are; ``job`` is the process that has started them all.

        With others, torch's process group must be there.
        """
        self.rank, self.size, self.job = rank, size, job
        self._board = board or Board(size)
        self._group: Any = None
        self._phase, self._done, self._goal = 0, 0, 0
        if size > 1:
            import torch.distributed as dist

            self._group = dist.new_group(backend="gloo", timeout=FOR_EVER)

    @property
    def leads(self) -> bool:
        """Whether this rank decides for all."""
        return self.rank == 0

    # Steps

    def together(self, is_over: Callable[[], bool]) -> Iterator[None]:
        """Yield once for every step that all ranks make, until the leader's ``is_over`` says so."""
        if self.leads:
            while not is_over():
                self.allow(1)
                yield
                self.made_step()
            for _ in range(self.left):
                yield
                self.made_step()
            self.end()
        else:
            while self.may_step():
                yield
                self.made_step()
        self.barrier()

    def allow(self, steps: int, *, exactly: bool = False) -> None:
        """Say that the next ``steps`` will be made; not ``exactly`` these, but some more."""
        goal = self._done + steps + (0 if exactly else AHEAD)
        if self.size > 1 and goal > self._goal:
            self._goal = goal
            self._board.write(self._phase, self._goal, is_final=False)

    @property
    def left(self) -> int:
        """Steps that were allowed and not made yet, by the leader."""
        return max(0, self._goal - self._done)

    def end(self) -> None:
        """Say that the steps which were allowed are all; the leader has made them. Then all ranks must meet."""
        if self.size > 1:
            self._board.write(self._phase, self._done, is_final=True)
            self._phase += 1

    def may_step(self) -> bool:
        """Wait for the leader's word; return whether there is a step to make."""
        nap = SHORTEST_NAP
        while True:
            phase, goal, is_final = self._board.read()
            if phase == self._phase and self._done < goal:
                return True
            if phase == self._phase and is_final:
                self._phase += 1
                return False
            time.sleep(nap)
            nap = min(2 * nap, LONGEST_NAP)

    def made_step(self) -> None:
        """Count a step."""
        self._done += 1

    def post(self, flag: bool) -> None:
        """Say whether this rank is ready."""
        self._board.post(self.rank, flag)

    @property
    def all_ready(self) -> bool:
        """Whether every rank is."""
        return self._board.all_ready

    # Words

    def tell(self, value: T) -> T:
        """Return the leader's value, in every rank."""
        if self.size == 1:
            return value
        import torch.distributed as dist

        values = [value]
        dist.broadcast_object_list(values, src=0, group=self._group)
        return values[0]

    def gather(self, value: T) -> list[T]:
        """Return the values of all ranks, in every rank."""
        if self.size == 1:
            return [value]
        import torch.distributed as dist

        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value, group=self._group)
        return values

    def barrier(self) -> None:
        """Wait until every rank is here."""
        if self.size > 1:
            import torch.distributed as dist

            dist.barrier(group=self._group)


ALONE = Team()
"""One process."""
