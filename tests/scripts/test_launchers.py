"""Scripts that something else starts, or that start others: each is one process, or is told what to pass."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.config import Config
from autotune.errors import UsageError, UserCodeError
from autotune.workload import Script
from tests.processes import run_python
from tests.scripts.holding import InTurn, in_turn

pytestmark = pytest.mark.machine

HELPER = """
import time, torch
from torch.utils.data import DataLoader, Dataset

class Samples(Dataset):
    def __len__(self):
        return 400
    def __getitem__(self, index):
        return torch.ones(4), torch.ones(1)

def train(loader):
    print("workers", loader.num_workers, flush=True)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    for x, y in loader:
        (model(x) - y).square().mean().backward()
        optimizer.step()
"""
MODULE = """
import os, sys
from . import helper
assert (__name__, __package__, __spec__.name) == ("__main__", "job", "job.train")
assert sys.argv == [__file__, "--lr", "1"], sys.argv
assert sys.path[0] == os.getcwd(), sys.path
helper.train(helper.DataLoader(helper.Samples(), batch_size=4))
"""
CHDIR = """
import os, sys
import helper
settings = dict(each.split("=") for each in sys.argv[1:])
os.makedirs("outputs/now")
os.chdir("outputs/now")
open("train.log", "w").write("begins")
helper.train(helper.DataLoader(helper.Samples(), batch_size=int(settings["batch"])))
"""
LIGHTNING = """
import sys
import lightning
import torch
import helper
class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(4, 1)
    def training_step(self, batch, number):
        return self.inner(batch[0]).square().mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-6)
trainer = lightning.Trainer(accelerator="cpu", devices=2, strategy="ddp", logger=False)
trainer.fit(Model(), helper.DataLoader(helper.Samples()))
"""
SPAWN = """
import torch
import helper
def main(rank):
    helper.train(helper.DataLoader(helper.Samples()))
if __name__ == "__main__":
    torch.multiprocessing.spawn(main, nprocs=2)
"""
LAUNCH = "import subprocess, sys\nsubprocess.run([sys.executable, '-m', 'torch.distributed.run', 'helper.py'])\n"
AGAIN = "import os, subprocess, sys\nos.chdir('/')\nsubprocess.run([sys.executable, '-m', __spec__.name])\n"
FILES = {
    "helper.py": HELPER,
    "chdir.py": CHDIR,
    "ddp.py": LIGHTNING,
    "spawn.py": SPAWN,
    "launch.py": LAUNCH,
    "job/__init__.py": "",
    "job/helper.py": HELPER,
    "job/train.py": MODULE,
    "job/again.py": AGAIN,
    "job/__main__.py": AGAIN,
}
MADE = 1 + next(number for number, line in enumerate(MODULE.splitlines()) if "DataLoader(" in line)
IN_RANKS = "--ranks N measures it in N ranks"
ITSELF = f"run the script that it starts, with the arguments that it passes; {IN_RANKS}"


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InTurn]:
    folder = tmp_path_factory.mktemp("project").resolve()
    for name, text in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    with in_turn(folder) as runner:
        yield runner
    found = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    assert sorted(str(path.relative_to(folder)) for path in found) == sorted(FILES)


@pytest.mark.parametrize(
    ("words", "site"),
    [
        (("-m", "job.train", "--lr", "1"), f"job/train.py:{MADE} Samples[400]"),
        (("chdir.py", "batch=8"), f"chdir.py:{len(CHDIR.splitlines())} Samples[400]"),
    ],
    ids=["module", "chdir"],
)
def test_a_script_is_measured_however_it_is_started(runner: InTurn, words: tuple[str, ...], site: str) -> None:
    runner.turn_to(Script.of(words))
    try:
        assert runner.inspect(Config()).loader_site == site
    finally:
        runner.end_session()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("ddp.py",),
            "trains in child processes, which are not measured: pass --ranks N for the N devices of the Trainer",
        ),
        (("spawn.py",), f"as torchrun does, in place of torch.multiprocessing.spawn; {IN_RANKS}"),
        (("launch.py",), ITSELF),
        (("-m", "job.again"), f"job/again.py:3 trains in child processes, which are not measured: {ITSELF}"),
        (("-m", "job"), f"job/__main__.py:3 trains in child processes, which are not measured: {ITSELF}"),
    ],
)
def test_a_script_that_starts_ranks_is_told_what_to_pass(runner: InTurn, words: tuple[str, ...], said: str) -> None:
    runner.turn_to(Script.of(words))
    with pytest.raises(UserCodeError) as caught:
        runner.inspect(Config())
    runner.end_session()
    assert str(caught.value).endswith(said)


def test_a_module_gets_the_answer(runner: InTurn) -> None:
    answer = Config(batch_size=4, num_workers=2, prefetch_factor=2)
    made_on = {"loader": f"job/train.py:{MADE} Samples[400]"}
    replace(answer, made_on=made_on).save("autotune.yaml")
    command = ("-m", "autotune", "apply", "--strict", "autotune.yaml", "-m", "job.train", "--lr", "1")
    try:
        done = run_python(*command, folder=Path.cwd(), seconds=120)
    finally:
        os.remove("autotune.yaml")
    assert (done.returncode, done.stdout) == (0, "workers 2\n"), done.stderr


@pytest.mark.parametrize("name", ["job.nothing", "nothing.train", "job.train.deeper", "job.helper.train", "."])
def test_a_module_that_is_not_there_is_said_before_anything_starts(runner: InTurn, name: str) -> None:
    with pytest.raises(UsageError, match=f"-m {name}: no such module here"):
        Script.of(("-m", name))
    assert "job" not in sys.modules
