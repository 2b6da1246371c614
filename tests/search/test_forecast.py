from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from autotune.config import Config
from autotune.limits import MemoryLimit
from autotune.outcome import Outcome
from autotune.records import Attempt, Part, Probe, Request, Trial
from autotune.search.forecast import Forecast, cost, feasible, forecast_of
from autotune.search.gp import Posterior
from autotune.search.observations import Observations
from autotune.search.predict import Prediction
from autotune.search.space import Space
from autotune.search.step_model import MEASURED
from tests import examples
from tests.simulated import (
    SimulatedMachine,
    four_shared_cores,
    gpu_facts,
    host,
    loader_bound,
    space_of,
)

GIB = 2**30
FACTS = gpu_facts(epoch_samples=None)
SPACE = space_of(FACTS, batch_size="16..128", num_workers="0,1,2,4", prefetch_factor="2,4", amp="off,bf16,fp16")
WORKERS = Config(batch_size=32, num_workers=2, prefetch_factor=4, persistent_workers=True)


def trial(number: int, config: Config, attempt: Attempt) -> Trial:
    return examples.trial(number=number, kind="search" if number else "baseline", config=config, attempt=attempt)


def known(machine: SimulatedMachine, *looks: tuple[Part, Config], space: Space = SPACE) -> Observations:
    """The baseline measured, every precision compared with fp32, and some looks taken."""
    taken = (Probe(part=p, config=c, attempt=machine.measure(c, Request(seconds=1, part=p))) for p, c in looks)
    probes = (*examples.compared("bf16", "fp16"), *taken)
    baseline = trial(0, space.base, machine.measure(space.base, Request(seconds=1)))
    limit = MemoryLimit(headroom=0.1)
    return Observations(facts=FACTS, host=host(), memory_limit=limit, trials=(baseline,), probes=probes)


def with_trial(observations: Observations, config: Config, outcome: Outcome, **changes: Any) -> Observations:
    has_numbers = outcome in (Outcome.OK, Outcome.SUSPECT)
    attempt = Attempt(outcome=outcome, payload=examples.measurement(**changes) if has_numbers else None)
    return replace(observations, trials=(*observations.trials, trial(len(observations.trials), config, attempt)))


def with_look(
    observations: Observations, part: Part, config: Config, outcome: Outcome = Outcome.OK, payload: Any = None
) -> Observations:
    look = Probe(part=part, config=config, attempt=Attempt(outcome=outcome, payload=payload))
    return replace(observations, probes=(*observations.probes, look))


def of_loader_bound() -> Observations:
    return known(SimulatedMachine(cost=loader_bound), ("loader", Config()), ("compute", Config()))


def opened(known: Observations | Forecast) -> set[Config]:
    forecast = known if isinstance(known, Forecast) else forecast_of(known, SPACE)
    return {config for config, is_open in zip(forecast.configs, forecast.is_open, strict=True) if is_open}


def needs_more(config: Config, failed: Config, outcome: Outcome) -> bool:
    """Where a failure is to be expected again."""
    if outcome is Outcome.DEVICE_OOM:
        return config.amp == failed.amp and config.batch_size >= failed.batch_size
    if outcome is Outcome.UNPICKLABLE:
        return config.num_workers > 0
    in_flight, failed_in_flight = (c.batch_size * c.num_workers * (c.prefetch_factor or 0) for c in (config, failed))
    if outcome is Outcome.SHM and failed.num_workers:
        return in_flight >= failed_in_flight
    if outcome is Outcome.NUMERICS:
        in_fp32 = failed.amp == "off"
        return config.amp == failed.amp and (not in_fp32 or config.batch_size == failed.batch_size)
    if outcome is Outcome.HOST_OOM and in_flight < failed_in_flight:
        return False
    if outcome is Outcome.HOST_OOM or failed.num_workers:
        return config.batch_size >= failed.batch_size and config.num_workers >= failed.num_workers
    return (config.amp, config.batch_size) == (failed.amp, failed.batch_size)


FAILURES = [each for each in Outcome if each not in (Outcome.OK, Outcome.SUSPECT)]
BESIDE_WORKERS, ALONE = replace(WORKERS, prefetch_factor=2, amp="bf16"), Config(batch_size=64, amp="bf16")


@pytest.mark.parametrize(
    ("failed", "outcome"),
    [(BESIDE_WORKERS, outcome) for outcome in FAILURES]
    + [(ALONE, outcome) for outcome in FAILURES if outcome not in (Outcome.SHM, Outcome.UNPICKLABLE)],
)
def test_what_failed_takes_with_it_what_is_expected_to_fail_alike_and_no_more(failed: Config, outcome: Any) -> None:
    before, after = opened(of_loader_bound()), opened(with_trial(of_loader_bound(), failed, outcome))
    assert after == before - {config for config in before if needs_more(config, failed, outcome)} - {failed}
    assert 0 < len(after) < len(before)


@pytest.mark.parametrize("headroom", [0.0, 0.1])
@pytest.mark.parametrize(("memory", "like"), [("device", Outcome.DEVICE_OOM), ("host", Outcome.HOST_OOM)])
def test_a_trial_that_left_too_little_memory_takes_what_needs_more(memory: str, like: Any, headroom: float) -> None:
    observations = replace(of_loader_bound(), memory_limit=MemoryLimit(headroom=headroom))
    numbers = {"memory": memory, "peak_memory_bytes": 95 * GIB, "memory_limit_bytes": 100 * GIB}
    failed = replace(WORKERS, batch_size=64)
    told = with_trial(observations, failed, Outcome.OK, **numbers)
    assert any(needs_more(config, failed, like) for config in opened(told)) == (headroom == 0.0)
    assert (told.trials[1] in feasible(told, [failed])) == (headroom == 0.0)


ONE_WORKER = Config(batch_size=64, num_workers=1, prefetch_factor=4)


@pytest.mark.parametrize("outcome", [Outcome.SHM, Outcome.HOST_OOM, Outcome.UNPICKLABLE])
def test_a_look_at_the_loader_that_fails_for_good_takes_loaders_with_workers_only(outcome: Outcome) -> None:
    observations = known(SimulatedMachine(cost=loader_bound), ("compute", Config()))
    after = opened(with_look(observations, "loader", ONE_WORKER, outcome))
    assert after == {config for config in opened(observations) if not needs_more(config, ONE_WORKER, outcome)} != set()
    assert any(config.num_workers for config in after) == (outcome is not Outcome.UNPICKLABLE)


@pytest.mark.parametrize("outcome", [outcome for outcome in Outcome if outcome.is_chance])
def test_a_look_at_the_loader_that_fails_takes_nothing_with_it_and_loaders_without_workers_come_first(
    outcome: Outcome,
) -> None:
    observations = known(SimulatedMachine(cost=loader_bound), ("compute", Config()))
    failed = with_look(observations, "loader", ONE_WORKER, outcome)
    before, after = forecast_of(observations, SPACE), forecast_of(failed, SPACE)
    assert opened(after) == opened(before)
    assert before.proposal() != after.proposal()
    assert after.proposal() is not None
    assert after.proposal().num_workers == 0  # type: ignore[union-attr]
    assert after.most_promising().num_workers == 0  # type: ignore[union-attr]
    assert len(failed.worker_failures) == 1
    assert after.is_doubtful.any()


def test_workers_are_tried_once_more_and_left_out_where_they_fail_again() -> None:
    observations = with_look(
        known(SimulatedMachine(cost=loader_bound), ("compute", Config())), "loader", ONE_WORKER, Outcome.TIMEOUT
    )
    twice = with_trial(observations, replace(WORKERS, batch_size=128), Outcome.TIMEOUT)
    forecast = forecast_of(twice, SPACE)
    assert {config.num_workers for config in opened(forecast)} == {0}
    assert "failed 2 times" in str(forecast.refusal(WORKERS))
    works = with_trial(observations, WORKERS, Outcome.OK)
    assert not forecast_of(works, SPACE).is_doubtful.any()


def test_what_was_ended_because_others_took_the_memory_speaks_of_nothing_else() -> None:
    observations = of_loader_bound()
    ended = trial(1, WORKERS, Attempt(outcome=Outcome.SUSPECT, message="stopped before memory ran out"))
    told = replace(observations, trials=(*observations.trials, ended))
    assert opened(told) == opened(observations) - {WORKERS}


def test_a_comparison_with_fp32_closes_nothing_where_it_is_sound_and_its_precision_alone_where_it_is_not() -> None:
    sound = of_loader_bound()
    everything = opened(sound)
    assert {config.amp for config in everything} == {"off", "bf16", "fp16"}
    first, *others = sound.probes
    overflows = replace(first.attempt, message="it overflows")
    for attempt in (overflows, Attempt(outcome=Outcome.HOST_OOM), Attempt(outcome=Outcome.TIMEOUT)):
        told = replace(sound, probes=(replace(first, attempt=attempt), *others))
        assert opened(told) == {config for config in everything if config.amp != "bf16"}


def test_a_precision_that_was_not_compared_with_fp32_is_closed_unless_the_user_trains_in_it() -> None:
    unchecked = replace(of_loader_bound(), probes=())
    assert {config.amp for config in opened(unchecked)} == {"off"}
    theirs = replace(unchecked, trials=(replace(unchecked.trials[0], config=Config(amp="bf16")),))
    assert theirs.distrust("bf16") is None
    assert "no time" in str(theirs.distrust("fp16"))


def test_a_disturbed_trial_is_not_measured_again_and_counts_with_a_larger_error() -> None:
    def after(foreign_cpus: float) -> tuple[float, float, set[Config]]:
        conditions = examples.conditions(is_crowded=foreign_cpus > 0, foreign_cpus=foreign_cpus, cpus=8)
        numbers = {"samples_per_second": 1500.0, "ceiling_samples_per_second": 10_000.0, "conditions": conditions}
        outcome = Outcome.SUSPECT if foreign_cpus else Outcome.OK
        forecast = forecast_of(with_trial(of_loader_bound(), WORKERS, outcome, **numbers), SPACE)
        return forecast.rate_of(WORKERS), forecast.error_of(WORKERS), opened(forecast)

    (quiet, little, _), (busy, much, left), (busier, more, _) = after(0.0), after(2.0), after(8.0)
    assert little < much < more
    assert abs(math.log(quiet / 1500)) < abs(math.log(busy / 1500)) < abs(math.log(busier / 1500))
    assert WORKERS not in left


FAILING: dict[str, Callable[[Config], Outcome | None]] = {
    "memory": lambda config: Outcome.DEVICE_OOM if config.batch_size > 32 else None,
    "workers": lambda config: Outcome.WORKER_DIED if config.num_workers > 1 else None,
    "numerics": lambda config: Outcome.NUMERICS if config.amp == "bf16" else None,
    "disturbed": lambda config: Outcome.SUSPECT if config.num_workers == 2 else None,
    "nothing": lambda config: None,
}


@pytest.mark.parametrize("fails", FAILING.values(), ids=FAILING)
@pytest.mark.parametrize("cost_of", [loader_bound, four_shared_cores])
def test_what_is_proposed_was_not_measured_fits_could_win_and_does_not_fail_for_sure(fails: Any, cost_of: Any) -> None:
    machine = SimulatedMachine(cost=cost_of, fails=fails, noise=0.02)
    observations = known(machine, ("loader", Config()), ("compute", Config()))
    for _ in range(12):
        forecast = forecast_of(observations, SPACE)
        if (proposal := forecast.proposal()) is None:
            assert not forecast.is_open.any()
            break
        assert proposal in SPACE.configs
        assert proposal not in [done.config for done in observations.trials]
        assert forecast.prediction.refusals[forecast.position[proposal]] is None
        assert forecast.is_open[forecast.position[proposal]]
        for done in observations.trials:
            assert done.measurement is not None or not needs_more(proposal, done.config, done.outcome)
        told = trial(len(observations.trials), proposal, machine.measure(proposal, Request(seconds=1)))
        observations = replace(observations, trials=(*observations.trials, told))


def test_the_baseline_counts_even_where_it_was_disturbed_or_takes_too_much_memory() -> None:
    numbers = examples.measurement(peak_memory_bytes=100, memory_limit_bytes=100)
    observations = of_loader_bound()
    for baseline in (examples.trial(measurement=numbers), examples.trial(outcome=Outcome.SUSPECT)):
        assert feasible(replace(observations, trials=(baseline,)), [baseline.config]) == [baseline]


def forecast_with(
    configs: Sequence[Config],
    rates: Sequence[float],
    *,
    errors: Sequence[float] | float = 0.1,
    is_open: Sequence[bool] | None = None,
    ceiling: Sequence[float] | float = 1e9,
    last: Config = examples.BASELINE,
    best: float = 100.0,
) -> Forecast:
    count = len(configs)
    spreads = np.broadcast_to(np.asarray(errors, dtype=float), (count,))
    ceilings, zeros = np.broadcast_to(np.asarray(ceiling, dtype=float), (count,)), np.zeros(count)
    return Forecast(
        configs=tuple(configs),
        position={config: index for index, config in enumerate(configs)},
        prediction=Prediction(
            rates=np.array(rates),
            ceilings=ceilings,
            ceiling_errors=np.full(count, MEASURED),
            most=ceilings,
            limits=ceilings,
            bounds=ceilings * 1.2,
            step_errors=zeros,
            loader_errors=zeros,
            refusals=(None,) * count,
        ),
        posterior=Posterior(np.log(rates), spreads, np.zeros((1, count))),
        apart=spreads,
        is_open=np.array([True] * count if is_open is None else is_open),
        is_untried=np.full(count, fill_value=True),
        is_doubtful=np.full(count, fill_value=False),
        refusals=(None,) * count,
        base=examples.BASELINE,
        best=examples.trial(),
        best_log=math.log(best),
        observations=replace(of_loader_bound(), trials=(examples.trial(config=last),)),
    )


CHEAPER = [
    (Config(batch_size=32, num_workers=2), Config(batch_size=32, num_workers=4)),
    (Config(batch_size=64, num_workers=8), Config(batch_size=128)),
    (Config(batch_size=32, num_workers=4), Config(batch_size=16)),
    (Config(num_workers=2, prefetch_factor=2), Config(num_workers=2, prefetch_factor=8)),
    (Config(num_workers=2), Config(num_workers=2, pin_memory=True)),
    (Config(intra_op_threads=1), Config(amp="bf16")),
    (Config(), Config(intra_op_threads=1)),
]


@pytest.mark.parametrize(("cheap", "dear"), CHEAPER)
@pytest.mark.parametrize("is_first", [True, False])
def test_among_equals_the_cheapest_is_proposed(cheap: Config, dear: Config, is_first: bool) -> None:
    configs = [cheap, dear] if is_first else [dear, cheap]
    assert cost(cheap, examples.BASELINE) < cost(dear, examples.BASELINE)
    assert forecast_with(configs, [120.0, 120.0]).proposal() == cheap


def test_where_workers_and_threads_are_too_many_for_the_cpus_fewer_threads_come_next() -> None:
    facts = examples.facts(epoch_samples=None, intra_op_threads=4)
    space = space_of(facts, 4, batch_size="32", num_workers="0,2", prefetch_factor="2", amp="off", threads="1,2,4")
    machine = SimulatedMachine(cost=four_shared_cores)
    crowded = replace(space.base, num_workers=2, prefetch_factor=2, persistent_workers=True)
    observed = replace(known(machine, space=space), facts=facts, host=host(4))
    observed = with_trial(observed, crowded, Outcome.OK, samples_per_second=machine.rate(crowded))
    proposed = replace(crowded, intra_op_threads=2)
    assert forecast_of(observed, space).proposal() == proposed
    on_gpu = replace(observed, facts=gpu_facts(epoch_samples=None))
    assert forecast_of(on_gpu, space).proposal() != proposed


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_a_window_that_an_epoch_cuts_has_to_promise_more(share: float) -> None:
    configs = [Config(batch_size=512), Config(batch_size=64)]
    forecast = replace(forecast_with(configs, [115.0, 110.0]), cut_shares=np.array([share, 0.0]))
    assert forecast.proposal() == configs[0 if share == 0.0 else 1]


@pytest.mark.parametrize(
    ("rates", "is_refused", "are_vain"),
    [
        ((100.0, 101.0, 500.0), False, True),  # another batch says nothing
        ((100.0, 103.0, 500.0), False, False),
        ((100.0, 101.0, 500.0), True, False),  # why they cannot run is told instead
    ],
)
def test_workers_are_in_vain_where_none_that_may_run_is_expected_to_gain(
    rates: tuple[float, ...], is_refused: bool, are_vain: bool
) -> None:
    alone = Config(batch_size=32)
    more = replace(alone, num_workers=2, prefetch_factor=2, intra_op_threads=1)
    forecast = forecast_with([alone, more, replace(more, batch_size=64)], list(rates))
    forecast = replace(forecast, refusals=(None, "it would not fit" if is_refused else None, None))
    assert forecast.are_workers_vain(alone) is are_vain
    assert not forecast.are_workers_vain(more)
    assert not forecast.are_workers_vain(replace(alone, batch_size=8))
