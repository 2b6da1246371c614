"""What epoch restarts cost: the rate over whole epochs, and whether keeping the workers alive pays.

Pure: no clock, no torch, no I/O.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["EpochCost"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochCost:
    """An epoch and the time to start one, in seconds."""

    samples: int
    """Samples in an epoch."""
    rate: float
    """Samples per second inside an epoch."""
    start: float
    """From asking new workers for an epoch to its first batch."""
    restart: float
    """The same with workers that are still alive; they have to build the first batch as well."""

    def rate_over_epochs(self, *, keeps_workers: bool) -> float:
        """Return the samples per second over epochs that each start their workers, or that keep them."""
        return self.samples / (self.samples / self.rate + (self.restart if keeps_workers else self.start))

    @property
    def persistence_gain(self) -> float:
        """What keeping the workers alive gains, as a share of the rate with new ones for each epoch."""
        return self.rate_over_epochs(keeps_workers=True) / self.rate_over_epochs(keeps_workers=False) - 1
