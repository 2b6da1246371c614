"""The Optuna sampler that knows what a DataLoader and a training step are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import pairwise
from typing import Any, NamedTuple

from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.samplers import BaseSampler, GPSampler, PartialFixedSampler, RandomSampler, TPESampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from autotune.config import Config
from autotune.encoding import from_json, to_json
from autotune.errors import UsageError
from autotune.flags import SAMPLERS
from autotune.limits import DEFAULT_MEMORY_LIMIT, MemoryLimit
from autotune.machine.host import Host
from autotune.records import Probe, Trial, WorkloadFacts
from autotune.search.forecast import Forecast, feasible, forecast_of
from autotune.search.observations import Observations
from autotune.search.space import Space
from autotune.storage.open import quiet_optuna
from autotune.storage.trials import BY, is_failed_baseline, is_record, looks_of, system_attributes, trial_of
from autotune.workload import resolve

SETUP = "autotune:setup"
"""System attribute of a study: workload, machine, memory and space."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The subject of a study."""

    space: Space
    facts: WorkloadFacts
    host: Host
    memory_limit: MemoryLimit = DEFAULT_MEMORY_LIMIT

    def settings(self, config: Config) -> dict[str, Any]:
        """Return the parameters of a configuration; torch's own number of threads as the number that it is."""
        settings = self.space.settings(config)
        return {**settings, "threads": settings["threads"] or self.facts.intra_op_threads}

    def config(self, settings: Mapping[str, Any]) -> Config:
        """Return the configuration of parameters. Raises ``KeyError`` where one is missing."""
        known = settings["threads"] if settings["threads"] in self.space.values["threads"] else None
        return self.space.at({**settings, "threads": known})

    @property
    def distributions(self) -> dict[str, IntDistribution | CategoricalDistribution]:
        """The distribution of every parameter; numbers that lie unevenly are choices, so that none between is drawn."""
        own = self.facts.intra_op_threads
        found = {
            knob: distribution(tuple(own if value is None else value for value in values))
            for knob, values in self.space.values.items()
        }
        return found | {"persistent_workers": CategoricalDistribution((False, True))}  # an answer may have either

    def fixed(self, sampler: BaseSampler) -> BaseSampler:
        """Return a sampler that leaves alone the parameters of which the user allows one value."""
        allowed = {knob: values[0] for knob, values in self.space.allowed.items() if len(values) == 1}
        own = {"threads": allowed["threads"] or self.facts.intra_op_threads} if "threads" in allowed else {}
        return PartialFixedSampler({**allowed, **own}, sampler)

    def write(self, study: Study) -> None:
        """Write the setup to a study."""
        parts = {name: to_json(getattr(self, name)) for name in ("facts", "host", "memory_limit")}
        study._storage.set_study_system_attr(study._study_id, SETUP, {**parts, "space": self.space.to_document()})

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Setup:
        """Return the setup that a study holds. Raises ``ValueError`` where it is damaged."""
        return cls(
            facts=from_json(WorkloadFacts, document["facts"]),
            host=from_json(Host, document["host"]),
            memory_limit=from_json(MemoryLimit, document["memory_limit"]),
            space=Space.from_document(document["space"]),
        )


def distribution(values: tuple[Any, ...]) -> IntDistribution | CategoricalDistribution:
    """Return the distribution of a parameter with these values, in order."""
    are_numbers = all(isinstance(value, int) and not isinstance(value, bool) for value in values)
    steps = {later - value for value, later in pairwise(values)} if are_numbers else set()
    if len(steps) == 1:
        return IntDistribution(values[0], values[-1], step=steps.pop())
    return CategoricalDistribution(values)


class Seen(NamedTuple):
    """The records of a study at one moment."""

    trials: Sequence[FrozenTrial]
    attributes: Mapping[str, Any]
    """Its system attributes: the setup and the looks."""
    besides: int | None = None
    """Number of a running trial that does not count."""


class PredictiveSampler(BaseSampler):
    """Optuna sampler that predicts samples per second from looks at the parts of training, and from all trials.

    It computes everything from a study that autotune made, which holds workload, machine, space and looks.
    """

    def __init__(self) -> None:
        self._setup: tuple[object, Setup] | None = None
        self._trials: dict[int, tuple[object, Trial]] = {}
        self._looks: dict[str, tuple[object, Probe]] = {}
        self._forecast: tuple[Observations, Forecast] | None = None

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """Return the distributions of all knobs. Raises ``UsageError`` in a study that autotune did not make."""
        return dict(self.setup(system_attributes(study)).distributions)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Return the parameters of the baseline in a new study, then those that are likely to win most."""
        seen = Seen(study.get_trials(deepcopy=False), system_attributes(study), trial.number)
        config = self.proposal(seen)
        settings = {} if config is None else self.setup(seen.attributes).settings(config)
        return {name: value for name, value in settings.items() if name in search_space}

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Return a random value of a knob, where no configuration could win."""
        return RandomSampler().sample_independent(study, trial, param_name, param_distribution)

    def proposal(self, seen: Seen) -> Config | None:
        """Return the next configuration to measure, or ``None`` when none is left that could win.

        Where nothing beside the baseline has given a number, the most promising one even though it may not win.
        """
        observations = self.observations(seen)
        if not observations.trials:
            return self.setup(seen.attributes).space.base
        forecast = self.forecast(seen)
        proposal = forecast.proposal()
        return proposal if proposal or rivals(observations, forecast) else forecast.most_promising()

    def forecast(self, seen: Seen) -> Forecast:
        """Return the whole space as it looks now. Raises ``ValueError`` where the baseline was not measured."""
        found = self.observations(seen)
        if self._forecast is None or self._forecast[0] != found:
            self._forecast = found, forecast_of(found, self.setup(seen.attributes).space)
        return self._forecast[1]

    def observations(self, seen: Seen) -> Observations:
        """Return all measurements in a study. Raises ``ValueError`` where a record is damaged."""
        setup = self.setup(seen.attributes)
        records = (self._record(each) for each in seen.trials if is_record(each))
        return Observations(
            facts=setup.facts,
            host=setup.host.for_rank(setup.space.base.ranks),
            memory_limit=setup.memory_limit,
            trials=tuple(trial for trial in records if trial.kind != "confirm" and not is_failed_baseline(trial)),
            probes=looks_of(seen.attributes, self._looks),
            claimed=tuple(config for _, config in running(setup, seen.trials, seen.besides)),
        )

    def _record(self, frozen: FrozenTrial) -> Trial:
        """Return the record of a trial that has ended, read once."""
        known = self._trials.get(frozen.number)
        if known is None or known[0] != frozen.datetime_complete:  # of another study
            self._trials[frozen.number] = known = frozen.datetime_complete, trial_of(frozen)
        return known[1]

    def setup(self, attributes: Mapping[str, Any]) -> Setup:
        """Return the setup among a study's system attributes. Raises ``UsageError`` where there is none."""
        if SETUP not in attributes:
            raise UsageError("PredictiveSampler works in studies of autotune only: take a sampler of Optuna's here")
        document = attributes[SETUP]
        if self._setup is None or self._setup[0] != document:
            self._setup = document, Setup.of(document)
        return self._setup[1]


def make_sampler(given: str | BaseSampler, seed: int) -> BaseSampler:
    """Return a sampler: one by its name in ``flags.SAMPLERS``, or of a function that a reference names.

    Raises ``UsageError`` where there is none, or a package that it needs is missing.
    """
    if isinstance(given, BaseSampler):
        return given
    if given == "predictive":
        return PredictiveSampler()
    if given == "gp" and not (find_spec("scipy") and find_spec("torch")):
        raise UsageError("--sampler gp: Optuna's GPSampler needs scipy and torch: pip install scipy torch")
    if given in (named := {"tpe": TPESampler, "gp": GPSampler, "random": RandomSampler}):
        with quiet_optuna():
            known: BaseSampler = named[given](seed=seed)
        return known
    if ":" not in given:
        raise UsageError(f"--sampler {given}: allowed: {', '.join(SAMPLERS)}, or module:function")
    made: object = resolve("--sampler", given)()  # type: ignore[operator]  # or it raises
    if not isinstance(made, BaseSampler):
        raise UsageError(f"--sampler {given}: returned {type(made).__name__}, which is no sampler of Optuna")
    return made


def running(setup: Setup, trials: Iterable[FrozenTrial], besides: int | None = None) -> list[tuple[str, Config]]:
    """Return who measures which configuration now, but for the running trial of number ``besides``."""
    found = (each for each in trials if each.state is TrialState.RUNNING and each.number != besides)
    return [(each.user_attrs[BY], setup.config(each.params)) for each in found if BY in each.user_attrs]


def rivals(observations: Observations, forecast: Forecast) -> list[Trial]:
    """Return the allowed trials with numbers beside the baseline: a study that goes on may hold others."""
    trials = [trial for trial in feasible(observations) if trial.kind != "baseline"]
    inside = [trial for trial in trials if trial.config in forecast.position]
    return [trial for trial in inside if observations.distrust(trial.config.amp) is None]
