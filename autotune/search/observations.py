"""All measurements so far, for the code that reasons about them.

Pure: no clock, no torch, no I/O.
"""

from __future__ import annotations

from dataclasses import dataclass

from autotune.config import Config, StepKey
from autotune.host import Host
from autotune.limits import MemoryLimit
from autotune.probes import ComputeProbe, LoaderTrace
from autotune.records import Outcome, Probe, Trial, WorkloadFacts

MAX_COMPARISONS = 2
"""How often a precision is compared with fp32, where that takes too long."""
CHANCE = (Outcome.TIMEOUT, Outcome.CRASHED, Outcome.WORKER_DIED, Outcome.USER_ERROR)
"""Outcomes of loader workers that may work in another configuration all the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observations:
    """All measurements so far."""

    facts: WorkloadFacts
    """The workload."""
    host: Host
    """The machine."""
    memory_limit: MemoryLimit
    """How much of the memory may be used."""
    trials: tuple[Trial, ...]
    """Measured configurations, the baseline first."""
    probes: tuple[Probe, ...] = ()
    """Probes of steps and of the loader."""
    claimed: tuple[Config, ...] = ()
    """Configurations that other tuners of a shared study are measuring now."""

    @property
    def on_cpu(self) -> bool:
        """Whether training shares the CPUs with the loader."""
        return self.facts.device == "cpu"

    @property
    def cpus(self) -> float:
        """CPU seconds that there are each second; a quota may be a fraction."""
        return self.host.quota_cpus or self.host.affinity_cpus

    def threads(self, config: Config) -> int:
        """Return the threads of a step; on an accelerator they do not matter to it, so there is one number for all."""
        return (config.intra_op_threads or self.facts.intra_op_threads) if self.on_cpu else 0

    def step_key(self, config: Config) -> StepKey:
        """Return the settings that a step's time depends on here, with the number of its threads."""
        return config.step_key._replace(threads=self.threads(config))

    @property
    def looks(self) -> tuple[tuple[Config, ComputeProbe], ...]:
        """The probes of steps with numbers, each with its configuration, in order."""
        return tuple((probe.config, probe.attempt.compute) for probe in self.probes if probe.attempt.compute)

    def distrust(self, amp: str) -> str | None:
        """Return why a precision must not be used, or ``None``; the baseline's is the user's own business."""
        if amp in ("off", self.trials[0].config.amp):
            return None
        failed = next((t for t in self.trials if t.config.amp == amp and t.outcome is Outcome.NUMERICS), None)
        if failed:
            return f"in {amp} {failed.attempt.message}"
        checks = self.comparisons(amp)
        if not checks:
            return f"there was no time to compare {amp} with fp32"
        last = checks[-1].attempt
        return last.message or (None if last.numerics else f"{amp} could not be compared with fp32: {last.outcome}")

    def is_unchecked(self, amp: str) -> bool:
        """Return whether a precision must be compared with fp32 before it may be used."""
        done = [probe.attempt.outcome for probe in self.comparisons(amp)]
        was_in_time = any(outcome is not Outcome.TIMEOUT for outcome in done)
        return self.distrust(amp) is not None and not was_in_time and len(done) < MAX_COMPARISONS

    def is_untried(self, amp: str) -> bool:
        """Return whether there was no time for a precision: to compare it with fp32, or to probe its step."""
        if all(probe.attempt.outcome is Outcome.TIMEOUT for probe in self.comparisons(amp)):
            return True
        looks = [probe.config for probe in self.probes if probe.part == "compute"]
        tried = {config.amp for config in (*looks, *(trial.config for trial in self.trials))}
        return self.distrust(amp) is None and amp not in tried

    @property
    def worker_failures(self) -> list[str]:
        """The failures of loader workers, in words, where none has ever worked; each time, the probe of them first.

        Failures for want of memory, or of the right to start workers, are known as those.
        """
        if any(trial.measurement and trial.config.num_workers for trial in self.trials) or self.traces:
            return []
        looks = [probe.attempt for probe in self.probes if probe.part == "loader"]
        tried = [trial.attempt for trial in self.trials if trial.config.num_workers]
        return [f"{each.message or each.outcome}" for each in (*looks, *tried) if each.outcome in CHANCE]

    def comparisons(self, amp: str) -> list[Probe]:
        """Return the probes of the losses in a precision, failed ones included."""
        return [probe for probe in self.probes if probe.part == "numerics" and probe.config.amp == amp]

    @property
    def traces(self) -> tuple[LoaderTrace, ...]:
        """The probes of the loader, by batch size."""
        return tuple(
            sorted((p.attempt.loader for p in self.probes if p.attempt.loader), key=lambda trace: trace.batch_size)
        )
