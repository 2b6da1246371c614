"""Remedies tried: by a machine whose rates are known, and with real datasets."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from autotune import comparison, diagnose, remedies
from autotune.config import Config
from autotune.diagnosis.findings import Diagnosis, Remedy
from autotune.errors import UsageError
from autotune.messages import Messages
from autotune.outcome import Outcome
from autotune.probes import StoredItems
from autotune.records import Attempt, Request
from autotune.remedies import tried
from autotune.report.terminal import diagnosis_report
from tests import examples
from tests.report.test_terminal import shown
from tests.simulated import SimulatedMachine, StepCost

CONFIG = Config(batch_size=8, num_workers=2, prefetch_factor=2)
ITEMS = StoredItems(folder="/scratch/items", samples=100, item_bytes=150_000.0, item_seconds=0.01)
DIAGNOSIS = examples.diagnosis(config=CONFIG, facts=examples.facts(dataset_length=10_000, epoch_samples=10_000))
FREE = 20 * 2**30


@dataclass
class Machine:
    """A machine on which each remedy trains so many times as fast."""

    speeds: dict[str, float]
    stored: Attempt = field(default_factory=lambda: Attempt(outcome=Outcome.OK, payload=ITEMS))
    requests: list[Request] = field(default_factory=list)
    machine: SimulatedMachine = field(
        default_factory=lambda: SimulatedMachine(cost=lambda config: StepCost(compute=0.1), noise=0.003, seconds=3.0)
    )

    def measure(self, config: Config, request: Request) -> Attempt:
        self.requests.append(request)
        if request.part == "store":
            return self.stored
        speed = self.speeds[request.remedy or "present"]
        self.machine.cost = lambda config: StepCost(compute=0.1 / speed)
        return self.machine.measure(config, replace(request, remedy=None, store=None, before=None))

    def close(self) -> None: ...


@pytest.fixture(autouse=True)
def enough_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autotune.machine.host.MemoryMeter.available", lambda meter: FREE)


def result(machine: Machine, found: Diagnosis = DIAGNOSIS, loader: Any = None) -> list[Remedy]:
    return list(tried(machine, found, loader, Messages()))


def test_each_remedy_is_measured_beside_the_present_way_and_told_with_its_cost() -> None:
    machine = Machine({"present": 1.0, "stored": 2.0, "in-memory": 1.0})
    stored, in_memory = result(machine)
    assert (stored.name, stored.verdict, in_memory.name, in_memory.verdict) == (
        "stored",
        "faster",
        "in-memory",
        "no difference",
    )
    assert stored.ratio == pytest.approx(2.0, rel=0.02)
    assert stored.interval is not None
    assert stored.interval[0] < stored.ratio < stored.interval[1]
    assert (stored.total_bytes, stored.free_bytes) == (1_500_000_000, FREE)
    assert stored.seconds == pytest.approx(10_000 * 0.01 / 2)
    assert stored.saved_seconds == pytest.approx(10_000 / 80 / 2, rel=0.05)
    asked = [each for each in machine.requests if each.remedy]
    assert {each.store for each in asked} == {ITEMS.folder}
    assert all(each.fresh for each in asked)
    text = shown(diagnosis_report(replace(DIAGNOSIS, remedies=(stored, in_memory))), 120)
    assert f"stored     {stored.ratio:.2f} times as fast (" in text
    assert "less for each epoch; all items take 1.4 GiB, and 50s to make" in text
    assert "in-memory  not worth it: " in text
    assert 'dataset = autotune.stored(dataset, "cache/"), which the first epoch fills' in text


def test_a_set_larger_than_free_memory_gets_bytes_and_time_and_no_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autotune.machine.host.MemoryMeter.available", lambda meter: 2**30)
    machine = Machine({})
    for found in result(machine):
        assert (found.verdict, found.ratio, found.total_bytes) == ("", None, 1_500_000_000)
        assert found.reason == "they do not fit in the 1.0 GiB that are free"
    assert [each.part for each in machine.requests] == ["store"]


CACHED = examples.loader_trace(build_seconds=(0.1,), again_seconds=0.001, elsewhere_seconds=0.1)


def test_of_a_dataset_that_keeps_what_it_has_read_later_epochs_are_compared() -> None:
    machine = Machine({"present": 1.0, "stored": 1.0, "in-memory": 0.6})
    found = result(machine, loader=CACHED)
    assert all(each.later_epochs for each in machine.requests if each.part == "training")
    assert [each.is_worth for each in found] == [False, False]
    text = shown(diagnosis_report(replace(DIAGNOSIS, remedies=tuple(found))), 200)
    assert (
        text.count("not worth it: ") == text.count("the dataset keeps what it has read: compared are later epochs") == 2
    )


def test_ranks_are_refused_before_anything_is_measured() -> None:
    with pytest.raises(UsageError, match="--try: measures one process; leave out --ranks"):
        diagnose("tests.limited:by_compute", device="cpu", ranks=2, remedies=True)


@pytest.mark.parametrize(
    ("verdict", "interval", "is_worth"),
    [
        ("faster", (1.5, 2.0), True),
        ("faster", (1.02, 1.09), False),
        ("undecided", (0.96, 1.05), False),
        ("undecided", (0.9, 1.3), None),
        ("undecided", None, None),
        ("slower", (0.4, 0.6), False),
        ("", None, None),
    ],
)
def test_a_remedy_that_gains_a_tenth_at_most_is_not_worth_it(
    verdict: str, interval: tuple[float, float] | None, is_worth: bool | None
) -> None:
    assert Remedy(name="stored", verdict=verdict, ratio=1.0, interval=interval).is_worth is is_worth


def test_items_that_cannot_be_stored_say_why() -> None:
    machine = Machine({}, Attempt(outcome=Outcome.USER_ERROR, message="Data: items vary from draw to draw"))
    assert {each.reason for each in result(machine)} == {"Data: items vary from draw to draw"}
    text = shown(diagnosis_report(replace(DIAGNOSIS, remedies=tuple(result(machine)))), 120)
    assert "stored     not measured: Data: items vary from draw to draw" in text
    assert "To do: dataset" not in text


def test_on_an_accelerator_data_are_also_kept_there_where_they_fit() -> None:
    room = examples.measurement(memory="device", memory_limit_bytes=3 * 2**30, peak_memory_bytes=2**30)
    facts = examples.facts(device="cuda:0", dataset_length=10_000)
    machine = Machine({"present": 1.0, "stored": 1.5, "in-memory": 1.2, "on-device": 3.0})
    found = result(machine, replace(DIAGNOSIS, measurement=room, facts=facts))
    assert [each.name for each in found] == ["stored", "in-memory", "on-device"]
    assert found[2].ratio == pytest.approx(3.0, rel=0.02)
    assert found[2].free_bytes == 2 * 2**30


def test_a_remedy_that_fails_is_told_and_the_next_is_tried() -> None:
    machine = Machine({"present": 1.0, "stored": 1.0, "in-memory": 1.0})
    usual = machine.machine.measure

    def fail(config: Config, request: Request) -> Attempt:
        if machine.requests[-1].remedy == "stored":
            return Attempt(outcome=Outcome.USER_ERROR, message="no such file", seconds=1.0)
        return usual(config, request)

    machine.machine.measure = fail  # type: ignore[method-assign]
    stored, in_memory = result(machine)
    assert "no such file" in stored.reason
    assert in_memory.verdict == "no difference"


def test_the_first_interrupt_ends_the_tries_with_what_is_known() -> None:
    machine = Machine({"present": 1.0, "stored": 2.0})
    usual, rounds = machine.machine.measure, list[str]()

    def measure(config: Config, request: Request) -> Attempt:
        rounds.append("")
        if len(rounds) == 6:
            raise KeyboardInterrupt
        return usual(config, request)

    machine.machine.measure = measure  # type: ignore[method-assign]
    (stored,) = result(machine)
    assert (stored.name, stored.verdict) == ("stored", "undecided")
    assert stored.ratio == pytest.approx(2.0, rel=0.02)


@pytest.mark.machine
def test_a_dataset_that_waits_for_each_item_gains_by_storing_them(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("diagnostics.WINDOW_SECONDS", 1.0), ("diagnostics.PART_SECONDS", 0.5)):
        monkeypatch.setattr(f"autotune.{name}", seconds)
    monkeypatch.setattr(comparison, "WINDOW_SECONDS", 1.0)
    monkeypatch.setattr(remedies, "STORE_SECONDS", 1.0)
    found = diagnose("tests.limited:by_waiting_for_items", "batch_size=4", device="cpu", remedies=True)
    assert [each.verdict for each in found.remedies] == ["faster", "faster"], found.remedies
    assert all(each.ratio and each.ratio > 1.5 for each in found.remedies)
