"""Scripts as they are: the loader that trains, its step, and every way in which a script ends."""

from __future__ import annotations

import os
import statistics
import textwrap
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from greenlet import getcurrent, greenlet
from torch.utils.data import DataLoader

from autotune.config import Config
from autotune.errors import UsageError, UserCodeError
from autotune.measure.batch import shallow
from autotune.measure.script import ScriptLoop, Watched
from autotune.measure.script_loaders import in_words
from autotune.measure.script_run import ScriptRun
from autotune.outcome import Outcome
from autotune.records import Attempt, Request
from autotune.runner import local
from autotune.runner.local import ProcessRunner
from autotune.sites import Site
from autotune.workload import Script, describe
from tests.scripts.holding import InTurn, in_turn

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
STEP_SECONDS = 0.02
SLOW_LOOP = LOOP.replace("train(batch)", f"train(batch); time.sleep({STEP_SECONDS})")
IN_CHILDREN = """
import multiprocessing
def go():
    for batch in DataLoader(Data(), batch_size=4):
        train(batch)
if __name__ == "__main__":
    child = {}(target=go)
    child.start()
    child.join()
"""
PREPARED = """
import multiprocessing
def prepare(name):
    with open(name, "w") as file:
        file.write("done")
if __name__ == "__main__":
    if is_prepared := os.path.exists("spawn") and os.path.exists("fork"):
        {}
    for way in ("spawn", "fork"):
        with multiprocessing.get_context(way).Pool(1) as pool:
            pool.map(prepare, [way])
"""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InTurn]:
    """The runner of one process that every script of this module is a fork of."""
    with in_turn(tmp_path_factory.mktemp("scripts")) as runner:
        yield runner


@pytest.fixture
def written(shared: InTurn) -> Iterator[Any]:
    """Return a function that writes a script and returns a runner for it; ``is_alone`` has processes of its own."""
    alone: list[ProcessRunner] = []

    def write(body: str, *, is_alone: bool = False) -> ProcessRunner:
        Path("train.py").write_text(SCRIPT + textwrap.dedent(body))
        script = Script(path="train.py")
        if is_alone:
            alone.append(ProcessRunner(describe(script)))
        else:
            shared.turn_to(script)
        return alone[0] if alone else shared

    yield write
    shared.end_session()
    for runner in alone:
        runner.close()
    assert [path.name for path in Path().iterdir()] == ["train.py"]


def line_of(text: str, body: str) -> int:
    return 1 + next(number for number, line in enumerate((SCRIPT + body).splitlines()) if text in line)


@pytest.mark.machine
def test_the_loader_that_trains_is_found_and_its_step_and_its_waiting_are_told_apart(written: Any) -> None:
    runner = written(SLOW_LOOP)
    facts = runner.inspect(Config())
    assert facts.loader_call == f"train.py:{line_of('shuffle=True', SLOW_LOOP)}: DataLoader"
    assert (facts.dataset_length, facts.model_name, facts.parameters) == (4000, "Linear", 5)
    present = runner.script.present
    assert present == replace(present, batch_size=8, num_workers=0, amp="off")
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
        ("transformers_job", "trainer.train("),
        ("accelerate_job", "loader = DataLoader("),
    ],
)
def test_the_line_that_makes_the_loader_is_the_users(job: str, call: str, shared: InTurn) -> None:
    path = Path(__file__).resolve().parents[2] / "studies" / "scripts" / "jobs" / f"{job}.py"
    line = next(number for number, text in enumerate(path.read_text("utf-8").splitlines(), 1) if call in text)
    shared.turn_to(path)
    facts = shared.inspect(Config())
    shared.end_session()
    name = "train" if call.startswith("trainer") else "DataLoader"
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
    assert (facts.amp_modes, runner.script.present.amp) == (("off", "bf16"), "bf16")
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
        ("sys.stdin.read(), sys.stdin.readline(), sys.stdin.isatty() and input()", "train.py asks for input"),
        ("raise ValueError(os.popen('stty size').read().split(), *os.get_terminal_size())", r"\['24', '80'\], 80, 24"),
        (
            "for batch in DataLoader(Data(20), batch_size=5): pass",
            "none of them came .* python -m autotune compare 'train.py'",
        ),
        ("raise ValueError('no such flag')", "ValueError: no such flag"),
        ("import pickle; pickle.loads(b'')", "EOFError: Ran out of input"),
        (
            "open('/etc/autotune-test', 'w')",
            "(Permission denied|Read-only file system): '/etc/autotune-test'.*pass --allow-writes",
        ),
        (IN_CHILDREN.format("multiprocessing.get_context('fork').Process"), "train.py:.* trains in child processes"),
        (IN_CHILDREN.format("multiprocessing.get_context('spawn').Process"), "train.py:.* trains in child processes"),
        ("import subprocess; subprocess.run(['torchrun', 'other.py'])", "train.py:.* trains in child processes"),
        ("os.system('RANK=1 python train.py')", "train.py:.* trains in child processes"),
    ],
)
def test_a_script_that_cannot_be_measured_says_why(written: Any, body: str, said: str) -> None:
    with pytest.raises(UserCodeError, match=said):
        written(body).inspect(Config())


def test_a_line_that_makes_several_loaders_is_named_once() -> None:
    site = Site(file="train.py", line=25, inside=(), dataset="Data", length=60)
    assert in_words([site, replace(site, length=80)], site.text) == "train.py:25"
    assert in_words([site], "train.py:31") == "train.py:25 and train.py:31"


def measured_after(written: Any, body: str, before: str = "", is_alone: bool = False, **request: Any) -> Attempt:
    """Measure a script that does something before it trains, and something after ten steps."""
    loop = LOOP.replace(
        "train(batch)", f"train(batch)\n        if len(steps) == 10:\n            {body}\n        steps.append(0)"
    )
    main = textwrap.indent("steps = []\n" + loop, "    ")
    runner = written(f"{before}\nif __name__ == '__main__':\n{main}", is_alone=is_alone)
    runner.inspect(Config())
    found: Attempt = runner.measure(Config(batch_size=8), Request(seconds=0.2, **{"time_limit": 60, **request}))
    return found


@pytest.mark.machine
@pytest.mark.parametrize(
    ("body", "outcome", "said"),
    [
        ("raise RuntimeError('broken')", Outcome.USER_ERROR, "RuntimeError: broken"),
        ("raise MemoryError", Outcome.HOST_OOM, "MemoryError"),
        ("sys.exit(3)", Outcome.USER_ERROR, "called sys.exit(3) after 11 steps"),
        ("os._exit(5)", Outcome.CRASHED, "5"),
    ],
    ids=["error", "memory", "exit", "gone"],
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
    runner = written(f"import signal\n{ignoring}\n" + LOOP, is_alone=True)
    runner.inspect(Config())
    assert runner.measure(Config(batch_size=8, num_workers=2), Request(seconds=0.2, time_limit=60)).measurement
    runner.close()
    assert [each for each in psutil.Process().children(recursive=True) if each not in before] == []


@pytest.mark.machine
def test_a_script_that_forks_goes_on_alone(written: Any) -> None:
    found = measured_after(written, "os.fork() or os._exit(0)")
    assert found.outcome in (Outcome.OK, Outcome.SUSPECT), found.message


@pytest.mark.machine
@pytest.mark.timed  # where CPUs are scarce the window may end before the child trains
def test_a_fork_that_goes_on_training_is_refused(written: Any) -> None:
    assert "trains in child processes" in measured_after(written, "os.fork()", is_alone=True).message


@pytest.mark.machine
@pytest.mark.parametrize(
    ("seconds", "where_prepared", "said"),
    [(0.0, "pass", ""), (600.0, "pass", "prepared anew"), (0.0, "sys.exit(1)", "prepared anew")],
    ids=["long", "short", "in the way"],
)
def test_what_took_long_to_prepare_is_kept_for_the_run(
    written: Any, monkeypatch: pytest.MonkeyPatch, seconds: float, where_prepared: str, said: str
) -> None:
    monkeypatch.setattr(local, "KEPT_SECONDS", seconds)
    unless_kept = "if not is_prepared: raise RuntimeError('prepared anew')"
    found = measured_after(written, unless_kept, PREPARED.format(where_prepared), is_alone=True)
    assert (found.outcome is Outcome.USER_ERROR, said in found.message) == (bool(said), True), found.message


def test_no_card_is_asked_for_before_a_script_has_chosen_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: pytest.fail("CUDA_VISIBLE_DEVICES was read"))
    ScriptLoop(ScriptRun(Script(path="train.py")))


def test_a_script_that_is_not_there_is_said_before_anything_starts() -> None:
    with pytest.raises(UsageError, match="no such file"):
        describe(Script(path="nothing.py"))


def test_a_script_that_asks_on_another_stream_than_it_trains_on_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    loop: Any = ScriptLoop(ScriptRun(Script(path="train.py")))
    loop.run._measuring, loop.run._script = getcurrent(), greenlet(lambda _: loop.next_batch())
    loop.optimizers._stream = "the default one"
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: "a side stream")
    with pytest.raises(UserCodeError) as refused:
        loop.run.resume(None)
    assert str(refused.value).startswith("train.py asks for batches within torch.cuda.stream(...)")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="scripts run in forks")
def test_the_door_costs_less_than_ten_microseconds_a_batch() -> None:
    loader: Any = DataLoader([0])
    watched = Watched(ScriptLoop(ScriptRun(Script(path="train.py"))), loader, iter(range(5000)), 0, "")
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


REFUSED = {
    "keeps": (
        "batches = list(DataLoader(Data(80), batch_size=8))",
        "x, y = batches[step % 10]; train((x, dict(y)))",
        "batches that it keeps",
    ),
    "no loader": ("", "train((torch.ones(8, 4), {'label': torch.ones(8)}))", "has no DataLoader"),
    "iterators": (
        "loader = DataLoader(Data(), batch_size=8)",
        "train(next(iter(loader)))",
        "makes a new iterator each",
    ),
    "by chance": (
        "one, other = (iter(DataLoader(Data(), batch_size=size)) for size in (8, 4))",
        "train(next(one if step % 8 in (0, 2, 3, 5) else other))",
        "take turns irregularly",
    ),
    "program": ("import subprocess", "subprocess.run([sys.executable, 'train.py'])", "trains in child processes"),
    "large": ("", "open('large', 'r+')", "large is opened for writing, and has 2.0 GiB"),
    "thread": (
        "batches = iter(DataLoader(Data(), batch_size=8))",
        "go = threading.Thread(target=lambda: train(next(batches))); go.start(); go.join()",
        "in another thread",
    ),
}
"""Scripts that are refused: what comes before the loop, its step, and the words."""


@pytest.mark.machine
@pytest.mark.parametrize("name", REFUSED)
def test_a_script_that_catches_everything_is_refused_with_the_reason(
    name: str, written: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "MOST_PATIENCE", 0.0)
    Path("large").touch()
    os.truncate("large", 2**31)  # it takes no room
    before, step, said = REFUSED[name]
    loop = f"""
{before}
for step in range(600):
    try:
        {step}
    except BaseException:
        pass
for batch in DataLoader(Data(), batch_size=8):
    train(batch)
"""
    with pytest.raises(UserCodeError, match=said):
        written(loop).inspect(Config())
    os.remove("large")


SHORT = """
{}
for batch in DataLoader(Data(wait=0.0001), batch_size=8, shuffle=True):
    if step == 150:
        sys.exit()
    train(batch)
    step += 1
    {}
"""
REFUSES_ITS_FOLDER = "step = 0\nif os.path.exists('runs/x'): sys.exit('exists')\nos.makedirs('runs/x')"
RESUMES = "step = int(open('step.txt').read()) if os.path.exists('step.txt') else 0"
NOTES_STEPS = "with open('step.txt', 'w') as file: file.write(str(step))"


@pytest.mark.machine
@pytest.mark.parametrize("seconds", [0.0, 600.0], ids=["long start", "short start"])
@pytest.mark.parametrize(
    ("before", "after"), [(REFUSES_ITS_FOLDER, "pass"), (RESUMES, NOTES_STEPS)], ids=["folder", "resume"]
)
def test_a_script_that_finds_what_it_wrote_is_measured_beyond_its_end(
    before: str, after: str, seconds: float, written: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "KEPT_SECONDS", seconds)
    runner = written(SHORT.format(before, after), is_alone=True)
    runner.inspect(Config())
    for workers in (0, 1, 0):
        config = Config(batch_size=8, num_workers=workers)
        found = runner.measure(config, Request(seconds=2.0, time_limit=60, target=0.0))
        assert found.measurement is not None, found.message
        assert found.measurement.samples_per_second * 2.0 > 150 * 8, "the script does not reach its end"


DRAWS_FROM_AN_ARRAY = """
inputs = torch.randn(400, 4)
held_out = DataLoader(Data(64, 0), batch_size={size})
def endless():
    while True:
        yield from held_out
kept = endless()
for step in range(600):
    x = inputs[torch.randint(400, (8,))]
    train((x, {{"label": x.sum(1)}}))
    if step % 20 == 0:
        {evaluate}
"""
SEVERAL_STEPS = """
from torch.utils.flop_counter import FlopCounterMode
waiting = []
for batch in DataLoader(Data(), batch_size=8):
    {}
"""


@pytest.mark.machine
@pytest.mark.parametrize(
    ("size", "evaluate"),
    [
        (8, "total = sum(model(x).mean().item() for x, y in held_out)"),
        (64, "total = sum(model(x).mean().item() for x, y in held_out)"),
        (8, "total = model(next(iter(held_out))[0]).mean().item()"),
        (8, "total = model(next(kept)[0]).mean().item()"),
    ],
    ids=["several batches", "one batch", "first batch", "next batch"],
)
def test_a_loader_that_only_an_evaluation_draws_from_is_refused(written: Any, size: int, evaluate: str) -> None:
    body = DRAWS_FROM_AN_ARRAY.format(size=size, evaluate=evaluate)
    place = f"train.py:{line_of('held_out = DataLoader', body)}"
    said = f"makes no step with the batches of the DataLoader of {place}: training does not draw from it"
    with pytest.raises(UserCodeError, match=said):
        written(body).inspect(Config())


@pytest.mark.machine
@pytest.mark.parametrize(
    "steps",
    [
        "for _ in range(3): train((batch[0].clone() / 2, dict(batch[1])))",
        "waiting.append(batch); x, y = waiting[-3:][0]\n    for _ in range(3): train((x, dict(y)))",
        "for _ in range(3):\n        with FlopCounterMode(display=False): train((batch[0], dict(batch[1])))",
        "x = batch[0].tolist()\n    for _ in range(3): train((torch.tensor(x), dict(batch[1])))",
    ],
    ids=["replays", "the batch before", "a mode of its own", "labels only"],
)
def test_a_loader_whose_batches_make_several_steps_is_the_one_that_trains(written: Any, steps: str) -> None:
    body = SEVERAL_STEPS.format(steps)
    assert written(body).inspect(Config()).loader_call == f"train.py:{line_of('for batch in', body)}: DataLoader"
