"""Two sides by turns: on the simulated machine with known rates, and real scripts."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from autotune import comparison
from autotune.cli import main
from autotune.comparison import Side, in_rounds
from autotune.config import Config
from autotune.errors import NothingFeasibleError, UsageError
from autotune.limits import Budget
from autotune.messages import Messages, Progress
from autotune.outcome import Outcome
from autotune.proof import Comparison, Confirmation, standing_of
from autotune.records import Attempt, Request, Trial
from autotune.report.terminal import comparison_text
from tests import examples
from tests.simulated import SimulatedMachine, StepCost

SAME = Config(batch_size=8)


@dataclass
class OneSide:
    """A side on a machine that both share: it trains so many times as fast as the machine says."""

    machine: SimulatedMachine
    speed: float = 1.0
    outcome: Outcome | None = None

    def measure(self, config: Config, request: Request) -> Attempt:
        self.machine.cost = lambda config: StepCost(compute=0.1 / self.speed)
        self.machine.fails = lambda config: self.outcome
        return self.machine.measure(config, request)

    def close(self) -> None:
        self.machine.close()


def compared(
    speed: float, margin: float = 0.0, budget: float = 120.0, outcome: Outcome | None = None, **options: Any
) -> tuple[Confirmation, tuple[Trial, ...]]:
    machine = SimulatedMachine(cost=lambda config: StepCost(compute=0.1), **{"noise": 0.01, "seconds": 3.0, **options})
    sides = Side("a", SAME, OneSide(machine)), Side("b", SAME, OneSide(machine, speed, outcome))
    time = Budget(budget, machine.now)
    return in_rounds(sides, time, Messages(time), margin=margin, seed=machine.seed)


@pytest.mark.parametrize(
    ("speed", "margin", "verdict"),
    [
        (1.0, 0.0, "no difference"),
        (1.1, 0.0, "faster"),
        (0.9, 0.0, "slower"),
        (1.0, 0.05, "not slower"),
        (1.1, 0.05, "not slower"),
        (0.97, 0.1, "not slower"),
        (0.85, 0.05, "slower"),
    ],
)
def test_both_sides_with_equal_settings_are_told_apart(speed: float, margin: float, verdict: str) -> None:
    found, trials = compared(speed, margin)
    assert found.verdict(SAME) == verdict
    assert found.speedup(SAME) == pytest.approx(speed, rel=0.02)
    assert {trial.entry for trial in trials} == {None, 0}
    assert len(trials) % 2 == 0


def test_equal_sides_differ_as_rarely_as_is_said() -> None:
    """Each end of the interval may be wrong in 2.5 of 100."""
    found = [compared(1.0, seed=seed, noise=0.03, budget=60.0)[0].verdict(SAME) for seed in range(60)]
    assert sum(each in ("faster", "slower") for each in found) <= 4
    gated = [compared(1.0, 0.05, seed=seed, noise=0.03)[0].verdict(SAME) for seed in range(60)]
    assert sum(each == "slower" for each in gated) <= 2
    assert sum(each == "not slower" for each in gated) > 50


def test_a_gate_ends_as_soon_as_it_may_and_a_slowdown_beyond_it_is_found() -> None:
    _, few = compared(1.1, 0.05)
    _, many = compared(0.97, 0.05)
    assert len(few) < len(many)
    found = [compared(0.9, 0.03, seed=seed)[0].verdict(SAME) for seed in range(20)]
    assert found.count("slower") >= 19


def test_too_few_rounds_tell_nothing_and_a_side_that_fails_is_named() -> None:
    found, _ = compared(0.5, budget=20.0, seconds=8.0)
    assert (found.rounds_of(SAME), found.verdict(SAME)) == (1, "undecided")
    with pytest.raises(NothingFeasibleError, match="b: device_oom"):
        compared(1.0, outcome=Outcome.DEVICE_OOM)
    found, trials = compared(1.0, interrupt_at=6)
    assert (found.rounds_of(SAME), len(trials)) == (2, 5)


def result(**changes: Any) -> Comparison:
    measured = [examples.measurement(samples_per_second=rate, peak_memory_bytes=2**30) for rate in (1000.0, 900.0)]
    a, b = (replace(standing_of(SAME, [each]), rate_ci95=(995.0, 1005.0)) for each in measured)
    given = {"verdict": "slower", "ratio": 0.9, "interval": (0.88, 0.92), "margin": 0.0, "rounds": 4}
    losses = ((2.5, 1.25),) * 2
    return Comparison(names=("train.py --lr 1", "train.py --lr 2"), a=a, b=b, losses=losses, **{**given, **changes})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "b is slower."),
        ({"margin": 0.03}, "b is slower by more than 3 %."),
        ({"verdict": "not slower", "margin": 0.025}, "b is not slower by more than 2.5 %."),
        ({"verdict": "no difference", "interval": (0.981, 1.012)}, "No difference above 2 %."),
        ({"verdict": "faster"}, "b is faster."),
        ({"verdict": "undecided", "interval": None}, "Undecided: stop other programs, or give a larger --budget."),
    ],
)
def test_the_text_is_a_table_of_markdown_and_the_verdict(changes: dict[str, Any], said: str) -> None:
    *table, blank, note, last = comparison_text(result(notes=("a note",), **changes)).splitlines()
    assert [line.count("|") for line in table] == [5] * 5
    assert table[2] == "| a: `train.py --lr 1` | 1,000 (995 to 1,005) | 1.0 GiB | 2.5 → 1.25 |"
    assert table[4].startswith("| b / a | **0.900** (") is (changes.get("interval", ()) is not None)
    assert (blank, note) == ("", "Note: a note.")
    assert last.startswith(f"{said} In 4 rounds of fresh processes")
    steps = comparison_text(result(unit="steps"))
    assert "| steps/s (95 %) |" in steps


SCRIPT = """
import sys, time
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
for epoch in range(100):
    for x, y in DataLoader(TensorDataset(torch.ones(4000, 4), torch.ones(4000, 1)), batch_size=8):
        time.sleep(float(sys.argv[1]))
        loss = (model(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "train.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(comparison, "WINDOW_SECONDS", 0.5)
    return tmp_path


@pytest.mark.machine
@pytest.mark.parametrize(
    ("before", "after", "margin", "code"), [("0.02", "0.03", "0", 1), ("0.03", "0.02", "5%", 0)], ids=["slower", "gate"]
)
def test_two_states_of_a_script_are_compared(
    folder: Path, capsys: pytest.CaptureFixture[str], before: str, after: str, margin: str, code: int
) -> None:
    line = ["compare", "--json", "--margin", margin, f"train.py {before}", f"train.py {after}"]
    assert main(line) == code
    said = capsys.readouterr()
    found = json.loads(said.out)
    assert found["verdict"] == ("slower" if code else "not slower")
    assert found["ratio"] == pytest.approx(float(before) / float(after), rel=0.15)
    assert found["a"]["rate"] < 8 / float(before)
    assert found["losses"][0] == found["losses"][1]
    assert found["b"]["config"]["dataloader"]["batch_size"] == 8
    assert {each["entry"] for each in found["history"]} == {None, 0}
    assert said.err.count("the first that trains") == 1
    assert [path.name for path in folder.iterdir()] == ["train.py"]


@pytest.mark.machine
def test_a_side_that_fails_is_named_with_what_it_raised(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "train.py 0.01", "train.py nothing"]) == 3
    assert "train.py nothing: ValueError: could not convert string to float" in capsys.readouterr().err


@pytest.mark.machine
def test_functions_and_another_interpreter_are_compared(folder: Path) -> None:
    (folder / "mine.py").write_text(
        "import time, torch\n"
        "class Samples(torch.utils.data.Dataset):\n"
        "    def __init__(self, seconds): self.seconds = seconds\n"
        "    def __len__(self): return 4000\n"
        "    def __getitem__(self, index):\n"
        "        time.sleep(self.seconds)\n"
        "        return torch.ones(4), torch.ones(1)\n"
        "def before(): return torch.nn.Linear(4, 1), Samples(0.001)\n"
        "def after(): return torch.nn.Linear(4, 1), Samples(0.002)\n"
    )
    seen = list[Progress]()
    found = comparison.compare(
        "mine.py:before", "mine.py:after", baseline="batch_size=8", python=sys.executable, on_progress=seen.append
    )
    assert (found.verdict, found.losses, found.unit) == ("slower", ((), ()), "samples")
    assert found.b.rate < 500
    assert found.names == ("mine.py:before", "mine.py:after")
    assert found.notes == ()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"b": None}, "compare takes two sides"),
        ({"b": "m:b", "base": "main"}, "compare takes two sides"),
        ({"b": None, "base": "main"}, "--base: takes a script"),
        ({"b": "m:b", "margin": "many"}, "--margin many: allowed: a share"),
        ({"b": "m:b", "python": "absent/python"}, "--python absent/python: No such file"),
    ],
)
def test_wrong_sides_are_refused_before_anything_starts(given: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        comparison.compare("m:a", **given)
