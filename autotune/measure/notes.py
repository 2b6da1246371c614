"""What a reader must know to trust a measurement, in plain words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from autotune.config import Config
from autotune.measure.window import WindowSummary
from autotune.records import Conditions

__all__ = ["LoaderFacts", "loader_notes", "machine_notes", "window_notes"]

UNCREDITED = 0.05
"""Share of the batches, built before the window or built in it and not used, from which it is told."""
THROTTLED = 0.05
"""Share of the time that a CPU quota may stop processes before it is told."""


class LoaderFacts(Protocol):
    """What a stream of batches knows of its loader when a measurement ends."""

    epoch_batches: int | None
    """Batches in an epoch, where known."""

    @property
    def idle_workers(self) -> int:
        """Workers that got no data."""

    @property
    def unique_share(self) -> float:
        """Share of the batches that are not another worker's."""

    @property
    def freezes_epoch(self) -> bool:
        """Whether workers live on with a dataset whose epoch is set from outside."""


def window_notes(summary: WindowSummary) -> Iterator[str]:
    """Yield what there is to say of the steps."""
    if summary.early_share > UNCREDITED:
        yield (
            f"{summary.early_share:.0%} of the batches had been built before the window and are not counted: "
            "the queue was still draining"
        )
    if summary.early_share < -UNCREDITED:
        yield (
            f"{-summary.early_share:.0%} more batches are counted than were used: workers built them in the window, "
            "in which training waited for others"
        )
    if not summary.is_steady:
        yield "step times never settled within the window"


def loader_notes(loader: LoaderFacts, config: Config, in_flight: int) -> Iterator[str]:
    """Yield what there is to say of a loader that asks for ``in_flight`` batches ahead."""
    if loader.epoch_batches is not None and loader.epoch_batches <= in_flight:
        yield (
            f"the loader asks for {in_flight} batches ahead and an epoch ends after {loader.epoch_batches}: "
            "no steady state is reached"
        )
    if loader.idle_workers:
        yield f"{loader.idle_workers} of {config.num_workers} loader workers got no data: fewer do the same"
    if loader.freezes_epoch:
        yield "the dataset's set_epoch does not reach workers that live on: each keeps its own copy of it"
    if loader.unique_share < 1:
        ranks, by = ("", "") if config.ranks == 1 else ("ranks or ", "torch.distributed.get_rank() and ")
        yield (
            f"only {loader.unique_share:.0%} of the samples are counted: the {ranks}workers yield the same ones; "
            f"divide the dataset among them with {by}torch.utils.data.get_worker_info()"
        )


def machine_notes(conditions: Conditions) -> Iterator[str]:
    """Yield what there is to say of the machine."""
    if (conditions.throttled_share or 0.0) > THROTTLED:
        yield (
            f"the CPU quota stopped processes for {conditions.throttled_share:.0%} of the time: "
            "fewer workers or threads may be faster"
        )
    if conditions.page_cache in ("cold", "mixed"):
        yield f"{conditions.storage_share:.0%} of the data came from storage; read again it may come faster"
    if (conditions.worker_threads or 1) > 1:
        yield (
            f"each loader worker computes in {conditions.worker_threads} threads: limit them, for example with "
            "cv2.setNumThreads(0) or OMP_NUM_THREADS=1, or more workers only get in each other's way"
        )
    yield from conditions.disturbances
