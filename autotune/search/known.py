"""All that is known of a study at one moment: the table that the agenda and the answer read. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Container
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean
from typing import Any

from autotune.batch_cost import NoiseScale, noise_scale
from autotune.config import Config
from autotune.outcome import Outcome
from autotune.proof import Confirmation, Proof, confirmation_of
from autotune.records import Measurement, Probe, Trial
from autotune.search.bound import NOTHING_LEFT, largest_gain, unsure_step
from autotune.search.feasibility import exceeds
from autotune.search.forecast import Forecast, cost, feasible, forecast_of
from autotune.search.observations import DISTURBANCE, GAIN, Observations
from autotune.search.predict import BOUND_ERRORS
from autotune.search.probe_plan import next_probe, untried_precision
from autotune.search.run import SECOND, End
from autotune.search.setup import Setup

EXPECTED = ("forecast", "rivals", "following", "_was_looked_at")
"""Properties that follow from the setup and the observations alone."""
CLEARLY_SLOWER = 0.9
"""Share of the baseline's rate below which a trial is no finalist while something untried could win."""
MOST_BASELINES = 4
"""Most measurements of the baseline in the search."""
PLAUSIBLE = 1.5
"""Standard deviations by which a trial's expected rate may lie below the best for it to be measured again."""


@dataclass(frozen=True, kw_only=True)
class Known:
    """All that is known of a study."""

    setup: Setup
    trials: tuple[Trial, ...]
    """The trials of the search that ran, the baseline first."""
    history: tuple[Trial, ...]
    """Every trial, confirmations last."""
    probes: tuple[Probe, ...] = ()
    """The looks at parts of training, in order."""
    baselines: int = 1
    """Times that the baseline was measured."""
    others: tuple[tuple[str, Config], ...] = ()
    """Other tuners that share the study, and the configuration that each is measuring now."""
    end: End | None = None
    """The end of its last run, where this is what was known then."""

    def expecting(self, earlier: Known | None) -> Known:
        """Return the same, with all that an earlier moment of the same observations has computed.

        A confirming measurement changes no expectation.
        """
        if earlier and all(
            getattr(self, name) == getattr(earlier, name) for name in ("setup", "baselines", "observations")
        ):
            vars(self).update({name: known for name, known in vars(earlier).items() if name in EXPECTED})
        return self

    @cached_property
    def observations(self) -> Observations:
        """The trials of the search, and the looks."""
        return Observations(
            facts=self.setup.facts,
            host=self.setup.host.for_rank(self.setup.space.base.ranks),
            memory_limit=self.setup.memory_limit,
            trials=self.trials,
            probes=self.probes,
            claimed=tuple(config for _, config in self.others),
        )

    @property
    def baseline(self) -> Trial:
        """The baseline and its measurement. Raises ``IndexError`` where there is none yet."""
        return self.trials[0]

    @property
    def needs_baseline(self) -> bool:
        """Whether the baseline is to be measured next: the first time, or again where others disturbed it.

        Then at once, and afterwards when the last measurement was quiet. Also where it had the rate of a first epoch.
        """
        if not self.trials:
            return True
        if self.baselines >= MOST_BASELINES or self.baseline.config in self.observations.claimed:
            return False
        if self.observations.is_outdated(self.baseline):
            return True
        return self.baseline.is_disturbed and (self.baselines == 1 or self._is_quiet)

    @property
    def _is_quiet(self) -> bool:
        found = [(float(trial.number), trial.is_disturbed) for trial in self.history]
        found += [(probe.after - 0.5, probe.taken_share > 0) for probe in self.probes if probe.attempt.compute]
        return not max(found, key=lambda pair: pair[0])[1]

    @property
    def measured(self) -> list[Trial]:
        """All trials in the order of time."""
        return sorted(self.history, key=lambda trial: trial.number)

    @cached_property
    def forecast(self) -> Forecast:
        """The whole space as it looks now. Raises ``ValueError`` where the baseline was not measured."""
        return forecast_of(self.observations, self.setup.space)

    @cached_property
    def largest_gain(self) -> float | None:
        """The largest gain that is possible, as a share; ``None`` where too little is known, or untried."""
        if not self._was_looked_at:
            return None
        return largest_gain(self.observations, self.forecast, self.quiet_baselines)

    @property
    def unsure_step(self) -> Config | None:
        """The step to look at again, since without it nothing is to be gained; ``None`` without any."""
        if self.leaves_nothing or not self._was_looked_at:
            return None
        return unsure_step(self.observations, self.forecast, self.quiet_baselines)

    @cached_property
    def _was_looked_at(self) -> bool:
        return next_probe(self.observations, self.setup.space) is None and self.untried_precision is None

    @property
    def untried_precision(self) -> str | None:
        """An untried half precision that is allowed and may be faster."""
        return untried_precision(self.observations, self.setup.space)

    @property
    def leaves_nothing(self) -> bool:
        """Whether less than 3 % can be gained, as far as the baseline was measured."""
        return self.largest_gain is not None and self.largest_gain < NOTHING_LEFT

    @property
    def is_settled(self) -> bool:
        """Whether less than 3 % can be gained, by the baseline at two places of an epoch at least."""
        return self.leaves_nothing and len(self.quiet_baselines) > 1

    @property
    def may_hide_a_gain(self) -> bool:
        """Whether others were there while a step was looked at, or a trial measured that may win without them."""
        if any(look.taken_share for _, look in self.observations.looks):
            return True
        least = math.log((1 + GAIN) * (self.baseline.rate or 0.0))
        disturbed = [trial for trial in self.rivals if trial.is_disturbed]
        errors = ((trial, BOUND_ERRORS * DISTURBANCE * trial.taken_share) for trial in disturbed)
        return any(math.log(trial.rate or 0.0) + error >= least for trial, error in errors)

    @property
    def quiet_baselines(self) -> list[Measurement]:
        """The measurements of the baseline that nobody disturbed."""
        alike = [trial for trial in self.history if trial.config == self.baseline.config and not trial.is_disturbed]
        return [each.measurement for each in alike if each.measurement and not self.observations.is_outdated(each)]

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
            return "a script's step cannot be split into small batches"
        if (look := self.noise_look) is None:
            return "there was no time to measure the noise of the gradients"
        if look.attempt.noise is None:
            return f"the noise of the gradients could not be measured: {look.attempt.message or look.attempt.outcome}"
        return noise_scale(look.attempt.noise)

    @cached_property
    def rivals(self) -> tuple[Trial, ...]:
        """The allowed trials with numbers beside the baseline: a study that goes on may hold others."""
        return self._rivals_in(self.forecast)

    def _rivals_in(self, forecast: Forecast) -> tuple[Trial, ...]:
        trials = [trial for trial in feasible(self.observations, forecast.configs) if trial.kind != "baseline"]
        return tuple(trial for trial in trials if self.observations.distrust(trial.config.amp) is None)

    @cached_property
    def following(self) -> Config | None:
        """The next configuration to measure: the baseline, then the one that is likely to win most.

        Where nothing beside the baseline has given a number, the most promising one even though it may not win.
        ``None`` when none is left.
        """
        return self.setup.space.base if self.needs_baseline else self._proposal

    @property
    def _proposal(self) -> Config | None:
        proposal = self.forecast.proposal()
        return proposal if proposal or self.rivals else self.forecast.most_promising()

    @property
    def candidate(self) -> Config | None:
        """The next configuration, where no trial came near the baseline; ``None`` otherwise, or where none is left."""
        near = CLEARLY_SLOWER * (self.baseline.rate or 0.0)
        return None if any((trial.rate or 0.0) >= near for trial in self.rivals) else self._proposal

    def finalists(self, most: int, is_sound: Callable[[Trial], bool] = lambda trial: True) -> tuple[Trial, ...]:
        """Return the sound trials that may be the answer, ``most`` at most, without the baseline.

        First the cheapest trial as fast as the best, within ``GAIN``; then trials whose rate may well be as high, the
        fastest first. Where others are, trials with the baseline's threads.
        """
        forecast = self.forecast
        sound = [trial for trial in self.rivals if is_sound(trial)]
        sound = [trial for trial in sound if not self._is_of_neighbours(trial)] or sound
        rated = [(math.log(forecast.rate_of(trial.config)), trial) for trial in sound]
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

    def _is_of_neighbours(self, trial: Trial) -> bool:
        """Return whether others may be the reason for a trial's gain: they slow several threads more than one."""
        threads = self.observations.threads
        return trial.is_disturbed and threads(trial.config) != threads(self.baseline.config)

    def cost(self, trial: Trial) -> tuple[Any, ...]:
        """Order trials of equal speed: by the cost of the configuration, then by memory."""
        peak = trial.measurement.peak_memory_bytes if trial.measurement else 0
        return (*cost(trial.config, self.setup.space.base), peak)

    def may_answer(self, config: Config) -> bool:
        """Return whether a configuration of an earlier run is allowed now."""
        return _place(config, self.forecast) is not None and self.observations.distrust(config.amp) is None

    @cached_property
    def second_forecast(self) -> Forecast | None:
        """The space of the answer for the other objective as it looks now; ``None`` where there is none."""
        second = self.setup.space.second
        if second is None:
            return None
        searched = {replace(trial.config, persistent_workers=False): trial.config for trial in self.trials}
        confirmed = [
            replace(trial, config=searched[alike])
            for trial in self.history
            if trial.kind == "confirm"
            if trial.measurement and (alike := replace(trial.config, persistent_workers=False)) in searched
        ]
        return forecast_of(replace(self.observations, trials=(*self.trials, *confirmed)), second)

    def serves_both(self, answer: Config) -> bool:
        """Return whether an answer is allowed for the other objective too."""
        return self.second_forecast is not None and _place(answer, self.second_forecast) is not None

    def second_proposal(self, answer: Config) -> Config | None:
        """Return the next configuration to measure for the other objective; ``None`` where none could win.

        First the answer with another batch and else as it is.
        """
        if (forecast := self.second_forecast) is None:
            return None
        alike = [each for each in forecast.configs if each.num_workers == answer.num_workers]
        batch = ("batch_size", "accumulation_steps", "persistent_workers")
        kept = {name: getattr(answer, name) for name in batch}
        alike = [each for each in alike if replace(each, **kept) == answer]
        if alike and all(forecast.is_left[forecast.position[each]] for each in alike):
            return max(alike, key=forecast.rate_of)
        return forecast.proposal()

    def second_finalist(self, answer: Config, failed: Container[Config] = ()) -> Config | None:
        """Return the finalist of the answer for the other objective, the trial that is expected to be the fastest.

        ``None`` where none is expected to be faster, by more than ``GAIN``, than the answer, or than the baseline where
        the answer is not allowed for it.
        """
        forecast = self.second_forecast
        if forecast is None:
            return None
        base = self.setup.space.base
        known = [_place(each, forecast) for each in (answer, base)]
        least = max(forecast.rate_of(forecast.configs[place]) for place in known if place is not None) * (1 + GAIN)
        rates = {
            config: rate
            for config, may_run in zip(forecast.configs, ~forecast.is_doubtful, strict=True)
            if may_run and (rate := forecast.rate_of(config)) >= least and forecast.refusal(config) is None
            if config not in failed and self.observations.distrust(config.amp, config.options) is None
        }
        measured = {trial.config: trial for trial in self._rivals_in(forecast) if trial.config in rates}
        candidates = {config: rates[config] for config in measured} or rates
        if not candidates:
            return None
        chosen = max(candidates, key=candidates.__getitem__)
        if chosen in measured:
            return self.setup.space.with_persistence(measured[chosen])
        keeps = base.persistent_workers if self.setup.space.decides_persistence else chosen.persistent_workers
        return replace(chosen, persistent_workers=keeps and chosen.num_workers > 0)

    def is_contradicted(self, config: Config) -> bool:
        """Return whether the measurements that nobody disturbed have the baseline ahead of a configuration."""

        def rates(of: Config) -> list[float]:
            alike = replace(of, persistent_workers=False)
            quiet = (each for each in self.history if not each.is_disturbed and not self.observations.is_outdated(each))
            return [
                trial.rate for trial in quiet if trial.rate and replace(trial.config, persistent_workers=False) == alike
            ]

        own, base = rates(config), rates(self.baseline.config)
        return bool(own and base) and fmean(own) < fmean(base)

    def confirmed(self, *, second: bool = False) -> list[Trial]:
        """Return the run's own measurements for the proof of the answer, or of that for the other objective."""
        assert self.end
        own = (trial for trial in self.history if self.end.run.holds(trial))
        return [trial for trial in own if (trial.round or "").startswith(SECOND) == second]

    def compared(self, *, second: bool = False) -> list[Trial]:
        """Return the trials of the proof of the answer, or of that for the other objective.

        A finalist that took more memory than training may has failed.
        """
        confirming = [trial for trial in self.history if trial.kind == "confirm"]
        found = (trial for trial in confirming if (trial.round or "").startswith(SECOND) == second)
        return [self._failed_by_memory(trial) for trial in found]

    def _failed_by_memory(self, trial: Trial) -> Trial:
        measured = trial.measurement
        if trial.entry is None or measured is None or not exceeds(measured, self.observations):
            return trial
        outcome = Outcome.DEVICE_OOM if measured.memory == "device" else Outcome.HOST_OOM
        return replace(trial, attempt=replace(trial.attempt, outcome=outcome, payload=None))

    def confirmation(self, proof: Proof | None) -> Confirmation | None:
        """Return the comparison of a proof's finalists with the baseline; ``None`` without complete rounds."""
        if proof is None:
            return None
        return confirmation_of(proof, self.baseline.config, self.compared(second=proof.name.startswith(SECOND)))


def _place(config: Config, forecast: Forecast) -> int | None:
    alike = (replace(config, persistent_workers=keeps) for keeps in {False, config.num_workers > 0})
    return next((forecast.position[each] for each in alike if each in forecast.position), None)
