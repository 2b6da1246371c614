"""A whole run that explores more of the step: what is returned was confirmed, what was tried is told."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from autotune.config import Config
from autotune.messages import Progress
from autotune.records import Outcome
from autotune.result import Result
from autotune.search.explore import EXPLORE_SHARE
from autotune.search.loop import CONFIRM_MEASUREMENTS, CONFIRM_SHARE
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
OPTIONS = ("channels_last", "fused_optimizer")
FASTER = {"channels_last": 1.3, "fused_optimizer": 1.005}


Cost = Callable[[Config], StepCost]


def with_options(plain: Cost, factors: Mapping[str, float] = FASTER) -> Cost:
    """Options make the step alone faster; where the loader is the limit, that is waiting."""

    def cost(config: Config) -> StepCost:
        found = plain(config)
        compute = found.compute / math.prod(factors.get(option, 1.0) for option in config.options)
        return replace(found, compute=compute, wait=found.wait and found.wait + found.compute - compute)

    return cost


def larger_batches() -> SimulatedMachine:
    return SimulatedMachine(cost=with_options(larger_batches_pay), noise=0.001)


def explored(
    machine: SimulatedMachine,
    options: tuple[str, ...] = OPTIONS,
    *,
    budget: float = 400.0,
    tell: Callable[[Progress], None] = lambda progress: None,
    baseline: Config = examples.BASELINE,
    **given: Any,
) -> Result:
    space = few_of(GPU, 8, baseline, **given)
    return tuner_of(machine, space, GPU, host(8), budget, tell, explore=options).result()


def test_options_that_make_training_faster_are_confirmed_and_returned() -> None:
    result = explored(larger_batches())
    assert (result.verdict, result.config.options) == ("faster", ("channels_last",))
    assert [(tried.option, tried.kept) for tried in result.tried] == list(zip(OPTIONS, (True, False), strict=True))
    confirmed = [trial.config.options for trial in result.history if trial.kind == "confirm"]
    assert confirmed.count(()) > confirmed.count(("channels_last",)) >= 2
    assert {trial.config.options for trial in result.history if trial.kind != "confirm"} == {()}


def test_what_only_the_step_alone_gains_is_tried_and_not_returned() -> None:
    result = explored(SimulatedMachine(cost=with_options(loader_bound), noise=0.001), num_workers="0..2")
    assert result.tried[0].kept
    assert (result.verdict, result.config.num_workers, result.config.options) == ("faster", 2, ())


def test_options_alone_are_an_answer_where_the_search_finds_nothing() -> None:
    result = explored(larger_batches(), batch_size=32, num_workers=0, amp="off", threads=2, pin_memory=False)
    assert (result.verdict, result.config.batch_size, result.config.options) == ("faster", 32, ("channels_last",))
    assert result.speedup > 1.1


def test_without_the_flag_or_after_an_interrupt_nothing_is_explored() -> None:
    machine = SimulatedMachine(cost=with_options(larger_batches_pay))
    assert explored(machine, ()).tried == ()
    assert not any(config.options for config, _ in (*machine.looks, *machine.calls))
    assert explored(SimulatedMachine(cost=with_options(larger_batches_pay), interrupt_at=2)).tried == ()


def test_options_of_the_baseline_stay_and_are_told() -> None:
    result = explored(machine := larger_batches(), ("tf32", "channels_last"), baseline=Config(options=("tf32",)))
    assert all("tf32" in config.options for config, _ in (*machine.looks, *machine.calls))
    assert [tried.option for tried in result.tried] == ["channels_last"]
    assert result.config.options == ("channels_last", "tf32")
    assert there(result.config.measured)["baseline"]["options"] == ["tf32"]


@pytest.mark.parametrize("budget", [60.0, 180.0, 1000.0])
def test_the_search_leaves_exploring_its_share_and_exploring_leaves_confirmation_its_own(budget: float) -> None:
    machine = SimulatedMachine(cost=with_options(larger_batches_pay, {"channels_last": 1.1}), noise=0.1, seconds=3.0)
    begins: dict[str, float] = {}

    def tell(progress: Progress) -> None:
        begins.setdefault(progress.phase, progress.seconds_left)

    result = explored(machine, ("channels_last", "tf32", "cudnn_benchmark", "compile"), budget=budget, tell=tell)
    assert len(result.tried) == 4
    assert machine.time <= budget + 2 * machine.seconds
    confirmation = min(CONFIRM_SHARE * budget, CONFIRM_MEASUREMENTS * 2 * machine.seconds)
    assert begins["explore"] >= EXPLORE_SHARE * budget + confirmation - machine.seconds
    assert begins.get("confirm", budget) >= confirmation - machine.seconds


def interrupts(config: Config) -> Outcome | None:
    """The user presses Ctrl-C at the first look with this option."""
    if "fused_optimizer" in config.options:
        raise KeyboardInterrupt
    return None


def test_an_interrupt_ends_exploring_and_what_was_kept_is_confirmed() -> None:
    result = explored(machine := replace(larger_batches(), fails=interrupts))
    assert "interrupted" in result.stop_reason
    assert [tried.option for tried in result.tried] == ["channels_last"]
    assert (result.config.options, machine.closed) == (("channels_last",), 1)
