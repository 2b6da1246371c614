"""Traces of real steps: what is in the file, and what becomes of it where it cannot be written."""

from __future__ import annotations

import gzip
import json
import time
from typing import TYPE_CHECKING, Any

import psutil
import pytest
import torch
from torch import nn

from autotune.config import Config
from autotune.errors import UsageError
from autotune.measure.device import CpuDevice
from autotune.measure.profiler_trace import trace_steps
from autotune.measure.step_probe import WarmStep, open_step
from autotune.records import Request
from autotune.workload import Workload
from tests import examples
from tests.datasets import Squares

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.probes import Trace

pytestmark = pytest.mark.machine

CONFIG = Config(batch_size=4)
STEP_SECONDS = 0.01


class Wide(nn.Module):
    """A product that takes longer than all the rest."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(400, 400))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.weight @ self.weight).mean() * x.mean()


def workload(**options: Any) -> Workload:
    return Workload(Wide(), Squares(1000), **options)


def trace(made: Workload, path: Path | None, config: Config = CONFIG, seconds: float = 0.5) -> Trace:
    device = CpuDevice()
    request = Request(seconds=seconds, part="trace", trace_path=None if path is None else str(path))
    return trace_steps(made, config, open_step(made, config, device), device, request)


def never_stepped() -> WarmStep:
    """A step for what must fail before any step."""
    step: Any = None
    return WarmStep(step, examples.compute_probe(), ())


def test_the_file_holds_the_steps_and_the_answer_names_what_took_longest(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    found = trace(workload(), path)
    events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    assert sum(event["name"] == "training step" for event in events if event.get("ph") == "X") == found.steps
    assert found.path == str(path)
    assert 2 <= found.steps <= 8
    assert found.operations[0].name == "aten::mm"
    assert found.operations[0].calls == 3  # one in forward, two in backward
    assert found.operations[0].seconds > 0
    assert len(found.operations) <= 12
    assert "training step" not in [operation.name for operation in found.operations]
    seconds = [operation.seconds for operation in found.operations]
    assert seconds == sorted(seconds, reverse=True)


def test_waiting_for_the_loader_is_in_the_trace(tmp_path: Path) -> None:
    class Slow(Squares):
        def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
            time.sleep(0.01)
            return super().__getitem__(index)

    config = Config(batch_size=4, num_workers=1, intra_op_threads=1)
    before = set(psutil.Process().children(recursive=True))
    found = trace(Workload(nn.Linear(1, 1), Slow(1000)), tmp_path / "trace.json", config)
    assert found.operations[0].name.startswith("enumerate(DataLoader)")
    assert found.operations[0].calls == 1
    assert set(psutil.Process().children(recursive=True)) <= before


def test_a_name_that_ends_in_gz_is_compressed(tmp_path: Path) -> None:
    path = tmp_path / "trace.json.gz"
    trace(workload(), path)
    assert json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_is_there_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text("old", encoding="utf-8")
    trace(workload(), path)
    assert json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    assert list(tmp_path.iterdir()) == [path]


def test_slow_steps_make_a_short_trace(tmp_path: Path) -> None:
    def step(model: nn.Module, batch: Any) -> torch.Tensor:
        time.sleep(0.1)
        loss: torch.Tensor = model(batch[0])
        return loss

    assert trace(workload(training_step=step), tmp_path / "trace.json", seconds=0.2).steps == 2


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("missing/trace.json", "No such file or directory"),
        ("file/trace.json", "Not a directory"),
        (".", "Is a directory"),
    ],
    ids=["no folder", "a file as folder", "a folder"],
)
def test_a_path_that_cannot_be_written_is_an_error_before_any_step(tmp_path: Path, name: str, reason: str) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    request = Request(seconds=0.5, part="trace", trace_path=str(tmp_path / name))
    with pytest.raises(UsageError, match=f"the trace cannot be written: {reason}; name a file in a folder"):
        trace_steps(workload(), CONFIG, never_stepped(), CpuDevice(), request)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_trace_without_a_path_is_an_error() -> None:
    with pytest.raises(UsageError, match="pass trace_path"):
        trace_steps(workload(), CONFIG, never_stepped(), CpuDevice(), Request(seconds=0.5, part="trace"))


def test_what_goes_wrong_in_a_step_leaves_no_file_and_no_profiler(tmp_path: Path) -> None:
    def step(model: nn.Module, batch: Any) -> torch.Tensor:
        if torch.autograd._profiler_enabled():
            raise FileNotFoundError("their step is broken")
        loss: torch.Tensor = model(batch[0])
        return loss

    with pytest.raises(FileNotFoundError, match="their step is broken"):
        trace(workload(training_step=step), tmp_path / "trace.json")
    assert not torch.autograd._profiler_enabled()
    assert list(tmp_path.iterdir()) == []
