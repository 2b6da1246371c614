"""What a diagnosis reasons about, and its figures in words."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean

from autotune.config import Config
from autotune.finding import Cause, Finding
from autotune.host import Host
from autotune.probes import Anatomy, ComputeProbe, LoaderTrace
from autotune.records import Measurement, WorkloadFacts

__all__ = [
    "LEAST_SHARE",
    "Evidence",
    "code_figures",
    "limit",
    "loader_figures",
    "ms",
    "peak_figure",
    "percent",
    "phase_figures",
]

LEAST_SHARE = 0.1
"""Share of the training time from which a part counts as what limits the rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Everything that is known of one configuration; what was not looked at is ``None``."""

    config: Config
    """The configuration."""
    facts: WorkloadFacts
    """The workload."""
    host: Host
    """The machine."""
    measurement: Measurement
    """What training with it gave."""
    compute: ComputeProbe | None = None
    """A look at the step alone."""
    loader: LoaderTrace | None = None
    """A look at the loader alone, at about this batch size."""
    anatomy: Anatomy | None = None
    """A look into the code of dataset and step."""

    @property
    def is_asynchronous(self) -> bool:
        """Whether the step runs on an accelerator, beside the host."""
        return self.facts.device != "cpu"

    @property
    def blocked_share(self) -> float | None:
        """Share of the time of building a batch that uses no CPU."""
        if self.loader is None:
            return None
        return max(0.0, 1 - self.loader.cpu_seconds / fmean(self.loader.build_seconds))


def limit(cause: Cause, what: str, evidence: tuple[str, ...], advice: str, share: float | None = None) -> Finding:
    """Return a cause that limits the rate."""
    return Finding(cause=cause, is_limit=True, what=what, evidence=evidence, advice=advice, share=share)


def loader_figures(evidence: Evidence) -> tuple[str, ...]:
    """Return what is known of building a batch."""
    split, loader = evidence.measurement.step_time, evidence.loader
    waited = f"{ms(split.data_wait)} of a step of {ms(split.total)} waited"
    if loader is None:
        return (waited,)
    build = fmean(loader.build_seconds) * evidence.config.batch_size / loader.batch_size
    busy = 1 - (evidence.blocked_share or 0.0)
    return waited, f"one worker takes {ms(build)} for a batch, a CPU busy for {percent(busy)} of it"


def code_figures(evidence: Evidence) -> tuple[str, ...]:
    """Return the functions in which building batches spends its time."""
    anatomy = evidence.anatomy
    if anatomy is None:
        return ()
    texts = [f"{percent(each.share)} in {each.where}" for each in anatomy.code[:3] if each.share >= LEAST_SHARE]
    batch = anatomy.collate_seconds + anatomy.sample_seconds * evidence.config.batch_size
    if anatomy.collate_seconds > LEAST_SHARE * batch:
        texts.append(f"collating is {percent(anatomy.collate_seconds / batch)} of building a batch")
    return tuple(texts)


def phase_figures(measured: Measurement) -> tuple[str, ...]:
    """Return how a step divides into its phases."""
    split = measured.step_time
    phases = {"forward": split.forward, "backward": split.backward, "optimizer": split.optimizer}
    return (", ".join(f"{name} {percent(seconds / split.total)}" for name, seconds in phases.items()),)


def peak_figure(measured: Measurement) -> str:
    """Return the peak of the memory that limits training."""
    return f"{measured.peak_memory_bytes / 2**30:.1f} of {measured.memory_limit_bytes / 2**30:.1f} GiB taken"


def ms(seconds: float) -> str:
    """Return a time in milliseconds."""
    return f"{1000 * seconds:.3g} ms"


def percent(share: float) -> str:
    """Return a share in percent."""
    return f"{100 * share:.0f} %"
