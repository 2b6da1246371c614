"""The search as one Optuna study: what is measured next, and what is recorded of it.

The stages live in a sampler that recomputes its state from the study's trials, so a resumed study continues.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, IntDistribution
from optuna.samplers import BaseSampler, TPESampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from autotune.config import Config
from autotune.errors import StorageError
from autotune.records import Attempt, Kind, Outcome, Trial, measurement_from_json
from autotune.search.space import KNOBS, Point, Space

__all__ = ["TuningStudy", "open_study"]

GAIN = 0.02
"""Gains below this share do not count: no measurement here tells them from nothing."""
PATIENCE = 5
"""Model-based trials without a gain after which the search ends."""
_SWEEP = (
    ("batch_size", 1),
    ("num_workers", 1),
    ("amp", 1),
    ("threads", -1),
    ("num_workers", -1),
    ("threads", 1),
    ("amp", -1),
    ("batch_size", -1),
    ("pin_memory", 1),
    ("prefetch_factor", 1),
    ("pin_memory", -1),
    ("prefetch_factor", -1),
)
"""One-knob moves around the best configuration, those with the largest usual effect first."""
_JOURNAL_START = b'{"op_code"'
"""How the first line of Optuna's journal files begins."""
_LOADER_KNOBS = ("num_workers", "prefetch_factor", "pin_memory", "persistent_workers")


class TuningStudy:
    """An Optuna study over a space, with typed records in and out."""

    def __init__(self, study: Study, space: Space, guesses: Callable[[Trial], list[Config]], seed: int) -> None:
        self._study = study
        self._space = space
        study.sampler = self._sampler = _StagedSampler(self, guesses, seed)
        self._asked: optuna.Trial | None = None

    @property
    def trials(self) -> tuple[Trial, ...]:
        """The finished trials, in order."""
        return tuple(_to_record(frozen) for frozen in self._study.get_trials(deepcopy=False) if _is_ours(frozen))

    @property
    def best(self) -> Trial | None:
        """The fastest feasible trial."""
        return fastest(self.trials)

    @property
    def finalist(self) -> Trial | None:
        """The cheapest of the trials that are as fast as the fastest, within what counts as a gain."""
        best = self.best
        if best is None or best.rate is None:
            return None
        least = best.rate / (1 + GAIN)
        return min((t for t in self.trials if t.outcome is Outcome.OK and (t.rate or 0.0) >= least), key=_cost)

    def ask(self) -> tuple[Config, Kind]:
        """Return the next configuration to measure, never one that was measured before."""
        self._asked = trial = self._study.ask(self._distributions())
        point = tuple(trial.params[knob] for knob in KNOBS)
        return self._space.config(point), self._sampler.kind

    def tell(self, attempt: Attempt, config: Config, kind: Kind) -> Trial:
        """Record what became of the configuration that was asked for last."""
        assert self._asked is not None
        trial, self._asked = self._asked, None
        record = _record(len(self.history), kind, config, attempt)
        trial.set_user_attr("record", _to_json(record))
        feasible = record.outcome is Outcome.OK and record.rate is not None
        trial.set_constraint("feasible", -1.0 if feasible else 1.0)
        if feasible:
            self._study.tell(trial, record.rate)
        else:
            self._study.tell(trial, state=TrialState.PRUNED)
        return record

    def confirmed(self, attempt: Attempt, config: Config) -> Trial:
        """Record a confirmation beside the study's trials, out of the sampler's sight."""
        record = _record(len(self.history), "confirm", config, attempt)
        known = self._study.user_attrs.get("confirmations", [])
        self._study.set_user_attr("confirmations", [*known, _to_json(record)])
        return record

    @property
    def history(self) -> tuple[Trial, ...]:
        """Every trial, confirmations last."""
        confirmations = self._study.user_attrs.get("confirmations", [])
        return self.trials + tuple(trial_from_json(values) for values in confirmations)

    def abandon(self) -> None:
        """Give up the trial that was asked for, as when the user interrupts it."""
        if self._asked is not None:
            self._study.tell(self._asked, state=TrialState.FAIL)
            self._asked = None

    def is_exhausted(self) -> str | None:
        """Return why nothing is left to try, or ``None``."""
        trials = self.trials
        if trials and not self.moves_left(trials) and _without_gain(trials) >= PATIENCE:
            return f"no gain above {GAIN:.0%} in the last {PATIENCE} trials, and no neighbour of the best is left"
        seen = {self._space.point(trial.config) for trial in trials}
        if sum(self._space.admits(point) for point in seen) >= self._space.size:
            return "every configuration within the bounds was measured"
        return None

    def moves_left(self, trials: Sequence[Trial]) -> list[Point]:
        """Return the untried one-knob moves around the best trial that could still be a gain."""
        best = fastest([trial for trial in trials if self.admits(trial.config)]) or fastest(trials)
        if best is None or best.measurement is None or best.rate is None:
            return []
        seen = {self._space.point(trial.config) for trial in trials}
        here = self._space.point(best.config)
        loader_is_done = best.rate * (1 + GAIN) >= best.measurement.ceiling_samples_per_second
        points: list[Point] = []
        for knob, steps in _SWEEP:
            if knob in _LOADER_KNOBS and loader_is_done:
                continue  # no loader can be faster than the same step on a resident batch
            point = self._space.moved(here, knob, steps)
            if point is not None and self._space.admits(point):
                point = self._space.canonical(point)
                if point not in seen and point not in points:
                    points.append(point)
        return points

    def first_unseen(self, point: Point, trials: Sequence[Trial]) -> Point:
        """Return the nearest admitted point that was not measured, or the point itself when none is left."""
        seen = {self._space.point(trial.config) for trial in trials}
        return next((near for near in self._space.nearest(point) if near not in seen), point)

    def point(self, config: Config) -> Point:
        """Return a configuration's point in the space."""
        return self._space.point(config)

    @property
    def base_point(self) -> Point:
        """The baseline's point."""
        return self._space.point(self._space.base)

    def admits(self, config: Config) -> bool:
        """Tell whether a configuration lies within the bounds."""
        try:
            return self._space.admits(self._space.point(config))
        except ValueError:  # a value that is not in the table
            return False

    def _distributions(self) -> dict[str, BaseDistribution]:
        return {knob: IntDistribution(0, len(self._space.values[knob]) - 1) for knob in KNOBS}


class _StagedSampler(BaseSampler):
    """Baseline, guesses, one-knob moves around the best, then a tree-structured Parzen estimator.

    A sweep from a good guess is not worse than a Gaussian process until about twenty trials, and both are far
    better there than a cold sampler.
    """

    def __init__(self, owner: TuningStudy, guesses: Callable[[Trial], list[Config]], seed: int) -> None:
        self._owner = owner
        self._guesses = guesses
        self._seed = seed
        self.kind: Kind = "baseline"
        """Why the last point was chosen."""

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """Return the whole space: every knob is always suggested."""
        return self._owner._distributions()

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Return the indices of the next point."""
        self.kind, point = self._next(study, trial, search_space, self._owner.trials)
        return dict(zip(KNOBS, point, strict=True))

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Return the baseline's value; reached only for a knob that the space does not know."""
        return self._owner.base_point[KNOBS.index(param_name)]

    def _next(
        self,
        study: Study,
        trial: FrozenTrial,
        search_space: dict[str, BaseDistribution],
        trials: Sequence[Trial],
    ) -> tuple[Kind, Point]:
        if not trials:
            return "baseline", self._owner.base_point
        seen = {self._owner.point(known.config) for known in trials}
        for config in self._guesses(trials[0]):
            if self._owner.admits(config) and self._owner.point(config) not in seen:
                return "guess", self._owner.point(config)
        moves = self._owner.moves_left(trials)
        if moves:
            return "sweep", moves[0]
        delegate = TPESampler(multivariate=True, n_startup_trials=5, seed=self._seed + len(trials))
        sampled = delegate.sample_relative(study, trial, search_space)
        point = tuple(sampled[knob] for knob in KNOBS) if sampled else self._random(search_space, len(trials))
        return "model", self._owner.first_unseen(point, trials)

    def _random(self, search_space: Mapping[str, BaseDistribution], count: int) -> Point:
        generator = random.Random(self._seed + count)
        return tuple(generator.randint(d.low, d.high) for d in search_space.values() if isinstance(d, IntDistribution))


def open_study(
    space: Space,
    guesses: Callable[[Trial], list[Config]],
    *,
    name: str,
    storage: str | None = None,
    seed: int = 0,
) -> TuningStudy:
    """Open a study: in memory, in a journal file, or behind any URL that Optuna knows; an existing one continues.

    Raises ``StorageError`` when it cannot be opened.
    """
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        study = optuna.create_study(
            storage=_open_storage(storage), study_name=name, direction="maximize", load_if_exists=True
        )
        for frozen in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            study.tell(frozen.number, state=TrialState.FAIL)  # left behind by a run that was killed
    except Exception as error:
        raise StorageError(f"--storage {storage}: cannot be opened: {error}") from error
    finally:
        optuna.logging.set_verbosity(verbosity)
    return TuningStudy(study, space, guesses, seed)


def fastest(trials: Sequence[Trial]) -> Trial | None:
    """Return the trial with the highest rate among the feasible ones."""
    feasible = [trial for trial in trials if trial.outcome is Outcome.OK and trial.rate is not None]
    return max(feasible, key=lambda trial: trial.rate or 0.0, default=None)


def _cost(trial: Trial) -> tuple[Any, ...]:
    """Order configurations of equal speed: what takes less of the machine, and changes less, comes first."""
    config, measured = trial.config, trial.measurement
    peak = measured.peak_memory_bytes if measured else 0
    return config.num_workers, config.prefetch_factor or 0, config.pin_memory, config.amp != "off", peak


def _open_storage(storage: str | None) -> Any:
    if storage is None or "://" in storage:
        return storage
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    with suppress(FileNotFoundError), Path(storage).open("rb") as file:
        if file.read(len(_JOURNAL_START)) not in (b"", _JOURNAL_START):  # Optuna would append to any file
            raise ValueError("the file exists and is not a study")
    return JournalStorage(JournalFileBackend(storage))


def _without_gain(trials: Sequence[Trial]) -> int:
    """Return how many trials have passed since the last one that was a gain."""
    best, since = 0.0, 0
    for trial in trials:
        since += 1
        if trial.outcome is Outcome.OK and (trial.rate or 0.0) > best * (1 + GAIN):
            best, since = trial.rate or 0.0, 0
    return since


def _is_ours(frozen: FrozenTrial) -> bool:
    if frozen.state not in (TrialState.COMPLETE, TrialState.PRUNED) or "record" not in frozen.user_attrs:
        return False
    record = frozen.user_attrs["record"]
    return record["kind"] != "baseline" or record["measurement"] is not None  # it is measured again until it works


def _record(number: int, kind: Kind, config: Config, attempt: Attempt) -> Trial:
    return Trial(
        number=number,
        kind=kind,
        config=config,
        outcome=attempt.outcome,
        measurement=attempt.measurement,
        message=attempt.message,
        details=attempt.details,
        seconds=attempt.seconds,
    )


def _to_json(record: Trial) -> dict[str, Any]:
    values = {**asdict(record), "config": record.config.to_document()}
    return dict(json.loads(json.dumps(values)))


def _to_record(frozen: FrozenTrial) -> Trial:
    return trial_from_json(frozen.user_attrs["record"])


def trial_from_json(values: Mapping[str, Any]) -> Trial:
    """Rebuild a trial from what ``_to_json`` made of it."""
    measurement = values["measurement"]
    return Trial(
        **{
            **values,
            "config": Config.from_document(values["config"]),
            "outcome": Outcome(values["outcome"]),
            "measurement": measurement_from_json(measurement) if measurement else None,
        }
    )
