"""Further options of the step on a machine on which the effect of each is known: plan, answer, what is told."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.config import Config
from autotune.outcome import Outcome
from autotune.records import Attempt, Part, Request
from autotune.report.result import Result
from autotune.result import TriedOption
from autotune.search.forecast import forecast_of
from autotune.search.observations import Observations
from autotune.search.option_looks import tried_options, usable_step
from autotune.search.probe_plan import next_probe
from autotune.search.setup import Setup
from autotune.search.space import Space
from autotune.search.study import open_study
from autotune.step_options import OPTIONS
from tests import examples
from tests.search.there import there
from tests.simulated import (
    SimulatedMachine,
    StepCost,
    few_of,
    gpu_facts,
    host,
    larger_batches_pay,
    loader_bound,
    tuner_of,
)

GPU = gpu_facts()
PAIR = ("channels_last", "tf32")


@dataclass(kw_only=True)
class Optioned(SimulatedMachine):
    """Each option makes the step alone faster by a known factor, several by the product."""

    cost: Any = larger_batches_pay
    factors: Mapping[str, float] = field(default_factory=dict)
    unsound: frozenset[str] = frozenset()
    """Options with which the loss becomes NaN."""
    memory: Mapping[str, int] = field(default_factory=dict)
    """Bytes that an option adds."""
    disturbs_first: bool = False
    """Whether others take half of the machine during the first look with options."""
    first_steps: Mapping[str, float] = field(default_factory=dict)
    """Seconds that an option adds to the first step of a process."""

    def __post_init__(self) -> None:
        super().__post_init__()
        plain, self.cost = self.cost, lambda config: self._faster(plain(config), config)
        self.peak = lambda config: 2**29 + sum(self.memory.get(option, 0) for option in config.options)

    def _faster(self, plain: StepCost, config: Config) -> StepCost:
        compute = plain.compute / math.prod(self.factors.get(option, 1.0) for option in config.options)
        return replace(plain, compute=compute, wait=plain.wait and plain.wait + plain.compute - compute)

    def measure(self, config: Config, request: Request) -> Attempt:
        longer = sum(self.first_steps.get(option, 0.0) for option in config.options)
        if longer > request.time_limit:
            self.time += request.time_limit
            return Attempt(outcome=Outcome.TIMEOUT, message="no answer", seconds=request.time_limit)
        attempt = super().measure(config, request)
        self.time += longer
        payload = attempt.payload
        if attempt.numerics and self.unsound & set(config.options):
            payload = examples.numerics_check(losses=(math.nan,) * 20)
        if attempt.compute:
            payload = replace(attempt.compute, first_step_seconds=0.02 + longer)
            if self.disturbs_first and config.options and sum(bool(look.options) for look, _ in self.looks) == 1:
                payload = replace(payload, samples_per_second=payload.samples_per_second / 2)
                attempt = replace(attempt, outcome=Outcome.SUSPECT)
        return replace(attempt, payload=payload, seconds=attempt.seconds + longer)


def tuned(
    machine: SimulatedMachine, options: tuple[str, ...] = PAIR, budget: float = 400.0, plan: Any = None, **bounds: Any
) -> Result:
    space = few_of(GPU, 8, bounds.pop("baseline", examples.BASELINE), options=options, **bounds)
    return tuner_of(machine, space, GPU, host(8), budget, **(plan or {})).result()


def outcomes(result: Result) -> dict[str, TriedOption]:
    return {tried.option: tried for tried in result.tried}


# --- what a run gives ---


def test_options_that_pay_each_are_tried_together_and_returned_together() -> None:
    machine = Optioned(factors=dict.fromkeys(OPTIONS, 1.1), noise=0.001)
    result = tuned(machine, tuple(OPTIONS), 600.0)
    assert (result.verdict, result.config.options) == ("faster", tuple(OPTIONS))
    looks = [(request.part, len(config.options)) for config, request in machine.looks if config.options]
    assert looks == [("compute", 1), ("numerics", 1)] * len(OPTIONS) + [("compute", 6), ("numerics", 6)]


def test_what_only_the_step_alone_gains_is_tried_and_not_returned() -> None:
    result = tuned(Optioned(cost=loader_bound, factors={"channels_last": 1.3}, noise=0.001), num_workers="0..2")
    assert outcomes(result)["channels_last"].kept
    assert (result.verdict, result.config.num_workers, result.config.options) == ("faster", 2, ())


def test_options_alone_are_an_answer_where_nothing_else_may_vary() -> None:
    fixed: dict[str, Any] = {"batch_size": 32, "num_workers": 0, "amp": "off", "threads": 2, "pin_memory": False}
    result = tuned(Optioned(factors={"channels_last": 1.3}, noise=0.001), **fixed)
    assert (result.verdict, result.config.batch_size, result.config.options) == ("faster", 32, ("channels_last",))


def test_options_of_the_baseline_stay() -> None:
    machine = Optioned(factors={"channels_last": 1.3}, noise=0.001)
    result = tuned(machine, baseline=Config(options=("tf32",)))
    assert all("tf32" in config.options for config, _ in (*machine.looks, *machine.calls))
    assert [tried.option for tried in result.tried] == ["channels_last"]
    assert result.config.options == PAIR
    assert there(result.config.measured)["baseline"]["options"] == ["tf32"]


def test_a_long_first_step_is_waited_for_and_told() -> None:
    machine = Optioned(factors={"compile": 1.5}, first_steps={"compile": 40.0}, noise=0.001)
    result = tuned(machine, ("compile",), 1200.0)
    assert outcomes(result)["compile"].repaid_seconds == pytest.approx(80.0)
    trials = [trial for trial in result.history if trial.config.options]
    assert trials
    assert not any(trial.outcome is Outcome.TIMEOUT for trial in trials)


def test_a_disturbed_look_is_taken_again() -> None:
    machine = Optioned(factors={"channels_last": 1.3}, disturbs_first=True, noise=0.001)
    assert tuned(machine, ("channels_last",)).config.options == ("channels_last",)
    assert [request.part for config, request in machine.looks if config.options] == ["compute"] * 2 + ["numerics"]


def test_little_time_is_told_of_each_option_that_it_was_too_little_for() -> None:
    machine = Optioned(factors=dict.fromkeys(OPTIONS, 1.2), first_steps=dict.fromkeys(OPTIONS, 8.0))
    result = tuned(machine, tuple(OPTIONS), 90.0)
    assert [tried.option for tried in result.tried] == list(OPTIONS)
    assert result.tried[0].gain == pytest.approx(0.2)
    assert result.tried[-1].message == "there was no time to try it; give a larger --budget"
    assert machine.time <= 90.0 + 2 * (machine.seconds + 8.0)


def test_an_interrupt_tells_of_what_was_tried() -> None:
    def interrupts(config: Config) -> Outcome | None:
        if "tf32" in config.options:
            raise KeyboardInterrupt
        return None

    machine = Optioned(factors={"channels_last": 1.3}, fails=interrupts)
    result = tuned(machine)
    assert "interrupted" in result.stop_reason
    assert [(tried.option, tried.kept) for tried in result.tried] == [("channels_last", True)]
    assert machine.closed == 1


# --- the plan ---

EFFECTS = st.fixed_dictionaries(
    {
        "factor": st.sampled_from([0.5, 1.0, 1.05, 1.5]),
        "memory": st.sampled_from([-(2**28), 0, 2**40]),
        "unsound": st.booleans(),
        "fails": st.sampled_from([None, None, Outcome.CRASHED, Outcome.TIMEOUT, Outcome.DEVICE_OOM]),
    }
)


def planned(machine: Optioned, space: Space) -> tuple[list[tuple[Part, Config]], Observations]:
    """All looks of a plan from the baseline on, and what is known then."""
    study = open_study(Setup(space=space, facts=GPU, host=host(8)))
    config, kind = there(study.ask())
    study.tell(machine.measure(config, Request(seconds=1.0, time_limit=60.0)), config, kind)
    looks: list[tuple[Part, Config]] = []
    while look := next_probe(study.known.observations, space):
        assert len(looks) < 60
        looks.append(look)
        study.looked(*look, machine.measure(look[1], Request(seconds=1.0, time_limit=60.0, part=look[0])))
    return looks, study.known.observations


NO_USE: list[tuple[dict[str, Any], str]] = [
    ({"factors": {"channels_last": 1.01}}, "the step is not 2 % faster with it"),
    ({"factors": {"channels_last": 0.7}}, "the step is not 2 % faster with it"),
    (
        {"factors": {"channels_last": 1.5}, "memory": {"channels_last": 2**33}},
        "training would take 8.5 GiB of memory with it; 7.2 GiB may be used",
    ),
    (
        {"factors": {"channels_last": 3.0}, "unsound": frozenset({"channels_last"})},
        "with channels_last the loss becomes nan at step 1 of 20, in fp32 it stays finite",
    ),
    ({"first_steps": {"channels_last": 1000.0}}, "no answer; give a larger --budget"),
    *(
        (
            {"fails": lambda config, outcome=outcome: outcome if "channels_last" in config.options else None},
            f"{outcome} here",
        )
        for outcome in (Outcome.USER_ERROR, Outcome.CRASHED, Outcome.DEVICE_OOM)
    ),
]


@pytest.mark.parametrize(("changes", "said"), NO_USE)
def test_an_option_that_is_of_no_use_is_left_out_with_the_reason_and_the_next_is_used(
    changes: dict[str, Any], said: str
) -> None:
    space = few_of(GPU, options=PAIR)
    _, known = planned(Optioned(**changes | {"factors": {"tf32": 1.2, **changes.get("factors", {})}}), space)
    first, second = tried_options(known, space)
    assert (first.kept, first.message, second.kept) == (False, said, True)
    assert there(usable_step(known, space)).options == ("tf32",)


@settings(max_examples=30)
@given(st.dictionaries(st.sampled_from(list(OPTIONS)), EFFECTS))
def test_the_plan_ends_and_only_steps_that_pay_and_train_alike_may_be_used(effects: dict[str, Any]) -> None:
    def fails(config: Config) -> Outcome | None:
        return next((effects[option]["fails"] for option in config.options if effects[option]["fails"]), None)

    by_name = {name: {option: each[name] for option, each in effects.items()} for name in ("factor", "memory")}
    unsound = frozenset(option for option, each in effects.items() if each["unsound"])
    machine = Optioned(factors=by_name["factor"], memory=by_name["memory"], unsound=unsound, fails=fails)
    space = few_of(GPU, options=tuple(effects))
    looks, observations = planned(machine, space)
    assert len(set(looks)) == len(looks)
    for count, look in enumerate(looks):  # nothing but the observations decides
        assert next_probe(replace(observations, probes=observations.probes[:count]), space) == look
    use = {
        option
        for option, each in effects.items()
        if each["factor"] > 1.02 and each["memory"] <= 0 and not each["unsound"] and not each["fails"]
    }
    assert {tried.option for tried in tried_options(observations, space) if tried.kept} == use
    step = usable_step(observations, space)
    assert {*(step.options if step else ())} == use
    with_options = {config.options for config in forecast_of(observations, space).configs if config.options}
    assert with_options == ({step.options} if step else set())
    others = tuple(probe for probe in observations.probes if not probe.config.options)
    plain = forecast_of(replace(observations, probes=others), space)  # what fails with options may work without
    found = forecast_of(observations, space)
    assert [found.refusal(config) for config in plain.configs] == [plain.refusal(config) for config in plain.configs]
