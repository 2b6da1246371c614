"""The Optuna sampler that knows what a DataLoader and a training step are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any, NamedTuple

from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, GPSampler, RandomSampler, TPESampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from autotune.config import WITHOUT_WORKERS, Config
from autotune.errors import UsageError
from autotune.flags import SAMPLERS
from autotune.records import Probe, Trial
from autotune.search.known import Known
from autotune.search.setup import SETUP, Setup
from autotune.storage.open import quiet_optuna
from autotune.storage.trials import BY, is_record, looks_of, ordered, searched, system_attributes, trial_of
from autotune.workload import resolve


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
        self._known: Known | None = None

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """Return the distributions of all knobs. Raises ``UsageError`` in a study that autotune did not make."""
        return dict(self.setup(system_attributes(study)).distributions)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Return the parameters of the baseline in a new study, then those that are likely to win most."""
        seen = Seen(study.get_trials(deepcopy=False), system_attributes(study), trial.number)
        known = self.known(seen)
        config = known.following
        settings = {} if config is None else known.setup.settings(config)
        return {name: value for name, value in settings.items() if name in search_space}

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Return a random value of a knob, where no configuration could win."""
        return RandomSampler().sample_independent(study, trial, param_name, param_distribution)

    def known(self, seen: Seen) -> Known:
        """Return all that a study holds; the same object as before where nothing was added.

        Raises ``ValueError`` where a record is damaged.
        """
        setup = self.setup(seen.attributes)
        records = [self._record(each) for each in seen.trials if is_record(each)]
        known = Known(
            setup=setup,
            trials=searched(records),
            history=ordered(records),
            probes=looks_of(seen.attributes, self._looks),
            baselines=sum(trial.kind == "baseline" for trial in records),
            others=tuple(running(setup, seen.trials, seen.besides)),
        )
        self._known = self._known if known == self._known else known.expecting(self._known)
        return self._known

    def _record(self, frozen: FrozenTrial) -> Trial:
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
    return [(each.user_attrs[BY], setup.config(each.params)) for each in found if says_what_it_measures(each, setup)]


def says_what_it_measures(trial: FrozenTrial, setup: Setup) -> bool:
    """Return whether a running trial names its tuner and every setting.

    Optuna reads parameters and attributes one after another, so it may have the later without all of the earlier.
    """
    of_workers = () if trial.params.get("num_workers") else WITHOUT_WORKERS
    return BY in trial.user_attrs and trial.params.keys() >= setup.distributions.keys() - set(of_workers)
