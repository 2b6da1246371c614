"""Traces of real steps: what is in the file, and what becomes of it where it cannot be written."""

from __future__ import annotations

import gzip
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from torch import nn

from autotune.config import Config
from autotune.errors import UsageError
from autotune.measure.device import CpuDevice
from autotune.measure.profiler_trace import trace_steps
from autotune.measure.step_probe import open_step
from autotune.output import TRACE, Output
from autotune.probes import Trace
from autotune.records import Request
from autotune.workload import Workload
from tests.datasets import Squares
from tests.measure.doing import Doing

pytestmark = pytest.mark.machine

CONFIG = Config(batch_size=4)


class Wide(nn.Module):
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


def test_the_file_holds_the_steps_and_the_answer_names_what_took_longest(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    found = trace(workload(), path)
    events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    assert sum(event["name"] == "training step" for event in events if event.get("ph") == "X") == found.steps
    assert found.path == str(path)
    assert 2 <= found.steps <= 8
    longest, seconds = found.operations[0], [operation.seconds for operation in found.operations]
    assert (longest.name, longest.calls) == ("aten::mm", 3)  # one in forward, two in backward
    assert longest.seconds > 0
    assert len(seconds) <= 12
    assert seconds == sorted(seconds, reverse=True)
    assert "training step" not in [operation.name for operation in found.operations]


def test_waiting_for_the_loader_is_in_the_trace(tmp_path: Path) -> None:
    config = Config(batch_size=4, num_workers=1, intra_op_threads=1)
    before = set(psutil.Process().children(recursive=True))
    slow = Workload(nn.Linear(1, 1), Doing(lambda index: time.sleep(0.01), 1000))
    waited = trace(slow, tmp_path / "trace.json", config).operations[0]
    assert waited.name.startswith("enumerate(DataLoader)")
    assert waited.calls == 1
    assert set(psutil.Process().children(recursive=True)) <= before


@pytest.mark.parametrize(("name", "read"), [("trace.json.gz", gzip.decompress), ("trace.json", bytes)])
def test_a_file_that_is_there_is_replaced_and_compressed_where_its_name_ends_in_gz(
    tmp_path: Path, name: str, read: Callable[[bytes], bytes]
) -> None:
    path = tmp_path / name
    path.write_text("old", encoding="utf-8")
    trace(workload(), path)
    assert json.loads(read(path.read_bytes()))["traceEvents"]
    assert list(tmp_path.iterdir()) == [path]
    Output(flag="--trace", path=path, kind=TRACE).require()  # known as autotune's own


def test_what_is_no_regular_file_is_not_replaced_nor_is_a_folder_made(tmp_path: Path) -> None:
    pipe = tmp_path / "trace.json"
    os.mkfifo(pipe)
    with pytest.raises(UsageError, match="it is no regular file"):
        trace(workload(), pipe)
    assert pipe.is_fifo()
    with pytest.raises(UsageError, match=r"gone/a\.json: the trace cannot be written: No such file .*; name a file in"):
        trace(workload(), tmp_path / "gone" / "a.json")
    assert list(tmp_path.iterdir()) == [pipe]


def test_what_goes_wrong_in_a_step_leaves_no_file_and_no_profiler(tmp_path: Path) -> None:
    def step(model: nn.Module, batch: Any) -> Any:
        if torch.autograd._profiler_enabled():
            raise FileNotFoundError("their step is broken")
        return model(batch[0])

    with pytest.raises(FileNotFoundError, match="their step is broken"):
        trace(workload(training_step=step), tmp_path / "trace.json")
    assert not torch.autograd._profiler_enabled()
    assert list(tmp_path.iterdir()) == []
