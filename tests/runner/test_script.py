"""Scripts as they are: the loader that trains, its step, and every way in which a script ends."""

from __future__ import annotations

import os
import statistics
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from autotune.config import Config
from autotune.errors import UsageError, UserCodeError
from autotune.measure.script import ScriptLoop, _Watched, shallow
from autotune.records import Attempt, Outcome, Request
from autotune.runner.local import ProcessRunner
from autotune.workload import Script, describe

SCRIPT = """
import os, sys, threading, time
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Data(Dataset):
    def __init__(self, length=4000, wait=0.002):
        self.length, self.wait = length, wait
    def __len__(self):
        return self.length
    def __getitem__(self, index):
        time.sleep(self.wait)
        return torch.ones(4) * index, {"label": torch.tensor(float(index % 2))}

model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)

def train(batch):
    x, y = batch
    loss = (model(x).squeeze(1) - y.pop("label")).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
LOOP = """
for batch in DataLoader(Data(10), batch_size=5):
    pass
for epoch in range(3):
    for batch in DataLoader(Data(), batch_size=8, shuffle=True):
        train(batch)
    torch.save(model.state_dict(), "model.pt")
"""
JOBS = Path(__file__).resolve().parents[2] / "studies" / "scripts" / "jobs"
STEP_SECONDS = 0.02
SLOW_LOOP = LOOP.replace("train(batch)", f"train(batch); time.sleep({STEP_SECONDS})")
IN_A_THREAD = """
def go():
    for batch in DataLoader(Data(), batch_size=4):
        train(batch)
thread = threading.Thread(target=go)
thread.start()
thread.join()
"""


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return a function that writes a script and returns a runner for it."""
    monkeypatch.chdir(tmp_path)
    runners: list[ProcessRunner] = []

    def write(body: str, *arguments: str, **options: Any) -> ProcessRunner:
        (tmp_path / "train.py").write_text(SCRIPT + textwrap.dedent(body))
        runners.append(ProcessRunner(describe(Script(path="train.py", arguments=arguments, **options))))
        return runners[-1]

    yield write
    for runner in runners:
        runner.close()
    assert sorted(path.name for path in tmp_path.iterdir()) in (["train.py"], ["kept", "train.py"])


def line_of(text: str, body: str) -> int:
    return 1 + next(number for number, line in enumerate((SCRIPT + body).splitlines()) if text in line)


@pytest.mark.machine
def test_the_loader_that_trains_is_found_and_its_step_and_its_waiting_are_told_apart(written: Any) -> None:
    runner = written(SLOW_LOOP)
    facts = runner.inspect(Config())
    assert facts.loader_call == f"train.py:{line_of('shuffle=True', SLOW_LOOP)}: DataLoader"
    assert (facts.dataset_length, facts.model_name, facts.parameters) == (4000, "Linear", 5)
    assert runner.script["present"] | {"batch_size": 8, "num_workers": 0, "amp": "off"} == runner.script["present"]
    present = Config(**runner.script["present"])
    found = runner.measure(present, Request(seconds=0.5, time_limit=60)).measurement
    assert found.step_time.data_wait >= 8 * 0.002
    assert found.step_time.total >= 8 * 0.002 + STEP_SECONDS
    assert found.ceiling_samples_per_second <= 8 / STEP_SECONDS
    several = Config(batch_size=8, num_workers=3)
    fed = runner.measure(several, Request(seconds=0.5, time_limit=60)).measurement
    assert fed.samples_per_second > found.samples_per_second
    assert fed.samples_per_second <= 8 / STEP_SECONDS


@pytest.mark.machine
@pytest.mark.parametrize(
    ("job", "call"),
    [
        ("classifier", "training = DataLoader("),
        ("lightning_job", "return DataLoader(Signals(1920)"),
        ("transformers_job", "TrainingArguments("),
        ("accelerate_job", "loader = DataLoader("),
    ],
)
def test_the_line_to_change_is_the_users(job: str, call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = JOBS / f"{job}.py"
    line = next(number for number, text in enumerate(path.read_text("utf-8").splitlines(), 1) if call in text)
    with ProcessRunner(describe(Script(path=str(path)))) as runner:
        facts = runner.inspect(Config())
    name = "TrainingArguments" if call.startswith("Train") else "DataLoader"
    assert facts.loader_call == f"{job}.py:{line}: {name}"


@pytest.mark.machine
def test_autocast_is_left_out_where_a_configuration_has_fp32(written: Any) -> None:
    casting = (
        "with torch.autocast('cpu', dtype=torch.bfloat16):\n            is_half = model(batch[0]).element_size() == 2"
    )
    body = LOOP.replace(
        "train(batch)", f"{casting}\n        train(batch)\n        time.sleep(0.02 if is_half else 0.3)"
    )
    runner = written(body)
    facts = runner.inspect(Config())
    assert (facts.amp_modes, runner.script["present"]["amp"]) == (("off", "bf16"), "bf16")
    assert facts.autocast_call == f"train.py:{line_of('torch.autocast', body)}"
    for amp in ("bf16", "off", "bf16"):
        found = runner.measure(Config(batch_size=8, amp=amp), Request(seconds=0.2, time_limit=60)).measurement
        assert (found.step_time.total > 0.3) == (amp == "off")


@pytest.mark.machine
@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("sys.exit(3)", r"train.py called sys.exit\(3\) after 0 steps"),
        ("input()", "train.py asks for input"),
        ("for batch in DataLoader(Data(20), batch_size=5): pass", "none of them came between two batches of one"),
        ("raise ValueError('no such flag')", "ValueError: no such flag"),
        (
            "for one, two in zip(DataLoader(Data(), batch_size=4), DataLoader(Data(), batch_size=4)): train(one)",
            "trains on batches of two loaders",
        ),
        (
            IN_A_THREAD,
            "another thread",
        ),
    ],
    ids=["exit", "input", "no training", "error", "two loaders", "thread"],
)
def test_a_script_that_cannot_be_measured_says_why(written: Any, body: str, said: str) -> None:
    with pytest.raises(UserCodeError, match=said):
        written(body).inspect(Config())


def measured_after(written: Any, body: str, **request: Any) -> Attempt:
    """Measure a script that trains for three steps and then does something."""
    loop = LOOP.replace(
        "train(batch)", f"train(batch)\n        if len(steps) == 3:\n            {body}\n        steps.append(0)"
    )
    runner = written("steps = []\n" + loop)
    runner.inspect(Config())
    found: Attempt = runner.measure(Config(batch_size=8), Request(seconds=0.2, **{"time_limit": 60, **request}))
    return found


@pytest.mark.machine
@pytest.mark.parametrize(
    ("body", "outcome", "said"),
    [
        ("raise RuntimeError('broken')", Outcome.USER_ERROR, "RuntimeError: broken"),
        ("raise MemoryError", Outcome.HOST_OOM, "MemoryError"),
        ("sys.exit()", Outcome.USER_ERROR, "called sys.exit"),
        ("list(DataLoader(Data(8), batch_size=4))", Outcome.USER_ERROR, "goes over the DataLoader of train.py"),
        ("os._exit(5)", Outcome.CRASHED, "5"),
    ],
    ids=["error", "memory", "exit", "validation", "gone"],
)
def test_the_end_of_a_script_is_an_outcome(written: Any, body: str, outcome: Outcome, said: str) -> None:
    found = measured_after(written, body)
    assert (found.outcome, said in found.message) == (outcome, True), found.message


@pytest.mark.machine
def test_a_script_that_hangs_is_ended(written: Any) -> None:
    assert measured_after(written, "time.sleep(600)", time_limit=4.0).outcome is Outcome.TIMEOUT


@pytest.mark.machine
def test_a_script_that_ignores_signals_leaves_nothing(written: Any) -> None:
    ignoring = "[signal.signal(each, signal.SIG_IGN) for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)]"
    before = psutil.Process().children(recursive=True)
    runner = written(f"import signal\n{ignoring}\n" + LOOP)
    runner.inspect(Config())
    assert runner.measure(Config(batch_size=8, num_workers=2), Request(seconds=0.2, time_limit=60)).measurement
    runner.close()
    assert [each for each in psutil.Process().children(recursive=True) if each not in before] == []


@pytest.mark.machine
def test_a_script_that_forks_goes_on_alone(written: Any) -> None:
    found = measured_after(written, "print(os.fork())")
    assert found.outcome in (Outcome.OK, Outcome.SUSPECT), found.message


@pytest.mark.machine
def test_no_file_is_replaced_and_none_is_written_once_training_has_begun(written: Any, tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("the log of another run")
    runner = written(
        "log = open('kept', 'w')\n" + LOOP.replace("train(batch)", "train(batch); open('new', 'w').write('1')")
    )
    runner.inspect(Config())
    found = runner.measure(Config(batch_size=8), Request(seconds=0.2, time_limit=60))
    assert found.measurement
    assert (tmp_path / "kept").read_text() == "the log of another run"
    assert not (tmp_path / "new").exists()


def test_a_script_that_is_not_there_is_said_before_anything_starts() -> None:
    with pytest.raises(UsageError, match="no such file"):
        describe(Script(path="nothing.py"))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="scripts run in forks")
def test_the_door_costs_less_than_ten_microseconds_a_batch() -> None:
    loader: Any = object()
    watched = _Watched(ScriptLoop("train.py", ()), loader, iter(range(5000)))
    plain, times = iter(range(5000)), []
    for _ in range(5000):
        begin = time.perf_counter()
        next(plain)
        middle = time.perf_counter()
        next(watched)
        times.append((time.perf_counter() - middle) - (middle - begin))
    assert statistics.median(times) < 10e-6


def test_the_script_may_change_the_containers_of_a_batch() -> None:
    batch = {"x": [1, {"y": 2}], "z": (3, [4])}
    handed = shallow(batch)
    handed["x"][1].pop("y")
    handed["z"][1].clear()
    assert batch == {"x": [1, {"y": 2}], "z": (3, [4])}
