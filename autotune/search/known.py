"""All that is known of a study at one moment: the table that the agenda and the answer read.

Pure: no clock, no torch, no I/O.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from autotune.batch_cost import NoiseScale, noise_scale
from autotune.config import Config
from autotune.proof import Confirmation, Entry, recorded
from autotune.records import Measurement, Probe, Trial
from autotune.search.feasibility import exceeds
from autotune.search.forecast import Forecast, cost, feasible, forecast_of
from autotune.search.observations import GAIN, Observations
from autotune.search.setup import Setup
from autotune.search.stopping import Ending

CLEARLY_SLOWER = 0.9
"""Share of the baseline's rate below which a trial is no finalist while something untried could win."""
PLAUSIBLE = 1.5
"""Standard deviations by which a trial's expected rate may lie below the best for it to be measured again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """End of a run: all that its answer does not have from the trials and looks of the study."""

    ending: Ending
    """The kind of reason for which it ended."""
    stop_reason: str
    """The reason in words."""
    seconds: float
    """Wall time of the run."""
    date: str
    """When it ended, in UTC."""
    wanted: str
    """The remedy for an undecided verdict."""
    notes: tuple[str, ...]
    """Notes that were told during the run."""
    trials: tuple[int, ...]
    """Numbers of the trials that were on record."""
    looks: int
    """Number of the looks that were on record."""
    confirmed: tuple[int, ...]
    """Numbers of the run's own confirming trials."""
    rounds: tuple[str, ...]
    """Names of the complete rounds of the proof, earlier runs' included."""
    entries: tuple[Entry, ...]
    """The finalists, in order, and what became of them."""


@dataclass(frozen=True, kw_only=True)
class Known:
    """All that is known of a study."""

    setup: Setup
    observations: Observations
    """The trials of the search, and the looks."""
    history: tuple[Trial, ...]
    """Every trial, confirmations last."""
    others: tuple[tuple[str, Config], ...] = ()
    """Other tuners that share the study, and the configuration that each is measuring now."""
    end: End | None = None
    """The end of its last run, where this is what was known then."""

    @property
    def trials(self) -> tuple[Trial, ...]:
        """The trials of the search that ran, the baseline first."""
        return self.observations.trials

    @property
    def probes(self) -> tuple[Probe, ...]:
        """The looks at the step and at the loader, in order."""
        return self.observations.probes

    @property
    def measured(self) -> list[Trial]:
        """All trials in the order of time."""
        return sorted(self.history, key=lambda trial: trial.number)

    @cached_property
    def forecast(self) -> Forecast:
        """The whole space as it looks now. Raises ``ValueError`` where the baseline was not measured."""
        return forecast_of(self.observations, self.setup.space)

    @property
    def best(self) -> Trial | None:
        """The measured configuration that is expected to be the fastest, given all measurements."""
        return self.forecast.best if self.trials else None

    @property
    def noise_look(self) -> Probe | None:
        """The last look at the gradients' noise."""
        return next((probe for probe in reversed(self.probes) if probe.part == "noise"), None)

    @property
    def noise(self) -> NoiseScale | str:
        """The noise scale of the gradients, or why it is not known."""
        if self.setup.facts.loader_site is not None:
            return "the steps of a script are its own, and are not divided into small batches"
        if (look := self.noise_look) is None:
            return "there was no time to measure the noise of the gradients"
        if look.attempt.noise is None:
            return f"the noise of the gradients could not be measured: {look.attempt.message or look.attempt.outcome}"
        return noise_scale(look.attempt.noise)

    @cached_property
    def rivals(self) -> tuple[Trial, ...]:
        """The allowed trials with numbers beside the baseline: a study that goes on may hold others."""
        trials = [trial for trial in feasible(self.observations) if trial.kind != "baseline"]
        inside = [trial for trial in trials if trial.config in self.forecast.position]
        return tuple(trial for trial in inside if self.observations.distrust(trial.config.amp) is None)

    @cached_property
    def following(self) -> Config | None:
        """The next configuration to measure: the baseline, then the one that is likely to win most.

        Where nothing beside the baseline has given a number, the most promising one even though it may not win.
        ``None`` when none is left.
        """
        if not self.trials:
            return self.setup.space.base
        proposal = self.forecast.proposal()
        return proposal if proposal or self.rivals else self.forecast.most_promising()

    @property
    def candidate(self) -> Config | None:
        """The next configuration, where no trial came near the baseline; ``None`` otherwise, or where none is left."""
        near = CLEARLY_SLOWER * (self.trials[0].rate or 0.0)
        return None if any((trial.rate or 0.0) >= near for trial in self.rivals) else self.following

    def finalists(self, most: int, is_sound: Callable[[Trial], bool] = lambda trial: True) -> tuple[Trial, ...]:
        """Return the sound trials that may be the answer, ``most`` at most, without the baseline.

        First the cheapest trial as fast as the best, within ``GAIN``; then trials whose rate may well be as high, the
        fastest first.
        """
        forecast = self.forecast
        rated = [(math.log(forecast.rate_of(trial.config)), trial) for trial in self.rivals if is_sound(trial)]
        if not rated:
            return ()
        best = max(rate for rate, _ in rated)
        first = min((trial for rate, trial in rated if rate >= best - math.log(1 + GAIN)), key=self.cost)
        near = [
            (best - rate, trial.number, trial)
            for rate, trial in rated
            if best - rate <= max(math.log(1 + GAIN), PLAUSIBLE * forecast.error_of(trial.config)) and trial != first
        ]
        return (first, *(trial for *_, trial in sorted(near, key=lambda each: each[:2])[: most - 1]))

    def cost(self, trial: Trial) -> tuple[Any, ...]:
        """Order trials of equal speed: by the cost of the configuration, then by memory."""
        peak = trial.measurement.peak_memory_bytes if trial.measurement else 0
        return (*cost(trial.config, self.setup.space.base), peak)

    def may_answer(self, config: Config) -> bool:
        """Return whether a configuration of an earlier run is allowed now, whatever its workers do between epochs."""
        position = self.forecast.position
        alike = (replace(config, persistent_workers=keeps) for keeps in {False, config.num_workers > 0})
        return any(each in position for each in alike) and self.observations.distrust(config.amp) is None

    def fits(self, measured: Measurement) -> bool:
        """Return whether a measurement took no more memory than training may."""
        return not exceeds(measured, self.observations)

    def confirmations(self, end: End) -> list[Trial]:
        """Return the confirming measurements of the run that ended."""
        return [trial for trial in self.history if trial.number in end.confirmed]

    def confirmation(self, end: End) -> Confirmation | None:
        """Return the comparison of the finalists with the baseline; ``None`` without complete rounds."""
        if not end.rounds:
            return None
        return recorded(self.history, self.trials[0].config, end.entries, end.rounds, self.fits)
