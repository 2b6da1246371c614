"""The first half hour on a GPU runs dry: the probes and a default run on the fake accelerator, the models on a CPU."""

from __future__ import annotations

import csv
import importlib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from autotune.config import Config
from autotune.measure.device import CpuDevice
from autotune.measure.step import TrainingStep
from autotune.runner.local import ProcessRunner
from autotune.workload import Script, describe
from studies.gpu import probes, runs
from studies.gpu import script as studies_script
from studies.gpu.load import EXHAUSTS, Load, failure
from tests import examples
from tests.accelerator import GIB, Card, FakeAccelerator

KERNELS, STEP, PINNING = 300, 0.02, 8e9


class CardLoad(Load):
    def __init__(self, card: Card) -> None:
        super().__init__(FakeAccelerator(card))
        self._card = card

    def step(self) -> None:
        self._card.launch(KERNELS, STEP)

    def copy(self, *, is_pinned: bool) -> None:
        self._card.copy(self.size, is_pinned=is_pinned, non_blocking=is_pinned)

    def pin(self) -> Any:
        self._card.now += self.size / PINNING

    def exhaust(self, what: str) -> None:
        self._card.allocate(2**50)

    def rest(self, seconds: float) -> None:
        self._card.now += seconds


class SessionOfNumbers:
    def __init__(self, *arguments: str) -> None:
        share = float(arguments[1]) if arguments[0] == "hold" else 0.0
        self.answer = {"name": "Fake Accelerator", "uuid": None, "seconds": 1.5, "reserved": round(share * 80 * GIB)}
        if arguments[0] == "exhaust":
            self.answer["text"] = failure(lambda: CardLoad(Card()).exhaust(arguments[1]))

    def end(self) -> float:
        return 0.25


class NoSession(SessionOfNumbers):
    def __init__(self, *arguments: str) -> None:
        self.answer = {"error": "torch finds no accelerator here"}


@pytest.fixture(scope="module")
def answers() -> dict[str, Any]:
    card = Card()
    return {row.name: row.value for row in probes.rows_of(FakeAccelerator(card), card, CardLoad(card))}


def test_the_figures_of_a_card_come_back(answers: dict[str, Any]) -> None:
    card = Card()
    assert answers["copy rate, pageable"] == pytest.approx(card.pageable, rel=0.02)
    assert answers["copy rate, pinned"] == pytest.approx(card.pinned, rel=0.02)
    assert answers["pin rate, 1 thread"] == answers["pin rate, all threads"] == pytest.approx(PINNING, rel=0.02)
    assert answers["host time of a step, empty queue"] == pytest.approx(KERNELS * card.launch_seconds, rel=0.02)
    assert answers["host time of a step, 8 ahead"] == pytest.approx(STEP, rel=0.1)  # the queue is full
    assert answers["time of a step"] == pytest.approx(STEP, rel=0.02)
    assert answers["memory that can be had"] == card.total - card.context

    found = {name.removeprefix("utilisation, "): value for name, value in answers.items() if "utilisation" in name}
    assert (found["idle"], found["while queued"], found["after synchronising"]) == (0.0, 1.0, 0.0)


def test_what_a_machine_does_not_answer_is_a_row(answers: dict[str, Any]) -> None:
    assert answers["CPU share of a wait, blocking"] < 0.1
    assert answers["waits"].startswith("not available (AssertionError: a host that spins")
    device = CpuDevice()
    rows = probes.rows_of(device, torch.cpu, Load(device, size=2**20, width=8, kernels=3))  # type: ignore[arg-type]
    found = {row.name: row.value for row in rows}
    assert str(found["utilisation"]).startswith("not available (LookupError: no NVML")
    assert found["host time of a step, empty queue"] > 0


def test_sessions_are_timed_and_errors_are_told() -> None:
    rows = {row.name: row.value for row in probes.rows_of_sessions(SessionOfNumbers)}  # type: ignore[arg-type]
    assert rows["open a session, NVML not held: first"] == 1.5
    assert rows["end the large session"] == 0.25
    assert {rows[f"no memory: {what}"].partition(":")[0] for what in EXHAUSTS} == {"device_oom"}


@pytest.mark.machine
@pytest.mark.skipif(torch.accelerator.is_available(), reason="it would be probed")
def test_without_an_accelerator_one_line_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert probes.main() == 2  # by a process of its own
    assert runs.main(["--block", "3"], NoSession) == 2  # type: ignore[arg-type]
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["nothing to probe", "nothing to run on"]
    assert "finds no accelerator here" in lines[0]


# --- runs ---


def test_a_default_run_is_compared_with_a_grid(tmp_path: Path) -> None:
    answer, grid = examples.faster_result(), runs.grid(16)
    rates = {config: 1000.0 + config.batch_size for config in grid} | {answer.config: 1500.0}
    row = runs.default_row(lambda: runs.Ran(answer, (2.0, 1.5), 12.34), rates.get, grid)
    assert (row["share_of_grids_best"], row["grid"]) == (round(1500 / 1512, 3), len(grid))
    assert (row["sessions"], row["session_seconds"], row["half_precision_after_seconds"]) == (2, "2.0 1.5", 12.3)
    assert runs.default_row(lambda: runs.Ran(answer, (), None), {}.get, grid)["share_of_grids_best"] is None
    for name in ("resnet", "check"):
        runs.write(tmp_path, [{"run": name, "exit_code": 0}])
    runs.write(tmp_path, [{"run": "resnet", **row}])
    with (tmp_path / "runs.csv").open(encoding="utf-8", newline="") as file:
        written = list(csv.DictReader(file))
    assert [each["run"] for each in written] == ["resnet", "check"]
    assert float(written[0]["speedup"]) > 1


@pytest.mark.parametrize("name", ["resnet", "tiny", "gpt"])
def test_a_small_workload_trains_two_steps_on_a_cpu(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOTUNE_STUDY_SIZE", "small")
    workload = getattr(importlib.reload(importlib.import_module("studies.gpu.workloads")), name)()
    step = TrainingStep(workload, Config(batch_size=2), CpuDevice())
    before = [parameter.detach().clone() for parameter in workload.model.parameters()]
    for _, batch in zip(range(2), DataLoader(workload.dataset, 2), strict=False):
        step(batch, 2)
    after = list(workload.model.parameters())
    assert any(not torch.equal(one, other) for one, other in zip(before, after, strict=True))
    assert all(bool(parameter.isfinite().all()) for parameter in after)


@pytest.mark.machine
def test_the_script_for_a_card_is_found_where_there_is_none() -> None:
    script = studies_script.TRAINING
    with ProcessRunner(describe(Script(path=str(script)))) as runner:
        facts = runner.inspect(Config())
    line = next(n for n, text in enumerate(script.read_text("utf-8").splitlines(), 1) if "DataLoader(Series" in text)
    assert facts.loader_call == f"training.py:{line}: DataLoader"
    assert facts.amp_modes == ("off", "bf16")
