"""All measurements so far, for the code that reasons about them. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean

from autotune.config import Config, StepKey
from autotune.limits import MemoryLimit
from autotune.machine.host import Host
from autotune.outcome import Outcome
from autotune.probes import ComputeProbe, LoaderTrace
from autotune.records import Measurement, Part, Probe, Trial, WorkloadFacts
from autotune.search.space import Space

DISTURBANCE = 0.5
"""Standard deviation of a rate's logarithm where others used all CPUs meanwhile; in proportion where it was less."""
GAIN = 0.02
"""Gains below this share do not count: no measurement here tells them from nothing."""
MAX_COMPARISONS = 2
"""How often a precision or an option is compared with fp32, where that takes too long."""
MAX_HALVINGS = 4
"""How often it is compared at half the batch, where fp32 does not fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observations:
    """All measurements so far."""

    facts: WorkloadFacts
    host: Host
    memory_limit: MemoryLimit
    trials: tuple[Trial, ...]
    """Measured configurations, the baseline first; of it the measurement that counts, see ``storage.trials``."""
    probes: tuple[Probe, ...] = ()
    claimed: tuple[Config, ...] = ()
    """Configurations that other tuners of a shared study are measuring now."""

    @property
    def baseline(self) -> Trial:
        """The baseline and its measurement. Raises ``IndexError`` where there is none yet."""
        return self.trials[0]

    @property
    def on_cpu(self) -> bool:
        """Whether training shares the CPUs with the loader."""
        return self.facts.device == "cpu"

    @property
    def cpus(self) -> float:
        """CPU seconds that there are each second; a quota may be a fraction."""
        return self.host.quota_cpus or self.host.affinity_cpus

    @property
    def is_own_cache(self) -> bool:
        """Whether the dataset keeps samples itself, for the process that has read them."""
        return any(trace.is_own_cache for trace in self.traces)

    def is_outdated(self, trial: Trial) -> bool:
        """Return whether a trial has the rate of a first epoch, and later ones are faster by what the dataset keeps."""
        measured = trial.measurement
        is_cold = measured is not None and trial.config.keeps_readers and not measured.later_epochs
        return is_cold and self.is_own_cache

    def threads(self, config: Config) -> int:
        """Return the threads of a step; one number for all where they do not matter to it.

        They matter on a CPU, and on an accelerator where the baseline sets them: launches may take longer with few.
        """
        base, own = self.baseline.config if self.trials else config, self.facts.intra_op_threads
        do_matter = self.on_cpu or (base.intra_op_threads or own) != own
        return (config.intra_op_threads or own) if do_matter else 0

    def step_key(self, config: Config) -> StepKey:
        """Return the settings that a step's time depends on here, with the number of its threads."""
        return config.step_key._replace(threads=self.threads(config))

    @property
    def looks(self) -> tuple[tuple[Config, ComputeProbe], ...]:
        """The looks at steps that count, each with its configuration, in order."""
        return tuple((probe.config, look) for probe in self.counted_steps if (look := probe.attempt.compute))

    @property
    def counted_steps(self) -> list[Probe]:
        """The probes of steps with numbers, of several alike the fastest: nothing makes a look too fast."""
        found: dict[Config, tuple[float, Probe]] = {}
        for probe in self.step_probes:
            if look := probe.attempt.compute:
                one = look.samples_per_second, probe
                found[probe.config] = max(found.get(probe.config, one), one, key=lambda pair: pair[0])
        return [probe for _, probe in found.values()]

    @property
    def disturbed_steps(self) -> set[tuple[str, int]]:
        """Precisions and batch sizes whose step was looked at only while others took CPUs or the GPU."""
        looks = [((str(config.amp), config.batch_size), look.taken_share > 0) for config, look in self.looks]
        return {step for step, _ in looks} - {step for step, is_disturbed in looks if not is_disturbed}

    def looks_at(self, part: Part, config: Config) -> list[Probe]:
        """Return every look at a part with a configuration, in order."""
        return [probe for probe in self.probes if (probe.part, probe.config) == (part, config)]

    def looks_within(self, space: Space) -> list[tuple[Config, ComputeProbe]]:
        """Return those within the bounds, without further options: a study that goes on may hold others."""
        knobs = ("batch_size", "amp", "threads")
        plain = [(config, look) for config, look in self.looks if config.options == space.base.options]
        return [each for each in plain if all(space.settings(each[0])[knob] in space.allowed[knob] for knob in knobs)]

    def step_probe(self, config: Config) -> Probe | None:
        """Return the probe of the step of a configuration that counts; ``None`` without any.

        The fastest with numbers, else the last that failed.
        """
        key = self.step_key(config)
        alike = [probe for probe in self.step_probes if self.step_key(probe.config) == key]
        timed = [(look.samples_per_second, probe) for probe in alike if (look := probe.attempt.compute)]
        return max(timed, key=lambda pair: pair[0])[1] if timed else next(reversed(alike), None)

    @property
    def step_probes(self) -> list[Probe]:
        """The probes of steps, failed ones included."""
        return [probe for probe in self.probes if probe.part == "compute"]

    def distrust(self, amp: str, options: tuple[str, ...] | None = None) -> str | None:
        """Return why a precision, or options in it, must not be used, or ``None``.

        The baseline's are the user's own business.
        """
        baseline = self.baseline.config
        options = baseline.options if options is None else options
        further = ", ".join(option for option in options if option not in baseline.options)
        if not further and amp in ("off", baseline.amp):
            return None
        for trial in self.trials:
            if (trial.config.amp, trial.config.options, trial.outcome) == (amp, options, Outcome.NUMERICS):
                return f"{f'with {further}' if further else f'in {amp}'} {trial.attempt.message}"
        name, checks = further or amp, self.comparisons(amp, options)
        if not checks:
            return f"there was no time to compare {name} with fp32"
        last = checks[-1].attempt
        return last.message or (None if last.numerics else f"{name} could not be compared with fp32: {last.outcome}")

    def is_unchecked(self, amp: str, options: tuple[str, ...] | None = None) -> bool:
        """Return whether a precision, or options in it, must be compared with fp32 before they may be used."""
        done = [probe.attempt.outcome for probe in self.comparisons(amp, options)]
        was_compared = any(not (each.is_want_of_memory or each is Outcome.TIMEOUT) for each in done)
        may_again = done.count(Outcome.TIMEOUT) < MAX_COMPARISONS and self.halvings(amp, options) <= MAX_HALVINGS
        return self.distrust(amp, options) is not None and not was_compared and may_again

    def halvings(self, amp: str, options: tuple[str, ...] | None = None) -> int:
        """Return how often the batch of a comparison is to be halved: fp32 did not fit."""
        return sum(probe.attempt.outcome.is_want_of_memory for probe in self.comparisons(amp, options))

    def is_untried(self, amp: str) -> bool:
        """Return whether there was no time or memory for a precision: to compare it with fp32, or to probe its step."""
        done = [probe.attempt.outcome for probe in self.comparisons(amp)]
        if all(each.is_for_now or each.is_want_of_memory for each in done):
            return True
        tried = {probe.config.amp for probe in self.step_probes} | {trial.config.amp for trial in self.trials}
        return self.distrust(amp) is None and amp not in tried

    @property
    def lost(self) -> Probe | None:
        """A probe that others' device memory made fail and that was not taken since; ``None`` without any.

        The comparisons of precisions come first: more depends on them.
        """
        last = {(probe.part, probe.config): probe for probe in self.probes}
        lost = [each for each in last.values() if each.attempt.outcome is Outcome.SUSPECT and not each.attempt.found]
        return min(lost, key=lambda probe: probe.part != "numerics", default=None)

    @property
    def worker_failures(self) -> list[str]:
        """The failures by chance of loader workers in words, the probe's first; none where any has ever worked."""
        if any(trial.measurement and trial.config.num_workers for trial in self.trials) or self.traces:
            return []
        tried = [probe.attempt for probe in self.probes if probe.part == "loader"]
        tried += [trial.attempt for trial in self.trials if trial.config.num_workers]
        return [f"{each.message or each.outcome}" for each in tried if each.outcome.is_chance]

    def comparisons(self, amp: str, options: tuple[str, ...] | None = None) -> list[Probe]:
        """Return the probes of the losses in a precision with options, by default the baseline's; failed ones too."""
        alike = amp, self.baseline.config.options if options is None else options
        numerics = (probe for probe in self.probes if probe.part == "numerics")
        return [probe for probe in numerics if (probe.config.amp, probe.config.options) == alike]

    @property
    def device_limit(self) -> int | None:
        """Bytes of device memory that training could have when last measured: others come, and go again."""
        trials = [(float(trial.number), trial.measurement) for trial in self.trials]
        probes = [(max(1, probe.after) - 0.5, probe.attempt.compute) for probe in self.probes]
        found = [(when, each) for when, each in (*trials, *probes) if each and each.memory == "device"]
        return max(reversed(found), key=lambda pair: pair[0])[1].memory_limit_bytes if found else None

    def may_take(self, measured: ComputeProbe | Measurement) -> float:
        """Return the bytes that a measured step may take: of the memory that it had then, or that there is now."""
        now = self.device_limit if measured.memory == "device" else None
        return self.memory_limit.of(max(measured.memory_limit_bytes, now or 0))

    @property
    def traces(self) -> tuple[LoaderTrace, ...]:
        """The probes of the loader that count, by batch size: of several alike the fastest."""
        found: dict[int, LoaderTrace] = {}
        for trace in (probe.attempt.loader for probe in self.probes if probe.attempt.loader):
            known = found.get(trace.batch_size)
            if known is None or fmean(trace.build_seconds) < fmean(known.build_seconds):
                found[trace.batch_size] = trace
        return tuple(found[size] for size in sorted(found))
