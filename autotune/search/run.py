"""A run: its time, its proofs, and the reason for its end; all else stands in the study's records. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from autotune.proof import Proof
from autotune.records import Trial

FIRST, SECOND = "proof", "second"
"""Begins of the names of rounds: of those that prove the answer, and that for the other objective."""
ALONE = "baseline"
"""Begin of the name of a round in which the baseline alone is measured."""
INTERRUPTED_SECONDS = 15.0
"""Seconds for the proof after the user has stopped the search; its only round may take twice as long."""


class Ending(StrEnum):
    """The kinds of reasons that end a search."""

    COMPLETE = "complete"
    """Nothing was left to gain."""
    TRIALS = "trials"
    """The number of trials that was asked for."""
    BUDGET = "budget"
    """The rest of the budget was not enough."""
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class Stop:
    """The reason why a search ended."""

    ending: Ending
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run so far."""

    name: str
    """A part of the names of its rounds, which no other run of the study has."""
    budget: float
    """Seconds of the whole run."""
    kept: float = 0.0
    """The part of it that is kept free for the answer for the other objective."""
    spent: float = 0.0
    """Seconds since its start."""
    opening: float = 0.0
    """Seconds that it took to start Python and torch, and to load the workload."""
    loading: float = 0.0
    """The part of it that a process forked from one with torch takes too."""
    most_trials: int | None = None
    """Most trials, where the user gave a number."""
    seed: int = 0
    """Decides where in an epoch all its trials begin, so that like is compared with like."""
    looks: int = 0
    """Looks that were on record when it began."""
    looking: float | None = None
    """Seconds that were spent when its looks began to have their share of the rest; ``None`` before the baseline."""
    is_exhausted: bool = False
    proofs: tuple[Proof, ...] = ()
    """Its proofs of the answer, in order."""
    second: Proof | None = None
    """Its proof of the answer for the other objective."""
    stop: Stop | None = None
    """The reason why the answer is settled; ``None`` before. The second answer follows."""
    wanted: str = ""
    """The remedy for an undecided verdict."""
    searched: int = 0
    looked: int = 0
    """Trials of the search, and looks, when the answer was settled."""
    interrupted: float | None = None
    """Seconds that were spent when the user interrupted it: what is known is proven, and that is all."""

    @property
    def left(self) -> float:
        """Seconds left, never negative."""
        return max(0.0, self.budget - self.spent)

    @property
    def is_interrupted(self) -> bool:
        """Whether the user has interrupted it."""
        return self.interrupted is not None

    @property
    def proof(self) -> Proof | None:
        """Its last proof of the answer."""
        return self.proofs[-1] if self.proofs else None

    def proof_left(self, proof: Proof | None = None) -> float:
        """Return the seconds left for a proof, or for the next one; below zero where they are over."""
        is_short = self.interrupted is not None if proof is None else proof.is_short
        return (self.interrupted or 0.0) + INTERRUPTED_SECONDS - self.spent if is_short else self.budget - self.spent

    def holds(self, trial: Trial) -> bool:
        """Return whether a confirming measurement is one of this run's."""
        return f"-{self.name}-" in (trial.round or "")

    def named(self, kind: str, number: int) -> str:
        """Return the name of a proof, or of a round in which the baseline is measured alone."""
        return f"{kind}-{self.name}-{number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """End of a run: all that its answer does not have from the trials and looks of the study."""

    run: Run
    date: str
    """When it ended, in UTC."""
    notes: tuple[str, ...]
    """Notes that were told during the run."""
    trials: tuple[int, ...]
    """Numbers of the trials that were on record."""
    looks: int
    """Number of the looks that were on record."""
