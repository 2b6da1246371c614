"""Exploring options on a machine on which the effect of each is known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from autotune.config import Config
from autotune.limits import DEFAULT_MEMORY_LIMIT, Budget, MemoryLimit
from autotune.records import Attempt, Outcome, Probe, Request
from autotune.result import TriedOption
from autotune.search.explore import Explorer
from autotune.step_options import OPTIONS
from tests import examples
from tests.simulated import SimulatedMachine, StepCost

START = Config(batch_size=64, num_workers=2, amp="bf16")
MIB = 2**20


@dataclass(kw_only=True)
class Machine(SimulatedMachine):
    """Each option makes the step faster by a known factor, together by their product; ``slowing`` is by look."""

    cost: Any = lambda config: StepCost(compute=0.01)
    factors: Mapping[str, float] = field(default_factory=dict)
    unsound: frozenset[str] = frozenset()
    first_steps: Mapping[str, float] = field(default_factory=dict)
    """Seconds by which an option makes the first step longer; they pass on the clock."""
    memory: Mapping[str, int] = field(default_factory=dict)
    """Bytes that an option adds."""
    slowing: float = 1.0
    """By which factor the machine is slower from each look to the next."""
    disturbed_look: int = 0
    """The look during which others take half of the machine."""

    def measure(self, config: Config, request: Request) -> Attempt:
        attempt = super().measure(config, request)
        if attempt.numerics and self.unsound & set(config.options):
            return replace(attempt, payload=examples.numerics_check(losses=(float("nan"),) * 20))
        if attempt.compute is None:
            return attempt
        longer = sum(self.first_steps.get(option, 0.0) for option in config.options)
        self.time += longer
        rate = attempt.compute.samples_per_second * self.slowing ** -len(self.looks)
        for option in config.options:
            rate *= self.factors.get(option, 1.0)
        is_disturbed = len(self.looks) == self.disturbed_look
        compute = replace(
            attempt.compute,
            samples_per_second=rate / (1 + is_disturbed),
            first_step_seconds=0.02 + longer,
            peak_memory_bytes=2**29 + sum(self.memory.get(option, 0) for option in config.options),
        )
        outcome = Outcome.SUSPECT if is_disturbed else Outcome.OK
        return replace(attempt, outcome=outcome, payload=compute, seconds=attempt.seconds + longer)


class Exploration:
    """What exploring gave, and all that was told of it."""

    def __init__(self, machine: Machine, options: tuple[str, ...], end: float = 1000.0, **given: Any) -> None:
        self.running, self.looked = list[Config](), list[Probe]()
        self.explorer = Explorer(
            runner=machine,
            options=options,
            budget=Budget(2 * end, machine.now),
            end=end,
            look_cost=1.0,
            tell_running=self.running.append,
            tell_looked=self.looked.append,
            **{"start": START, "memory_limit": DEFAULT_MEMORY_LIMIT, **given},
        )
        self.explorer.run()

    @property
    def tried(self) -> dict[str, TriedOption]:
        return {tried.option: tried for tried in self.explorer.tried}


def test_what_makes_the_step_faster_is_kept_and_what_does_not_is_not() -> None:
    factors = {"channels_last": 1.3, "fused_optimizer": 1.01, "checkpointing": 0.7}
    found = Exploration(Machine(factors=factors), tuple(factors))
    assert [(tried.option, tried.kept) for tried in found.explorer.tried] == [
        ("channels_last", True), ("fused_optimizer", False), ("checkpointing", False)
    ]  # fmt: skip
    assert [tried.gain for tried in found.explorer.tried] == [pytest.approx(gain) for gain in (0.3, 0.01, -0.3)]
    assert found.tried["fused_optimizer"].message == "the step is not 2% faster with it"
    assert found.explorer.answer == replace(START, options=("channels_last",))
    assert Exploration(Machine(), ("channels_last", "compile")).explorer.answer is None  # nothing pays


def test_what_was_kept_stays_on_for_the_next() -> None:
    found = Exploration(machine := Machine(factors=dict.fromkeys(OPTIONS, 1.1)), tuple(OPTIONS))
    assert found.explorer.answer == replace(START, options=tuple(OPTIONS))
    assert [tried.gain for tried in found.explorer.tried] == [pytest.approx(0.1)] * len(OPTIONS)
    grown = [len(config.options) for config in dict.fromkeys(config for config, _ in machine.looks)]
    assert grown == list(range(len(OPTIONS) + 1))


@pytest.mark.parametrize("slowing", [0.99, 1.01])
def test_a_machine_that_drifts_makes_no_gain(slowing: float) -> None:
    found = Exploration(Machine(slowing=slowing, factors={"tf32": 1.1}), ("channels_last", "tf32"))
    assert found.tried["channels_last"].gain == pytest.approx(0.0, abs=1e-9)
    assert found.tried["tf32"].gain == pytest.approx(0.1)


def test_every_look_has_a_process_of_its_own_and_no_loader() -> None:
    machine = Machine(factors={"channels_last": 1.3})
    found = Exploration(machine, ("channels_last", "tf32"))
    assert all(request.fresh for _, request in machine.looks)
    assert {config.num_workers for config, _ in machine.looks} == {0}
    assert {config.amp for config, _ in machine.looks} == {"bf16"}
    parts = [(request.part, "".join(config.options)) for config, request in machine.looks]
    assert parts == [
        ("compute", ""), ("compute", "channels_last"), ("compute", "channels_last"), ("compute", ""),
        ("numerics", "channels_last"),
        ("compute", "channels_last"), ("compute", "channels_lasttf32"), ("compute", "channels_lasttf32"),
        ("compute", "channels_last"),
    ]  # fmt: skip
    assert found.running == [probe.config for probe in found.looked] == [config for config, _ in machine.looks]


def test_an_option_with_which_the_model_does_not_train_is_left_out_however_fast() -> None:
    machine = Machine(factors={"tf32": 3.0, "compile": 1.2}, unsound=frozenset({"tf32"}))
    found = Exploration(machine, ("tf32", "compile"))
    assert found.tried["tf32"].message == "with tf32 the loss becomes nan at step 1 of 20, in fp32 it stays finite"
    assert found.tried["tf32"].gain == pytest.approx(2.0)
    assert found.explorer.answer == replace(START, options=("compile",))
    assert found.looked[4].attempt.message == found.tried["tf32"].message


@pytest.mark.parametrize("outcome", [Outcome.USER_ERROR, Outcome.CRASHED, Outcome.DEVICE_OOM, Outcome.TIMEOUT])
def test_an_option_that_fails_is_left_out_with_the_reason_and_the_others_go_on(outcome: Outcome) -> None:
    machine = Machine(fails=lambda config: outcome if "tf32" in config.options else None, factors={"compile": 1.2})
    found = Exploration(machine, ("tf32", "compile"))
    assert found.tried["tf32"].gain is None
    assert found.tried["tf32"].message.startswith(f"{outcome} here")
    assert found.tried["compile"].kept


def test_disturbed_looks_are_repeated() -> None:
    found = Exploration(machine := Machine(factors={"compile": 1.2}, disturbed_look=2), ("compile",))
    assert [request.part for _, request in machine.looks] == ["compute"] * 5 + ["numerics"]
    assert found.tried["compile"].gain == pytest.approx(0.2)


@pytest.mark.parametrize(("change", "most", "kept"), [(2**30, None, True), (2**30, 2**30, False), (-MIB, 2**30, True)])
def test_memory_is_reported_and_held_to_its_limit(change: int, most: int | None, kept: bool) -> None:
    machine = Machine(factors={"compile": 1.2}, memory={"compile": change})
    tried = Exploration(machine, ("compile",), memory_limit=MemoryLimit(most=most)).tried["compile"]
    assert (tried.memory_change_bytes, tried.kept) == (change, kept)
    assert tried.message == ("" if kept else "training would take 1.5 GiB of memory with it; 1.0 GiB may be used")


def test_compiling_is_reported_with_when_it_is_repaid() -> None:
    machine = Machine(factors={"compile": 1.25}, first_steps={"compile": 12.0})
    tried = Exploration(machine, ("compile",)).tried["compile"]
    seconds = tried.first_step_seconds, tried.start_seconds, tried.repaid_seconds
    assert seconds == pytest.approx((12.02, 12.0, 48.0))
    assert tried.seconds == pytest.approx(2 * 12.0 + 5 * 0.5)
    assert TriedOption(option="compile", kept=False, gain=-0.1, start_seconds=3.0).repaid_seconds is None


def test_no_look_begins_once_the_time_is_used_up() -> None:
    machine = Machine(factors={"channels_last": 1.2, "tf32": 1.2}, seconds=8.0)
    found = Exploration(machine, ("channels_last", "tf32", "compile"), end=13.0)
    assert machine.time <= 13.0
    assert found.tried["channels_last"].kept
    for name in ("tf32", "compile"):
        assert found.tried[name].message == "there was no time to try it; give a larger --budget"
