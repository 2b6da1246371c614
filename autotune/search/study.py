"""The search as one Optuna study: it proposes configurations and records their trials.

Optuna's sampler recomputes its state from the recorded trials, so a reopened study continues. The study itself is in
memory; each trial, probe and confirmation goes to the keeper as soon as it has ended.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from autotune.config import Config
from autotune.errors import StorageError
from autotune.host import Host
from autotune.limits import DEFAULT_MEMORY_LIMIT, MemoryLimit
from autotune.messages import Messages
from autotune.records import Attempt, Kind, Outcome, Part, Probe, Trial, WorkloadFacts
from autotune.result import Landscape
from autotune.search.feasibility import reason_against
from autotune.search.forecast import Forecast, cost, feasible, forecast_of, landscape
from autotune.search.observations import GAIN, Observations
from autotune.search.space import Space
from autotune.signals import shielded
from autotune.storage.keeper import Keeper
from autotune.storage.study_records import Kept, distribution, frozen_trial, identify, numbered_apart
from autotune.storage.trial_claims import Claimed

LONGEST_MESSAGE, LONGEST_DETAILS = 8000, 40_000
"""Bytes, as JSON, of the user's own messages in a record: MySQL takes 64 KiB of text for a whole one."""
LONGEST_NOTE = 4000
"""Characters of a message or traceback in a note; its end says most."""
CLEARLY_SLOWER = 0.9
"""Share of the baseline's rate below which a trial is no finalist while something untried could win."""
PLAUSIBLE = 1.5
"""Standard deviations by which a trial's expected rate may lie below the best for it to be measured again."""


class TuningStudy:
    """An Optuna study over a space, with typed records in and out."""

    def __init__(
        self, space: Space, facts: WorkloadFacts, host: Host, memory_limit: MemoryLimit, keeper: Keeper, kept: Kept
    ) -> None:
        self._space = space
        self._facts = facts
        self._host = host
        self.memory_limit = memory_limit
        self._keeper = keeper
        self._records, self._probes = list(kept.trials), list(kept.probes)
        self._confirmations = list(kept.confirmations)
        self._last: Config | None = None
        self._forecast: tuple[object, Forecast] | None = None
        self._study = optuna.create_study(direction="maximize", sampler=_Sampler(self))
        self._asked: optuna.Trial | None = None

    @property
    def trials(self) -> tuple[Trial, ...]:
        """The trials that ran, in order."""
        return tuple(record for record in self._records if record.kind != "skipped")

    @property
    def probes(self) -> tuple[Probe, ...]:
        """The probes of steps and of the loader, in order."""
        return tuple(self._probes)

    @property
    def observations(self) -> Observations:
        """All measurements so far."""
        return Observations(
            facts=self._facts,
            host=self._host.for_rank(self._space.base.ranks),
            memory_limit=self.memory_limit,
            trials=self.trials,
            probes=self.probes,
            claimed=tuple(claim.config for claim in self.claims),
            last=self._last,
        )

    @property
    def claims(self) -> tuple[Claimed, ...]:
        """Configurations that others who share the study are measuring now."""
        return self._keeper.claims

    @property
    def forecast(self) -> Forecast:
        """The whole space as it looks now; only after the baseline was measured."""
        version = tuple(record.number for record in self._records), len(self._probes), self.claims
        if self._forecast is None or self._forecast[0] != version:
            self._forecast = version, forecast_of(self.observations, self._space)
        return self._forecast[1]

    @property
    def best(self) -> Trial | None:
        """The measured configuration that is expected to be the fastest, given all measurements."""
        return self.forecast.best if self.trials else None

    def finalists(self, most: int, is_sound: Callable[[Trial], bool] = lambda trial: True) -> tuple[Trial, ...]:
        """Return the sound trials that may be the answer, ``most`` at most, without the baseline.

        First the cheapest trial as fast as the best, within ``GAIN``; then trials whose rate may well be as high, the
        fastest first.
        """
        forecast = self.forecast
        rated = [(math.log(forecast.rate_of(trial.config)), trial) for trial in self._rivals if is_sound(trial)]
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

    @property
    def _rivals(self) -> list[Trial]:
        """The allowed rivals of the baseline: a study that goes on may hold others."""
        known, position = self.observations, self.forecast.position
        trials = [trial for trial in feasible(known) if trial.kind != "baseline" and trial.config in position]
        return [trial for trial in trials if known.distrust(trial.config.amp) is None]

    def cost(self, trial: Trial) -> tuple[Any, ...]:
        """Order trials of equal speed: by the cost of the configuration, then by memory."""
        peak = trial.measurement.peak_memory_bytes if trial.measurement else 0
        return (*cost(trial.config, self._space.base), peak)

    def refresh(self) -> None:
        """Take in the trials of other tuners of a shared study."""
        found = self._keeper.refresh()
        if found is not None:
            self._records, self._probes = list(found.trials), list(_without_repetitions(found.probes))

    def ask(self, most: int | None = None) -> tuple[Config, Kind] | None:
        """Return the next configuration to measure, never one that was measured before.

        ``None`` where another tuner of a shared study has just taken it, or the last of ``most`` trials: ``refresh``
        tells what is next then. Raises ``ValueError`` when none is left that could win.
        """
        kind: Kind = "search" if self.trials else "baseline"
        if kind == "search" and self._next_to_search is None:
            raise ValueError("no configuration is left that could win")
        self._asked = trial = self._study.ask(self._distributions(self._next()))
        threads = trial.params["threads"]  # torch's own number of them may be ``None`` in the space
        known = threads if threads in self._space.values["threads"] else None
        config = self._space.at({**trial.params, "threads": known})
        if not self._claim(config, kind, most):
            self.abandon()
            return None
        return config, kind

    def _claim(self, config: Config, kind: Kind, most: int | None = None) -> bool:
        return self._keeper.claim(config, kind, self._settings(config), self._distributions(config), most)

    def tell(self, attempt: Attempt, config: Config, kind: Kind) -> Trial:
        """Record the outcome of the configuration that was asked for last."""
        assert self._asked is not None
        trial, self._asked, self._last = self._asked, None, config
        record = _record(self._number, kind, config, attempt)
        if kind == "search":
            record = replace(record, predicted=self.forecast.rate_of(config), bound=self.forecast.bound(config))
        with shielded():  # what has ended is known and kept, or neither
            frozen = self._frozen(record)
            trial.set_constraint("feasible", frozen.constraints["feasible"])
            self._study.tell(trial, frozen.value, state=frozen.state)
            if record.kind == "baseline" and record.measurement is None:  # it is measured again until it works
                self._keeper.failed_baseline(record, frozen, _note(record))
            else:
                self._records.append(record)
                self._keeper.trial(frozen, _note(record))
        return record

    @property
    def _number(self) -> int:
        """The next trial's number: in a shared study a claimed trial has one already."""
        if self._keeper.number is not None:
            return self._keeper.number
        return max((trial.number for trial in self.history), default=-1) + 1

    def _frozen(self, record: Trial) -> FrozenTrial:
        """Return a trial as it is kept."""
        settings, distributions = self._settings(record.config), self._distributions(record.config)
        violation = 1.0  # by which share it exceeds the memory that may be used, where it gave a number
        if measured := record.measurement:
            violation = measured.epoch_peak_bytes / self.memory_limit.of(measured.memory_limit_bytes) - 1
        return frozen_trial(record, settings, distributions, violation)

    def record_skipped(self) -> None:
        """Record the configurations left out that a user might miss, and the reasons."""
        known = {record.config for record in self._records}
        for config, message, bound in self.forecast.left_out(self.observations):
            if config not in known:
                self._skip(config, message, bound)

    def _skip(self, config: Config, message: str, bound: float) -> None:
        if not self._claim(config, "skipped"):
            return
        attempt = Attempt(outcome=Outcome.SKIPPED, message=message)
        expected = self.forecast.rate_of(config)
        record = replace(_record(self._number, "skipped", config, attempt), bound=bound, predicted=expected)
        with shielded():
            self._records.append(record)
            self._keeper.trial(self._frozen(record))

    def claim_look(self, part: Part, config: Config) -> bool:
        """Claim a probe before it is taken; return whether no other tuner takes it or has just taken it."""
        return self._keeper.claim_look(part, config)

    def looked(self, part: Part, config: Config, attempt: Attempt) -> Probe:
        """Record a probe beside the study's trials."""
        further = ", ".join(option for option in self._space.options if option in config.options)
        message = _reason_against(attempt, config.amp, further) if part == "numerics" else attempt.message
        probe = Probe(part=part, config=config, attempt=_bounded(replace(attempt, message=message)))
        with shielded():
            self._probes.append(probe)
            self._keeper.look(probe)
        return probe

    def confirmed(
        self, attempt: Attempt, config: Config, round: str, entry: int | None, planned: int | None = None
    ) -> Trial:
        """Record a measurement of a round of confirmation beside the study's trials, out of the sampler's sight."""
        record = replace(_record(self._number, "confirm", config, attempt), round=round, entry=entry, planned=planned)
        with shielded():
            self._confirmations.append(record)
            self._keeper.confirmation(record)
        return record

    @property
    def history(self) -> tuple[Trial, ...]:
        """Every trial, confirmations last."""
        return (*self._records, *numbered_apart(self._records, self._confirmations))

    def abandon(self) -> None:
        """Give up the trial that was asked for, as when the user interrupts it."""
        if self._asked is not None:
            self._study.tell(self._asked, state=TrialState.FAIL)
            self._asked = None
        self._keeper.withdraw()

    def landscape(self, answer: Config) -> Landscape:
        """Return the space as it looks now, the loader's settings with the step of ``answer``."""
        measured = self.trials[0].measurement
        assert measured is not None
        return landscape(self.forecast, self._space, answer, int(self.memory_limit.of(measured.memory_limit_bytes)))

    def next_settings(self) -> dict[str, Any]:
        """Return the next point to measure: the baseline, then the point that is likely to win most."""
        return self._settings(self._next())

    def _next(self) -> Config:
        config = self._next_to_search if self.trials else self._space.base
        assert config is not None
        return config

    @property
    def _next_to_search(self) -> Config | None:
        proposal = self.forecast.proposal()
        return proposal if proposal or self.has_alternative else self.forecast.most_promising()

    def may_answer(self, config: Config) -> bool:
        """Return whether a configuration of an earlier run is allowed now, whatever its workers do between epochs."""
        position = self.forecast.position
        alike = (replace(config, persistent_workers=keeps) for keeps in {False, config.num_workers > 0})
        return any(each in position for each in alike) and self.observations.distrust(config.amp) is None

    @property
    def candidate(self) -> Config | None:
        """The next configuration, where no trial came near the baseline; ``None`` otherwise, or where none is left."""
        near = CLEARLY_SLOWER * (self.trials[0].rate or 0.0)
        return None if any((trial.rate or 0.0) >= near for trial in self._rivals) else self._next_to_search

    @property
    def has_alternative(self) -> bool:
        """Whether a configuration beside the baseline gave a number for a comparison."""
        return bool(self._rivals)

    def _distributions(self, config: Config) -> dict[str, BaseDistribution]:
        """Return the distribution of each knob that a configuration has."""
        own = self._facts.intra_op_threads
        values = {knob: self._space.values[knob] for knob in self._space.settings(config)}
        return {knob: distribution(tuple(own if v is None else v for v in found)) for knob, found in values.items()}

    def _settings(self, config: Config) -> dict[str, Any]:
        """Return the knobs of a configuration; torch's own number of threads as the number that it is."""
        settings = self._space.settings(config)
        return {**settings, "threads": settings["threads"] or self._facts.intra_op_threads}


class _Sampler(BaseSampler):
    """Proposes the choice of the study's forecast: a Gaussian process around the prediction, over the whole space.

    Optuna's own samplers know nothing of the machine; on simulated ones they are far behind for thirty trials.
    """

    def __init__(self, owner: TuningStudy) -> None:
        self._owner = owner

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """Return the knobs of the next configuration: those of workers only where there are some."""
        return self._owner._distributions(self._owner._next())

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Return the next point."""
        return self._owner.next_settings()

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Return a knob of the next point; reached only where Optuna asks for one knob alone."""
        return self._owner.next_settings()[param_name]


def open_study(
    space: Space,
    facts: WorkloadFacts,
    host: Host,
    *,
    keeper: Keeper | None = None,
    memory_limit: MemoryLimit = DEFAULT_MEMORY_LIMIT,
    messages: Messages | None = None,
) -> TuningStudy:
    """Open a study, continued from the keeper's for the same workload, machine, versions and settings.

    Raises ``StorageError`` when the kept study cannot be used.
    """
    keeper = keeper or Keeper()
    kept = keeper.open(identify(facts, host, space.fingerprint), messages)
    if kept.trials and kept.trials[0].config != space.base:
        keeper.close()
        raise StorageError(f"{keeper.location}: is damaged: its first trial is not the baseline; name another file")
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        return TuningStudy(space, facts, host, memory_limit, keeper, kept)
    finally:
        optuna.logging.set_verbosity(verbosity)


def _without_repetitions(probes: Iterable[Probe]) -> Iterator[Probe]:
    """Yield probes, each once where another tuner has taken the same at the same time."""
    found: set[tuple[Part, Config]] = set()
    for probe in probes:
        if (probe.part, probe.config) not in found:
            yield probe
        if probe.attempt.found:
            found.add((probe.part, probe.config))


def _reason_against(attempt: Attempt, amp: str, further: str) -> str:
    if attempt.numerics is None:
        why = attempt.message or attempt.outcome
        return f"whether {further or amp} trains this model like fp32 could not be checked: {why}"
    return reason_against(attempt.numerics, amp, further) or ""


def _note(record: Trial) -> str:
    """Return message and details of a failed trial, in Markdown."""
    if not record.attempt.message:
        return ""
    said = (record.attempt.message, record.attempt.details)
    texts = (text.replace("```", "").strip()[-LONGEST_NOTE:] for text in said)
    return "\n\n".join([f"**{record.outcome}**", *(f"```\n{text}\n```" for text in texts if text)])


def _cut(text: str, most: int) -> str:
    """Return the end of a text, as much of it as takes so many bytes as JSON."""
    text = text[-most:]
    while len(json.dumps(text)) > most:
        text = text[len(text) // 10 + 1 :]
    return text


def _bounded(attempt: Attempt) -> Attempt:
    """Return an attempt with texts that any database takes: the begin of a message, the end of details."""
    message = _cut(attempt.message[::-1], LONGEST_MESSAGE)[::-1]
    return replace(attempt, message=message, details=_cut(attempt.details, LONGEST_DETAILS))


def _record(number: int, kind: Kind, config: Config, attempt: Attempt) -> Trial:
    return Trial(number=number, kind=kind, config=config, attempt=_bounded(attempt))
