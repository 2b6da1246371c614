"""One study that several hosts fill at the same time, from one process: what each knows of the others.

The board itself has all records, so that what keeps them, a file or a server, may fail without a loss.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from optuna.distributions import BaseDistribution
from optuna.trial import FrozenTrial

from autotune.config import Config
from autotune.encoding import trial_from_json
from autotune.records import Kind, Outcome, Part, Probe, Trial
from autotune.search.claims import Claimed
from autotune.search.identity import Identity
from autotune.search.keeping import Keeper
from autotune.search.losses import owed, settled
from autotune.search.stored import RECORD, Kept

__all__ = ["Board", "Seat"]


class Seat(Keeper):
    """A host's place at the board, as what keeps its study; one without a host reads and confirms only."""

    def __init__(self, board: Board, host: str | None) -> None:
        super().__init__()
        self._board = board
        self.host = host
        """The host that measures."""
        self.measuring: Claimed | None = None
        """What is being measured here."""
        self.looking: tuple[Part, Config] | None = None
        """Which look is being taken here."""
        self.looks_seen = 0
        """How many looks are known here."""
        self.claim_number: int | None = None
        """The number of what is being measured."""
        self.held: object = None
        """The claim of it, as the keeper behind the board has it."""

    def open(self, identity: Identity) -> Kept:
        """Open what keeps the study, unless that was done, and return what is known."""
        return self._board.open(self, identity)

    def refresh(self) -> Kept:
        """Return what all hosts know now."""
        return self._board.refresh(self)

    def news(self) -> tuple[str, ...]:
        """Return what the user should know and was not told yet."""
        return self._board.news()

    def claim(
        self,
        config: Config,
        kind: Kind,
        settings: Mapping[str, Any],
        distributions: Mapping[str, BaseDistribution],
        most: int | None = None,
    ) -> bool:
        """Claim a configuration before it is measured; tell whether nobody else has it, or the last of ``most``."""
        by = Claimed(config=config, kind=kind, by=f"host {self.host}")
        return self._board.claim(self, by, settings, distributions, most)

    def claim_look(self, part: Part, config: Config) -> bool:
        """Claim a look before it is taken; tell whether nobody else takes it or has just taken one."""
        return self._board.claim_look(self, part, config)

    def withdraw(self) -> None:
        """Give the last claims back: nothing came of them."""
        self._board.withdraw(self)

    def leave(self) -> None:
        """Measure no more: nobody waits for this host."""
        self._board.leave(self)

    @property
    def number(self) -> int | None:
        """The number of the trial that was claimed last."""
        return self.claim_number

    def trial(self, frozen: FrozenTrial, note: str = "") -> None:
        """Keep a trial that has ended, as what came of the last claim."""
        self._board.trial(self, frozen, note)

    def failed_baseline(self, trial: Trial, frozen: FrozenTrial, note: str) -> None:
        """Keep a baseline that could not be measured."""
        self._board.failed_baseline(self, trial, frozen, note)

    def look(self, probe: Probe) -> None:
        """Keep a short look."""
        self._board.look(self, probe)

    def confirmation(self, trial: Trial) -> None:
        """Keep a confirming measurement."""
        self._board.confirmation(trial)


class Board:
    """What the hosts share; every method may be called by any of their threads."""

    def __init__(self, keeper: Keeper) -> None:
        """Take what keeps the study on disk or on a server."""
        self._keeper = keeper
        self._lock = threading.RLock()
        self._seats: list[Seat] = []
        self._trials: list[Trial] = []
        self._probes: list[Probe] = []
        self._confirmations: list[Trial] = []
        self._is_open = False
        self.lost_baselines = 0
        """How often the baseline was lost with its host."""

    @property
    def has_baseline(self) -> bool:
        """Whether the baseline was measured, with which all begins."""
        with self._lock:
            return bool(self._trials)

    def seat(self, host: str | None = None) -> Seat:
        """Return the place of one more host, or of the tuner itself."""
        found = Seat(self, host)
        with self._lock:
            if host is not None:
                self._seats.append(found)
        return found

    def open(self, seat: Seat, identity: Identity) -> Kept:
        """Open the keeper the first time. Raises ``StorageError``."""
        with self._lock:
            if not self._is_open:
                self._take(self._keeper.open(identity))
                self._is_open = True
            return self._known(seat)

    def refresh(self, seat: Seat) -> Kept:
        """Return what is known, with what tuners elsewhere have added."""
        with self._lock:
            found = self._keeper.refresh()
            if found is not None:
                self._take(found)
            seat.claims = self._claims_beside(seat)
            return self._known(seat)

    def news(self) -> tuple[str, ...]:
        """Return what the user should know of the storage and was not told yet."""
        with self._lock:
            return self._keeper.news()

    def claim(
        self,
        seat: Seat,
        wanted: Claimed,
        settings: Mapping[str, Any],
        distributions: Mapping[str, BaseDistribution],
        most: int | None,
    ) -> bool:
        """Let a host have a configuration, if no other has it and it is none too many."""
        with self._lock:
            if self._is_needless(seat, wanted) or (most is not None and self._begun >= most):
                return False
            with self._claim_of(seat):
                if not self._keeper.claim(wanted.config, wanted.kind, settings, distributions, most):
                    return False
                number = self._keeper.number
            seat.claim_number = self._free_number if number is None else number
            seat.measuring = wanted
            return True

    def claim_look(self, seat: Seat, part: Part, config: Config) -> bool:
        """Let a host take a look, if no other takes it and none was added that it does not know."""
        with self._lock:
            if seat.looks_seen != len(self._probes) or any(other.looking == (part, config) for other in self._seats):
                return False
            seat.looking = part, config
            return True

    def withdraw(self, seat: Seat) -> None:
        """Take back what a host has claimed."""
        with self._lock:
            seat.looking = None
            if seat.measuring:
                with self._claim_of(seat):
                    self._keeper.withdraw()
            self._ended(seat)

    def leave(self, seat: Seat) -> None:
        """Let a host go; what it owes is the others'."""
        with self._lock:
            self.withdraw(seat)
            self._seats = [other for other in self._seats if other is not seat]

    def trial(self, seat: Seat, frozen: FrozenTrial, note: str) -> None:
        """Keep what came of a host's claim."""
        with self._lock:
            self._trials.append(trial_from_json(frozen.system_attrs[RECORD]))
            with self._claim_of(seat):
                self._keeper.trial(frozen, note)
            self._ended(seat)

    def failed_baseline(self, seat: Seat, trial: Trial, frozen: FrozenTrial, note: str) -> None:
        """Keep a baseline that could not be measured."""
        with self._lock:
            self.lost_baselines += trial.outcome is Outcome.LOST
            with self._claim_of(seat):
                self._keeper.failed_baseline(trial, frozen, note)
            self._ended(seat)

    def look(self, seat: Seat, probe: Probe) -> None:
        """Keep a look that a host has taken."""
        with self._lock:
            self._probes.append(probe)
            seat.looking, seat.looks_seen = None, len(self._probes)
            self._keeper.look(probe)

    def confirmation(self, trial: Trial) -> None:
        """Keep a confirming measurement."""
        with self._lock:
            self._confirmations.append(trial)
            self._keeper.confirmation(trial)

    def _take(self, kept: Kept) -> None:
        self._trials, self._probes = list(kept.trials), list(kept.probes)
        self._confirmations = list(kept.confirmations)

    def _known(self, seat: Seat) -> Kept:
        seat.looks_seen = len(self._probes)
        trials, confirmations = tuple(self._trials), tuple(self._confirmations)
        return Kept(trials=trials, probes=tuple(self._probes), confirmations=confirmations)

    def _is_needless(self, seat: Seat, wanted: Claimed) -> bool:
        """Tell whether another host measures a configuration, or it is known; what is only skipped is not known."""
        claims = {claim.config for claim in self._claims_beside(seat)}
        records = self._trials if wanted.kind == "skipped" else _ran(self._trials)
        return wanted.config in claims or wanted.config in {record.config for record in records}

    def _claims_beside(self, seat: Seat) -> tuple[Claimed, ...]:
        """Return what others measure, and what this host has lost: that is theirs, as long as there are others."""
        others = [other for other in self._seats if other is not seat]
        found = [other.measuring for other in others if other.measuring and other.measuring.kind != "skipped"]
        if others:
            who = " or ".join(f"host {other.host}" for other in others)
            lost = (record for record in owed(self._trials) if record.host == seat.host)
            found += [Claimed(config=record.config, kind=record.kind, by=who) for record in lost]
        configs = {claim.config for claim in found} | {seat.measuring.config for seat in self._seats if seat.measuring}
        elsewhere = [claim for claim in self._keeper.claims if claim.config not in configs]
        return (*{claim.config: claim for claim in (*found, *elsewhere)}.values(),)

    @property
    def _begun(self) -> int:
        """How many configurations are being measured, or are settled; each counts once, as on a server."""
        running = {seat.measuring.config for seat in self._seats if seat.measuring and seat.measuring.kind != "skipped"}
        return len(running | {trial.config for trial in _ran(self._trials)})

    @property
    def _free_number(self) -> int:
        taken = {record.number for record in (*self._trials, *self._confirmations)}
        taken |= {seat.claim_number for seat in self._seats if seat.claim_number is not None}
        return next(number for number in itertools.count() if number not in taken)

    @contextmanager
    def _claim_of(self, seat: Seat) -> Iterator[None]:
        """Have the keeper hold one host's claim."""
        if seat.held is not None:
            self._keeper.take_up(seat.held)
        try:
            yield
        finally:
            seat.held = self._keeper.put_aside()

    def _ended(self, seat: Seat) -> None:
        seat.measuring = seat.claim_number = None


def _ran(trials: list[Trial]) -> list[Trial]:
    return [trial for trial in settled(trials) if trial.kind != "skipped"]
