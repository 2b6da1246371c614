"""Records of a study of the reader's own, whose trials hold nothing but parameters and samples per second.

Only rates are known there: how much of a step is training, and how much waiting for data, is left wide open.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import FrozenTrial, TrialState

from autotune.config import Config
from autotune.host import Host
from autotune.knobs import KNOBS, parse_knob
from autotune.probes import ComputeProbe, NumericsCheck
from autotune.records import (
    Attempt,
    Conditions,
    Kind,
    Measurement,
    Outcome,
    Part,
    Probe,
    StepTime,
    Trial,
    WorkloadFacts,
)
from autotune.search.space import Space, ordered

HOPED = 3.0
"""Ratio of the rate of a step alone to the rate that was seen: most of the time may be waiting."""
UNSURE = 0.5
"""Standard deviation of the logarithm of that ratio."""
MOST_VALUES = 16
"""Values of a range of whole numbers from which only every second, third and so on is considered."""
SOUND = NumericsCheck(
    reference_losses=(1.0, 1.0), other_losses=(1.0, 1.0), losses=(1.0, 1.0), overflows=(), settles=True, seconds=0.0
)
"""A comparison that found no difference: the reader vouches for all precisions."""


def knobs_of(trials: Iterable[FrozenTrial]) -> dict[str, BaseDistribution]:
    """Return the distributions of the parameters that are knobs of training, by the names in ``KNOBS``."""
    found = {name: known for each in trials for name, known in each.distributions.items() if name in KNOBS}
    return {name: found[name] for name in KNOBS if name in found and not isinstance(found[name], FloatDistribution)}


def values_of(knob: str, known: BaseDistribution) -> tuple[Any, ...]:
    """Return the values of a knob to consider, in order: of a range of batch sizes its ends and powers of two."""
    if isinstance(known, CategoricalDistribution):
        return parse_knob(knob, list(known.choices))
    assert isinstance(known, IntDistribution)
    if knob == "batch_size":
        sizes = parse_knob(knob, f"{known.low}..{known.high}")
        return tuple(size for size in sizes if (size - known.low) % known.step == 0)
    every = range(known.low, known.high + 1, known.step)
    return tuple(every[:: -(-len(every) // MOST_VALUES)])


def config_of(settings: Mapping[str, Any]) -> Config:
    """Return the configuration of a trial's parameters; a knob that is none of them has its usual value."""
    known = {"prefetch_factor": 2} | {name: settings[name] for name in KNOBS if name in settings and name != "threads"}
    if not known.get("num_workers"):
        known |= {"prefetch_factor": None, "persistent_workers": False}
    return Config(**known, intra_op_threads=settings.get("threads"))


def space_of(trials: Iterable[FrozenTrial]) -> Space:
    """Return the space of trials, at least one of which has ended with a rate."""
    trials = tuple(trials)
    base = trials_of(trials)[0].config
    present = {"prefetch_factor": 2, "persistent_workers": False} | Space({}, {}, base).settings(base)
    found = {knob: values_of(knob, known) for knob, known in knobs_of(trials).items()}
    values = {knob: ordered({*found.get(knob, ()), present[knob]}, 0) for knob in KNOBS}
    return Space(values, values, base)


def facts_of(host: Host, space: Space) -> WorkloadFacts:
    """Return the little that is known of a workload that nobody has described."""
    on_gpu, threads = bool(host.gpus), [count for count in space.values["threads"] if count]
    return WorkloadFacts(
        dataset_length=None,
        iterable=False,
        sets_epoch=False,
        parameters=0,
        loss_reduction="mean",
        has_batch_norm=False,
        device="cuda:0" if on_gpu else "cpu",
        device_name=host.gpus[0].name if on_gpu else host.cpu_model,
        amp_modes=space.values["amp"],
        intra_op_threads=max(threads, default=host.cpus),
        inter_op_threads=1,
        model_name="",
        dataset_name="",
        fingerprint="",
        versions={},
    )


def trials_of(trials: Iterable[FrozenTrial]) -> tuple[Trial, ...]:
    """Return the trials that have ended; the first one with a rate is the baseline."""
    found: list[Trial] = []
    for each in trials:
        config = config_of(each.params) if each.state.is_finished() else Config()
        if each.state is TrialState.COMPLETE and each.value and each.value > 0:
            attempt = Attempt(outcome=Outcome.OK, payload=_measurement(config, each.value))
        elif each.state in (TrialState.PRUNED, TrialState.FAIL) and found:
            larger = config.batch_size > max(trial.config.batch_size for trial in found if trial.rate)
            outcome = Outcome.DEVICE_OOM if larger else Outcome.USER_ERROR  # memory is the usual reason then
            attempt = Attempt(outcome=outcome, message="gave no rate")
        else:
            continue
        kind: Kind = "search" if found else "baseline"
        found.append(Trial(number=each.number, kind=kind, config=config, attempt=attempt))
    return tuple(found)


def configs_of_running(trials: Iterable[FrozenTrial], besides: int | None) -> tuple[Config, ...]:
    """Return the configurations of running trials, but for the one of number ``besides``."""
    found = (each for each in trials if each.state is TrialState.RUNNING and each.number != besides and each.params)
    return tuple(config_of(each.params) for each in found)


def looks_at(trials: Iterable[Trial], modes: Iterable[Any], known: tuple[Probe, ...]) -> tuple[Probe, ...]:
    """Return the looks of a study, and the steps of its trials as further ones, of which little is known."""
    steps = {look.config.step_key for look in known if look.part == "compute"}
    checked = {look.config.amp for look in known if look.part == "numerics"} | {"off"}
    found: list[tuple[Part, Config, ComputeProbe | NumericsCheck]] = [
        ("numerics", Config(amp=amp), SOUND) for amp in modes if amp not in checked
    ]
    for trial in trials:
        if trial.rate and trial.config.step_key not in steps:
            found.append(("compute", trial.config, _step(trial.config, trial.rate)))
    seen = [(part, config, Attempt(outcome=Outcome.OK, payload=payload)) for part, config, payload in found]
    return (*known, *(Probe(part=part, config=config, attempt=attempt) for part, config, attempt in seen))


def _step(config: Config, rate: float) -> ComputeProbe:
    seconds = config.samples_per_step / (HOPED * rate)
    return ComputeProbe(
        samples_per_second=HOPED * rate,
        first_step_seconds=seconds,
        host_seconds=0.0,
        cpu_seconds=seconds,
        peak_memory_bytes=0,
        memory="host",
        memory_limit_bytes=2**60,
        host_memory_bytes=0,
        spread=UNSURE,
    )


def _measurement(config: Config, rate: float) -> Measurement:
    total = config.samples_per_step / rate
    step = total / HOPED
    return Measurement(
        samples_per_second=rate,
        steady_samples_per_second=rate,
        ceiling_samples_per_second=HOPED * rate,
        steps=1,
        settling_steps=0,
        samples=config.samples_per_step,
        seconds=total,
        step_time=StepTime(
            data_wait=total - step, host_to_device=0.0, forward=step, backward=0.0, optimizer=0.0, other=0.0
        ),
        first_batch_seconds=0.0,
        peak_memory_bytes=0,
        memory="host",
        memory_limit_bytes=2**60,
        host_memory_bytes=0,
        shared_memory_bytes=0,
        ready_batches=0.0,
        conditions=Conditions(own_cpus=0.0, foreign_cpus=0.0, cpus=1, is_crowded=False),
    )
